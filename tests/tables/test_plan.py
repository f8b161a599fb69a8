"""Tables: what is planned, and that real workers can be killed, stopped and started again."""

import io
import json
import os
import shutil
import signal
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from rich.console import Console

from reverie.cli.progress import GridProgress, following_grid
from reverie.config.layers import preset_names
from reverie.errors import Interrupted, UserError
from reverie.learner.checkpoint import stopping_signals
from reverie.methods import method_names
from reverie.runs import run as runs
from reverie.tables import paper
from reverie.tables import plan as grid
from reverie.tables import rows as tables
from reverie.tables.plan import Entry, GridObserver, Place, Plan, State
from tests.conftest import TINY

QUICK = [*TINY, "train.epochs=1", "stream.take=2"]
SLOW = [*TINY, "train.epochs=400", "stream.take=2"]


def plan(out, methods, settings=QUICK, seeds=(0,), **how) -> Plan:
    return Plan.make(grid.entries_for("digits-5", methods, **how), seeds, "paper", settings, out)


def console() -> Console:
    return Console(file=io.StringIO(), width=300)


# --- the plan


def test_the_upper_bound_is_first_then_those_that_keep_nothing(tmp_path):
    rows = [entry.method for entry in grid.entries_for("digits-5", ["all"])]
    assert rows[:3] == ["joint", "base", "lwf"]
    assert sorted(rows) == sorted(method_names())
    assert [run.name for run in plan(tmp_path, ["abd", "base", "abd"], settings=(), seeds=(1, 0, 1)).runs] == [
        f"digits-5-{method}-paper-seed{seed}" for method in ("joint", "base", "abd") for seed in (1, 0)
    ]
    assert [entry.method for entry in grid.entries_for("digits-5", ["abd"], upper_bound=False)] == ["abd"]
    assert Entry("digits-5", "joint") not in grid.entries_for("digits-5", ["all"], upper_bound=False)


def test_changes_are_in_the_folders_name_and_a_methods_options_are_not_for_the_upper_bound(tmp_path):
    joint, abd = plan(tmp_path, ["abd"], settings=["method.distillation=1", "stream.order=[1, 0, 3, 2, 4]"]).runs
    assert abd.name == "digits-5-abd-paper-method.distillation=1,stream.order=_1,_0,_3,_2,_4_-seed0"
    assert joint.name == "digits-5-joint-paper-stream.order=_1,_0,_3,_2,_4_-seed0"
    assert abd.config.reference == joint.config.reference
    long = plan(tmp_path, ["abd"], settings=[*TINY, "augment.flip=true"]).runs[0].name
    assert len(long) < 120
    assert long != plan(tmp_path, ["abd"], settings=[*TINY, "augment.flip=false"]).runs[0].name


@pytest.mark.parametrize("setting", [" method.distillation=1", "method={distillation: 1}"])
def test_an_option_is_for_methods_alone_however_it_is_written(tmp_path, setting):
    joint, abd = plan(tmp_path, ["abd"], settings=[setting]).runs
    assert (joint.settings, abd.settings) == ((), (setting,))
    assert abd.config.options["distillation"] == 1


def test_what_is_wrong_is_told_before_anything_is_begun(tmp_path):
    with pytest.raises(UserError, match="Did you mean 'abd'"):
        plan(tmp_path, ["abdd"])
    with pytest.raises(UserError, match=r"The method 'base' has no such option"):
        plan(tmp_path, ["abd", "base"], settings=["method.distillation=1"])
    with pytest.raises(UserError, match="10 classes cannot be cut into 20 equal tasks"):
        plan(tmp_path, ["abd"], settings=["stream.split=20"])
    (tmp_path / "digits-5-abd-paper-seed0").mkdir()
    (tmp_path / "digits-5-abd-paper-seed0" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not a run folder"):
        plan(tmp_path, ["abd"], settings=())


def test_rows_of_the_paper_that_cannot_be_run_here_are_named(monkeypatch):
    row = paper.PaperRow("made-up", "cifar100-10", "magic", (), "", paper.Figure(1.0, None, 1), None)
    known = paper.find_table("data-free").rows
    table = paper.PaperTable("made-up", "", "", 1, ("cifar100-10",), (row, *known))
    entries, missing = grid.entries_of_paper(table, [], [])
    assert [line for line in missing if "magic is left out: There is no method 'magic'." in line]
    assert [entry.method for entry in entries][:3] == ["joint", "base", "lwf"]
    with pytest.raises(UserError, match="has no preset 'digits-5'"):
        grid.entries_of_paper(table, ["digits-5"], [])
    for wrong in ("bic", "cifar100-10"):
        with pytest.raises(UserError, match=f"has no method '{wrong}'"):
            grid.entries_of_paper(table, [], [wrong])
    with pytest.raises(UserError, match="has no preset 'abd'"):
        grid.entries_of_paper(table, ["abd"], [])


@pytest.mark.parametrize("setting", ["method.fine_tuning=1", "method.fine_tuning =0", "method={fine_tuning: 1}"])
def test_what_makes_a_row_of_the_paper_cannot_be_set_for_all(tmp_path, setting):
    entries, _ = grid.entries_of_paper(paper.find_table("ablation"), [], [])
    Plan.make(entries, [0], "paper", ["method.bn_momentum=0.2", "keep=[models]"], tmp_path)
    with pytest.raises(UserError, match=r"--set method\.fine_tuning .* the row 'ABD, no fine-tuning of the head'"):
        Plan.make(entries, [0], "paper", [setting], tmp_path)


@pytest.mark.parametrize("name", paper.tables())
def test_every_table_of_the_paper_can_be_planned_as_far_as_its_methods_are_there(tmp_path, name):
    table = paper.find_table(name)
    entries, missing = grid.entries_of_paper(table, [], [])
    assert entries or missing
    assert {entry.preset for entry in entries} == {*table.presets} & {*preset_names()}
    assert all(" is left out: " in line for line in missing)
    assert len(Plan.make(entries, [0, 1, 2], "paper", (), tmp_path).runs) == 3 * len(entries)
    if set(table.presets) <= set(preset_names()):
        assert entries[0] == Entry(table.presets[0], "joint", table=name)


def test_cores_are_shared_among_workers(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8), raising=False)
    assert Place(device="cpu", parallel=3).environment()["OMP_NUM_THREADS"] == "2"
    assert Place(device="cpu", parallel=99).environment()["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in Place(device="cpu").environment()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert Place(device="cpu", parallel=2).environment()["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")  # the second for what runs inside of those
    assert Place(device="cpu", parallel=2).environment()["OMP_NUM_THREADS"] == "3"


def test_the_time_left_is_estimated_from_what_is_finished(tmp_path):
    base, lwf, abd = plan(tmp_path, ["base", "lwf", "abd"], upper_bound=False).runs
    state = State([base, lwf])
    assert state.seconds_left(1) is None
    state.note(base, 10)
    state.note(abd, 30)
    assert state.seconds_left(1) == 10 + 20  # base as before, lwf as the mean of all
    assert state.seconds_left(2) == 15
    state.running = [SimpleNamespace(run=abd, seconds=2)]
    assert state.seconds_left(2) == (10 + 20 + 28) / 2
    assert state.seconds_left(8) == 28  # of which nobody can take a part


def ended(run, seconds, accuracy=0.5):
    """As a run leaves it that took so many seconds of training."""
    run.folder.path.mkdir(parents=True)
    metrics = dict.fromkeys(("final_accuracy", "omega", "average_incremental_accuracy", "forgetting"), accuracy)
    facts = {"schema": 1, "upper_bound": {}, "metrics": metrics, "seed": run.config.seed, "peak_memory_bytes": None}
    names = {"preset": run.config.preset, "method": run.config.method, "recipe": run.config.recipe, "ledger": []}
    took = {"seconds": {"total": seconds, "by_task": [{"learn": seconds}]}}
    run.folder.result.write_text(json.dumps(facts | names | took))


def test_what_another_run_trained_is_no_time_of_ones_own():
    result = {"seconds": {"total": 100.0}, "first_task": {"seconds": 30.0}, "first_dreams": {"seconds": 20.0}}
    assert grid._spent(result) == 50
    assert grid._spent({"seconds": {"total": 100.0}, "first_task": None}) == 100


def test_the_seconds_of_a_run_that_was_resumed_are_those_of_all_its_sessions(tmp_path):
    class Standin:
        def __init__(self, run, seconds):
            self.run, self.seconds = run, seconds

    base, lwf = plan(tmp_path, ["base", "lwf"], upper_bound=False).runs
    state = State([], [Standin(base, 2.0), Standin(lwf, 12.0)])
    for run in (base, lwf):
        ended(run, 10.0)
    for worker in [*state.running]:
        grid._bury(worker, state, GridObserver())
    assert [*state.took.values()] == [[10.0], [12.0]]


def test_the_seeds_of_a_row_are_in_order_however_its_runs_ended(tmp_path):
    wanted = plan(tmp_path, ["base"], seeds=(0, 1, 2), upper_bound=False)
    for run in wanted.runs:
        ended(run, 10.0, accuracy=run.config.seed / 10)
    (section,) = grid.sections(wanted, [wanted.runs[number] for number in (2, 0, 1)])
    (row,) = section.rows
    assert tables.record(row)["seeds"] == [0, 1, 2]
    assert row.values("final_accuracy") == [0.0, 0.1, 0.2]


# --- real workers


class Acting(GridObserver):
    """Does something to the workers, once every one of them has made a step of training."""

    def __init__(self, act) -> None:
        self.act, self.failed = act, []

    def waits(self, state):
        if self.act and state.running and all(w.run.folder.moving.is_file() for w in state.running):
            act, self.act = self.act, None
            act(state)

    def run_fails(self, worker, state):
        self.failed.append((worker.run.entry.method, worker.process.returncode, worker.tail()))


@pytest.fixture
def in_a_terminal():
    """Not under nohup, which makes processes deaf to a terminal that is closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_under_nohup_a_closed_terminal_stops_nothing(in_a_terminal):
    assert stopping_signals() == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert stopping_signals() == [signal.SIGINT, signal.SIGTERM]


def test_a_worker_that_is_killed_is_reported_and_the_others_go_on_until_all_are_stopped_gently(tmp_path, in_a_terminal):
    """By the terminal, which is closed; Ctrl-C goes the same way. The two do not begin alike, so neither waits."""
    wanted = plan(tmp_path, ["base", "lwf-mc"], SLOW, upper_bound=False)
    place = Place(device="cpu", parallel=2, checkpoint_seconds=0.2)
    base, other = wanted.runs

    def kill_the_other(state):
        state.running[1].process.kill()
        follower.act = stop

    def stop(state):
        if len(state.running) == 2:  # the one that was killed has not been noticed yet
            follower.act = stop
        else:
            os.kill(os.getpid(), signal.SIGHUP)

    follower = Acting(kill_the_other)
    with pytest.raises(Interrupted):
        grid.train(wanted, place, follower)
    assert [(method, code) for method, code, _ in follower.failed] == [("lwf-mc", -signal.SIGKILL)]
    log = (tmp_path / "logs" / f"{base.name}.log").read_text()
    assert "everything so far is saved" in log
    assert base.folder.moving.is_file()
    stamp = base.folder.moving.stat().st_mtime
    time.sleep(0.5)
    assert base.folder.moving.stat().st_mtime == stamp  # nobody is at work any more
    with base.folder.lock(), other.folder.lock():
        pass


def test_no_data_is_told_once_and_ends_the_table_without_a_trace(tmp_path):
    class Counting(GridObserver):
        begun = 0

        def run_begins(self, run, state):
            self.begun += 1

    wanted = Plan.make(grid.entries_for("cifar100-10", ["base", "lwf"]), [0, 1], "paper", (), tmp_path / "table")
    observer = Counting()
    with pytest.raises(UserError, match="CIFAR-100 is not under"):
        grid.train(wanted, Place(data=tmp_path / "nowhere", device="cpu"), observer)
    assert observer.begun == 0
    assert not (tmp_path / "table").exists()  # nothing is left behind


def test_a_run_that_is_refused_is_reported_and_the_others_go_on(tmp_path):
    """Here because somebody has put another run into its folder; before anything is begun in it."""
    wanted = plan(tmp_path, ["abd", "base"], upper_bound=False)
    abd = next(run for run in wanted.runs if run.entry.method == "abd")
    told = []

    class Failing(GridObserver):
        def run_fails(self, worker, state):
            told.append((worker.run, worker.tail()[-1]))

    abd.folder.claim(plan(tmp_path, ["lwf"], upper_bound=False).runs[0].config, "0")
    state = grid.train(wanted, Place(device="cpu"), Failing())
    assert [run.entry.method for run in state.finished] == ["base"]
    assert [run for run, _ in told] == [abd] and "Choose another --out" in told[0][1]
    assert (tmp_path / grid.LOGS / f"{abd.name}.log").is_file()
    markdown, *_, facts = grid.write(grid.sections(wanted, state.finished), wanted, "a command")
    assert json.loads(facts.read_text())["failed"] == [abd.name]
    assert markdown.read_text().endswith(f"Without runs that failed: {abd.name}\n")


class LettingGo(GridObserver):
    """Keeps the first run's folder to itself, for some of the table's looks at it; then ends, as told, what it does."""

    def __init__(self, folder, end, console):
        self.lock, self.end, self.looks = ExitStack(), end, 0
        self.lock.enter_context(folder.lock())
        self.progress, self.elsewhere, self.ended = GridProgress(console, None, 1), [], []

    def run_is_elsewhere(self, run, state):
        self.elsewhere.append(run.entry.method)
        self.progress.run_is_elsewhere(run, state)

    def run_ends(self, run, seconds, state):
        self.ended.append(run.entry.method)

    def waits(self, state):
        self.looks += 1
        if self.looks > 3 and self.ended:
            self.end()
            self.lock.close()


@pytest.mark.parametrize("finishes", [True, False])
def test_a_run_on_which_another_process_is_at_work_is_waited_for(tmp_path, finishes):
    """As a worker is that outlives its table. It ends its run, or is stopped in turn."""
    wanted = plan(tmp_path / "table", ["base", "lwf"], upper_bound=False)
    base = wanted.runs[0]
    assert base.entry.method == "base" and not base.folder.in_use()

    def end():
        if finishes and not base.folder.finished:
            runs.execute(base.config, tmp_path / "there", data=tmp_path, device="cpu")
            shutil.copytree(tmp_path / "there", base.folder.path, dirs_exist_ok=True)

    said = console()
    other = LettingGo(base.folder, end, said)
    assert base.folder.in_use()
    state = grid.train(wanted, Place(device="cpu"), other)
    assert (other.elsewhere, other.ended) == (["base"], ["lwf", "base"])
    assert "another process is at work on it; this table waits" in said.file.getvalue()
    assert not state.failed and not state.waiting
    *_, facts = grid.write(grid.sections(wanted, state.finished), wanted, "a command")
    assert [row["title"] for row in json.loads(facts.read_text())["rows"]] == ["Base", "LwF"]
    assert (tmp_path / "table" / grid.LOGS / f"{base.name}.log").exists() != finishes


def test_a_table_is_of_one_data_set(tmp_path, photos):
    (tmp_path / "mine.yaml").write_text("extends: digits-5\ndata: {source: folder, size: 8}\nstream: {split: 3}")
    entries = grid.entries_for(str(tmp_path / "mine.yaml"), ["base"], False)
    wanted = Plan.make(entries, [0], "paper", ["train.epochs=1", "train.batch_size=8"], tmp_path / "table")
    assert grid.train(wanted, Place(data=photos, device="cpu"), GridObserver()).finished
    assert grid.train(wanted, Place(data=photos, device="cpu"), GridObserver()).finished
    (photos / "apple" / "0.jpg").unlink()
    with pytest.raises(UserError, match="the data are not the same"):
        grid.train(wanted, Place(data=photos, device="cpu"), GridObserver())
    with pytest.raises(UserError, match="the data are not the same"):
        runs.execute(wanted.runs[0].config, wanted.runs[0].folder.path, data=photos)
    (tmp_path / "empty").mkdir()
    for nothing in ("gone", "empty"):  # it is shown as it was
        assert runs.execute(wanted.runs[0].config, wanted.runs[0].folder.path, data=tmp_path / nothing)
    more = Plan.make(entries, [0, 1], "paper", ["train.epochs=1", "train.batch_size=8"], tmp_path / "table")
    with pytest.raises(UserError, match="no sub-folders"):  # told once, before anything is begun
        grid.train(more, Place(data=tmp_path / "empty", device="cpu"), GridObserver())


def test_a_finished_run_stands_in_a_table_by_its_result_alone(tmp_path):
    """Somebody cleaned up, or took only the results along; no upper bound is there that would ask for more."""
    wanted = plan(tmp_path, ["base"], upper_bound=False)
    run = wanted.runs[0]
    runs.execute(run.config, run.folder.path, data=tmp_path, device="cpu")
    result = run.folder.result.read_bytes()
    shutil.rmtree(run.folder.predictions(0).parents[1])
    state = grid.train(wanted, Place(device="cpu"), GridObserver())
    assert [row.title for section in grid.sections(wanted, state.finished) for row in section.rows] == ["Base"]
    assert run.folder.result.read_bytes() == result


# --- progress


def finished_run(tmp_path):
    run = plan(tmp_path, ["base"], upper_bound=False).runs[0]
    run.folder.path.mkdir()
    run.folder.result.write_text(json.dumps({"metrics": {"final_accuracy": 0.5}}))
    return run


def test_in_a_pipe_there_is_a_line_for_each_run(tmp_path):
    run, said = finished_run(tmp_path), console()
    progress = GridProgress(said, None, 2)
    state = State([run])
    progress.begins(state)
    progress.run_begins(run, state)
    state.note(run, 12.0)
    state.finished.append(run)
    progress.run_ends(run, 12.0, state)
    lines = said.file.getvalue().splitlines()
    assert lines[0] == "1 run: 0 finished before, 1 to train, 2 at a time"
    assert lines[1].endswith("-seed0 begins")
    assert lines[2].startswith("[1/2] digits-5-base")
    assert "50.0 % in the end (12 s); about 6 s left" in lines[2]


def test_in_a_terminal_each_run_at_work_shows_its_task_and_phase(tmp_path):
    class Standin:
        def __init__(self, run):
            self.run, self.seconds = run, 1.0

        progress = grid.Worker.progress

    run = finished_run(tmp_path)
    where = {"task": 2, "tasks": 5, "phase": "dream"}
    events = [{"event": "run begins", "long": "x" * 30_000}, {"event": "phase begins", **where}]
    run.folder.events.write_text("".join(json.dumps(event) + "\n" for event in events) + '{"event": "ep')
    worker = Standin(run)
    assert worker.progress() == (1, 5, "task 2/5 dream")
    said = Console(file=io.StringIO(), force_terminal=True, width=200)
    with following_grid(said, 1) as progress:
        state = State([])
        progress.begins(state)
        progress.run_begins(run, state)
        state.running.append(worker)
        state.note(run, 61.0)
        progress.waits(state)
        progress.bars.refresh()
        state.finished.append(run)
        progress.run_ends(run, 61.0, state)
    assert "task 2/5 dream" in said.file.getvalue()
    assert "about 60 s left" in said.file.getvalue()
