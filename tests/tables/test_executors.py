"""Where the runs of a table are trained: real workers that are killed, stopped, waited for and started again."""

import os
import shutil
import signal
import sys
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from reverie.engine.observer import Observer, RunProgress
from reverie.errors import Interrupted, UserError
from reverie.learner.events import Event, PhaseBegins, PhaseEnds
from reverie.learner.session import SharedPhase, TrainedBy
from reverie.runs.run import run as run_config
from reverie.tables.executors import LOGS, LocalExecutor, State, Worker
from reverie.tables.plan import Plan, entries_for
from reverie.tables.table import make_sections
from tests.support.tables import SLOW, end_by_hand, plan_of

HERE = LocalExecutor(device="cpu")


def test_cores_are_shared_among_workers(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8), raising=False)
    assert LocalExecutor(device="cpu", parallel=3).environment()["OMP_NUM_THREADS"] == "2"
    assert LocalExecutor(device="cpu", parallel=99).environment()["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in HERE.environment()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert LocalExecutor(device="cpu", parallel=2).environment()["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")  # the second for what runs inside of those
    assert LocalExecutor(device="cpu", parallel=2).environment()["OMP_NUM_THREADS"] == "3"


# --- how far a table has come


def test_the_time_left_is_estimated_from_what_is_finished(tmp_path):
    base, lwf, abd = plan_of(tmp_path, ["base", "lwf", "abd"], upper_bound=False).runs
    state = State([base, lwf])
    assert state.seconds_left() is None
    state.note(base, 10)
    state.note(abd, 30)
    assert state.seconds_left() == 10 + 20  # base as before, lwf as the mean of all
    state.parallel = 2
    assert state.seconds_left() == 15
    state.running = [SimpleNamespace(run=abd, seconds=2)]
    assert state.seconds_left() == (10 + 20 + 28) / 2
    state.parallel = 8
    assert state.seconds_left() == 28  # of which nobody can take a part


def test_what_another_run_trained_is_no_time_of_ones_own(tmp_path):
    wanted = plan_of(tmp_path, ["base", "lwf"], upper_bound=False)
    base = TrainedBy(preset="digits-5", method="base", recipe="paper", seed=0)
    shared = {name: SharedPhase(key="k", trained_by=base, seconds=s) for name, s in (("task", 30.0), ("dreams", 20.0))}
    for run, facts in zip(wanted.runs, ({}, {f"first_{name}": its for name, its in shared.items()}), strict=True):
        end_by_hand(run, 100.0, **facts)
    state = HERE.train(wanted, Observer())
    assert [*state.took.values()] == [[100.0], [50.0]]


class Copying(LocalExecutor):
    """Whose workers are processes that copy a run which was made before, and fail if none was."""

    def command(self, run):
        return ["cp", "-r", f"{made_before(run)}/.", f"{run.folder.path}/"]


def made_before(run):
    return run.folder.path.with_name(f"{run.entry.method} made before")


def make_before(run, seconds=10.0):
    end_by_hand(run, seconds)
    shutil.copytree(run.folder.path, made_before(run))
    run.folder.result.unlink()


def test_the_seconds_of_a_run_that_was_resumed_are_those_of_all_its_sessions(tmp_path):
    wanted = plan_of(tmp_path, ["base", "lwf"], upper_bound=False)
    for run, seconds in zip(wanted.runs, (1000.0, 0.0), strict=True):
        make_before(run, seconds)
    long, short = Copying(device="cpu").train(wanted, Observer()).took.values()
    assert long == [1000.0]  # though its last session took no time
    assert 0 < short[0] < 100  # and this one what its worker took


def test_how_far_a_worker_has_come_is_told_by_its_last_events(tmp_path):
    run = plan_of(tmp_path, ["base"], upper_bound=False).runs[0]
    run.folder.path.mkdir()
    worker = SimpleNamespace(run=run)
    assert Worker.progress(worker) == RunProgress(run.name, 0, 1, "begins")
    run.folder.events.write(Event(event="run begins", long="x" * 30_000))  # more than is looked back
    run.folder.events.write(PhaseBegins(task=2, tasks=5, phase="dream", steps=7))
    run.folder.events.write(PhaseEnds(task=2, phase="dream", summary={}))
    with run.folder.events.file.open("a") as file:
        file.write('{"event": "ep')
    assert Worker.progress(worker) == RunProgress(run.name, 1, 5, "task 2/5 dream")


# --- real workers


class Acting(Observer):
    """Does something, once every run at work has made a step of training."""

    def __init__(self, plan, act):
        self.folders, self.act, self.failed = {run.name: run.folder for run in plan.runs}, act, []

    def table_waits(self, table):
        if self.act and table.running and all(self.folders[run.name].moving.is_file() for run in table.running):
            act, self.act = self.act, None
            act(table)

    def run_fails(self, name, why, log, table):
        self.failed.append((name, why))


@pytest.fixture
def in_a_terminal():
    """Not under nohup, which makes processes deaf to a terminal that is closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_worker_that_is_killed_is_reported_and_the_others_go_on_until_all_are_stopped_gently(tmp_path, in_a_terminal):
    """By the terminal, which is closed; Ctrl-C goes the same way. The two do not begin alike, so neither waits."""
    wanted = plan_of(tmp_path, ["base", "lwf-mc"], SLOW, upper_bound=False)
    base, other = wanted.runs
    numbers = {run.name: tmp_path / f"number of {run.entry.method}" for run in wanted.runs}

    class Numbered(LocalExecutor):
        """Whose workers leave the numbers of their processes."""

        def command(self, run):
            return ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(numbers[run.name]), *super().command(run)]

    def kill_the_other(table):
        os.kill(int(numbers[other.name].read_text()), signal.SIGKILL)
        follower.act = stop

    def stop(table):
        if len(table.running) == 2:  # the one that was killed has not been noticed yet
            follower.act = stop
        else:
            os.kill(os.getpid(), signal.SIGHUP)

    follower = Acting(wanted, kill_the_other)
    with pytest.raises(Interrupted):
        Numbered(device="cpu", parallel=2, checkpoint_seconds=0.2).train(wanted, follower)
    log = tmp_path / LOGS / f"{other.name}.log"
    assert follower.failed == [(other.name, f"was killed by signal 9; its log is {log}")]
    assert "everything so far is saved" in (tmp_path / LOGS / f"{base.name}.log").read_text()
    assert base.folder.moving.is_file()
    stamp = base.folder.moving.stat().st_mtime
    time.sleep(0.5)
    assert base.folder.moving.stat().st_mtime == stamp  # nobody is at work any more
    with base.folder.lock(), other.folder.lock():
        pass


def test_no_data_is_told_once_and_ends_the_table_without_a_trace(tmp_path):
    class Counting(Observer):
        begun = 0

        def run_begins(self, name, table):
            self.begun += 1

    wanted = Plan.make(entries_for("cifar100-10", ["base", "lwf"]), [0, 1], "paper", (), tmp_path / "table")
    observer = Counting()
    with pytest.raises(UserError, match="CIFAR-100 is not under"):
        LocalExecutor(data=tmp_path / "nowhere", device="cpu").train(wanted, observer)
    assert observer.begun == 0
    assert not (tmp_path / "table").exists()  # nothing is left behind


class AtWork(Observer):
    """Is at work on a run, for some of the table's looks at it; then ends what it does, and lets go of the folder."""

    def __init__(self, run, end):
        self.run, self.end, self.looks = run, end, 0
        self.lock, self.waited, self.ended = ExitStack(), [], []

    def begin(self):
        self.lock.enter_context(self.run.folder.lock())

    def run_waits(self, name, table):
        self.waited.append(name)

    def run_ends(self, name, accuracy, seconds, table):
        self.ended.append(name)

    def table_waits(self, table):
        self.looks += 1
        if self.looks > 1 and self.waited and self.ended:
            self.end()
            self.lock.close()


@pytest.mark.parametrize("finishes", [True, False])
def test_a_run_on_which_another_process_is_at_work_is_waited_for(tmp_path, finishes):
    """As a worker is that outlives its table. It ends its run, or is stopped in turn."""
    wanted = plan_of(tmp_path / "table", ["base", "lwf"], upper_bound=False)
    base, lwf = wanted.runs
    for run in wanted.runs:
        make_before(run)
    other = AtWork(base, lambda: end_by_hand(base) if finishes else None)
    assert not base.folder.in_use()
    other.begin()
    assert base.folder.in_use()
    state = Copying(device="cpu").train(wanted, other)
    assert (other.waited, other.ended) == ([base.name], [lwf.name, base.name])
    assert not state.failed
    assert not state.waiting
    assert [row.title for section in make_sections(wanted, state.finished) for row in section.rows] == ["Base", "LwF"]
    assert (tmp_path / "table" / LOGS / f"{base.name}.log").exists() != finishes


def test_a_run_that_another_process_has_begun_a_moment_before_is_waited_for_and_has_not_failed(tmp_path):
    class AMomentFaster(AtWork):
        def run_begins(self, name, table):
            if name == self.run.name and not self.waited:
                self.begin()

        def run_fails(self, name, why, log, table):
            pytest.fail(f"{name} {why}")

    wanted = plan_of(tmp_path, ["base", "lwf"], upper_bound=False)
    base, lwf = wanted.runs
    make_before(lwf)  # so that the worker for the other fails, as it does where a folder is in use
    other = AMomentFaster(base, lambda: end_by_hand(base))
    state = Copying(device="cpu").train(wanted, other)
    assert (other.waited, other.ended) == ([base.name], [lwf.name, base.name])
    assert [run.name for run in state.finished] == [lwf.name, base.name]


def test_a_table_is_of_one_data_set(tmp_path, photos):
    (tmp_path / "mine.yaml").write_text("extends: digits-5\ndata: {source: folder, size: 8}\nstream: {split: 3}")
    entries, settings = entries_for(str(tmp_path / "mine.yaml"), ["base"], False), {"train.epochs": 1}
    settings["train.batch_size"] = 8
    wanted = Plan.make(entries, [0], "paper", settings, tmp_path / "table")
    executor = LocalExecutor(data=photos, device="cpu")
    only = wanted.runs[0]
    run_config(only.config, only.folder.path, data=photos, device="cpu")
    assert executor.train(wanted, Observer()).finished
    (photos / "apple" / "0.jpg").unlink()
    with pytest.raises(UserError, match="the data are not the same"):
        executor.train(wanted, Observer())
    with pytest.raises(UserError, match="the data are not the same"):
        run_config(only.config, only.folder.path, data=photos)
    (tmp_path / "empty").mkdir()
    for nothing in ("gone", "empty"):  # it is shown as it was
        assert run_config(only.config, only.folder.path, data=tmp_path / nothing).metrics
    more = Plan.make(entries, [0, 1], "paper", settings, tmp_path / "table")
    with pytest.raises(UserError, match="no sub-folders"):  # told once, before anything is begun
        LocalExecutor(data=tmp_path / "empty", device="cpu").train(more, Observer())


def test_a_finished_run_stands_in_a_table_by_its_result_alone(tmp_path):
    """Somebody cleaned up, or took only the results along; no upper bound is there that would ask for more."""
    wanted = plan_of(tmp_path, ["base"], upper_bound=False)
    only = wanted.runs[0]
    run_config(only.config, only.folder.path, data=tmp_path, device="cpu")
    result = only.folder.result.read_bytes()
    shutil.rmtree(only.folder.predictions(0).parents[1])
    state = HERE.train(wanted, Observer())
    assert [row.title for section in make_sections(wanted, state.finished) for row in section.rows] == ["Base"]
    assert only.folder.result.read_bytes() == result


def test_a_worker_is_the_command_that_a_person_could_type(tmp_path):
    run = plan_of(tmp_path, ["abd"], {"method.distillation": 1}).runs[1]
    words = LocalExecutor(data=tmp_path / "data", device="cpu", checkpoint_seconds=5).command(run)
    assert words[:4] == [sys.executable, "-m", "reverie", "run"]
    assert " ".join(words[4:]) == (
        f"digits-5 --method abd --seed 0 --recipe paper --out {run.folder.path} --data {tmp_path / 'data'} "
        "--device cpu --share-first-task --checkpoint-every 5 --set method.distillation=1"
    )
