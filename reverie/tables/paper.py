"""The paper's own figures (paper.yaml), and whether ours agree with them; a comparison of our own. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import mean, stdev
from typing import Any, Literal

import yaml

from reverie.errors import UserError
from reverie.text import did_you_mean

TOLERANCE = 1.5  # percent points that are never a disagreement
RULE = f"agrees: |ours - paper| <= max({TOLERANCE}, 2 sqrt(s_ours^2 / n_ours + s_paper^2 / n_paper)) percent points"
RULE += "; a spread that is not known, of a single run, is taken to be the other's"
Verdict = Literal["agrees", "above", "below"]


@dataclass(frozen=True)
class Figure:
    """Percent, as printed: a mean over `runs` with its spread; no spread for a single run."""

    mean: float
    spread: float | None
    runs: int

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + (f" ± {self.spread:.1f}" if self.spread is not None else "")

    def tolerance(self, ours: Sequence[float]) -> float:
        """Two standard errors of the difference of two means, and `TOLERANCE` at least.

        A spread that is not known, ours of one run or the paper's, is taken to be the other's.
        """
        own = stdev(ours) if len(ours) > 1 else self.spread
        theirs = self.spread if self.spread is not None else own
        if own is None or theirs is None:
            return TOLERANCE
        return max(TOLERANCE, 2 * math.sqrt(own**2 / len(ours) + theirs**2 / self.runs))

    def verdict(self, ours: Sequence[float]) -> Verdict:
        """`ours` in percent."""
        difference = mean(ours) - self.mean
        if abs(difference) <= self.tolerance(ours) + 1e-9:
            return "agrees"
        return "above" if difference > 0 else "below"


@dataclass(frozen=True)
class PaperRow:
    """One row of one column: a method of ours with settings, and what the paper has for it on a preset, if anything."""

    table: str
    preset: str
    method: str
    settings: tuple[str, ...]
    title: str  # where the method's own does not say it
    final_accuracy: Figure | None
    omega: Figure | None


@dataclass(frozen=True)
class PaperTable:
    name: str
    about: str
    source: str  # empty where it is no table of the paper
    runs: int
    presets: tuple[str, ...]
    rows: tuple[PaperRow, ...]  # in the printed order, one preset after the other


@cache
def tables() -> dict[str, PaperTable]:
    content = yaml.safe_load(resources.files("reverie.tables").joinpath("paper.yaml").read_text("utf-8"))
    return {name: _table(name, values, content["venue"]) for name, values in content["tables"].items()}


def find_table(name: str) -> PaperTable:
    if name not in tables():
        known = ", ".join(tables())
        raise UserError(f"There is no table {name!r} here; there are {known}.{did_you_mean(name, tables())}")
    return tables()[name]


def order() -> list[str]:
    """All methods of the paper, in the order in which its tables bring them."""
    return list(dict.fromkeys(row.method for table in tables().values() for row in table.rows))


def _table(name: str, values: dict[str, Any], venue: str) -> PaperTable:
    rows = tuple(
        PaperRow(
            table=name,
            preset=preset,
            method=row["method"],
            settings=tuple(row.get("settings", ())),
            title=row.get("title", ""),
            final_accuracy=_figure(row["A_N"][column], values["runs"]) if "A_N" in row else None,
            omega=_figure(row["Omega"][column], values["runs"]) if "Omega" in row else None,
        )
        for column, preset in enumerate(values["presets"])
        for row in values["rows"]
    )
    source = f"{venue}, {values['source']} ({values['label']})" if "label" in values else ""
    return PaperTable(name, values["about"], source, values["runs"], tuple(values["presets"]), rows)


def _figure(printed: str | float, runs: int) -> Figure:
    value, _, spread = str(printed).partition("±")
    return Figure(float(value), float(spread) if spread else None, runs)
