"""Live progress in a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import mean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from reverie.engine.loop import Snapshot
from reverie.engine.phase import Phase
from reverie.errors import counted
from reverie.learner.task_learner import TaskLearner
from reverie.runs.run import RunObserver
from reverie.system import files as disk
from reverie.tables.plan import GridObserver, PlannedRun, State, Worker

SHORT = 12  # letters of losses that are not worth showing
SILENCE = 60.0  # seconds after which a pipe is told how long it will still take


class ConsoleProgress(RunObserver):
    """Follows a run on a console: a bar for the phase in a terminal, a line for each phase and task in any case."""

    def __init__(self, console: Console, bars: Progress | None, label: str) -> None:
        self.console, self.bars, self.label = console, bars, label
        self._bar: TaskID | None = None
        self._where = ""
        self._phase: tuple[Phase, int] | None = None  # and how many of its steps were done when it began
        self._asked: Phase | None = None  # for which others were asked what they know of it
        self._began = self._phase_began = self._said = time.monotonic()
        self._tasks = 0
        self._took: list[float] = []  # seconds of tasks after the first, which is shorter than the others
        self._accuracy = ""  # so far

    def reading(self, done: int, total: int) -> None:
        self._show("reading images", done, total)

    def task_begins(self, index: int, count: int) -> None:
        self._where, self._tasks = f"task {index + 1}/{count}", count
        self._began = time.monotonic()

    def snapshot_for(self, number: int, phase: Phase, learner: TaskLearner) -> None:
        """Knows of none. Asked only where the run has no checkpoint of its own inside the phase."""
        self._asked = phase

    def phase_begins(self, phase: Phase, done: int) -> None:
        if done and phase is self._asked:
            self._say(f"{self._where} {phase.name} is taken from another run that has trained it")
        elif done:
            self._say(f"{self._where} {phase.name} goes on at step {done} of {phase.total_steps}")
        self._phase = phase, done
        self._phase_began = time.monotonic()
        self._show(self._doing(done // phase.feed.steps_per_epoch), done, phase.total_steps)

    def step_ends(self, done: int, snapshot: Callable[[], Snapshot]) -> None:
        if self.bars is not None and self._bar is not None:
            self.bars.update(self._bar, completed=done)
        elif self._phase is not None and time.monotonic() - self._said >= SILENCE:
            phase, first = self._phase
            left = (time.monotonic() - self._phase_began) / (done - first) * (phase.total_steps - done)
            self._say(f"{self._where} {phase.name}: step {done} of {phase.total_steps}, about {_duration(left)} left")

    def epoch_ends(self, epoch: int, lr: float, losses: Mapping[str, float]) -> None:
        if self.bars is not None and self._bar is not None:
            said = "  ".join(word for word in (_brief(losses), self._accuracy) if word)
            doing = f"{self.label} {self._doing(epoch + 1)}"
            self.bars.update(self._bar, description=doing, losses=self._fitting(said, doing), refresh=True)

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None:
        if summary.get("classes"):
            covered, classes = summary["covered"], summary["classes"]
            sure = f"confidence {summary['confidence']:.2f}"
            self._say(f"{self._where} dreams show {covered} of {classes} old classes, {sure}")

    def task_ends(self, index: int, accuracy: float) -> None:
        seconds = time.monotonic() - self._began
        if index:
            self._took.append(seconds)
        to_come = self._tasks - index - 1
        left = f"; about {_duration(to_come * mean(self._took))} left" if to_come and self._took else ""
        right = f"{100 * accuracy:.1f} % right over all classes seen"
        self._accuracy = f"{100 * accuracy:.1f} % right so far{left}"
        self._say(f"{self._where} learned: {right}", f" ({seconds:.0f} s{left})")

    def _doing(self, epochs: int) -> str:
        """`epochs` are over."""
        assert self._phase is not None
        phase = self._phase[0]
        total = -(-phase.total_steps // phase.feed.steps_per_epoch)
        return f"{self._where} {phase.name} epoch {min(epochs + 1, total)}/{total}"

    def _say(self, what: str, aside: str = "") -> None:
        self.console.print(Text.assemble((self.label, "bold"), f" {what.strip()}", (aside, "dim")), soft_wrap=True)
        self._said = time.monotonic()

    def _show(self, what: str, done: int, total: int) -> None:
        if self.bars is None:
            return
        text = f"{self.label} {what.strip()}"
        losses = self._fitting(self._accuracy, text)
        if self._bar is None:
            self._bar = self.bars.add_task(text, total=total, completed=done, losses=losses)
        else:
            self.bars.update(self._bar, description=text, total=total, completed=done, losses=losses)

    def _fitting(self, said: str, beside: str) -> str:
        """As much as a line has room for beside the description, the bar and the times, which come first."""
        room = self.console.width - len(beside) - _bar_width(self.console) - len(" 12345/12345 0:00:00 00:00 ") - 1
        return said if len(said) <= room else f"{said[: room - 1]}…" if room > SHORT else ""


@contextmanager
def following(console: Console, label: str) -> Iterator[ConsoleProgress]:
    """A progress display that goes away with the block."""
    if not console.is_terminal:
        yield ConsoleProgress(console, None, label)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=_bar_width(console)),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[losses]}", style="dim", markup=False),
    )
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as bars:
        yield ConsoleProgress(console, bars, label)


def _bar_width(console: Console) -> int:
    return 24 if console.width >= 110 else 10


class GridProgress(GridObserver):
    """Follows a whole table: in a terminal a bar for it and a line for each run at work, else a line for each end."""

    def __init__(self, console: Console, bars: Progress | None, parallel: int) -> None:
        self.console, self.bars, self.parallel = console, bars, parallel
        self._whole: TaskID | None = None
        self._bars: dict[str, TaskID] = {}
        self._looked = 0.0  # when

    def begins(self, state: State) -> None:
        at_once = f", {self.parallel} at a time" if self.parallel > 1 else ""
        done = len(state.finished)
        self._say(f"{counted(state.total, 'run')}: {done} finished before, {len(state.waiting)} to train{at_once}")
        if self.bars is not None:
            self._whole = self.bars.add_task("all runs", total=state.total, completed=done, status="")

    def run_begins(self, run: PlannedRun, state: State) -> None:
        if self.bars is None:
            self._say(f"{run.name} begins")
        else:
            self._bars[run.name] = self.bars.add_task(run.name, total=1, status="begins")

    def run_ends(self, run: PlannedRun, seconds: float, state: State) -> None:
        accuracy = disk.read_json(run.folder.result)["metrics"]["final_accuracy"]
        left = f"; {self._left(state)}" if state.waiting or state.running else ""
        done = len(state.finished) + len(state.failed)
        self._say(f"[{done}/{state.total}] {run.name}: {100 * accuracy:.1f} % in the end ({seconds:.0f} s){left}")
        self._remove(run)

    def run_fails(self, worker: Worker, state: State) -> None:
        code = worker.process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
        said = worker.tail()
        self._say(f"{worker.run.name} {how}; the others go on." + (f" The end of {worker.log}:" if said else ""))
        for line in said:
            self._say(f"    {line}")
        self._remove(worker.run)

    def run_is_elsewhere(self, run: PlannedRun, state: State) -> None:
        self._say(f"{run.name}: another process is at work on it; this table waits for it.")
        self._remove(run)

    def waits(self, state: State) -> None:
        if self.bars is None or self._whole is None or time.monotonic() - self._looked < 1:
            return
        self._looked = time.monotonic()
        self.bars.update(self._whole, completed=len(state.finished) + len(state.failed), status=self._left(state))
        for worker in state.running:
            learned, tasks, doing = worker.progress()
            self.bars.update(self._bars[worker.run.name], completed=learned, total=tasks, status=doing)

    def _left(self, state: State) -> str:
        seconds = state.seconds_left(self.parallel)
        return "" if seconds is None else f"about {_duration(seconds)} left"

    def _remove(self, run: PlannedRun) -> None:
        if self.bars is not None and run.name in self._bars:
            self.bars.remove_task(self._bars.pop(run.name))

    def _say(self, what: str) -> None:
        self.console.print(Text(what), soft_wrap=True)


@contextmanager
def following_grid(console: Console, parallel: int) -> Iterator[GridProgress]:
    if not console.is_terminal:
        yield GridProgress(console, None, parallel)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as bars:
        yield GridProgress(console, bars, parallel)


@contextmanager
def counting(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for work that says (done, total): a download, files being checked. Nothing where nobody looks."""
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total or None)


def _brief(losses: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.3g}" for name, value in losses.items())


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
