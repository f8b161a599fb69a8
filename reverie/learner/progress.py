"""Progress for people: bars in a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import mean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from reverie.engine.observer import Observer, Snapshot
from reverie.engine.phase import Phase, Stage
from reverie.learner.checkpoint import Checkpoint
from reverie.text import duration, percent

MEGABYTE = 1_000_000
SHORT = 12  # letters of losses that are not worth showing
SILENCE = 60.0  # seconds after which a pipe is told how long it will still take


class ConsoleProgress(Observer):
    """Follows a run on a console: a bar for the phase in a terminal, a line for each phase and task in any case."""

    def __init__(self, console: Console, bars: Progress | None, label: str) -> None:
        self.console, self.bars, self.label = console, bars, label
        self._bar: TaskID | None = None
        self._where = ""
        self._phase: tuple[Phase, int] | None = None  # and how many of its steps were done when it began
        self._asked: Phase | None = None  # for which others were asked what they know of it
        self._began = self._phase_began = self._spoke = time.monotonic()
        self._tasks = 0
        self._took: list[float] = []  # seconds of tasks after the first, which is shorter than the others
        self._accuracy = ""  # so far

    def reading(self, done: int, total: int) -> None:
        self._show("reading images", done, total)

    def downloading(self, done: int, total: int) -> None:
        self._show("downloading weights, MB", done // MEGABYTE, total // MEGABYTE)

    def task_begins(self, index: int, count: int) -> None:
        self._where, self._tasks = f"task {index + 1}/{count}", count
        self._began = time.monotonic()

    def decided(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)

    def snapshot_for(self, number: int, phase: Phase) -> None:
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
        elif self._phase is not None and time.monotonic() - self._spoke >= SILENCE:
            phase, first = self._phase
            left = (time.monotonic() - self._phase_began) / (done - first) * (phase.total_steps - done)
            self._say(f"{self._where} {phase.name}: step {done} of {phase.total_steps}, about {duration(left)} left")

    def epoch_ends(self, epoch: int, lr: float, losses: Mapping[str, float]) -> None:
        if self.bars is not None and self._bar is not None:
            facts = "  ".join(word for word in (_losses(losses), self._accuracy) if word)
            doing = f"{self.label} {self._doing(epoch + 1).strip()}"
            self.bars.update(self._bar, description=doing, losses=self._fitting(facts, doing), refresh=True)

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None:
        if summary.get("classes"):
            covered, classes = summary["covered"], summary["classes"]
            sure = f"confidence {summary['confidence']:.2f}"
            self._say(f"{self._where} dreams show {covered} of {classes} old classes, {sure}")

    def stage_begins(self, stage: Stage) -> None:
        self._show(f"{self._where} {stage.name}", 0, 1)

    def task_ends(self, index: int, accuracy: float) -> None:
        seconds = time.monotonic() - self._began
        if index:
            self._took.append(seconds)
        to_come = self._tasks - index - 1
        left = f"; about {duration(to_come * mean(self._took))} left" if to_come and self._took else ""
        right = f"{percent(accuracy)} right over all classes seen"
        self._accuracy = f"{percent(accuracy)} right so far{left}"
        self._say(f"{self._where} learned: {right}", f" ({seconds:.0f} s{left})")

    def _doing(self, epochs: int) -> str:
        """`epochs` are over."""
        assert self._phase is not None
        phase = self._phase[0]
        total = -(-phase.total_steps // phase.feed.steps_per_epoch)
        return f"{self._where} {phase.name} epoch {min(epochs + 1, total)}/{total}"

    def _say(self, what: str, detail: str = "") -> None:
        self.console.print(Text.assemble((self.label, "bold"), f" {what.strip()}", (detail, "dim")), soft_wrap=True)
        self._spoke = time.monotonic()

    def _show(self, what: str, done: int, total: int) -> None:
        if self.bars is None:
            return
        text = f"{self.label} {what.strip()}"
        losses = self._fitting(self._accuracy, text)
        if self._bar is None:
            self._bar = self.bars.add_task(text, total=total, completed=done, losses=losses)
        else:
            self.bars.update(self._bar, description=text, total=total, completed=done, losses=losses)

    def _fitting(self, facts: str, description: str) -> str:
        """As much as a line has room for behind the description, the bar and the times."""
        times = len(" 12345/12345 0:00:00 00:00 ")
        room = self.console.width - len(description) - _bar_width(self.console) - times - 1
        if len(facts) <= room:
            return facts
        return f"{facts[: room - 1]}…" if room > SHORT else ""


def where_it_goes_on(checkpoint: Checkpoint, tasks: int = 1) -> str:
    """What an earlier start has left to go on from, for people."""
    places = [f"task {checkpoint.task + 1} of {tasks}"] if tasks > 1 and checkpoint.task < tasks else []
    if checkpoint.phase is not None:
        places.append(f"phase {checkpoint.phase + 1}")
        places.append(f"step {checkpoint.snapshot['done'] if checkpoint.snapshot else 0}")
    return f"goes on from the last checkpoint: {', '.join(places) or 'all tasks are learned'}"


@contextmanager
def showing_progress(wanted: bool | Console, label: str) -> Iterator[Observer]:
    """A display for the block: on a console of the caller's, on stderr where it is just wanted, or none."""
    console = console_for(wanted)
    if console is None:
        yield Observer()
        return
    with following(console, label) as progress:
        yield progress


def console_for(wanted: bool | Console) -> Console | None:
    if isinstance(wanted, Console):
        return wanted
    return Console(stderr=True, highlight=False, markup=False, emoji=False) if wanted else None


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


@contextmanager
def counting(wanted: bool | Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for work that says (done, total): a download, files being checked. Nothing where nobody looks."""
    console = console_for(wanted)
    if console is None or not console.is_terminal:
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


def _losses(losses: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.3g}" for name, value in losses.items())
