"""Where the runs of a table are trained: on this machine, each by a process of its own.

A worker is the command `reverie run`: its memory is its own, its log lies in `logs/`, and what it leaves behind when it
is killed is what any run leaves. So a table can be stopped anywhere and goes on from there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from reverie.config.schema import DataConfig
from reverie.data.sources import refuse_missing
from reverie.engine.device import find_device
from reverie.engine.observer import Observer, RunProgress, TableProgress
from reverie.errors import Interrupted, explaining
from reverie.learner.events import EpochEnds, PhaseBegins, StageBegins
from reverie.runs.figures import finished_result
from reverie.runs.result import Result
from reverie.runs.run import CHECKPOINT_SECONDS, own_data
from reverie.system.signals import on_stop_signal
from reverie.tables.plan import Plan, PlannedRun

LOGS = "logs"
_POLL_SECONDS, _TELL_SECONDS = 0.2, 1.0
_TAIL = 12  # lines of a dead worker's log
_LOOK_BACK = 20_000  # bytes of a run's events: more than any event has


@dataclass(frozen=True)
class LocalExecutor:
    """Trains the runs of a table on this machine: where their data lie, what they run on, how many at a time."""

    data: Path = Path("data")
    device: str = "auto"
    parallel: int = 1
    checkpoint_seconds: float = CHECKPOINT_SECONDS

    def train(self, plan: Plan, observer: Observer) -> State:
        """Train what is not finished yet. A run that fails is told to the observer, and the others go on."""
        find_device(self.device)
        self._check_data(plan)
        state = State([run for run in plan.runs if not run.folder.finished], parallel=self.parallel)
        for run in plan.runs:
            if run.folder.finished:
                state.finished.append(run)
                state.note(run, _seconds_of_its_own(finished_result(run.folder, run.config)))
        observer.table_begins(state.progress())
        told = time.monotonic()
        with _stopping_workers(state):
            while state.waiting or state.running:
                self._begin_what_can_begin(state, plan.out / LOGS, observer)
                time.sleep(_POLL_SECONDS)
                for worker in [worker for worker in state.running if worker.process.poll() is not None]:
                    _end(worker, state, observer)
                if time.monotonic() - told >= _TELL_SECONDS:
                    observer.table_waits(state.progress())
                    told = time.monotonic()
        return state

    def environment(self) -> dict[str, str]:
        """On a CPU, workers share the cores fairly: threads that wait for each other cost more than they bring."""
        if self.parallel == 1 or find_device(self.device).type != "cpu":
            return dict(os.environ)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # "4,2": those of inner levels follow
        most = int(asked) if asked.isdigit() else cores
        return {**os.environ, "OMP_NUM_THREADS": str(max(1, min(most, cores // self.parallel)))}

    def command(self, run: PlannedRun) -> list[str]:
        words = [sys.executable, "-m", "reverie", "run", run.entry.preset, "--method", run.entry.method]
        words += ["--seed", str(run.config.seed), "--recipe", run.config.recipe, "--out", str(run.folder.path)]
        words += ["--data", str(self.data), "--device", self.device, "--share-first-task"]
        words += ["--checkpoint-every", str(self.checkpoint_seconds)]
        return [*words, *(word for setting in run.settings for word in ("--set", setting))]

    def _check_data(self, plan: Plan) -> None:
        """Before the first run: the data are there, and are those of the runs that were finished before."""
        fingerprints: dict[DataConfig, str | None] = {}
        for run in plan.runs:
            data = run.config.data
            if not run.folder.finished:
                refuse_missing(data, self.data)
                continue
            if data not in fingerprints:
                fingerprints[data] = own_data(run.config, self.data)
            run.folder.refuse_others(run.config, fingerprints[data])

    def _begin_what_can_begin(self, state: State, logs: Path, observer: Observer) -> None:
        """In order, and as many as there is room for. Worker processes outlive a table that was killed: they are left
        to it, and what they finish is finished.
        """
        for run in [*state.waiting]:
            if len(state.running) == self.parallel:
                return
            if run.folder.finished:
                state.take(run)
                _count(run, 0.0, state, observer)
            elif not run.folder.in_use():
                state.take(run)
                state.running.append(Worker(run, self, logs / f"{run.name}.log"))
                observer.run_begins(run.name, state.progress())
            elif run not in state.elsewhere:
                state.elsewhere.append(run)
                observer.run_waits(run.name, state.progress())


class Worker:
    """A run in a process of its own, out of reach of the terminal's Ctrl-C: the table passes it on."""

    def __init__(self, run: PlannedRun, executor: LocalExecutor, log: Path) -> None:
        self.run, self.log, self.began = run, log, time.monotonic()
        with explaining("written", "Choose another `out`."):
            log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self._log_begins = file.tell()
            self.process = subprocess.Popen(
                executor.command(run),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=executor.environment(),
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def last_lines(self) -> list[str]:
        """Of its log."""
        text = self.log.read_bytes()[self._log_begins :].decode("utf-8", "replace")
        return text.rstrip().splitlines()[-_TAIL:]

    def failure(self) -> str:
        """How it ended, in words."""
        code = self.process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
        return f"{how}; its log is {self.log}"

    def progress(self) -> RunProgress:
        """As far as its events tell."""
        for event in reversed(self.run.folder.events.read(last=_LOOK_BACK, broken=[])):
            if isinstance(event, EpochEnds | PhaseBegins | StageBegins):
                part = event.stage if isinstance(event, StageBegins) else event.phase
                epoch = f" epoch {event.epoch}" if isinstance(event, EpochEnds) else ""
                tasks = event.tasks or event.task
                doing = f"task {event.task}/{tasks} {part}{epoch}"
                return RunProgress(self.run.name, event.task - 1, tasks, doing)
        return RunProgress(self.run.name, 0, 1, "begins")

    def ask_to_stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)


@dataclass
class State:
    """How far a table has come."""

    waiting: list[PlannedRun]
    running: list[Worker] = field(default_factory=list)
    finished: list[PlannedRun] = field(default_factory=list)
    failed: list[PlannedRun] = field(default_factory=list)
    elsewhere: list[PlannedRun] = field(default_factory=list)  # of those that wait: another process is at work
    took: dict[str, list[float]] = field(default_factory=dict)  # seconds of finished runs, by kind
    parallel: int = 1

    @property
    def total(self) -> int:
        return len(self.waiting) + len(self.running) + len(self.finished) + len(self.failed)

    def take(self, run: PlannedRun) -> None:
        """It waits no longer."""
        self.waiting.remove(run)
        self.elsewhere = [other for other in self.elsewhere if other is not run]

    def note(self, run: PlannedRun, seconds: float) -> None:
        self.took.setdefault(run.kind, []).append(seconds)

    def seconds_left(self) -> float | None:
        """From runs of the same row where there are any, else from all. None before the first has finished."""
        if not self.took:
            return None
        every = mean(seconds for of_kind in self.took.values() for seconds in of_kind)
        expected = {kind: mean(seconds) for kind, seconds in self.took.items()}
        left = [max(0.0, expected.get(worker.run.kind, every) - worker.seconds) for worker in self.running]
        left += [expected.get(run.kind, every) for run in self.waiting]
        return max([sum(left) / self.parallel, *left[: len(self.running)]], default=0.0)

    def progress(self) -> TableProgress:
        return TableProgress(
            total=self.total,
            finished=len(self.finished),
            failed=len(self.failed),
            waiting=len(self.waiting),
            running=tuple(worker.progress() for worker in self.running),
            parallel=self.parallel,
            seconds_left=self.seconds_left(),
        )


def _end(worker: Worker, state: State, observer: Observer) -> None:
    """Of a worker whose process has ended."""
    state.running.remove(worker)
    if worker.run.folder.finished:
        _count(worker.run, worker.seconds, state, observer)
    elif worker.run.folder.in_use():  # somebody else was a moment faster
        state.waiting.insert(0, worker.run)
        state.elsewhere.append(worker.run)
        observer.run_waits(worker.run.name, state.progress())
    else:
        state.failed.append(worker.run)
        observer.run_fails(worker.run.name, worker.failure(), worker.last_lines(), state.progress())


def _count(run: PlannedRun, seconds: float, state: State, observer: Observer) -> None:
    """Among the finished. It may have gone on where another was stopped, or have been trained elsewhere."""
    state.finished.append(run)
    result = finished_result(run.folder, run.config)
    seconds = max(_seconds_of_its_own(result), seconds)
    state.note(run, seconds)
    observer.run_ends(run.name, result.metrics.final_accuracy, seconds, state.progress())


def _seconds_of_its_own(result: Result) -> float:
    """Without what other runs had trained for it."""
    shared = [phase.seconds for phase in (result.first_task, result.first_dreams) if phase is not None]
    return result.seconds.total - sum(shared)


@contextmanager
def _stopping_workers(state: State) -> Iterator[None]:
    """However the block is left, no worker outlives it. Ctrl-C once: all save their last step; again: all at once."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with on_stop_signal(interrupt):
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted from None
        finally:
            _stop(state.running)


def _stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.ask_to_stop()
    for worker in workers:
        try:
            worker.process.wait()
        except KeyboardInterrupt:
            for other in workers:
                other.ask_to_stop()
            worker.process.wait()
