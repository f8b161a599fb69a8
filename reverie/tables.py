"""Runs side by side: what each row of a table says, and tables made of result files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from reverie import disk, runs
from reverie.config import Config, preset_names
from reverie.errors import UserError
from reverie.methods import find_method, method_names

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
    """A row for each method and what was changed for it, in the order in which they first appear."""
    titles = [_title(result) for result in results]
    return [
        Row(title, [result for result, its in zip(results, titles, strict=True) if its == title])
        for title in dict.fromkeys(titles)
    ]


def _title(result: Result) -> str:
    """The method, its recipe if it is not the paper's, and what differs from the preset that comes with reverie."""
    words = [method_title(result["method"])]
    if result["recipe"] != "paper":
        words.append(f"{result['recipe']} recipe")
    if result["preset"] in preset_names():
        usual = runs.configure(result["preset"], result["method"], seed=result["seed"], recipe=result["recipe"])
        made = Config.from_dict(result["config"]).completed(find_method(result["method"]).Options)
        changed = usual.differences(made)
        words += [f"{key}={value}" for key, (_, value) in changed.items() if not key.startswith("engine.")]
    return ", ".join(words)


def method_title(name: str) -> str:
    """As in the paper's tables."""
    return find_method(name).title or name


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


# --- tables made of result files

_BLOCK = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- /results -->)", re.DOTALL)


def read_results(folder: Path) -> list[Result]:
    """The result files in a folder, by method and seed."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(f"There are no result files (*.json) in {folder}.")
    order = method_names()
    found = [disk.read_json(file) for file in files]
    for file, result in zip(files, found, strict=True):
        if not isinstance(result, dict) or result.get("method") not in order:
            raise UserError(f"{file} is not the result of a run by a method that is known here.")
    return sorted(found, key=lambda result: (order.index(result["method"]), result["seed"]))


def results_table(folder: Path) -> str:
    """One folder of result files as a table in Markdown: only what is there."""
    rows = rows_of(read_results(folder))
    lines = ["| " + " | ".join((*COLUMNS, "seeds")) + " |", "|---|" + "---:|" * len(COLUMNS)]
    for row in rows:
        seeds = ", ".join(str(result["seed"]) for result in row.results)
        lines.append("| " + " | ".join((*row.cells(), seeds)) + " |")
    return "\n".join(lines) + "\n"


def rewritten(text: str, results: Path) -> str:
    """`text` with every block `<!-- results: NAME -->` … `<!-- /results -->` made anew from the folder NAME."""
    return _BLOCK.sub(lambda found: found[1] + results_table(results / found[2]) + found[3], text)
