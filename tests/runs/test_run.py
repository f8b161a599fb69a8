"""Runs: what is on disk afterwards, and that an interrupted run ends with the very same figures."""

import json
import math
import shutil
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import reverie
from reverie import methods
from reverie.errors import Interrupted, UserError
from reverie.learner.checkpoint import Journal
from reverie.methods import method_names
from reverie.methods.base import Keeps, Method
from reverie.methods.losses import cross_entropy
from reverie.runs import configure as experiment
from reverie.runs import run as runs
from reverie.runs.predictions import Predictions
from reverie.runs.run import RunObserver, execute
from reverie.system import files as disk

METHODS = method_names()
THREE = "stream.take=3"
TWO_STAGES = "method.refinement=0.5"  # one of two epochs
SMALL_VAE = ["method.width=2", "method.noise=8"]
PHOTOS = ["data.source=folder", "stream.split=3", "data.size=8", "train.epochs=2", "dream.steps=4", "dream.width=8"]


class StopAt(RunObserver):
    """Stops the run after the n-th step of a phase of a task, as a signal would."""

    def __init__(self, task: int, phase: str, step: int) -> None:
        self.where, self.now, self.step = (task, phase), (0, ""), step

    def task_begins(self, index, count):
        self.now = (index + 1, "")

    def phase_begins(self, phase, done):
        self.now = (self.now[0], phase.name)

    def step_ends(self, done, snapshot):
        if self.now == self.where and done == self.step:
            raise Interrupted


class Coresets(RunObserver):
    """Remembers what was kept whenever a phase began."""

    def __init__(self) -> None:
        self.kept = []

    def phase_ready(self, number, learner):
        self.kept.append(learner.method.coreset.images)


def figures(result):
    keys = ("metrics", "accuracy_matrix", "class_order", "upper_bound", "data_fingerprint", "config")
    return {key: result[key] for key in keys} | {"ledger": undated(result["ledger"])}


def undated(ledger):
    return [{**entry, "date": None} for entry in ledger]


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def losses(folder):
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [(e["task"], e["phase"], e["epoch"], e["losses"]) for e in lines if e["event"] == "epoch"]


def assert_same_run(a, b):
    assert weights(a).keys() == weights(b).keys()
    for name, value in weights(a).items():
        assert torch.equal(value, weights(b)[name]), name
    assert losses(a) == losses(b)
    ours, theirs = (np.load(folder / "tasks" / "02" / "predictions.npz") for folder in (a, b))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ("label", "top", "local") if name in ours)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nobody stopped, and its result: made once, and not to be changed."""
    made = {}

    def run(config):
        name = str(config)
        if name not in made:
            folder = tmp_path_factory.mktemp("whole") / "run"
            made[name] = folder, execute(config, folder, checkpoint_seconds=1e9, command="reverie run x")
        return made[name]

    return run


@pytest.fixture
def finished(whole, tmp_path):
    """A copy of it, which may be changed: `run`, with its upper bounds beside it where it has any."""

    def copy(config):
        folder, result = whole(config)
        shutil.copytree(folder.parent, tmp_path, dirs_exist_ok=True)
        return result

    return copy


def test_a_run_leaves_what_the_design_promises(tiny, whole):
    folder, result = whole(tiny("abd", THREE))
    assert sorted(e.name for e in folder.iterdir() if e.name != ".lock") == [
        "config.yaml",
        "events.jsonl",
        "model",
        "result.json",
        "tasks",
    ]
    assert sorted(e.name for e in (folder / "tasks" / "02").iterdir()) == ["dreams.png", "predictions.npz"]
    assert json.loads((folder / "result.json").read_text()) == result
    assert result["schema"] == 1
    assert result["sessions"][0]["command"] == "reverie run x"
    assert {"torch", "python", "cpu", "threads", "commit"} <= result["sessions"][0]["environment"].keys()
    assert result["seconds"]["by_part"].keys() == {"learn", "evaluate", "dream"}
    assert result["peak_memory_bytes"] > 10**7
    assert len(result["peak_memory_by_task"]) == len(result["task_sizes"])
    assert result["ledger"][-1]["kept_bytes"] == 0
    assert len(result["class_order"]) == 6
    learner = reverie.load(folder / "model").task_learner
    assert learner.classifier.class_names == tuple(result["class_names"])


def test_the_matrix_is_what_the_model_says(tiny, whole, tiny_stream):
    folder, result = whole(tiny("base", THREE))
    learner = reverie.load(folder / "model").task_learner
    test = tiny_stream[:3].test()
    right = (learner.predict(test).labels[:, 0] == test.labels).numpy()
    task = (test.labels // 2).numpy()
    assert result["accuracy_matrix"][2] == pytest.approx([right[task == j].mean() for j in range(3)])
    assert result["accuracy_matrix"][0][1:] == [None, None]
    assert result["metrics"]["final_accuracy"] == pytest.approx(right.mean())
    assert result["metrics"]["accuracy_after"][-1] == result["metrics"]["final_accuracy"]
    logits = torch.cat(list(learner.logits(test)))
    own = [
        (logits[i, 2 * task[i] : 2 * task[i] + 2].argmax() + 2 * task[i] == test.labels[i]).item()
        for i in range(len(test))
    ]
    assert result["metrics"]["task_local_accuracy"] == pytest.approx(
        [np.mean(np.array(own)[task == j]) for j in range(3)]
    )


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_three_tasks(tiny, whole, method):
    _, result = whole(tiny(method, THREE, *(SMALL_VAE if method == "dgr" else ())))
    assert 0 <= result["metrics"]["final_accuracy"] <= 1
    assert len(result["metrics"]["accuracy_after"]) == 3
    before = result["uncorrected_accuracy_after"]
    assert (before is not None) == (method == "bic")
    assert before is None or before[0] == result["metrics"]["accuracy_after"][0]


@pytest.mark.parametrize(
    ("method", "task", "phase", "step", "recipe"),
    [
        ("base", 1, "learn", 3, "paper"),
        ("base", 2, "learn", 17, "released"),
        ("lwf", 2, "learn", 35, "paper"),
        ("deepinversion", 3, "dream", 3, "released"),
        ("abd", 2, "dream", 4, "paper"),
        ("abd", 2, "dream", 6, "paper"),
        ("abd", 2, "dream", 6, "released"),
        ("abd", 2, "learn", 1, "paper"),
        ("abd", 3, "learn", 20, "paper"),
        ("joint", 2, "learn", 5, "paper"),
    ],
)
def test_a_run_stopped_anywhere_ends_as_if_it_had_not_been(tiny, whole, tmp_path, method, task, phase, step, recipe):
    config = tiny(method, THREE, recipe=recipe)
    folder, result = whole(config)
    stop = StopAt(task, phase, step)
    with pytest.raises(Interrupted):
        execute(config, tmp_path / "run", observer=stop, checkpoint_seconds=0)
    again = execute(config, tmp_path / "run", checkpoint_seconds=1e9)
    assert figures(result) == figures(again)
    assert len(again["sessions"]) == 2
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.parametrize("left", [-40, 0])
def test_events_that_went_with_a_power_cut_keep_no_run_from_its_end(tiny, whole, tmp_path, left):
    """Half a line is left of the last that the checkpoint knows of, or nothing at all."""
    config = tiny("abd", THREE)
    with pytest.raises(Interrupted):
        execute(config, tmp_path / "run", observer=StopAt(3, "learn", 5), checkpoint_seconds=0)
    events = tmp_path / "run" / "events.jsonl"
    events.write_bytes(events.read_bytes()[:left])
    assert figures(execute(config, tmp_path / "run")) == figures(whole(config)[1])
    assert all(json.loads(line) for line in events.read_text().splitlines())


@pytest.mark.parametrize("phase", ["dream", "learn"])
def test_a_network_without_batchnorm_goes_on_inside_any_phase(tiny, whole, tmp_path, phase):
    """Its teacher is copied before the statistics it has noted are read in."""
    config = tiny("abd", "stream.take=2", "net.name=timm/test_vit", "data.size=16", "train.epochs=1")
    with pytest.raises(Interrupted):
        execute(config, tmp_path / "run", observer=StopAt(2, phase, 3), checkpoint_seconds=0)
    again, (folder, result) = execute(config, tmp_path / "run"), whole(config)
    assert figures(again) == figures(result)
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.parametrize(
    ("method", "epochs", "stops"),
    [
        ("lwf-coreset", 1, [("learn", 12, 0)]),
        ("e2e", 1, [("learn", 12, 0), ("balance", 1, 0), ("balance", 1, 1e9)]),
        ("bic", 2, [("learn", 20, 0), ("correct", 1, 0)]),
    ],
)
def test_a_run_with_a_coreset_stopped_in_any_phase_ends_the_same_and_keeps_the_same(
    tiny, tmp_path, method, epochs, stops
):
    """With a checkpoint of that very step, and with one from the beginning of the phase."""
    config, kept = tiny(method, "stream.take=4", f"train.epochs={epochs}", "coreset.size=40"), Coresets()
    whole = execute(config, tmp_path / "a" / "run", observer=kept, checkpoint_seconds=1e9)
    for phase, step, seconds in stops:
        out, kept_again = tmp_path / f"{phase}-{seconds}" / "run", Coresets()
        with pytest.raises(Interrupted):
            execute(config, out, observer=StopAt(3, phase, step), checkpoint_seconds=seconds)
        again = execute(config, out, observer=kept_again, checkpoint_seconds=1e9)
        assert figures(whole) == figures(again)
        assert_same_run(tmp_path / "a" / "run", out)
        assert kept_again.kept
        for ours, theirs in zip(kept.kept[-len(kept_again.kept) :], kept_again.kept, strict=True):
            assert torch.equal(ours.pixels, theirs.pixels)
            assert torch.equal(ours.labels, theirs.labels)


@pytest.mark.parametrize(
    ("method", "settings", "recipe", "stops"),
    [
        ("abd", [], "paper", [(1, "learn", 5), (2, "dream", 2), (2, "learn", 9), (3, "dream", 5), (3, "learn", 30)]),
        ("dgr", SMALL_VAE, "paper", [(1, "vae", 3), (3, "learn", 20), (3, "vae", 1), (3, "vae", 20)]),
        ("r-dfcil", [TWO_STAGES], "paper", [(3, "dream", 3), (3, "represent", 5), (3, "refine", 1)]),
        ("r-dfcil", [TWO_STAGES], "released", [(3, "represent", 18), (3, "refine", 12)]),
    ],
)
def test_a_run_stopped_again_and_again_ends_the_same(tiny, whole, tmp_path, method, settings, recipe, stops):
    config = tiny(method, THREE, *settings, recipe=recipe)
    for task, phase, step in stops:
        with pytest.raises(Interrupted):
            execute(config, tmp_path / "run", observer=StopAt(task, phase, step), checkpoint_seconds=0)
    execute(config, tmp_path / "run")
    assert_same_run(whole(config)[0], tmp_path / "run")


class StopBetween(RunObserver):
    """Stops the run when a task has ended and the next has not begun."""

    def task_begins(self, index, count):
        if index == 2:
            raise Interrupted


def test_a_large_checkpoint_travels_in_parts_between_tasks_and_inside_one(tiny, whole, tmp_path, monkeypatch):
    """As that of the released recipe does, whose generator is carried from task to task."""
    config, here = tiny("abd", THREE, recipe="released"), tmp_path / "run"
    straight, _ = whole(config)
    monkeypatch.setattr(disk, "PART", 20_000)
    for observer in (StopBetween(), StopAt(3, "learn", 20)):
        with pytest.raises(Interrupted):
            execute(config, here, observer=observer, checkpoint_seconds=0 if here.exists() else 1e9)
        sizes = [file.stat().st_size for file in (here / "checkpoint").iterdir()]
        assert len(sizes) > 10
        assert max(sizes) == 20_000
        there = shutil.copytree(here, tmp_path / type(observer).__name__ / "run")
        shutil.rmtree(here)
        here = there
    execute(config, here)
    assert_same_run(straight, here)
    assert not (here / "checkpoint").exists()


@pytest.mark.parametrize(
    ("method", "settings", "phase"),
    [("abd", [], "learn"), ("dgr", SMALL_VAE, "vae"), ("r-dfcil", [TWO_STAGES], "refine")],
)
def test_a_run_stopped_without_a_checkpoint_inside_the_phase_begins_the_phase_again(
    tiny, whole, tmp_path, method, settings, phase
):
    config = tiny(method, THREE, *settings)
    with pytest.raises(Interrupted):
        execute(config, tmp_path / "run", observer=StopAt(2, phase, 11), checkpoint_seconds=1e9)
    execute(config, tmp_path / "run")
    assert_same_run(whole(config)[0], tmp_path / "run")


@pytest.mark.parametrize("method", ["base", "abd", "joint"])
def test_a_run_stopped_between_the_last_task_and_the_result_still_has_its_model(
    tiny, whole, tmp_path, method, monkeypatch
):
    config = tiny(method, "stream.take=2")
    straight, _ = whole(config)

    def stop(*args):
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(runs._Run, "_finish", stop)
        with pytest.raises(Interrupted):
            execute(config, tmp_path / "run")
    execute(config, tmp_path / "run")
    assert_same_run(straight, tmp_path / "run")


def test_a_finished_run_is_recognised_and_not_made_again(tiny, finished, tmp_path):
    config = tiny("base", THREE)
    first = finished(config)
    stamp = (tmp_path / "run" / "events.jsonl").stat().st_mtime_ns
    assert execute(config, tmp_path / "run", data="nowhere") == first
    assert (tmp_path / "run" / "events.jsonl").stat().st_mtime_ns == stamp


def test_a_run_from_before_a_method_had_an_option_is_recognised(tiny, finished, tmp_path):
    config, file = tiny("abd", "stream.take=2"), tmp_path / "run" / "config.yaml"
    first = finished(config)
    stored = yaml.safe_load(file.read_text())
    del stored["method"]["task_weights"]
    file.write_text(yaml.safe_dump(stored))
    assert execute(config, tmp_path / "run") == first
    with pytest.raises(UserError, match=r"method\.task_weights: True in the folder, False asked for"):
        execute(tiny("abd", "stream.take=2", "method.task_weights=false"), tmp_path / "run")


def test_another_configuration_is_refused_with_the_difference_and_nothing_changes(tiny, finished, tmp_path):
    finished(tiny("base", THREE))
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    with pytest.raises(UserError) as refusal:
        execute(tiny("lwf", THREE, "train.epochs=9"), tmp_path / "run")
    message = str(refusal.value)
    assert "train.epochs: 2 in the folder, 9 asked for" in message
    assert "method.name: base in the folder, lwf asked for" in message
    assert "--out" in message
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()} == before


def test_other_data_in_the_middle_of_a_run_are_refused(tmp_path, photos):
    config = experiment.configure("digits-5", "base", settings=PHOTOS)
    with pytest.raises(Interrupted):
        execute(config, tmp_path / "run", data=photos, observer=StopAt(1, "learn", 1), checkpoint_seconds=0)
    (photos / "apple" / "1.png").unlink()
    with pytest.raises(UserError, match="the data are not the same"):
        execute(config, tmp_path / "run", data=photos)


def test_a_run_goes_on_with_the_other_storage(tmp_path, photos):
    memory, stream = (
        experiment.configure("digits-5", "base", settings=[*PHOTOS, f"data.storage={kind}"])
        for kind in ("memory", "stream")
    )
    with pytest.raises(Interrupted):
        execute(memory, tmp_path / "a" / "run", data=photos, observer=StopAt(2, "learn", 1), checkpoint_seconds=0)
    result = execute(stream, tmp_path / "a" / "run", data=photos)
    assert result["metrics"] == execute(memory, tmp_path / "b" / "run", data=photos)["metrics"]


def test_an_image_that_vanishes_from_a_streamed_run_is_named(tmp_path, photos):
    config = experiment.configure("digits-5", "base", settings=[*PHOTOS, "data.storage=stream", "stream.order=natural"])
    file, aside = photos / "cherry" / "0.jpg", tmp_path / "aside.jpg"

    class Vanish(RunObserver):
        def task_begins(self, index, count):
            if index == 1:
                file.rename(aside)

    with pytest.raises(UserError, match=r"cherry/0.jpg could be read when the run began"):
        execute(config, tmp_path / "run", data=photos, observer=Vanish())
    aside.rename(file)
    assert len(execute(config, tmp_path / "run", data=photos)["sessions"]) == 2


def test_a_folder_of_something_else_is_left_alone(tiny, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not a run folder"):
        execute(tiny("base"), tmp_path)
    with pytest.raises(UserError, match="is a file"):
        execute(tiny("base"), tmp_path / "thesis.txt")


def test_hidden_files_are_somebodys_too(tiny, tmp_path):
    (tmp_path / "run" / ".git").mkdir(parents=True)
    (tmp_path / "run" / ".git" / "HEAD").write_text("years of work")
    with pytest.raises(UserError, match="not empty and not a run folder"):
        execute(tiny("base"), tmp_path / "run")
    assert (tmp_path / "run" / ".git" / "HEAD").read_text() == "years of work"


@pytest.mark.parametrize(
    "content", [b"name: x", b"method: abd", b"train: 5\nmethod: {name: abd}", b"[1, 2", b"\xff", b""]
)
def test_a_folder_with_a_configuration_of_something_else_is_left_alone(tiny, tmp_path, content):
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"config.yaml is not the configuration of a run\. Choose another --out"):
        execute(tiny("base"), tmp_path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [content]


@pytest.mark.parametrize("content", [b"", b'{"schema": 1', b"{}", b"[]", b'{"schema": 1}', b"\xff"])
def test_a_damaged_result_is_an_error_that_says_what_to_do(tiny, finished, tmp_path, content):
    config = tiny("base", "stream.take=1")
    finished(config)
    (tmp_path / "run" / "result.json").write_bytes(content)
    with pytest.raises(UserError, match=r"result.json is damaged\. Delete it to start the run anew"):
        execute(config, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    assert execute(config, tmp_path / "run")["schema"] == 1


def test_a_checkpoint_inside_another_phase_is_passed_over_and_later_events_are_taken_back(tmp_path):
    folder = runs.RunFolder(tmp_path)
    kept = {"task": 1, "phase": 0, "seconds": [{}, {}], "sessions": [], "events": 3}
    disk.write_state(folder.resting, {**kept, "learner": {}})
    disk.write_state(folder.moving, {**kept, "task": 0, "snapshot": {"done": 5}})
    folder.events.write_text("{}\n{}\n")
    resting, snapshot = Journal(folder, 30.0, torch.device("cpu")).recover()
    assert resting["task"] == 1
    assert snapshot is None
    assert folder.events.read_text() == "{}\n"


def test_two_processes_do_not_work_in_one_folder(tiny, tmp_path):
    folder = runs.RunFolder(tmp_path / "run")
    with folder.lock(), pytest.raises(UserError, match="Another process"):
        execute(tiny("base"), tmp_path / "run")


def test_a_run_that_another_process_has_finished_meanwhile_is_not_made_again(tiny, tmp_path, monkeypatch):
    config = tiny("base", "stream.take=1")
    read = runs.sources.read

    def slow(*args):
        monkeypatch.setattr(runs.sources, "read", read)
        execute(config, tmp_path / "run", command="the first")
        return read(*args)

    monkeypatch.setattr(runs.sources, "read", slow)
    result = execute(config, tmp_path / "run", command="the second")
    assert [session["command"] for session in result["sessions"]] == ["the first"]


def test_every_session_that_left_something_is_told(tiny, tmp_path):
    config = tiny("base", "stream.take=1")
    for step in (3, 6):
        with pytest.raises(Interrupted):
            stop = StopAt(1, "learn", step)
            execute(config, tmp_path / "run", observer=stop, checkpoint_seconds=0, command=f"stopped at {step}")
    result = execute(config, tmp_path / "run", command="finished")
    assert [session["command"] for session in result["sessions"]] == ["stopped at 3", "stopped at 6", "finished"]


def test_a_mistake_leaves_no_folder_behind(tiny, tmp_path):
    config = experiment.configure("cifar100-10", "abd")
    with pytest.raises(UserError, match="CIFAR-100 is not under"):
        execute(config, tmp_path / "run", data=tmp_path)
    with pytest.raises(UserError, match="cannot be cut"):
        execute(tiny("base", "stream.split=3"), tmp_path / "run")
    with pytest.raises(UserError, match="only 10 classes"):
        execute(tiny("base", "stream.classes=12"), tmp_path / "run")
    with pytest.raises(UserError, match="unknown"):
        execute(tiny("base"), tmp_path / "run", device="abacus")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_an_error_that_says_what_to_do(tiny, tmp_path, caplog):
    config = tiny("base", THREE)
    with pytest.raises(Interrupted):
        execute(config, tmp_path / "run", observer=StopAt(1, "learn", 3), checkpoint_seconds=0)
    (tmp_path / "run" / "checkpoint" / "moving.pt").write_bytes(b"dust")  # one that can be done without
    with pytest.raises(Interrupted):
        execute(config, tmp_path / "run", observer=StopAt(1, "learn", 3), checkpoint_seconds=0)
    assert "moving.pt is damaged (it is cut off, or was changed)" in caplog.text
    (tmp_path / "run" / "checkpoint" / "resting.pt").write_bytes(b"dust")
    with pytest.raises(UserError, match=r"resting.pt is damaged \(it is cut off, or was changed\)"):
        execute(config, tmp_path / "run")


def test_what_a_killed_process_was_writing_is_cleared_away(tiny, tmp_path):
    config = tiny("base", THREE)
    with pytest.raises(Interrupted):
        execute(config, tmp_path / "run", observer=StopAt(2, "learn", 3), checkpoint_seconds=0)
    (tmp_path / "run" / "checkpoint" / f"{disk.SCRATCH}moving.pt-abc").write_bytes(b"half of it")
    (tmp_path / "run" / "tasks" / f"{disk.SCRATCH}model-xyz" / f"{disk.SCRATCH}deeper").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "thesis.txt").write_text("years of work")
    (tmp_path / "run" / f"{disk.SCRATCH}link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run" / ".git").mkdir()
    execute(config, tmp_path / "run")
    assert sorted(e.name for e in (tmp_path / "run").rglob(".*")) == [".git", ".lock"]
    assert (tmp_path / "elsewhere" / "thesis.txt").is_file()


def test_on_wish_the_model_and_the_dreamer_of_every_task_are_kept(tiny, tmp_path, tiny_stream):
    execute(tiny("abd", "stream.take=2", "keep=[models, dreamers]"), tmp_path / "run")
    first = reverie.load(tmp_path / "run" / "tasks" / "01" / "model").task_learner
    assert first.classifier.class_names == tiny_stream[0].names
    assert (tmp_path / "run" / "tasks" / "02" / "dreamer.pt").is_file()


def test_a_finished_run_says_that_it_did_not_keep_what_is_wanted_now(tiny, finished, tmp_path, caplog):
    finished(tiny("base", "stream.take=2"))
    execute(tiny("base", "stream.take=2", "keep=[models, dreamers]"), tmp_path / "run")
    assert "is finished and did not keep models and dreamers" in caplog.text


# --- the upper bound and Omega


def test_omega_refers_to_the_upper_bound_of_the_same_prefix(tiny, finished, tmp_path):
    without = finished(tiny("base", THREE))
    assert without["metrics"]["omega"] is None
    bound = execute(tiny("joint", THREE), tmp_path / "joint")
    assert bound["metrics"]["omega"] == pytest.approx(1)
    assert bound["metrics"]["forgetting"] is None
    again = execute(tiny("base", THREE), tmp_path / "run")  # finished, but now Omega can be told
    ratios = [
        a / b for a, b in zip(again["metrics"]["accuracy_after"], bound["metrics"]["accuracy_after"], strict=True)
    ]
    assert again["metrics"]["omega"] == pytest.approx(sum(ratios) / 3)
    assert again["metrics"]["omega_up_to"][1] == pytest.approx(sum(ratios[:2]) / 2)
    assert again["upper_bound"]["accuracy_after"] == bound["metrics"]["accuracy_after"]
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == again
    assert execute(tiny("lwf", THREE), tmp_path / "lwf")["metrics"]["omega"] is not None


def test_the_upper_bound_is_measured_by_its_own_networks(tiny, finished, tmp_path):
    """The last of which it trains although one is there, that may have come out otherwise."""
    finished(tiny("joint", "stream.take=2"))
    for entry in (tmp_path / "upper-bounds").iterdir():
        kept = Predictions.from_bytes((entry / "predictions.npz").read_bytes())
        if kept.label.max() == 3:
            kept.top[: len(kept.top) // 2] = -1  # another training, which was wrong there
            (entry / "predictions.npz").write_bytes(kept.to_bytes())
    again = execute(tiny("joint", "stream.take=2"), tmp_path / "again")
    assert again["metrics"]["omega"] == 1
    assert again["upper_bound"]["accuracy_after"] == again["metrics"]["accuracy_after"]


class Untaught(Method):
    """Is handed all tasks so far, as the upper bound is, and learns nothing from them."""

    keeps = Keeps.EVERYTHING

    def first_losses(self, batch):
        return {"cross_entropy": 0 * cross_entropy(self.classifier(batch.images), batch.labels)}


def test_another_method_that_keeps_everything_is_not_the_upper_bound(tiny, whole, finished, tmp_path, monkeypatch):
    entry = EntryPoint("untaught", f"{__name__}:Untaught", "reverie.methods")
    monkeypatch.setattr(methods, "entry_points", lambda group: [entry])
    alone = execute(tiny("untaught", "stream.take=2"), tmp_path / "untaught")
    assert alone["metrics"]["omega"] is None
    assert not (tmp_path / "upper-bounds").exists()
    bound = finished(tiny("joint", "stream.take=2"))
    again = execute(tiny("untaught", "stream.take=2"), tmp_path / "untaught")
    assert again["metrics"]["accuracy_after"] == alone["metrics"]["accuracy_after"]
    assert max(again["metrics"]["accuracy_after"]) < min(bound["metrics"]["accuracy_after"])
    assert again["metrics"]["omega"] < 1
    assert again["metrics"]["forgetting"] is None  # a fresh network each time


def test_the_upper_bound_is_trained_once_and_found_by_other_splits(tiny, finished, tmp_path):
    """The prefix of four classes is the same in two tasks of two and in one of four."""
    shorter = finished(tiny("joint", "stream.take=2"))
    entries = {e.name for e in (tmp_path / "upper-bounds").iterdir()}
    assert len(entries) == 2
    longer = execute(tiny("joint", "stream.split=4+3x2"), tmp_path / "four")
    events = (tmp_path / "four" / "events.jsonl").read_text()
    assert events.count('"found"') == 1
    assert len(list((tmp_path / "upper-bounds").iterdir())) == 5
    assert longer["metrics"]["accuracy_after"][0] == shorter["metrics"]["accuracy_after"][1]


def test_another_seed_or_schedule_has_its_own_upper_bound(tiny, finished, tmp_path):
    finished(tiny("joint", "stream.take=2"))
    assert execute(tiny("base", "stream.take=2", seed=1), tmp_path / "a")["metrics"]["omega"] is None
    assert execute(tiny("base", "stream.take=2", "train.epochs=1"), tmp_path / "b")["metrics"]["omega"] is None


def test_a_deleted_upper_bound_is_trained_again_to_the_same_figure(tiny, finished, tmp_path):
    first = finished(tiny("joint", "stream.take=2"))
    shutil.rmtree(tmp_path)
    again = execute(tiny("joint", "stream.take=2"), tmp_path / "run")
    assert again["metrics"] == first["metrics"]


@pytest.mark.parametrize(
    ("file", "content"),
    [("entry.json", b"{"), ("predictions.npz", b"PK"), ("entry.json", None), ("predictions.npz", b"")],
)
def test_a_damaged_upper_bound_costs_no_run_and_is_made_again(tiny, finished, tmp_path, caplog, file, content):
    first = finished(tiny("joint", "stream.take=2"))
    for entry in (tmp_path / "upper-bounds").iterdir():
        if content is None:
            (entry / file).unlink()
        else:
            (entry / file).write_bytes(content)
    assert execute(tiny("base", "stream.take=2"), tmp_path / "base")["metrics"]["omega"] is None
    assert "is damaged and not used" in caplog.text
    again = execute(tiny("joint", "stream.take=2"), tmp_path / "again")
    assert again["metrics"] == first["metrics"]
    assert execute(tiny("base", "stream.take=2"), tmp_path / "base")["metrics"]["omega"] is not None


def test_splits_that_normalise_differently_have_their_own_upper_bounds(tmp_path, photos):
    def of(method, split, name):
        settings = ["data.source=folder", "data.size=8", "train.epochs=1", "stream.order=natural"]
        config = experiment.configure("digits-5", method, settings=[*settings, f"stream.split={split}"])
        return execute(config, tmp_path / name, data=photos)["metrics"]["omega"]

    of("joint", [1, 1, 1], "joint-111")
    assert of("base", [1, 2], "base-12") is not None  # the same first task
    assert of("base", [2, 1], "base-21") is None
    of("joint", [2, 1], "joint-21")
    assert of("base", [2, 1], "base-21") is not None


def test_a_method_that_does_not_normalise_has_the_upper_bound_of_those_that_do(tmp_path, photos):
    for method in ("joint", "dgr"):
        config = experiment.configure("digits-5", method, settings=[*PHOTOS, "train.epochs=1"])
        result = execute(config, tmp_path / method, data=photos)
        shape = reverie.load(tmp_path / method / "model").task_learner.classifier.preprocessing
        assert (shape.mean == (0, 0, 0)) == (shape.deviation == (1, 1, 1)) == (method == "dgr")
    assert result["metrics"]["omega"] is not None


def test_the_class_order_follows_the_seed(tiny, tmp_path):
    import random

    for seed in (0, 3):
        order = list(range(10))
        random.seed(seed)
        random.shuffle(order)
        result = execute(tiny("base", "stream.take=1", "train.epochs=1", seed=seed), tmp_path / str(seed))
        assert result["class_order"] == order[:2]


def test_an_own_folder_of_photographs_is_learned_and_normalised_by_its_first_task(tmp_path, photos):
    settings = [
        "data.source=folder",
        "stream.split=3",
        "data.size=8",
        "train.epochs=3",
        "dream.steps=4",
        "dream.width=8",
    ]
    config = experiment.configure("digits-5", "abd", settings=[*settings, "train.batch_size=8"])
    result = execute(config, tmp_path / "memory", data=photos)
    assert len(result["metrics"]["accuracy_after"]) == 3
    streamed = experiment.configure(
        "digits-5", "abd", settings=[*settings, "train.batch_size=8", "data.storage=stream"]
    )
    assert execute(streamed, tmp_path / "disk", data=photos)["metrics"] == result["metrics"]
    shape = reverie.load(tmp_path / "memory" / "model").task_learner.classifier.preprocessing
    assert len(shape.mean) == 3
    assert all(0 < value < 1 for value in (*shape.mean, *shape.deviation))


@pytest.mark.parametrize("method", ["rehearsal", "e2e", "bic"])
def test_a_coreset_beside_images_on_disk_is_the_same_as_beside_images_in_memory(tmp_path, photos, method):
    def of(storage):
        settings = [*PHOTOS, "coreset.size=9", "train.batch_size=8", f"data.storage={storage}"]
        return execute(experiment.configure("digits-5", method, settings=settings), tmp_path / storage, data=photos)

    memory, disk = of("memory"), of("stream")
    assert memory["metrics"] == disk["metrics"]
    assert undated(memory["ledger"]) == undated(disk["ledger"])
    assert memory["ledger"][-1]["kept_bytes"] == 9 * (3 * 8 * 8 + 8)
    assert losses(tmp_path / "memory") == losses(tmp_path / "stream")


def test_configuration_on_disk_is_the_one_that_was_run(tiny, tmp_path):
    config = tiny("base", "stream.take=1")
    execute(config, tmp_path / "run")
    stored = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    stored.pop("fingerprint")
    assert reverie.Config.from_dict(stored) == config


def test_top_five_counts_when_the_class_is_among_the_first_five(tiny, tmp_path):
    result = execute(tiny("base", THREE, "evaluate.top=5"), tmp_path / "run")
    predictions = np.load(tmp_path / "run" / "tasks" / "03" / "predictions.npz")
    among = (predictions["top"] == predictions["label"][:, None]).any(1)
    assert predictions["top"].shape[1] == 5
    assert result["metrics"]["final_accuracy"] == pytest.approx(among.mean())
    assert math.isclose(result["metrics"]["accuracy_after"][0], 1.0)  # two classes: always among five
