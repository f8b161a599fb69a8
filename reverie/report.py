"""The page a person looks at: what of a run, or of many side by side, is shown, as plain data. markup.py makes it HTML.

Figures are described here and drawn by a script inside the page. Everything that a figure shows stands in a table, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

from reverie import disk, paper, tables
from reverie.errors import UserError, explaining
from reverie.evidence import Evidence, is_run, runs_in
from reverie.grid import UPPER_BOUND, in_order
from reverie.methods import method_names
from reverie.tables import DASH, Cost, Result, Row, percent, size

MOST_POINTS = 400  # of a curve of losses; more would not be seen
LOG_FROM = 30  # a scale that spans more than this factor is logarithmic
TASKS = "tasks learned"
WORDS = (
    "A_N is the accuracy over all classes after the last task, average A its mean over the way there, Omega the mean "
    "share of the upper bound's accuracy, forgetting what old tasks have lost since they were known best."
)


@dataclass(frozen=True)
class Table:
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """`drawing` is what the script in the page draws: its kind, its axes, its marks."""

    title: str
    about: str
    drawing: Mapping[str, Any]
    table: Table


@dataclass(frozen=True)
class Picture:
    title: str
    about: str
    png: bytes


@dataclass(frozen=True)
class Text:
    """Something long that is unfolded on wish."""

    title: str
    content: str


Block = Figure | Table | Picture | Text


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
class Report:
    title: str
    chapters: Sequence[Chapter]


Read = Callable[[Path], Evidence]


def make(paths: Sequence[Path], read: Read = Evidence.of) -> Report:
    """A chapter for each run; before them, if there are several or a table is named, all of them side by side."""
    named = [path for path in paths if not _is_table(path)]
    inside = {path: runs_in(path) for path in paths if _is_table(path)}
    chapters = []
    for path, runs in inside.items():
        chapters += side_by_side(path.resolve().name, [read(run) for run in runs])
    single = [read(path) for path in named]
    if len(single) > 1:
        chapters += side_by_side("Side by side", single)
    chapters += [of_run(evidence) for evidence in single]
    title = chapters[0].title if len(paths) == 1 else f"{len(paths)} runs and tables"
    return Report(title, chapters)


def check(paths: Sequence[Path]) -> None:
    """There must be something to report."""
    with explaining("read", "Name the folder of a run or of a table."):
        for path in paths:
            if not path.exists():
                raise UserError(f"There is no {path}. Name the folder of a run or of a table.")
            if path.is_file() and path.suffix != ".json":
                raise UserError(f"{path} is no result file. Name the folder of a run or of a table.")
            if path.is_dir() and not is_run(path) and not runs_in(path):
                raise UserError(f"There is no run in {path}. Name the folder of a run or of a table.")


def write(paths: Sequence[Path], file: Path) -> None:
    """One page that needs nothing else."""
    from reverie.markup import whole_page

    check(paths)
    page = whole_page(make(paths))
    with explaining("written", "Choose another --out."):
        disk.write_text(file, page)


def _is_table(path: Path) -> bool:
    return path.is_dir() and not is_run(path) and bool(runs_in(path))


# --- one run


def of_run(run: Evidence) -> Chapter:
    parts = [
        Part("Accuracy", [*_matrix_of(run), *_curves_of_run(run), *_forgetting_of(run)], f"{WORDS} All in percent."),
        Part("Losses by phase", _losses_of(run), "Means over an epoch, one task after the other."),
        Part("Dreams", _dreams_of(run), "What stood in for the old classes while each task was learned."),
        Part("Cost", _cost_of(run)),
        Part("What was kept", _ledger_of(run), "Besides the classifier itself, from one task to the next."),
        Part("Where this comes from", _origin_of(run)),
    ]
    about = f"{run.name} · {run.state}"
    if not run.finished and run.last_event is not None:
        about += f" · last event {run.last_event}"
    alone = ["Only the result file is here, so there are no losses and no dreams."] if run.alone else []
    return Chapter(run.title, about, _tiles(run), [*alone, *run.missing], [part for part in parts if part.blocks])


def _tiles(run: Evidence) -> list[tuple[str, str]]:
    total = sum(sum(parts.values()) for parts in run.seconds)
    if run.result is None:
        known = [value for value in run.accuracy_after if value is not None]
        return [("accuracy so far", percent(known[-1:])), ("seconds so far", f"{total:.0f}")]
    figures = run.result["metrics"]
    names = {"A_N": "final_accuracy", "average A": "average_incremental_accuracy", "Omega": "omega"}
    names |= {"forgetting": "forgetting"}
    shown = [(title, percent([figures[name]] if figures[name] is not None else [])) for title, name in names.items()]
    kept = max((entry["kept_bytes"] for entry in run.result["ledger"]), default=0)
    return [*shown, ("seconds", f"{total:.0f}"), ("kept", size(kept))]


def _matrix_of(run: Evidence) -> list[Figure]:
    about = "Accuracy on the test images of each task (%), after each task learned, among all classes seen by then."
    return [_heat_map("Accuracy matrix", about, run.matrix)] if run.matrix else []


def _heat_map(title: str, about: str, matrix: Sequence[Sequence[float | None]]) -> Figure:
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
    return Figure(title, about, drawing, Table(["after task", *(f"on task {name}" for name in names)], rows))


def _curves_of_run(run: Evidence) -> list[Figure]:
    """Accuracy and Omega by task, and the upper bound where it is known."""
    curves: dict[str, Sequence[float | None]] = {"accuracy": run.accuracy_after}
    if run.result is not None and run.result["upper_bound"] is not None:
        curves["upper bound's accuracy"] = run.result["upper_bound"]["accuracy_after"]
        curves["Omega"] = run.result["metrics"]["omega_up_to"] or []
    if not any(value is not None for value in run.accuracy_after):
        return []
    about = "Over all classes seen so far. Omega is the mean share of the upper bound's accuracy up to a task."
    return [
        _curves("Accuracy and Omega by task", about, {name: [values] for name, values in curves.items()}, "share (%)")
    ]


def _forgetting_of(run: Evidence) -> list[Figure]:
    """The best accuracy each task ever had, less the one it has now."""
    last = len(run.matrix) - 1
    if last < 1 or (run.config is not None and run.config.method == UPPER_BOUND):  # which learns anew each time
        return []
    lost = []
    for task in range(last):
        column = [run.matrix[row][task] for row in range(task, last + 1)]
        known = [value for value in column if value is not None]
        lost.append(max(known) - known[-1])
    about = "Points of accuracy that each task has lost since it was known best."
    names = [f"task {number + 1}" for number in range(last)]
    return [
        _bars("Forgetting by task", about, names, {"forgetting": [100 * value for value in lost]}, "points", "task")
    ]


def _losses_of(run: Evidence) -> list[Figure]:
    figures = []
    for phase, by_task in run.losses().items():
        names = dict.fromkeys(name for epochs in by_task.values() for _, losses in epochs for name in losses)
        points: dict[str, list[list[float]]] = {name: [] for name in names}
        rules, rows, begins = [], [], 0
        every = max(1, sum(map(len, by_task.values())) // MOST_POINTS)
        for task, epochs in by_task.items():
            rules.append([begins + 0.5, f"task {task}"])
            for number, (epoch, losses) in enumerate(epochs):
                if number % every == 0 or number == len(epochs) - 1:
                    for name, value in losses.items():
                        points[name].append([begins + epoch, _short(value)])
            for name in epochs[0][1]:
                ends = [losses[name] for _, losses in (epochs[0], epochs[-1]) if name in losses]
                rows.append([str(task), name, str(len(epochs)), *(f"{value:.4g}" for value in (ends[0], ends[-1]))])
            begins += epochs[-1][0]
        drawing = {
            "kind": "lines",
            "x": {"label": "epochs, one task after the other", "whole": True},
            "y": {"label": "loss", "log": _spans_much([y for its in points.values() for _, y in its])},
            "series": [
                {"name": name, "style": style, "points": its, "plain": True}
                for style, (name, its) in enumerate(points.items())
            ],
            "rules": rules,
        }
        header = ["task", "loss", "epochs", "in the first epoch", "in the last epoch"]
        about = "Each is already multiplied by its weight; training minimises their sum."
        figures.append(Figure(f"Phase “{phase}”", about, drawing, Table(header, rows)))
    return figures


def _dreams_of(run: Evidence) -> list[Picture]:
    return [
        Picture(f"While task {sheet.task} was learned", _coverage(run, sheet.task), sheet.png) for sheet in run.sheets
    ]


def _coverage(run: Evidence, task: int) -> str:
    summary = run.dreams.get(task)
    if summary is None:
        return "A row for each class."
    return (
        f"A row for each class. Of {summary['classes']} old classes, {summary['covered']} were dreamed of; "
        f"the teacher's mean confidence is {summary['confidence']:.2f}."
    )


def _cost_of(run: Evidence) -> list[Block]:
    if not run.seconds:
        return []
    parts = dict.fromkeys(name for task in run.seconds for name in task)
    values = {part: [task.get(part, 0.0) for task in run.seconds] for part in parts}
    names = [f"task {number + 1}" for number in range(len(run.seconds))]
    blocks: list[Block] = [_bars("Seconds by task and part", "", names, values, "s", "task")]
    if run.result is not None:
        row = Row(run.title, [run.result])
        header, cells = tables.Section("", [row]).cost()
        blocks.append(Table(header[1:], [line[1:] for line in cells]))
    return blocks


def _ledger_of(run: Evidence) -> list[Block]:
    if run.result is None:
        return []
    rows = [
        [
            str(entry["task"]),
            ", ".join(entry["classes"]),
            str(entry["images_seen"]),
            f"{entry['keeps']} ({entry['kept_bytes']:,} bytes)",
            f"{entry['classifier_bytes']:,}",
        ]
        for entry in run.result["ledger"]
    ]
    return [Table(["task", "classes", "images seen", "kept", "classifier, bytes"], rows)]


def _origin_of(run: Evidence) -> list[Block]:
    blocks: list[Block] = []
    sessions = run.result.get("sessions", []) if run.result is not None else []
    sessions = sessions or [event for event in run.events if event["event"] in ("run begins", "goes on")]
    if sessions:
        rows = []
        for session in sessions:
            where = session.get("environment", {})
            device = where.get("gpu") or where.get("cpu") or where.get("device") or DASH
            versions = ", ".join(f"{name} {where[name]}" for name in ("reverie", "torch", "python") if name in where)
            commit = (where.get("commit") or DASH)[:12]
            rows.append(
                [str(session.get("started", DASH)), str(session.get("command", DASH)), device, versions, commit]
            )
        blocks.append(Table(["started", "command", "device", "versions", "commit"], rows))
    if run.config is not None:
        plain = run.config.as_dict()
        blocks.append(Text("Configuration", yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)))
    return blocks


# --- runs side by side


def side_by_side(name: str, runs: Sequence[Evidence]) -> list[Chapter]:
    """A chapter for each preset, whose figures cannot be compared with another's."""
    presets: dict[str, list[Evidence]] = {}
    for run in runs:
        preset = run.config.preset if run.config is not None else ""
        presets.setdefault(preset, []).append(run)
    return [_of_preset(name if preset in name else f"{name}: {preset}", its) for preset, its in presets.items()]


def _of_preset(title: str, runs: Sequence[Evidence]) -> Chapter:
    finished = [run.result for run in runs if run.result is not None]
    rows = tables.rows_beside_paper(sorted(finished, key=_by_method_and_seed()))
    parts = _compared(rows, runs) if rows else [Part("Accuracy so far", _curves_of_rows(rows, runs, {}))]
    every = Part("Runs", [_runs_table(runs)])
    parts = (
        [*parts, every] if len(finished) == len(runs) else [every, *parts]
    )  # while some are at work, they come first
    missing = [f"{run.name}: {line}" for run in runs for line in run.missing]
    seeds = sorted({result["seed"] for result in finished})
    about = f"{len(finished)} of {len(runs)} runs finished; seeds {', '.join(map(str, seeds)) or DASH}"
    best = max((row for row in rows if row.results[0]["method"] != UPPER_BOUND), key=_final, default=None)
    tiles = [("runs finished", f"{len(finished)} of {len(runs)}")]
    if best is not None:
        tiles.append((f"best A_N: {best.title}", percent(best.values("final_accuracy"))))
    return Chapter(title, about, tiles, missing, [part for part in parts if part.blocks])


def _compared(rows: Sequence[Row], runs: Sequence[Evidence]) -> list[Part]:
    """A method looks the same in all figures."""
    styles = {row.title: number for number, row in enumerate(rows)}
    shown = tables.Section("", rows)
    beside = any(row.paper is not None for row in rows)
    about = f"{WORDS} Percent; mean ± sample standard deviation where there are several seeds."
    about += f" The paper's figures stand beside ours; {paper.RULE}." if beside else ""
    figures = [*_ranges(rows), *_curves_of_rows(rows, runs, styles)]
    matrices = [_heat_map(row.title, "", _mean_matrix(row.results)) for row in rows]
    return [
        Part("Methods side by side", [Table(*shown.accuracy()), *figures], about),
        Part("Cost", [Table(*shown.cost()), *_costs(rows, styles)], "From the second task on, mean over tasks."),
        Part("Accuracy matrix by method", matrices, "Accuracy on each task (%), after each task; mean over seeds."),
        Part("Dreams by method", _dreams_by_method(runs), "While the last task was learned, first seed."),
    ]


def _by_method_and_seed() -> Callable[[Result], tuple[int, int]]:
    """The upper bound first, as in the paper's tables; methods that are not known here last."""
    known = {name: number for number, name in enumerate(in_order(method_names()))}
    return lambda result: (known.get(result["method"], len(known)), result["seed"])


def _runs_table(runs: Sequence[Evidence]) -> Table:
    rows = []
    for run in runs:
        known = [value for value in run.accuracy_after if value is not None]
        total = sum(sum(parts.values()) for parts in run.seconds)
        rows.append([run.name, run.title, run.state, percent(known[-1:]), f"{total:.0f}"])
    return Table(["run", "what", "state", "accuracy after its last task", "seconds"], rows)


def _ranges(rows: Sequence[Row]) -> list[Figure]:
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
            [name, percent([v / 100 for v in own]), DASH if figure is None else str(figure)]
            for name, own, figure in zip(names, ours, theirs, strict=True)
        ]
        about = "Mean, and one standard deviation to each side."
        figures.append(Figure(f"{title} by method", about, drawing, Table(["method", "reverie", "paper"], cells)))
    return figures


def _curves_of_rows(rows: Sequence[Row], runs: Sequence[Evidence], styles: Mapping[str, int]) -> list[Figure]:
    """Accuracy and Omega by task; runs that are not finished are curves of their own."""
    accuracy: dict[str, list[Sequence[float | None]]] = {
        row.title: [result["metrics"]["accuracy_after"] for result in row.results] for row in rows
    }
    for run in runs:
        if not run.finished and any(value is not None for value in run.accuracy_after):
            accuracy[f"{run.name} (unfinished)"] = [run.accuracy_after]
    omega = {row.title: [v for r in row.results if (v := r["metrics"]["omega_up_to"])] for row in rows}
    omega = {title: its for title, its in omega.items() if its}
    about = "Over all classes seen so far; the shaded band is the range over seeds."
    figures = []
    if accuracy:
        figures.append(_curves("Accuracy by task", about, accuracy, "accuracy (%)", styles))
    if omega:
        about = "Mean share of the upper bound's accuracy up to each task; the shaded band is the range over seeds."
        figures.append(_curves("Omega by task", about, omega, "Omega (%)", styles))
    return figures


def _costs(rows: Sequence[Row], styles: Mapping[str, int]) -> list[Figure]:
    seconds = [mean(result["seconds"]["total"] for result in row.results) for row in rows]
    points = [
        [[_short(s), *_range(100 * _final(row), _spread([100 * v for v in row.values("final_accuracy")]))]]
        for row, s in zip(rows, seconds, strict=True)
    ]
    drawing = {
        "kind": "lines",
        "x": {"label": "seconds of training"} | ({"log": True} if _spans_much(seconds) else {"min": 0}),
        "y": {"label": "A_N (%)", "min": 0, "max": 100},
        "series": [
            {"name": row.title, "style": styles[row.title], "points": point}
            for row, point in zip(rows, points, strict=True)
        ],
    }
    cells = [
        [row.title, f"{s:.0f}", percent(row.values("final_accuracy"))] for row, s in zip(rows, seconds, strict=True)
    ]
    about = "Up and to the left is better."
    figures = [Figure("Accuracy against cost", about, drawing, Table(["method", "seconds", "A_N"], cells))]
    steps = {row.title: Cost.of(row.results).seconds_a_step for row in rows}
    known = {title: 1000 * value for title, value in steps.items() if value is not None}
    if known:
        about = "Milliseconds of a step on one batch, in all phases but the dreamer's, from the second task on."
        figures.append(_bars("Time a batch", about, list(known), {"a step": list(known.values())}, "ms", "method"))
    return figures


def _dreams_by_method(runs: Sequence[Evidence]) -> list[Picture]:
    found: dict[str, Picture] = {}
    for run in runs:
        if run.sheets and run.config is not None and run.config.method not in found:
            last = run.sheets[-1]
            about = f"{_coverage(run, last.task)} From {run.name}, task {last.task}."
            found[run.config.method] = Picture(run.title, about, last.png)
    return list(found.values())


def _mean_matrix(results: Sequence[Result]) -> list[list[float | None]]:
    matrices = [result["accuracy_matrix"] for result in results]
    shortest = min(map(len, matrices))
    return [
        [
            mean(m[i][j] for m in matrices) if all(m[i][j] is not None for m in matrices) else None
            for j in range(shortest)
        ]
        for i in range(shortest)
    ]


def _final(row: Row) -> float:
    return mean(row.values("final_accuracy"))


# --- figures


def _curves(
    title: str,
    about: str,
    curves: Mapping[str, Sequence[Sequence[float | None]]],
    label: str,
    styles: Mapping[str, int] | None = None,
) -> Figure:
    """By name: a curve for each seed, as shares; drawn as their mean and range, in percent."""
    series, rows = [], []
    longest = max(len(values) for its in curves.values() for values in its)
    for number, (name, its) in enumerate(curves.items()):
        points, cells = [], []
        for task in range(longest):
            known = [100 * v for values in its if task < len(values) and (v := values[task]) is not None]
            cells.append(percent([v / 100 for v in known]))
            if known:
                spread = [_short(min(known)), _short(max(known))] if len(known) > 1 else []
                points.append([task + 1, _short(mean(known)), *spread])
        series.append({"name": name, "style": (styles or {}).get(name, number), "points": points})
        rows.append([name, *cells])
    drawing = {
        "kind": "lines",
        "x": {"label": TASKS, "whole": True},
        "y": {"label": label, "min": 0, "max": 100},
        "series": series,
    }
    return Figure(title, about, drawing, Table(["", *(f"task {task + 1}" for task in range(longest))], rows))


def _bars(
    title: str, about: str, names: Sequence[str], values: Mapping[str, Sequence[float]], unit: str, what: str
) -> Figure:
    drawing = {
        "kind": "bars",
        "x": {"label": unit, "unit": unit, "min": 0},
        "categories": list(names),
        "series": [
            {"name": name, "style": style, "values": [_short(value) for value in its]}
            for style, (name, its) in enumerate(values.items())
        ],
    }
    rows = [[name, *(f"{its[number]:.3g}" for its in values.values())] for number, name in enumerate(names)]
    return Figure(title, about, drawing, Table([what, *(f"{name}, {unit}" for name in values)], rows))


def _range(middle: float, spread: float | None) -> list[float]:
    return [_short(middle)] if spread is None else [_short(v) for v in (middle, middle - spread, middle + spread)]


def _spread(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def _spans_much(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) / min(values) > LOG_FROM


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.1f}"


def _short(value: float) -> float:
    return float(f"{value:.5g}")
