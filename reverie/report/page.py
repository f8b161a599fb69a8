"""The page a person looks at: what of a run, or of many side by side, is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from reverie import metrics
from reverie.config.choices import UPPER_BOUND
from reverie.errors import UserError, explaining
from reverie.report.blocks import (
    WORDS,
    Block,
    Chapter,
    Chart,
    Page,
    Part,
    Picture,
    TableBlock,
    TextBlock,
    bars,
    curves,
    heat_map,
    short,
    spans_much,
)
from reverie.report.comparison import side_by_side
from reverie.report.html import is_page, whole_page
from reverie.report.run_reader import RunView, is_run, runs_in
from reverie.system.files import check_target, write_text
from reverie.tables.formats import Section
from reverie.tables.rows import Row, mean_percent
from reverie.text import DASH, byte_size, shortened

MOST_POINTS = 400  # of a curve of losses; more would not be seen
Read = Callable[[Path], RunView]


def make_page(paths: Sequence[Path], read: Read = RunView.of) -> Page:
    """A chapter for each run; before them, if there are several or a table is named, all of them side by side."""
    named = [path for path in paths if not _is_table(path)]
    inside = {path: runs_in(path) for path in paths if _is_table(path)}
    chapters = []
    for path, runs in inside.items():
        chapters += side_by_side(path.resolve().name, [read(run) for run in runs])
    single = [read(path) for path in named]
    if len(single) > 1:
        chapters += side_by_side("Side by side", single)
    chapters += [run_chapter(run) for run in single]
    title = chapters[0].title if len(paths) == 1 else f"{len(paths)} runs and tables"
    return Page(title, chapters)


def check_paths(paths: Sequence[Path]) -> None:
    """There must be something to report."""
    with explaining("read", "Name the folder of a run or of a table."):
        for path in paths:
            if not path.exists():
                raise UserError(f"There is no {path}. Name the folder of a run or of a table.")
            if path.is_file() and path.suffix != ".json":
                raise UserError(f"{path} is no result file. Name the folder of a run or of a table.")
            if (path / "model.safetensors").is_file():
                raise UserError(f"{path} is a model, whose report is its README.md. Name the folder of a run.")
            if path.is_dir() and not is_run(path) and not runs_in(path):
                raise UserError(f"There is no run in {path}. Name the folder of a run or of a table.")


def write_report(
    runs: Sequence[Path | str] | Path | str, out: Path | str = "page.html", *, overwrite: bool = False
) -> Path:
    """Gather runs, or a whole table, in one HTML page that needs nothing else; gives its file.

        reverie.write_report("runs/table-cifar100-10", "table.html")

    `runs` are folders of runs or of tables, or result files. A run that is broken or not finished is shown as far as it
    goes, and the page says what is missing. `out` is a new file or an earlier page; any other is written over only with
    `overwrite=True`. Raises UserError where there is no run, or the page may not be written.
    """
    paths = [Path(path) for path in ([runs] if isinstance(runs, str | Path) else runs)]
    check_paths(paths)
    file = Path(out)
    with explaining("written", "Choose another `out`."):
        check_target(file, overwrite or is_page(file))
        write_text(file, whole_page(make_page(paths)))
    return file


def _is_table(path: Path) -> bool:
    return path.is_dir() and not is_run(path) and bool(runs_in(path))


# --- one run


def run_chapter(run: RunView) -> Chapter:
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


def _tiles(run: RunView) -> list[tuple[str, str]]:
    total = sum(sum(parts.values()) for parts in run.seconds)
    if run.result is None:
        known = [value for value in run.accuracy_after if value is not None]
        return [("accuracy so far", mean_percent(known[-1:])), ("seconds so far", f"{total:.0f}")]
    row = Row(run.title, [run.result])
    names = {"A_N": "final_accuracy", "average A": "average_incremental_accuracy", "Omega": "omega"}
    names |= {"forgetting": "forgetting"}
    shown = [(title, mean_percent(row.values(name))) for title, name in names.items()]
    return [*shown, ("seconds", f"{total:.0f}"), ("kept", byte_size(row.cost().kept_bytes))]


def _matrix_of(run: RunView) -> list[Chart]:
    about = "Accuracy on the test images of each task (%), after each task learned, among all classes seen by then."
    return [heat_map("Accuracy matrix", about, run.matrix)] if run.matrix else []


def _curves_of_run(run: RunView) -> list[Chart]:
    """Accuracy and Omega by task, and the upper bound where it is known."""
    shown: dict[str, Sequence[float | None]] = {"accuracy": run.accuracy_after}
    if run.result is not None and run.result.upper_bound is not None:
        shown["upper bound's accuracy"] = run.result.upper_bound.accuracy_after
        shown["Omega"] = run.result.metrics.omega_up_to or []
    if run.result is not None and run.result.uncorrected_accuracy_after:
        shown["accuracy before correction"] = run.result.uncorrected_accuracy_after
    if not any(value is not None for value in run.accuracy_after):
        return []
    about = "Over all classes seen so far. Omega is the mean share of the upper bound's accuracy up to a task."
    return [
        curves("Accuracy and Omega by task", about, {name: [values] for name, values in shown.items()}, "share (%)")
    ]


def _forgetting_of(run: RunView) -> list[Chart]:
    if run.config is not None and run.config.method == UPPER_BOUND:  # which learns anew each time
        return []
    lost = metrics.forgetting_by_task(np.array(run.matrix, dtype=float))
    known = {f"task {number}": 100 * value for number, value in enumerate(lost, 1) if not np.isnan(value)}
    about = "Points of accuracy that each task has lost since it was known best before; below 0, it has gained."
    shown = {"forgetting": list(known.values())}
    return [bars("Forgetting by task", about, list(known), shown, "points", "task")] if known else []


def _losses_of(run: RunView) -> list[Chart]:
    figures = []
    for phase, by_task in run.losses().items():
        names = dict.fromkeys(name for epochs in by_task.values() for event in epochs for name in event.losses)
        points: dict[str, list[list[float]]] = {name: [] for name in names}
        rules, rows, begins = [], [], 0
        every = max(1, sum(map(len, by_task.values())) // MOST_POINTS)
        for task, epochs in by_task.items():
            rules.append([begins + 0.5, f"task {task}"])
            for number, event in enumerate(epochs):
                if number % every == 0 or number == len(epochs) - 1:
                    for name, value in event.losses.items():
                        points[name].append([begins + event.epoch, short(value)])
            for name in epochs[0].losses:
                ends = [event.losses[name] for event in (epochs[0], epochs[-1]) if name in event.losses]
                rows.append([str(task), name, str(len(epochs)), *(f"{value:.4g}" for value in (ends[0], ends[-1]))])
            begins += epochs[-1].epoch
        drawing = {
            "kind": "lines",
            "x": {"label": "epochs, one task after the other", "whole": True},
            "y": {"label": "loss", "log": spans_much([y for its in points.values() for _, y in its])},
            "series": [
                {"name": name, "style": style, "points": its, "plain": True}
                for style, (name, its) in enumerate(points.items())
            ],
            "rules": rules,
        }
        header = ["task", "loss", "epochs", "in the first epoch", "in the last epoch"]
        about = "Each is already multiplied by its weight; training minimises their sum."
        figures.append(Chart(f"Phase “{phase}”", about, drawing, TableBlock(header, rows)))
    return figures


def _dreams_of(run: RunView) -> list[Picture]:
    return [
        Picture(f"While task {sheet.task} was learned", run.coverage(sheet.task), sheet.png) for sheet in run.sheets
    ]


def _cost_of(run: RunView) -> list[Block]:
    if not run.seconds:
        return []
    parts = dict.fromkeys(name for task in run.seconds for name in task)
    values = {part: [task.get(part, 0.0) for task in run.seconds] for part in parts}
    names = [f"task {number + 1}" for number in range(len(run.seconds))]
    blocks: list[Block] = [bars("Seconds by task and part", "", names, values, "s", "task")]
    if run.result is not None:
        row = Row(run.title, [run.result])
        header, cells = Section("", [row]).cost()
        blocks.append(TableBlock(header[1:], [line[1:] for line in cells]))
    return blocks + _stages_of(run)


def _stages_of(run: RunView) -> list[Block]:
    """What was computed in closed form, and the figures it found."""
    rows = [
        [str(task), stage, ", ".join(f"{name} {_figure(value)}" for name, value in figures.items()) or DASH]
        for task, stages in run.stages().items()
        for stage, figures in stages.items()
    ]
    return [TableBlock(["task", "stage", "figures"], rows)] if rows else []


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else shortened(value)


def _ledger_of(run: RunView) -> list[Block]:
    if run.result is None:
        return []
    rows = [
        [
            str(entry.task or number),
            ", ".join(entry.classes or ()),
            str(entry.images_seen or 0),
            f"{entry.keeps or DASH} ({entry.kept_bytes or 0:,} bytes)",
            f"{entry.classifier_bytes or 0:,}",
        ]
        for number, entry in enumerate(run.result.ledger, start=1)
    ]
    return [TableBlock(["task", "classes", "images seen", "kept", "classifier, bytes"], rows)]


def _origin_of(run: RunView) -> list[Block]:
    blocks: list[Block] = []
    rows = []
    for session in run.sessions:
        where = session.environment
        versions = {"reverie": where.reverie, "torch": where.torch, "python": where.python, **(where.plugins or {})}
        rows.append(
            [
                session.started or DASH,
                session.command or DASH,
                where.gpu or where.cpu or where.device or DASH,
                ", ".join(f"{name} {version}" for name, version in versions.items() if version),
                (where.commit or DASH)[:12],
            ]
        )
    if rows:
        blocks.append(TableBlock(["started", "command", "device", "versions", "commit"], rows))
    if run.config is not None:
        plain = run.config.as_dict()
        blocks.append(TextBlock("Configuration", yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)))
    return blocks
