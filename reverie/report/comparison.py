"""Runs side by side, as a page shows them: methods against each other, and beside the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import mean, stdev

from reverie.config.choices import UPPER_BOUND
from reverie.errors import UserError
from reverie.methods import find_method
from reverie.report.blocks import (
    WORDS,
    Chapter,
    Chart,
    Part,
    Picture,
    TableBlock,
    bars,
    curves,
    heat_map,
    short,
    spans_much,
)
from reverie.report.run_reader import RunView
from reverie.runs.result import Result
from reverie.tables import paper
from reverie.tables.formats import Section
from reverie.tables.rows import Row, mean_percent, methods_in_order, rows_beside_paper
from reverie.text import DASH


def side_by_side(name: str, runs: Sequence[RunView]) -> list[Chapter]:
    """A chapter for each preset, whose figures cannot be compared with another's."""
    presets: dict[str, list[RunView]] = {}
    for run in runs:
        preset = run.config.preset if run.config is not None else ""
        presets.setdefault(preset, []).append(run)
    return [_of_preset(name if preset in name else f"{name}: {preset}", its) for preset, its in presets.items()]


def _of_preset(title: str, runs: Sequence[RunView]) -> Chapter:
    finished = [run.result for run in runs if run.result is not None]
    rows = rows_beside_paper(_by_method_and_seed(finished))
    parts = _compared(rows, runs) if rows else [Part("Accuracy so far", _curves_of_rows(rows, runs, {}))]
    every = Part("Runs", [_runs_table(runs)])
    at_work = len(finished) < len(runs)
    parts = [every, *parts] if at_work else [*parts, every]
    missing = [f"{run.name}: {line}" for run in runs for line in run.missing]
    seeds = sorted({result.seed for result in finished})
    about = f"{len(finished)} of {len(runs)} runs finished; seeds {', '.join(map(str, seeds)) or DASH}"
    best = max((row for row in rows if row.results[0].method != UPPER_BOUND), key=_final, default=None)
    tiles = [("runs finished", f"{len(finished)} of {len(runs)}")]
    if best is not None:
        tiles.append((f"best A_N: {best.title}", mean_percent(best.values("final_accuracy"))))
    return Chapter(title, about, tiles, missing, [part for part in parts if part.blocks])


def _compared(rows: Sequence[Row], runs: Sequence[RunView]) -> list[Part]:
    """A method looks the same in all figures."""
    styles = {row.title: number for number, row in enumerate(rows)}
    shown = Section("", rows)
    with_paper = any(row.beside_paper for row in rows)
    about = f"{WORDS} Percent; mean ± sample standard deviation where there are several seeds."
    about += f" The paper's figures stand beside ours; {paper.RULE}." if with_paper else ""
    charts = [*_ranges(rows), *_curves_of_rows(rows, runs, styles)]
    matrices = [heat_map(row.title, "", _mean_matrix(row.results)) for row in rows]
    return [
        Part("Methods side by side", [TableBlock(*shown.accuracy()), *charts], about),
        Part("Cost", [TableBlock(*shown.cost()), *_costs(rows, styles)], "From the second task on, mean over tasks."),
        Part("Accuracy matrix by method", matrices, "Accuracy on each task (%), after each task; mean over seeds."),
        Part("Dreams by method", _dreams_by_method(runs), "While the last task was learned, first seed."),
    ]


def _by_method_and_seed(results: Sequence[Result]) -> list[Result]:
    """The upper bound first, as in the paper's tables; methods that cannot be loaded here last."""
    methods = []
    for name in {result.method for result in results}:  # no other: one that is broken is of no concern here
        with suppress(UserError):
            find_method(name)
            methods.append(name)
    known = {name: number for number, name in enumerate(methods_in_order(methods))}
    return sorted(results, key=lambda result: (known.get(result.method, len(known)), result.seed))


def _runs_table(runs: Sequence[RunView]) -> TableBlock:
    rows = []
    for run in runs:
        known = [value for value in run.accuracy_after if value is not None]
        total = sum(sum(parts.values()) for parts in run.seconds)
        rows.append([run.name, run.title, run.state, mean_percent(known[-1:]), f"{total:.0f}"])
    return TableBlock(["run", "what", "state", "accuracy after its last task", "seconds"], rows)


def _ranges(rows: Sequence[Row]) -> list[Chart]:
    """Ours and the paper's, each with its spread."""
    figures = []
    for title, metric in (("A_N", "final_accuracy"), ("Omega", "omega")):
        ours = [[100 * value for value in row.values(metric)] for row in rows]
        theirs = [getattr(row.paper, metric, None) for row in rows]
        if not any(ours):
            continue
        series = [{"name": "reverie", "style": 0, "values": [_range(mean(v), _spread(v)) if v else None for v in ours]}]
        if any(theirs):
            published = [None if figure is None else _range(figure.mean, figure.spread) for figure in theirs]
            series.append({"name": "paper", "style": 1, "values": published, "hollow": True})
        names = [row.title for row in rows]
        drawing = {
            "kind": "ranges",
            "x": {"label": f"{title} (%)", "min": 0, "max": 100},
            "categories": names,
            "series": series,
        }
        cells = [
            [name, mean_percent([v / 100 for v in own]), DASH if figure is None else str(figure)]
            for name, own, figure in zip(names, ours, theirs, strict=True)
        ]
        about = "Mean, and one standard deviation to each side."
        figures.append(Chart(f"{title} by method", about, drawing, TableBlock(["method", "reverie", "paper"], cells)))
    return figures


def _curves_of_rows(rows: Sequence[Row], runs: Sequence[RunView], styles: Mapping[str, int]) -> list[Chart]:
    """Accuracy and Omega by task; runs that are not finished are curves of their own."""
    accuracy: dict[str, list[Sequence[float | None]]] = {
        row.title: [result.metrics.accuracy_after for result in row.results] for row in rows
    }
    for run in runs:
        if not run.finished and any(value is not None for value in run.accuracy_after):
            accuracy[f"{run.name} (unfinished)"] = [run.accuracy_after]
    omega = {row.title: [r.metrics.omega_up_to or [] for r in row.results] for row in rows if row.values("omega")}
    about = "Over all classes seen so far; the shaded band is the range over seeds."
    figures = []
    if accuracy:
        figures.append(curves("Accuracy by task", about, accuracy, "accuracy (%)", styles))
    if omega:
        about = "Mean share of the upper bound's accuracy up to each task; the shaded band is the range over seeds."
        figures.append(curves("Omega by task", about, omega, "Omega (%)", styles))
    return figures


def _costs(rows: Sequence[Row], styles: Mapping[str, int]) -> list[Chart]:
    seconds = [mean(result.seconds.total for result in row.results) for row in rows]
    points = [
        [[short(s), *_range(100 * _final(row), _spread([100 * v for v in row.values("final_accuracy")]))]]
        for row, s in zip(rows, seconds, strict=True)
    ]
    drawing = {
        "kind": "lines",
        "x": {"label": "seconds of training"} | ({"log": True} if spans_much(seconds) else {"min": 0}),
        "y": {"label": "A_N (%)", "min": 0, "max": 100},
        "series": [
            {"name": row.title, "style": styles[row.title], "points": point}
            for row, point in zip(rows, points, strict=True)
        ],
    }
    cells = [
        [row.title, f"{s:.0f}", mean_percent(row.values("final_accuracy"))]
        for row, s in zip(rows, seconds, strict=True)
    ]
    about = "Up and to the left is better."
    figures = [Chart("Accuracy against cost", about, drawing, TableBlock(["method", "seconds", "A_N"], cells))]
    steps = {row.title: row.cost().seconds_a_step for row in rows}
    known = {title: 1000 * value for title, value in steps.items() if value is not None}
    if known:
        about = "Milliseconds of a step on one batch, in all phases but the dreamer's, from the second task on."
        figures.append(bars("Time a batch", about, list(known), {"a step": list(known.values())}, "ms", "method"))
    return figures


def _dreams_by_method(runs: Sequence[RunView]) -> list[Picture]:
    found: dict[str, Picture] = {}
    for run in runs:
        if run.sheets and run.config is not None and run.config.method not in found:
            last = run.sheets[-1]
            about = f"{run.coverage(last.task)} From {run.name}, task {last.task}."
            found[run.config.method] = Picture(run.title, about, last.png)
    return list(found.values())


def _mean_matrix(results: Sequence[Result]) -> list[list[float | None]]:
    matrices = [result.accuracy_matrix for result in results]
    tasks = range(min(map(len, matrices)))
    return [[_mean_of_all([matrix[i][j] for matrix in matrices]) for j in tasks] for i in tasks]


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if len(known) == len(values) else None


def _final(row: Row) -> float:
    return mean(row.values("final_accuracy"))


def _range(middle: float, spread: float | None) -> list[float]:
    return [short(middle)] if spread is None else [short(v) for v in (middle, middle - spread, middle + spread)]


def _spread(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None
