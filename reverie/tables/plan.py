"""The runs of a table: planned, trained by worker processes, followed, and put side by side.

A worker is the command `reverie run` in a process of its own: its memory is its own, its log lies in `logs/`, and what
it leaves behind when it is killed is what any run leaves. So a table can be stopped anywhere and goes on from there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from reverie.config.layers import setting_keys
from reverie.config.schema import Config, DataConfig, Recipe
from reverie.data import sources
from reverie.data.stream import task_sizes
from reverie.engine.loop import find_device
from reverie.errors import Interrupted, UserError, explaining
from reverie.learner.checkpoint import RunFolder, read_events, stopping_signals
from reverie.methods import UPPER_BOUND, find_method, method_names, methods_that_load
from reverie.methods.base import Keeps
from reverie.runs import configure as experiment
from reverie.runs import result as results
from reverie.runs import run as runs
from reverie.runs.first_task import FOUND
from reverie.system import files as disk
from reverie.system import provenance
from reverie.tables import rows as tables
from reverie.tables.rows import Row, Section, paper
from reverie.version import __version__

CLASSES = {"digits": 10, "cifar10": 10, "cifar100": 100}  # of data sets that nobody has a part of
LOGS = "logs"
_POLL_SECONDS = 0.2
_TAIL = 12  # lines of a dead worker's log
_LOOK_BACK = 20_000  # bytes of a run's events: more than any event has


@dataclass(frozen=True)
class Entry:
    """One row of a table, on one preset: a method, and the settings that make the row."""

    preset: str
    method: str
    settings: tuple[str, ...] = ()
    title: str = ""
    table: str = ""  # of the paper, if it is a row of one

    @property
    def name(self) -> str:
        return self.title or ", ".join([tables.method_title(self.method), *self.settings])


@dataclass(frozen=True)
class PlannedRun:
    entry: Entry
    config: Config
    settings: tuple[str, ...]  # the row's and the person's
    folder: RunFolder

    @property
    def name(self) -> str:
        return self.folder.path.name


@dataclass(frozen=True)
class Plan:
    """All runs of a table, row by row. The upper bound comes first, since the others' Omega refers to it."""

    runs: Sequence[PlannedRun]
    seeds: Sequence[int]
    recipe: Recipe
    settings: Sequence[str]  # for all rows
    out: Path

    @classmethod
    def make(
        cls, entries: Sequence[Entry], seeds: Sequence[int], recipe: Recipe, settings: Sequence[str], out: Path
    ) -> Plan:
        """Looks at everything that can be wrong with any of them before the first is begun."""
        made = []
        for entry in dict.fromkeys(entries):
            _refuse_what_makes_the_row(entry, settings)
            of_methods = [text for text in settings if any(key.startswith("method.") for key in setting_keys([text]))]
            common = [text for text in settings if entry.method != UPPER_BOUND or text not in of_methods]
            chosen = (*entry.settings, *common)
            for seed in dict.fromkeys(seeds):
                config = experiment.configure(entry.preset, entry.method, seed=seed, recipe=recipe, settings=chosen)
                _try_split(config)
                folder = RunFolder(out / experiment.folder_name(config, chosen))
                folder.refuse_others(config)
                made.append(PlannedRun(entry, config, chosen, folder))
        return cls(made, tuple(dict.fromkeys(seeds)), recipe, tuple(settings), out)


def _refuse_what_makes_the_row(entry: Entry, settings: Sequence[str]) -> None:
    """A row that has another value than its title says would stand beside a figure that is not its own."""
    twice = setting_keys(entry.settings) & setting_keys(settings)
    if twice:
        raise UserError(f"--set {min(twice)} cannot be for all rows: it is what makes the row {entry.name!r}.")


def _try_split(config: Config) -> None:
    """Can the classes be cut into such tasks? Where anybody may have other classes, reading tells."""
    count = CLASSES.get(config.data.source)
    if count is not None:
        task_sizes(config.stream.split, len(experiment.choose_classes(config, count)))


def entries_for(preset: str, methods: Sequence[str], upper_bound: bool = True) -> list[Entry]:
    """A row for each method, `["all"]` of them or those named, and the upper bound unless it is not wanted."""
    every = list(methods) == ["all"]
    names = [name for name in methods_that_load() if name != UPPER_BOUND] if every else list(methods)
    return [Entry(preset, name) for name in in_order([UPPER_BOUND, *names] if upper_bound else names)]


def entries_of_paper(
    table: paper.PaperTable, presets: Sequence[str], methods: Sequence[str], upper_bound: bool = True
) -> tuple[list[Entry], list[str]]:
    """The rows of a table of the paper; and a line for each that cannot be run here."""
    for kind, wanted, known in (
        ("preset", presets, table.presets),
        ("method", methods, [row.method for row in table.rows]),
    ):
        unknown = {*wanted} - {*known}
        if unknown:
            raise UserError(f"The paper's table {table.name!r} has no {kind} {min(unknown)!r}.")
    entries, missing = [], []
    for preset in presets or table.presets:
        rows = [row for row in table.rows if row.preset == preset and (not methods or row.method in methods)]
        made = [
            Entry(preset, row.method, row.settings, row.title, table.name) for row in rows if row.method != UPPER_BOUND
        ]
        if upper_bound or UPPER_BOUND in methods:
            made.insert(0, Entry(preset, UPPER_BOUND, table=table.name))
        runnable = []
        for entry in made:
            why = _why_not(entry)
            if why is None:
                runnable.append(entry)
            else:
                missing.append(f"{why[0]} is left out: {why[1]}")
        entries += sorted(runnable, key=lambda entry: _rank(entry.method))
    return entries, [*dict.fromkeys(missing)]


def _why_not(entry: Entry) -> tuple[str, UserError] | None:
    """What is not here, the preset or the row, and why."""
    for name, method, settings in (
        (entry.preset, UPPER_BOUND, ()),
        (entry.title or entry.method, entry.method, entry.settings),
    ):
        try:
            experiment.configure(entry.preset, method, settings=settings)
        except UserError as error:
            return name, error
    return None


def in_order(methods: Sequence[str]) -> list[str]:
    """The upper bound, those that keep nothing, those that keep something; among equals, as the paper has them."""
    known = [*paper.order(), *method_names()]
    return sorted(dict.fromkeys(methods), key=lambda name: (_rank(name), known.index(name)))


def _rank(method: str) -> int:
    return {Keeps.EVERYTHING: 0, Keeps.NOTHING: 1}.get(find_method(method).keeps, 2)


# --- workers


@dataclass(frozen=True)
class Place:
    """Where the runs of a table find their data, and what they run on."""

    data: Path = Path("data")
    device: str = "auto"
    parallel: int = 1
    checkpoint_seconds: float = runs.CHECKPOINT_SECONDS

    def environment(self) -> dict[str, str]:
        """On a CPU, workers share the cores fairly: threads that wait for each other cost more than they bring."""
        if self.parallel == 1 or find_device(self.device).type != "cpu":
            return dict(os.environ)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # "4,2": those of inner levels follow
        most = int(said) if said.isdigit() else cores
        return {**os.environ, "OMP_NUM_THREADS": str(max(1, min(most, cores // self.parallel)))}


class Worker:
    """A run in a process of its own, out of reach of the terminal's Ctrl-C: the table passes it on."""

    def __init__(self, run: PlannedRun, place: Place, log: Path) -> None:
        self.run, self.log, self.began = run, log, time.monotonic()
        with explaining("written", "Choose another --out."):
            log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self._log_begins = file.tell()
            self.process = subprocess.Popen(
                _command(run, place),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=place.environment(),
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def tail(self) -> list[str]:
        """What it said last."""
        said = self.log.read_bytes()[self._log_begins :].decode("utf-8", "replace")
        return said.rstrip().splitlines()[-_TAIL:]

    def progress(self) -> tuple[int, int, str]:
        """As far as its events tell: tasks learned, tasks in all, and what it is at."""
        for event in reversed(read_events(self.run.folder.events, last=_LOOK_BACK)):
            if event["event"] in ("epoch", "phase begins"):
                epoch = f" epoch {event['epoch']}" if "epoch" in event else ""
                where = f"task {event['task']}/{event['tasks']} {event['phase']}{epoch}"
                return event["task"] - 1, event["tasks"], where
        return 0, 1, "begins"

    def ask_to_stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)


def _command(run: PlannedRun, place: Place) -> list[str]:
    words = [sys.executable, "-m", "reverie", "run", run.entry.preset, "--method", run.entry.method]
    words += ["--seed", str(run.config.seed), "--recipe", run.config.recipe, "--out", str(run.folder.path)]
    words += ["--data", str(place.data), "--device", place.device, "--share-first-task"]
    words += ["--checkpoint-every", str(place.checkpoint_seconds)]
    return [*words, *(word for setting in run.settings for word in ("--set", setting))]


@dataclass
class State:
    """How far a table has come."""

    waiting: list[PlannedRun]
    running: list[Worker] = field(default_factory=list)
    finished: list[PlannedRun] = field(default_factory=list)
    failed: list[PlannedRun] = field(default_factory=list)
    elsewhere: list[PlannedRun] = field(default_factory=list)  # of those that wait: another process is at work
    took: dict[str, list[float]] = field(default_factory=dict)  # seconds of finished runs, by preset and row

    @property
    def total(self) -> int:
        return len(self.waiting) + len(self.running) + len(self.finished) + len(self.failed)

    def take(self, run: PlannedRun) -> None:
        """It waits no longer."""
        self.waiting.remove(run)
        self.elsewhere = [other for other in self.elsewhere if other is not run]

    def note(self, run: PlannedRun, seconds: float) -> None:
        self.took.setdefault(_kind(run), []).append(seconds)

    def seconds_left(self, parallel: int) -> float | None:
        """From runs of the same row where there are any, else from all. None before the first has finished."""
        if not self.took:
            return None
        every = mean(seconds for of_kind in self.took.values() for seconds in of_kind)
        expected = {kind: mean(seconds) for kind, seconds in self.took.items()}
        left = [max(0.0, expected.get(_kind(w.run), every) - w.seconds) for w in self.running]
        left += [expected.get(_kind(run), every) for run in self.waiting]
        return max([sum(left) / parallel, *left[: len(self.running)]], default=0.0)


def _kind(run: PlannedRun) -> str:
    return f"{run.entry.preset} {run.entry.name}"


class GridObserver:
    """Whoever follows a table. All calls do nothing by default."""

    def begins(self, state: State) -> None: ...
    def run_begins(self, run: PlannedRun, state: State) -> None: ...
    def run_ends(self, run: PlannedRun, seconds: float, state: State) -> None: ...
    def run_fails(self, worker: Worker, state: State) -> None: ...
    def run_is_elsewhere(self, run: PlannedRun, state: State) -> None:
        """Another process is at work on it: it stays among those that wait until that one has come to its end."""

    def waits(self, state: State) -> None:
        """Several times a second."""


def train(plan: Plan, place: Place, observer: GridObserver) -> State:
    """Train what is not finished yet. A run that fails is told to the observer, and the others go on."""
    find_device(place.device)
    _check_data(plan, place)
    state = State([run for run in plan.runs if not run.folder.finished])
    for run in plan.runs:
        if run.folder.finished:
            state.finished.append(run)
            state.note(run, _spent(results.refreshed(run.folder, run.config)))
    observer.begins(state)
    with _stopping_gently(state):
        while state.waiting or state.running:
            _begin_what_can_begin(state, place, plan.out / LOGS, observer)
            time.sleep(_POLL_SECONDS)
            for worker in [worker for worker in state.running if worker.process.poll() is not None]:
                _bury(worker, state, observer)
            observer.waits(state)
    return state


def _check_data(plan: Plan, place: Place) -> None:
    """Before the first run: the data are there, and are those of the runs that were finished before."""
    fingerprints: dict[DataConfig, str | None] = {}
    for run in plan.runs:
        data = run.config.data
        if not run.folder.finished:
            sources.refuse_missing(data, place.data)
            continue
        if data not in fingerprints:
            fingerprints[data] = runs.own_data(run.config, place.data)
        run.folder.refuse_others(run.config, fingerprints[data])


def _begin_what_can_begin(state: State, place: Place, logs: Path, observer: GridObserver) -> None:
    """In order, and as many as there is room for. Worker processes outlive a table that was killed: they are left to
    it, and what they finish is finished.
    """
    for run in [*state.waiting]:
        if len(state.running) == place.parallel:
            return
        if run.folder.finished:
            state.take(run)
            _count(run, 0.0, state, observer)
        elif not run.folder.in_use():
            state.take(run)
            state.running.append(Worker(run, place, logs / f"{run.name}.log"))
            observer.run_begins(run, state)
        elif run not in state.elsewhere:
            state.elsewhere.append(run)
            observer.run_is_elsewhere(run, state)


def _bury(worker: Worker, state: State, observer: GridObserver) -> None:
    state.running.remove(worker)
    if worker.run.folder.finished:
        _count(worker.run, worker.seconds, state, observer)
    elif worker.run.folder.in_use():  # somebody else was a moment faster
        state.waiting.insert(0, worker.run)
        state.elsewhere.append(worker.run)
        observer.run_is_elsewhere(worker.run, state)
    else:
        state.failed.append(worker.run)
        observer.run_fails(worker, state)


def _count(run: PlannedRun, seconds: float, state: State, observer: GridObserver) -> None:
    """Among the finished. It may have gone on where another was stopped, or have been trained elsewhere."""
    state.finished.append(run)
    seconds = max(_spent(results.refreshed(run.folder, run.config)), seconds)
    state.note(run, seconds)
    observer.run_ends(run, seconds, state)


def _spent(result: dict[str, Any]) -> float:
    """Seconds that the run itself took."""
    shared = sum((result.get(name) or {}).get("seconds", 0.0) for name in FOUND)
    return float(result["seconds"]["total"] - shared)


@contextmanager
def _stopping_gently(state: State) -> Iterator[None]:
    """However the block is left, no worker outlives it. Ctrl-C once: all save their last step; again: all at once."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, interrupt) for number in stopping_signals() if main}
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None
    finally:
        _stop(state.running)
        for number, handler in before.items():
            signal.signal(number, handler)


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


# --- the end


def sections(plan: Plan, finished: Sequence[PlannedRun]) -> list[Section]:
    """The finished runs as rows, preset by preset."""
    made = []
    for preset in dict.fromkeys(run.entry.preset for run in plan.runs):
        rows = []
        for entry in dict.fromkeys(run.entry for run in plan.runs if run.entry.preset == preset):
            its = sorted((run for run in finished if run.entry == entry), key=lambda run: run.config.seed)
            found = [results.refreshed(run.folder, run.config) for run in its]
            if found:
                rows.append(Row(entry.name, found, tables.paper_row(its[0].config, entry.table)))
        if rows:
            made.append(Section(_caption(preset, plan), rows))
    return made


def _caption(preset: str, plan: Plan) -> str:
    seeds = f"seed{'s' if len(plan.seeds) > 1 else ''} {', '.join(map(str, plan.seeds))}"
    spread = ": mean ± sample standard deviation" if len(plan.seeds) > 1 else ""
    changed = f"; changed: {', '.join(plan.settings)}" if plan.settings else ""
    return f"{Path(preset).stem}, {plan.recipe} recipe{changed}; percent, {seeds}{spread}"


def write(made: Sequence[Section], plan: Plan, command: str) -> list[Path]:
    """table.md, table.csv, table.tex and table.json."""
    failed = [run.name for run in plan.runs if not run.folder.finished]
    facts = {
        "command": command,
        "reverie": __version__,
        "commit": provenance.commit(),
        "notes": [*dict.fromkeys(note for section in made for note in section.notes())],
        "rows": [tables.record(row) for section in made for row in section.rows],
        "runs": [run.name for run in plan.runs if run.folder.finished],
        "failed": failed,
    }
    missing = f"\nWithout runs that failed: {', '.join(failed)}\n" if failed else ""
    texts = {"md": tables.as_markdown(made) + missing, "csv": tables.as_csv(made), "tex": tables.as_latex(made)}
    for kind, text in texts.items():
        disk.write_text(plan.out / f"table.{kind}", text)
    disk.write_json(plan.out / "table.json", facts)
    return [plan.out / f"table.{kind}" for kind in (*texts, "json")]
