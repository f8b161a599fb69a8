"""Runs side by side: what each row of a table says, and the demo's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from reverie.methods import find_method

Result = Mapping[str, Any]
DASH = "–"
COLUMNS = ("Method", "A_N", "average A", "Omega", "forgetting", "seconds")


@dataclass(frozen=True)
class Row:
    """One method over its seeds. Shares between 0 and 1, as in the results."""

    title: str
    results: Sequence[Result]

    def values(self, metric: str) -> list[float]:
        return [r["metrics"][metric] for r in self.results if r["metrics"][metric] is not None]

    def cells(self) -> list[str]:
        """What stands in the table, for `COLUMNS`."""
        seconds = [r["seconds"]["total"] for r in self.results]
        names = ("final_accuracy", "average_incremental_accuracy", "omega", "forgetting")
        return [self.title, *(percent(self.values(name)) for name in names), f"{mean(seconds):.0f}"]


def rows_of(results: Sequence[Result]) -> list[Row]:
    """A row a method, in the order in which methods first appear."""
    names = list(dict.fromkeys(result["method"] for result in results))
    return [Row(find_method(name).title or name, [r for r in results if r["method"] == name]) for name in names]


def percent(values: Sequence[float]) -> str:
    """Mean, with the sample standard deviation where there are several."""
    if not values:
        return DASH
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}"


def markdown(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"
