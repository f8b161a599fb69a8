"""What the folder of a run tells, whether it is finished, at work or broken; and what is missing there."""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import yaml
from PIL import Image

from reverie import metrics
from reverie.config.schema import Config
from reverie.errors import UserError, counted
from reverie.learner.checkpoint import RunFolder, read_events
from reverie.runs import result as results
from reverie.runs.predictions import Predictions
from reverie.runs.result import Result
from reverie.system import files as disk
from reverie.tables.rows import Cost, method_title, rows_beside_paper

# What damaged files raise when they are read: JSON and YAML of another shape, archives and pictures that are cut off.
DAMAGE: tuple[type[Exception], ...] = (OSError, ValueError, LookupError, TypeError, AttributeError, UserError)
DAMAGE += (yaml.YAMLError, BadZipFile, EOFError, SyntaxError, NotImplementedError, struct.error, zlib.error)


@dataclass(frozen=True)
class Sheet:
    """The dreams of the classes known before a task, as a PNG."""

    task: int  # counted from 1
    png: bytes


@dataclass
class Evidence:
    """Reads what can be read. Nothing in the folder makes it fail; what is wrong there is said in `missing`."""

    path: Path
    missing: list[str] = field(default_factory=list)
    config: Config | None = None
    result: Result | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    matrix: list[list[float | None]] = field(default_factory=list)  # a row for each task learned so far
    accuracy_after: list[float | None] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    alone: bool = False  # a result file, without the run's folder

    @property
    def name(self) -> str:
        return self.path.stem if self.alone else self.path.resolve().name

    @property
    def title(self) -> str:
        facts = self.result or (vars(self.config) if self.config is not None else None)
        if facts is None:
            return self.name
        try:
            method = method_title(facts["method"])
        except UserError:  # of somebody's own package, which is not installed here
            method = facts["method"]
        return f"{method} on {facts['preset']}, seed {facts['seed']}"

    @property
    def finished(self) -> bool:
        return self.result is not None

    @property
    def tasks(self) -> int | None:
        """How many there are to learn, if that is known."""
        if self.result is not None:
            return len(self.result["task_sizes"])
        return next((event["tasks"] for event in reversed(self.events) if "tasks" in event), None)

    @property
    def state(self) -> str:
        """In a few words."""
        if self.finished:
            return "finished"
        learned = len(self.accuracy_after)
        said = (
            f"{learned} of {counted(self.tasks, 'task')} learned"
            if self.tasks
            else f"{counted(learned, 'task')} learned"
        )
        for event in reversed(self.events):
            if event["event"] in ("epoch", "phase begins") and event["task"] > learned:
                epoch = f", epoch {event['epoch']}" if "epoch" in event else ""
                return f"{said}; task {event['task']}, phase {event['phase']}{epoch}"
        return said

    @property
    def last_event(self) -> str | None:
        """When something happened last, in UTC."""
        at: Any = self.events[-1].get("at") if self.events else None
        with suppress(TypeError, ValueError, OverflowError, OSError):
            return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
        return None

    @property
    def seconds(self) -> list[dict[str, float]]:
        """By task and part, as far as it is learned."""
        if self.result is not None:
            found: list[dict[str, float]] = self.result["seconds"]["by_task"]
            return found
        return [event.get("seconds", {}) for event in self._last_by_task("task ends").values()]

    @property
    def dreams(self) -> dict[int, Mapping[str, Any]]:
        """By task: how many old classes were dreamed of, and how sure the teacher is of the dreams."""
        ends = [event for event in self.events if event["event"] == "phase ends" and event["phase"] == "dream"]
        told = {"classes", "covered", "confidence"}
        return {event["task"]: event["summary"] for event in ends if told <= event["summary"].keys()}

    def coverage(self, task: int) -> str:
        """What a sheet of dreams shows, in a few words."""
        summary = self.dreams.get(task)
        if summary is None:
            return "A row for each class."
        return (
            f"A row for each class. Of {summary['classes']} old classes, {summary['covered']} were dreamed of; "
            f"the teacher's mean confidence is {summary['confidence']:.2f}."
        )

    def losses(self) -> dict[str, dict[int, list[tuple[int, dict[str, float]]]]]:
        """By phase and task: the epoch, and the losses."""
        found: dict[str, dict[int, list[tuple[int, dict[str, float]]]]] = {}
        for event in self.events:
            if event["event"] == "epoch":
                by_task = found.setdefault(event["phase"], {})
                by_task.setdefault(event["task"], []).append((event["epoch"], event["losses"]))
        return found

    def _last_by_task(self, kind: str) -> dict[int, dict[str, Any]]:
        return {event["task"]: event for event in self.events if event["event"] == kind}

    # --- reading

    @classmethod
    def of(cls, path: Path) -> Evidence:
        """From a run's folder, or from its result file alone."""
        found = cls(path)
        if path.suffix == ".json" and path.is_file():
            found.alone = True
            found._read_result(path)
        elif path.is_dir():
            found._read_folder(RunFolder(path))
        else:
            found.missing.append("The run is not there (any more).")
        return found

    def _read_folder(self, folder: RunFolder) -> None:
        with self._noting(f"{folder.config.name} is damaged or missing, so the configuration is not known."):
            self.config = folder.stored()[0]
        broken: list[str] = []
        with self._noting(f"{folder.events.name} cannot be read, so there are no losses."):
            self.events = [event for event in read_events(folder.events, broken=broken) if _is_whole(event, broken)]
        if broken:
            self.missing.append(f"{len(broken)} lines of {folder.events.name} are damaged and left out.")
        elif not self.events:
            self.missing.append(f"There are no events in {folder.events.name}, so there are no losses.")
        if folder.finished:
            self._read_result(folder.result)
        if self.result is None:
            self._judge(folder)
            self.missing.append(f"The run is not finished: {self.state}. Omega and the ledger come with the end.")
        elif self.result["upper_bound"] is None and self.config is not None:
            with self._noting("Omega needs the upper bound, which has not been trained beside this run."):
                self._look_for_upper_bound(folder, self.config)
        for file in sorted(folder.path.glob("tasks/*/dreams.png")):
            where = file.relative_to(folder.path)
            with self._noting(f"{where} is damaged."):
                png = file.read_bytes()
                Image.open(io.BytesIO(png)).load()
                self.sheets.append(Sheet(int(file.parent.name), png))

    def _read_result(self, file: Path) -> None:
        with self._noting(f"{file.name} is damaged or from another version, so figures are taken from elsewhere."):
            result: Result = disk.read_json(file)
            _check(result)
            self.config = self.config or Config.from_dict(result["config"])
            self.matrix, self.accuracy_after = result["accuracy_matrix"], list(result["metrics"]["accuracy_after"])
            self.result = result

    def _look_for_upper_bound(self, folder: RunFolder, config: Config) -> None:
        """It may have been trained since. The run's own files stay as they are."""
        assert self.result is not None
        found = results.figures(folder, config, self.result)
        if found["upper_bound"] is None:
            raise LookupError
        self.result = {**self.result, **found}

    def _judge(self, folder: RunFolder) -> None:
        """The figures of the tasks learned so far, from the predictions that were written down."""
        ended = self._last_by_task("task ends")
        top = self.config.evaluate.top if self.config is not None else 1
        judged: list[Predictions | None] = []
        names = [file.parent.name for file in folder.path.glob("tasks/*/predictions.npz")]
        for index in range(max([*ended, *(int(name) for name in names if name.isdigit())], default=0)):
            judged.append(None)
            with self._noting(f"The predictions after task {index + 1} are missing or damaged."):
                judged[index] = Predictions.from_bytes(folder.predictions(index).read_bytes())
        whole = [one for one in judged if one is not None]
        if not whole or len(whole) < len(judged):
            self.accuracy_after = [
                ended[task + 1]["accuracy"] if task + 1 in ended else None for task in range(len(judged))
            ]
            return
        seen = [int(one.label.max()) + 1 for one in whole]
        sizes = np.diff([0, *seen]).tolist()
        matrix = metrics.accuracy_matrix([one.right(top) for one in whole], [one.tasks(sizes) for one in whole])
        self.matrix = [[None if np.isnan(value) else value for value in row] for row in matrix.tolist()]
        self.accuracy_after = [one.accuracy(top) for one in whole]

    @contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        try:
            yield
        except DAMAGE:
            self.missing.append(what)


_KEYS = {
    "epoch": ("task", "phase", "epoch", "losses"),
    "phase begins": ("task", "phase", "steps"),
    "phase ends": ("task", "phase", "summary"),
    "task ends": ("task", "accuracy"),
}


_KINDS = {
    "task": int,
    "epoch": int,
    "steps": int,
    "phase": str,
    "losses": dict,
    "summary": dict,
    "accuracy": int | float,
}


def _check(result: Result) -> None:
    """Raises one of `DAMAGE` unless everything is there that is shown of a result."""
    tasks = len(result["task_sizes"])
    lists = [result["accuracy_matrix"], *result["accuracy_matrix"], result["seconds"]["by_task"]]
    if result["schema"] > results.SCHEMA or any(len(values) != tasks for values in lists):
        raise ValueError
    for entry in result["ledger"]:
        entry["task"], ", ".join(entry["classes"]), entry["images_seen"], entry["keeps"], entry["classifier_bytes"]
    result["metrics"]["omega_up_to"], result["upper_bound"], result["peak_memory_bytes"]
    (row,) = rows_beside_paper([result])
    row.cells(), Cost.of(row.results)


def _is_whole(event: Any, broken: list[str]) -> bool:
    """Has it what an event of its kind has?"""
    whole = isinstance(event, dict) and isinstance(event.get("event"), str)
    whole = whole and all(isinstance(event.get(key), _KINDS[key]) for key in _KEYS.get(event["event"], ()))
    if whole and event["event"] == "epoch":
        whole = all(isinstance(value, int | float) and math.isfinite(value) for value in event["losses"].values())
    if not whole:
        broken.append(str(event))
    return whole


def is_run(path: Path) -> bool:
    return any((path / name).exists() for name in ("config.yaml", "events.jsonl", "result.json"))


def runs_in(folder: Path) -> list[Path]:
    """The run folders of a table; or, where there are none, its result files."""
    inner = sorted(entry for entry in folder.iterdir() if entry.is_dir() and is_run(entry))
    return inner or sorted(file for file in folder.glob("*.json") if file.name not in ("table.json", "tune.json"))
