"""What the folder of a run tells, whether it is finished, at work or broken; and what is missing there."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
from PIL import Image

from reverie import metrics
from reverie.config.schema import Config
from reverie.errors import UserError
from reverie.learner.events import (
    DreamSummary,
    EpochEnds,
    Event,
    PhaseBegins,
    PhaseEnds,
    RunBegins,
    StageBegins,
    StageEnds,
    TaskEnds,
)
from reverie.learner.folder import RunFolder
from reverie.learner.session import Seconds, Session
from reverie.runs.figures import Tested, make_figures
from reverie.runs.predictions import Predictions
from reverie.runs.result import Result, read_result
from reverie.tables.rows import Cost, method_title, rows_beside_paper
from reverie.text import plural

# What damaged files raise when they are read: archives and pictures that are cut off, records of another shape.
DAMAGE: tuple[type[Exception], ...] = (OSError, ValueError, LookupError, TypeError, AttributeError, UserError)
DAMAGE += (BadZipFile, EOFError, SyntaxError, NotImplementedError, struct.error, zlib.error)

EventType = TypeVar("EventType", bound=Event)


@dataclass(frozen=True)
class Sheet:
    """The dreams of the classes known before a task, as a PNG."""

    task: int  # counted from 1
    png: bytes


@dataclass
class RunView:
    """Reads what can be read. Nothing in the folder makes it fail; what is wrong there is said in `missing`."""

    path: Path
    missing: list[str] = field(default_factory=list)
    config: Config | None = None
    result: Result | None = None
    events: list[Event] = field(default_factory=list)
    matrix: list[list[float | None]] = field(default_factory=list)  # a row for each task learned so far
    accuracy_after: list[float | None] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    alone: bool = False  # a result file, without the run's folder

    @property
    def name(self) -> str:
        return self.path.stem if self.alone else self.path.resolve().name

    @property
    def title(self) -> str:
        facts = self.result or self.config
        if facts is None:
            return self.name
        try:
            method = method_title(facts.method)
        except UserError:  # of somebody's own package, which is not installed here
            method = facts.method
        return f"{method} on {facts.preset}, seed {facts.seed}"

    @property
    def finished(self) -> bool:
        return self.result is not None

    @property
    def tasks(self) -> int | None:
        """How many there are to learn, if that is known."""
        if self.result is not None:
            return len(self.result.task_sizes)
        return next((event.tasks for event in reversed(self._training_events()) if event.tasks), None)

    @property
    def state(self) -> str:
        """In a few words."""
        if self.finished:
            return "finished"
        learned = len(self.accuracy_after)
        of_all = plural(self.tasks, "task") if self.tasks else ""
        words = f"{learned} of {of_all} learned" if of_all else f"{plural(learned, 'task')} learned"
        for event in reversed(self._training_events()):
            if event.task > learned:
                if isinstance(event, StageBegins):
                    return f"{words}; task {event.task}, stage {event.stage}"
                epoch = f", epoch {event.epoch}" if isinstance(event, EpochEnds) else ""
                return f"{words}; task {event.task}, phase {event.phase}{epoch}"
        return words

    @property
    def last_event(self) -> str | None:
        """When something happened last, in UTC."""
        at: Any = self.events[-1].at if self.events else None
        with suppress(TypeError, ValueError, OverflowError, OSError):
            return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
        return None

    @property
    def seconds(self) -> list[Seconds]:
        """By task and part, as far as it is learned."""
        if self.result is not None:
            return self.result.seconds.by_task
        return [event.seconds for event in self._last_by_task(TaskEnds).values()]

    @property
    def sessions(self) -> list[Session] | list[RunBegins]:
        """Each start of the command."""
        if self.result is not None and self.result.sessions:
            return self.result.sessions
        return [event for event in self.events if isinstance(event, RunBegins)]

    @property
    def dreams(self) -> dict[int, DreamSummary]:
        """By task: how many old classes were dreamed of, and how sure the teacher is of the dreams."""
        ends = [event for event in self.events if isinstance(event, PhaseEnds) and event.phase == "dream"]
        told = {event.task: DreamSummary.of(event.summary) for event in ends}
        return {task: summary for task, summary in told.items() if summary is not None}

    def coverage(self, task: int) -> str:
        """What a sheet of dreams shows, in a few words."""
        summary = self.dreams.get(task)
        if summary is None:
            return "A row for each class."
        return (
            f"A row for each class. Of {summary.classes} old classes, {summary.covered} were dreamed of; "
            f"the teacher's mean confidence is {summary.confidence:.2f}."
        )

    def losses(self) -> dict[str, dict[int, list[EpochEnds]]]:
        """By phase and task, epoch after epoch."""
        found: dict[str, dict[int, list[EpochEnds]]] = {}
        for event in self.events:
            if isinstance(event, EpochEnds):
                found.setdefault(event.phase, {}).setdefault(event.task, []).append(event)
        return found

    def stages(self) -> dict[int, dict[str, Mapping[str, Any]]]:
        """By task and stage: the figures that it found worth writing down."""
        found: dict[int, dict[str, Mapping[str, Any]]] = {}
        for event in self.events:
            if isinstance(event, StageEnds):
                found.setdefault(event.task, {})[event.stage] = event.figures
        return found

    def _training_events(self) -> list[EpochEnds | PhaseBegins | StageBegins]:
        return [event for event in self.events if isinstance(event, EpochEnds | PhaseBegins | StageBegins)]

    def _last_by_task(self, kind: type[TaskEnds]) -> dict[int, TaskEnds]:
        return {event.task: event for event in self.events if isinstance(event, kind)}

    # --- reading

    @classmethod
    def of(cls, path: Path) -> RunView:
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
            self.config = folder.stored().config
        broken: list[str] = []
        name = folder.events.file.name
        with self._noting(f"{name} cannot be read, so there are no losses."):
            self.events = folder.events.read(broken=broken)
        if broken:
            self.missing.append(f"{len(broken)} lines of {name} are damaged and left out.")
        elif not self.events:
            self.missing.append(f"There are no events in {name}, so there are no losses.")
        if folder.finished:
            self._read_result(folder.result)
        if self.result is None:
            self._read_predictions(folder)
            self.missing.append(f"The run is not finished: {self.state}. Omega and the ledger come with the end.")
        elif self.result.upper_bound is None and self.config is not None:
            with self._noting("Omega needs the upper bound, which has not been trained beside this run."):
                self._look_for_upper_bound(folder, self.config)
        for file in sorted(folder.path.glob("tasks/*/dreams.png")):
            with self._noting(f"{file.relative_to(folder.path)} is damaged."):
                png = file.read_bytes()
                Image.open(io.BytesIO(png)).load()
                self.sheets.append(Sheet(int(file.parent.name), png))

    def _read_result(self, file: Path) -> None:
        with self._noting(f"{file.name} is damaged or from another version, so figures are taken from elsewhere."):
            result = read_result(file)
            config = result.configuration()
            for row in rows_beside_paper([result]):  # what is shown of it can be shown
                Cost.of(row.results)
            self.config = self.config or config
            self.matrix, self.accuracy_after = result.accuracy_matrix, list(result.metrics.accuracy_after)
            self.result = result

    def _look_for_upper_bound(self, folder: RunFolder, config: Config) -> None:
        """It may have been trained since. The run's own files stay as they are."""
        assert self.result is not None
        found = make_figures(folder, config, Tested.of(self.result))
        if found.upper_bound is None:
            raise LookupError
        self.result = self.result.replace(**vars(found))

    def _read_predictions(self, folder: RunFolder) -> None:
        """The figures of the tasks learned so far, from the predictions that were written down."""
        ended = self._last_by_task(TaskEnds)
        top = self.config.evaluate.top if self.config is not None else 1
        predicted: list[Predictions | None] = []
        names = [file.parent.name for file in folder.path.glob("tasks/*/predictions.npz")]
        for index in range(max([*ended, *(int(name) for name in names if name.isdigit())], default=0)):
            predicted.append(None)
            with self._noting(f"The predictions after task {index + 1} are missing or damaged."):
                predicted[index] = Predictions.from_bytes(folder.predictions(index).read_bytes())
        whole = [one for one in predicted if one is not None]
        if not whole or len(whole) < len(predicted):
            self.accuracy_after = [
                ended[task + 1].accuracy if task + 1 in ended else None for task in range(len(predicted))
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


def is_run(path: Path) -> bool:
    return any((path / name).exists() for name in ("config.yaml", "events.jsonl", "result.json"))


def runs_in(folder: Path) -> list[Path]:
    """The run folders of a table; or, where there are none, its result files."""
    inner = sorted(entry for entry in folder.iterdir() if entry.is_dir() and is_run(entry))
    return inner or sorted(file for file in folder.glob("*.json") if file.name not in ("table.json", "tune.json"))
