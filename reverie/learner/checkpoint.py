"""What must survive a crash: checkpoints inside and between phases, events, and the time that each part took."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field, InstanceOf

from reverie.engine.device import synchronise
from reverie.engine.observer import Observer, Snapshot
from reverie.engine.phase import SGD, Phase, Stage
from reverie.errors import Interrupted, UserError
from reverie.learner.events import EpochEnds, PhaseBegins, PhaseEnds, StageBegins, StageEnds
from reverie.learner.folder import RunFolder
from reverie.learner.session import Seconds, Session
from reverie.system.files import read_state, remove_state, write_state
from reverie.system.records import Record, as_record
from reverie.text import first_line, plural

log = logging.getLogger("reverie")
Index = Annotated[int, Field(ge=0, le=1_000_000)]


class LearnerState(Record):
    """A learner between two phases. State dicts of networks and methods are theirs to check."""

    classes: list[str]
    classifier: InstanceOf[dict]
    method: InstanceOf[dict]
    ledger: list[InstanceOf[dict]]


class CheckpointFile(Record):
    """What both files hold."""

    task: Index
    seconds: list[Seconds]
    sessions: list[Session]
    events: Annotated[int, Field(ge=0)]  # bytes of events.jsonl


class RestingFile(CheckpointFile):
    """`resting.pt`: everything, when a phase begins; `phase` is none between two tasks."""

    phase: Index | None
    learner: LearnerState


class MovingFile(CheckpointFile):
    """`moving.pt`: what has moved since the phase began."""

    phase: Index
    snapshot: InstanceOf[dict]


FileType = TypeVar("FileType", bound=CheckpointFile)


@dataclass(frozen=True)
class Checkpoint:
    """How far a run had come when it was interrupted."""

    task: int
    phase: int | None  # none: between two tasks
    state: LearnerState  # the learner as it was when that phase began
    snapshot: Snapshot | None = None  # and what had moved since


class Recorder(Observer):
    """Writes down what must survive a crash. Losing power costs at most `every` seconds of work."""

    def __init__(self, folder: RunFolder, every: float, device: torch.device) -> None:
        self.folder, self.every, self.device = folder, every, device
        self.task, self.tasks = 0, 0
        self.seconds: list[Seconds] = []  # by task and part
        self.sessions: list[Session] = []
        self.stop = False  # asked to, by a signal
        self._phase: tuple[int, str] = (0, "")
        self._phase_began = self._last_save = time.monotonic()

    def request_stop(self) -> None:
        """The first request asks for a checkpoint after the current step; the second ends it all at once."""
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True

    # --- what is followed

    def phase_ready(self, number: int, state: Callable[[], dict[str, Any]]) -> None:
        self._phase = (number, "")
        self.save_resting(number, state())

    def phase_begins(self, phase: Phase, done: int) -> None:
        self._phase = (self._phase[0], phase.name)
        self.folder.events.write(
            PhaseBegins(task=self.task + 1, tasks=self.tasks, phase=phase.name, done=done, steps=phase.total_steps)
        )
        self._phase_began = self._last_save = time.monotonic()

    def step_ends(self, done: int, snapshot: Callable[[], Snapshot]) -> None:
        if self.stop or time.monotonic() - self._last_save >= self.every:
            self._save_moving(snapshot())
        if self.stop:
            raise Interrupted

    def epoch_ends(self, epoch: int, lr: float, losses: Mapping[str, float]) -> None:
        self.write_epoch(self._phase[1], epoch + 1, lr, losses)

    def write_epoch(self, phase: str, epoch: int, lr: float | None, losses: Mapping[str, float]) -> None:
        self.folder.events.write(
            EpochEnds(task=self.task + 1, tasks=self.tasks, phase=phase, epoch=epoch, lr=lr, losses=dict(losses))
        )

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None:
        synchronise(self.device)
        self.add_seconds(phase.name, time.monotonic() - self._phase_began)
        self.folder.events.write(PhaseEnds(task=self.task + 1, phase=phase.name, summary=dict(summary)))

    def stage_begins(self, stage: Stage) -> None:
        if self.stop:
            raise Interrupted
        self._phase = (self._phase[0], stage.name)
        self.folder.events.write(StageBegins(task=self.task + 1, tasks=self.tasks, stage=stage.name))
        self._phase_began = time.monotonic()

    def stage_ends(self, stage: Stage, figures: Mapping[str, Any]) -> None:
        synchronise(self.device)
        self.time_spent(stage.name, time.monotonic() - self._phase_began)
        self.folder.events.write(StageEnds(task=self.task + 1, stage=stage.name, figures=dict(figures)))

    def time_spent(self, part: str, seconds: float) -> None:
        self.add_seconds(part, seconds)

    # --- time

    def begin_task(self, task: int) -> None:
        self.task = task
        if len(self.seconds) == task:
            self.seconds.append({})

    def seconds_so_far(self) -> float:
        """Of the phase at work, those of earlier sessions included."""
        return self.seconds[self.task].get(self._phase[1], 0.0) + time.monotonic() - self._phase_began

    def add_seconds(self, part: str, seconds: float) -> None:
        parts = self.seconds[self.task]
        parts[part] = parts.get(part, 0.0) + seconds

    # --- checkpoints

    def save_resting(self, phase: int | None, state: Mapping[str, Any]) -> None:
        """Everything, when a phase begins; `phase` is none between two tasks."""
        write_state(self.folder.resting, self._common(phase, self.seconds) | {"learner": state})
        remove_state(self.folder.moving)

    def _save_moving(self, snapshot: Snapshot) -> None:
        """What has moved since the phase began."""
        synchronise(self.device)
        parts = dict(self.seconds[self.task])
        parts[self._phase[1]] = self.seconds_so_far()
        seconds = [*self.seconds[: self.task], parts]
        write_state(self.folder.moving, self._common(self._phase[0], seconds) | {"snapshot": snapshot})
        self._last_save = time.monotonic()

    def _common(self, phase: int | None, seconds: list[Seconds]) -> dict[str, Any]:
        return {
            "task": self.task,
            "phase": phase,
            "seconds": seconds,
            "sessions": [session.as_dict() for session in self.sessions],
            "events": self.folder.events.sync(),
        }

    def recover(self) -> Checkpoint | None:
        """The last checkpoint, if there is one. Events after it are taken back, since they will happen again."""
        resting = self._read_resting()
        if resting is None:
            self.folder.events.cut(0)
            return None
        latest: CheckpointFile = resting
        moving = self._read_moving()
        if moving is not None and (moving.task, moving.phase) == (resting.task, resting.phase):
            latest = moving
        self._phase = (resting.phase or 0, "")
        self.seconds, self.sessions = list(latest.seconds), list(latest.sessions)
        self.folder.events.cut(latest.events)
        snapshot = latest.snapshot if isinstance(latest, MovingFile) else None
        return Checkpoint(resting.task, resting.phase, resting.learner, snapshot)

    def _read_resting(self) -> RestingFile | None:
        file = self.folder.resting
        if not file.is_file():
            return None
        try:
            return _read(file, RestingFile)
        except Exception as error:  # a damaged file can fail in any way
            why = first_line(error).rstrip(".")
            raise UserError(
                f"The checkpoint {file} is damaged ({why}). Delete its folder to start the run anew."
            ) from None

    def _read_moving(self) -> MovingFile | None:
        """Damaged, it costs the steps since the phase began, and not those before."""
        file = self.folder.moving
        try:
            return _read(file, MovingFile) if file.is_file() else None
        except Exception as error:
            why = first_line(error).rstrip(".")
            log.warning("The checkpoint %s is damaged (%s): its phase begins anew.", file, why)
            return None


def _read(file: Path, cls: type[FileType]) -> FileType:
    found = as_record(cls, read_state(file))
    if not found.task <= len(found.seconds) <= found.task + 1:
        raise ValueError(f"it has the seconds of {plural(len(found.seconds), 'task')}, not of {found.task + 1}")
    return found


def fits(snapshot: Snapshot, phase: Phase | Stage) -> bool:
    """Is it a snapshot of this very phase, and not of another network's or another schedule's?"""
    if isinstance(phase, Stage):
        return False
    try:
        ours = {name: _shapes(module.state_dict()) for name, module in phase.moves.items()}
        theirs = {name: _shapes(state) for name, state in snapshot["moves"].items()}
        in_range = snapshot["done"] in range(phase.total_steps + 1)
        return ours == theirs and in_range and _optimizer_fits(snapshot["optimizer"], phase)
    except (LookupError, TypeError, AttributeError, ValueError):
        return False


def _optimizer_fits(state: Mapping[str, Any], phase: Phase) -> bool:
    """Has an optimizer the state of this phase's parameters, and the values that this phase gives it?"""
    shapes = dict(enumerate(tuple(parameter.shape) for parameter in phase.trainable()))
    settings = phase.optimizer
    if isinstance(settings, SGD):
        told = {"momentum": settings.momentum, "weight_decay": settings.weight_decay}
        wanted: dict[str, bool] = {"momentum_buffer": True}  # whether it has the parameter's shape
    else:
        told, wanted = {}, {"step": False, "exp_avg": True, "exp_avg_sq": True}
    (group,) = state["param_groups"]
    if group["params"] != list(shapes) or any(group[name] != value for name, value in told.items()):
        return False
    return state["state"].keys() <= shapes.keys() and all(
        _shapes(values) == {name: shapes[number] if like_it else () for name, like_it in wanted.items()}
        for number, values in state["state"].items()
    )


def _shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(getattr(value, "shape", ())) for name, value in state.items()}
