"""What a page is made of: its chapters, and the charts in them, as plain data. html.py makes it HTML.

Charts are described here and drawn by a script inside the page. Everything that a chart shows stands in a table, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from reverie.tables.rows import mean_percent
from reverie.text import DASH

LOG_FROM = 30  # a scale that spans more than this factor is logarithmic
TASKS = "tasks learned"
WORDS = (
    "A_N is the accuracy over all classes after the last task, average A its mean over the way there, Omega the mean "
    "share of the upper bound's accuracy, forgetting what old tasks have lost since they were known best."
)


@dataclass(frozen=True)
class TableBlock:
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Chart:
    """`drawing` is what the script in the page draws: its kind, its axes, its marks."""

    title: str
    about: str
    drawing: Mapping[str, Any]
    table: TableBlock


@dataclass(frozen=True)
class Picture:
    title: str
    about: str
    png: bytes


@dataclass(frozen=True)
class TextBlock:
    """Something long that is unfolded on wish."""

    title: str
    content: str


Block = Chart | TableBlock | Picture | TextBlock


@dataclass(frozen=True)
class Part:
    heading: str
    blocks: Sequence[Block]
    about: str = ""


@dataclass(frozen=True)
class Chapter:
    """A run, or runs side by side."""

    title: str
    about: str
    tiles: Sequence[tuple[str, str]]  # the figures to see first: name and value
    missing: Sequence[str]
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    title: str
    chapters: Sequence[Chapter]


# --- charts


def heat_map(title: str, about: str, matrix: Sequence[Sequence[float | None]]) -> Chart:
    values = [[None if value is None else round(100 * value, 2) for value in row] for row in matrix]
    names = [str(number + 1) for number in range(len(values))]
    drawing = {
        "kind": "heat",
        "x": {"label": "judged on task"},
        "y": {"label": "after task"},
        "columns": names,
        "rows": names,
        "values": values,
    }
    rows = [[name, *(_number(value) for value in row)] for name, row in zip(names, values, strict=True)]
    return Chart(title, about, drawing, TableBlock(["after task", *(f"on task {name}" for name in names)], rows))


def curves(
    title: str,
    about: str,
    by_name: Mapping[str, Sequence[Sequence[float | None]]],
    label: str,
    styles: Mapping[str, int] | None = None,
) -> Chart:
    """A curve for each seed, as shares; drawn as their mean and range, in percent."""
    series, rows = [], []
    longest = max(len(values) for its in by_name.values() for values in its)
    for number, (name, its) in enumerate(by_name.items()):
        points, cells = [], []
        for task in range(longest):
            known = [100 * v for values in its if task < len(values) and (v := values[task]) is not None]
            cells.append(mean_percent([v / 100 for v in known]))
            if known:
                spread = [short(min(known)), short(max(known))] if len(known) > 1 else []
                points.append([task + 1, short(mean(known)), *spread])
        series.append({"name": name, "style": (styles or {}).get(name, number), "points": points})
        rows.append([name, *cells])
    drawing = {
        "kind": "lines",
        "x": {"label": TASKS, "whole": True},
        "y": {"label": label, "min": 0, "max": 100},
        "series": series,
    }
    return Chart(title, about, drawing, TableBlock(["", *(f"task {task + 1}" for task in range(longest))], rows))


def bars(
    title: str, about: str, names: Sequence[str], values: Mapping[str, Sequence[float]], unit: str, what: str
) -> Chart:
    drawing = {
        "kind": "bars",
        "x": {"label": unit, "unit": unit, "min": 0},
        "categories": list(names),
        "series": [
            {"name": name, "style": style, "values": [short(value) for value in its]}
            for style, (name, its) in enumerate(values.items())
        ],
    }
    rows = [[name, *(f"{its[number]:.3g}" for its in values.values())] for number, name in enumerate(names)]
    return Chart(title, about, drawing, TableBlock([what, *(f"{name}, {unit}" for name in values)], rows))


def spans_much(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) / min(values) > LOG_FROM


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.1f}"


def short(value: float) -> float:
    """As many digits as can be seen in a drawing."""
    return float(f"{value:.5g}")
