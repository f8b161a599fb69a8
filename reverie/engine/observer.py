"""Following what takes long: one observer for a phase, a task, a run, a `learn` and a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reverie.errors import UserError

if TYPE_CHECKING:
    from reverie.engine.phase import Phase, Stage

Snapshot = dict[str, Any]  # what moves inside a phase: a nested state of tensors and numbers, as `Engine.run` takes it


@dataclass(frozen=True)
class RunProgress:
    """How far one run of a table has come."""

    name: str
    tasks_learned: int
    tasks: int
    doing: str  # in a few words


@dataclass(frozen=True)
class TableProgress:
    """How far a table has come: runs by what they are at.

    `finished`, `failed`, `waiting` and the length of `running` come to `total`, the runs of the table.
    """

    total: int
    finished: int  # those of earlier calls included
    failed: int
    waiting: int  # for a process, or for another one to come to its end
    running: tuple[RunProgress, ...]  # at work now
    parallel: int  # as many as may be at work at a time
    seconds_left: float | None  # about; none before the first run has finished


class Observer:
    """Whoever follows some work: a progress bar, a checkpoint on disk, a log of your own.

    Override what you want to see; all calls do nothing by default. They come from the thread that does the work, and
    what they raise stops it.

        class Losses(reverie.Observer):
            def epoch_ends(self, epoch, lr, losses):
                print(epoch, losses)

        reverie.run(config, "runs/mine", observer=Losses())
    """

    # --- before training

    def reading(self, done: int, total: int) -> None:
        """So many of the image files are decoded."""

    def downloading(self, done: int, total: int) -> None:
        """So many bytes of the weights that a network begins with are here; a `total` of 0 is unknown."""

    def decided(self, line: str) -> None:
        """A line for people: what `learn` has decided on, what a table leaves out."""

    # --- a run

    def task_begins(self, index: int, count: int) -> None:
        """Task `index`, counted from 0, of so many."""

    def task_ends(self, index: int, accuracy: float) -> None:
        """`accuracy` over all classes seen."""

    # --- a phase: one stretch of training inside a task

    def phase_ready(self, number: int, state: Callable[[], dict[str, Any]]) -> None:
        """Before a phase begins: what will rest during it can be written down now. `state` gives the learner's."""

    def snapshot_for(self, number: int, phase: Phase) -> Snapshot | None:
        """To go on from instead of training the phase from its beginning, if somebody knows this very phase."""
        return None

    def phase_begins(self, phase: Phase, done: int) -> None:
        """`done` steps were made before an interruption, or elsewhere."""

    def step_ends(self, done: int, snapshot: Callable[[], Snapshot]) -> None:
        """After every step. `snapshot` costs time; raising here stops the phase."""

    def epoch_ends(self, epoch: int, lr: float, losses: Mapping[str, float]) -> None:
        """Epoch `epoch`, counted from 0: its learning rate, and the mean of each loss."""

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None:
        """With the figures that the phase itself found worth writing down."""

    # --- a stage: one computation in closed form, before or behind phases

    def stage_begins(self, stage: Stage) -> None:
        """`phase_ready` was called before, as for a phase."""

    def stage_ends(self, stage: Stage, figures: Mapping[str, Any]) -> None:
        """With the figures that the stage itself found worth writing down."""

    def time_spent(self, part: str, seconds: float) -> None:
        """What was done for the task besides its phases and stages."""

    # --- a table: runs in processes of their own

    def table_begins(self, table: TableProgress) -> None:
        """Before the first run; `table` says how many were finished before."""

    def table_waits(self, table: TableProgress) -> None:
        """Once a second."""

    def run_begins(self, name: str, table: TableProgress) -> None:
        """A run of the table gets its process. `name` is that of its folder, in this call and the next ones."""

    def run_ends(self, name: str, accuracy: float, seconds: float, table: TableProgress) -> None:
        """`accuracy` after the last task; `seconds` of training, those of earlier starts included."""

    def run_fails(self, name: str, why: str, log: list[str], table: TableProgress) -> None:
        """The others go on. `log` is what it said last."""

    def run_waits(self, name: str, table: TableProgress) -> None:
        """Another process is at work on it: the table waits for that one to come to its end."""


def as_observer(observer: Observer | None) -> Observer:
    """One that does nothing where none is given. A class is a mistake that would show only later."""
    if isinstance(observer, type):
        raise UserError(f"`observer` is a class; make one of it: {observer.__name__}().")
    return observer or Observer()


class Observers(Observer):
    """Passes every call on to several observers, in order."""

    def __init__(self, *observers: Observer | None) -> None:
        self.observers = [as_observer(observer) for observer in observers if observer is not None]

    def reading(self, done: int, total: int) -> None:
        for observer in self.observers:
            observer.reading(done, total)

    def downloading(self, done: int, total: int) -> None:
        for observer in self.observers:
            observer.downloading(done, total)

    def decided(self, line: str) -> None:
        for observer in self.observers:
            observer.decided(line)

    def task_begins(self, index: int, count: int) -> None:
        for observer in self.observers:
            observer.task_begins(index, count)

    def task_ends(self, index: int, accuracy: float) -> None:
        for observer in self.observers:
            observer.task_ends(index, accuracy)

    def phase_ready(self, number: int, state: Callable[[], dict[str, Any]]) -> None:
        for observer in self.observers:
            observer.phase_ready(number, state)

    def snapshot_for(self, number: int, phase: Phase) -> Snapshot | None:
        known = (observer.snapshot_for(number, phase) for observer in self.observers)
        return next((snapshot for snapshot in known if snapshot is not None), None)

    def phase_begins(self, phase: Phase, done: int) -> None:
        for observer in self.observers:
            observer.phase_begins(phase, done)

    def step_ends(self, done: int, snapshot: Callable[[], Snapshot]) -> None:
        for observer in self.observers:
            observer.step_ends(done, snapshot)

    def epoch_ends(self, epoch: int, lr: float, losses: Mapping[str, float]) -> None:
        for observer in self.observers:
            observer.epoch_ends(epoch, lr, losses)

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None:
        for observer in self.observers:
            observer.phase_ends(phase, summary)

    def stage_begins(self, stage: Stage) -> None:
        for observer in self.observers:
            observer.stage_begins(stage)

    def stage_ends(self, stage: Stage, figures: Mapping[str, Any]) -> None:
        for observer in self.observers:
            observer.stage_ends(stage, figures)

    def time_spent(self, part: str, seconds: float) -> None:
        for observer in self.observers:
            observer.time_spent(part, seconds)

    def table_begins(self, table: TableProgress) -> None:
        for observer in self.observers:
            observer.table_begins(table)

    def table_waits(self, table: TableProgress) -> None:
        for observer in self.observers:
            observer.table_waits(table)

    def run_begins(self, name: str, table: TableProgress) -> None:
        for observer in self.observers:
            observer.run_begins(name, table)

    def run_ends(self, name: str, accuracy: float, seconds: float, table: TableProgress) -> None:
        for observer in self.observers:
            observer.run_ends(name, accuracy, seconds, table)

    def run_fails(self, name: str, why: str, log: list[str], table: TableProgress) -> None:
        for observer in self.observers:
            observer.run_fails(name, why, log, table)

    def run_waits(self, name: str, table: TableProgress) -> None:
        for observer in self.observers:
            observer.run_waits(name, table)
