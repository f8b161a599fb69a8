"""A run: what is on disk afterwards, what it says, and which folders it leaves alone."""

import random
import subprocess
from dataclasses import replace

import pytest
import torch
import yaml

import reverie
from reverie.config.schema import Config
from reverie.data.images import Dataset
from reverie.engine.observer import Observer
from reverie.errors import UserError
from reverie.learner.folder import RunFolder
from reverie.learner.task_learner import TaskLearner
from reverie.methods import BUILT_IN, method_names
from reverie.methods.base import Method
from reverie.runs import run as run_module
from reverie.runs.configure import configure, load_dataset, make_stream
from reverie.runs.result import read_result
from reverie.runs.run import run
from tests.support.experiments import losses_of, method_config, quick_run, tiny_config, undated, weights_of
from tests.support.paths import ROOT

PHOTOS = ["data.source=folder", "stream.split=3", "data.size=8", "train.epochs=2", "dream.steps=4", "dream.width=8"]


# --- what it leaves


def test_a_run_leaves_what_the_design_promises(whole):
    made = whole(method_config("abd"))
    folder, result = made.folder, made.result
    assert sorted(e.name for e in folder.iterdir() if e.name != ".lock") == [
        "config.yaml",
        "events.jsonl",
        "model",
        "result.json",
        "tasks",
    ]
    assert sorted(e.name for e in (folder / "tasks" / "02").iterdir()) == ["dreams.png", "predictions.npz"]
    assert read_result(folder / "result.json") == result
    assert result.schema_version == 1
    assert result.sessions[0].command == "reverie run x"
    ran_in = result.sessions[0].environment
    assert None not in (ran_in.torch, ran_in.python, ran_in.cpu, ran_in.threads)
    assert result.seconds.by_part.keys() == {"learn", "evaluate", "dream", "end"}
    assert result.peak_memory_bytes > 10**7
    assert len(result.peak_memory_by_task) == len(result.task_sizes)
    assert result.ledger[-1].kept_bytes == 0
    assert len(result.class_order) == 6
    learner = reverie.load(folder / "model").task_learner
    assert learner.classifier.class_names == tuple(result.class_names)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")
def test_a_result_names_the_commit_of_this_checkout(whole):
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    here = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    assert whole(method_config("abd")).result.sessions[0].environment.commit.rstrip("+") == here


def test_configuration_on_disk_is_the_one_that_was_run(whole):
    config = method_config("abd")
    folder = whole(config).folder
    stored = RunFolder(folder).stored()
    assert stored.config == config
    assert stored.upper_bound == config.upper_bound_digest()
    plain = yaml.safe_load((folder / "config.yaml").read_text())
    assert plain.pop("fingerprint") == stored.fingerprint == whole(config).result.data_fingerprint
    assert Config.from_dict(plain) == config


@pytest.mark.parametrize("method", method_names())
def test_every_method_learns_task_after_task(whole, method):
    config = method_config(method)
    result = whole(config).result
    assert len(result.metrics.accuracy_after) == config.stream.take
    assert 0 <= result.metrics.final_accuracy <= 1
    before = result.uncorrected_accuracy_after
    assert (before is not None) == (method == "bic")
    assert before is None or before[0] == result.metrics.accuracy_after[0]


@pytest.mark.parametrize("method", ["base", "abd"])
def test_a_loop_over_the_tasks_learns_what_a_run_learns(tmp_path, method):
    config = tiny_config(method, "stream.take=3", "train.epochs=1")
    result = run(config, tmp_path / "run", device="cpu")
    stream = make_stream(config, load_dataset(config))
    learner, accuracies = TaskLearner.for_stream(config, stream), []
    for task in stream:
        learner.learn(task)
        accuracies.append(learner.score(stream[: task.index + 1].test()))
    assert accuracies == result.metrics.accuracy_after
    assert undated(result) == [entry.replace(source="digits") for entry in learner.ledger]
    weights = weights_of(tmp_path / "run")
    assert all(torch.equal(value, weights[name]) for name, value in learner.classifier.state_dict().items())


def test_on_wish_the_model_and_the_dreamer_of_every_task_are_kept(tiny_stream, tmp_path):
    run(tiny_config("abd", "stream.take=2", "train.epochs=1", "keep=[models, dreamers]"), tmp_path / "run")
    first = reverie.load(tmp_path / "run" / "tasks" / "01" / "model").task_learner
    assert first.classifier.class_names == tiny_stream[0].names
    assert (tmp_path / "run" / "tasks" / "02" / "dreamer.pt").is_file()


def test_a_data_set_of_ones_own_takes_the_place_of_the_one_that_is_named(tmp_path):
    config = tiny_config("base", "stream.take=1", "train.epochs=1")
    digits = load_dataset(config)
    mine = Dataset("mine", digits.train, digits.test, tuple("abcdefghij"), digits.normalisation)
    result = run(config, tmp_path / "run", dataset=mine)
    assert result.data_fingerprint == mine.fingerprint()
    assert set(result.class_names) < set("abcdefghij")
    assert run(config, tmp_path / "run", dataset=mine) == result
    with pytest.raises(UserError, match="the data are not the same"):
        run(config, tmp_path / "run", dataset=replace(mine, name="another", train=digits.test))


def test_a_run_without_a_folder_has_one_below_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(tiny_config("base", "stream.take=1", "train.epochs=1", seed=3))
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["digits-5-base-paper-seed3"]


# --- what it says


def test_progress_is_shown_on_stderr_and_nothing_on_stdout(tmp_path, capfd):
    run(tiny_config("base", "stream.take=1", "train.epochs=1"), tmp_path / "run", progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "digits-5 base task 1/1 learned:" in err
    run(tiny_config("base", "stream.take=1", "train.epochs=1"), tmp_path / "quiet")
    assert capfd.readouterr() == ("", "")


# --- finished runs, and runs of others


def test_a_finished_run_is_recognised_and_not_made_again(finished, tmp_path):
    config = method_config("base")
    first = finished(config)
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    assert run(config, tmp_path / "run", data="nowhere") == first
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()} == before


def test_a_finished_run_says_that_it_did_not_keep_what_is_wanted_now(finished, tmp_path, caplog):
    finished(method_config("base"))
    run(replace(method_config("base"), keep=("models", "dreamers")), tmp_path / "run")
    assert "is finished and did not keep models and dreamers" in caplog.text


def test_a_run_that_another_process_has_finished_meanwhile_is_not_made_again(tmp_path, monkeypatch):
    config = tiny_config("base", "stream.take=1", "train.epochs=1")

    def slow(*args):
        monkeypatch.setattr(run_module, "load_dataset", load_dataset)
        run(config, tmp_path / "run", command="the first")
        return load_dataset(*args)

    monkeypatch.setattr(run_module, "load_dataset", slow)
    result = run(config, tmp_path / "run", command="the second")
    assert [session.command for session in result.sessions] == ["the first"]


def test_a_run_from_before_a_method_had_an_option_is_recognised(finished, tmp_path):
    config, file = method_config("abd"), tmp_path / "run" / "config.yaml"
    first = finished(config)
    stored = yaml.safe_load(file.read_text())
    del stored["method"]["task_weights"]
    file.write_text(yaml.safe_dump(stored))
    assert run(config, tmp_path / "run") == first
    with pytest.raises(UserError, match=r"method\.task_weights: True in the folder, False asked for"):
        run(config.with_settings({"method.task_weights": False}), tmp_path / "run")


def test_another_configuration_is_refused_with_the_difference_and_nothing_changes(finished, tmp_path):
    finished(method_config("base"))
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    with pytest.raises(UserError) as refusal:
        run(tiny_config("lwf", "stream.take=3", "train.epochs=9"), tmp_path / "run")
    message = str(refusal.value)
    assert "train.epochs: 2 in the folder, 9 asked for" in message
    assert "method.name: base in the folder, lwf asked for" in message
    assert message.endswith("Choose another `folder`.")
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("content", [b"", b'{"schema": 1', b"{}", b"[]", b'{"schema": 1}', b"\xff"])
def test_a_damaged_result_is_an_error_that_says_what_to_do(finished, tmp_path, content):
    finished(method_config("base"))
    (tmp_path / "run" / "result.json").write_bytes(content)
    with pytest.raises(UserError, match=r"result.json is damaged: .*\. Delete it to start the run anew\.$"):
        run(method_config("base"), tmp_path / "run")


def test_without_its_damaged_result_a_run_is_made_anew(finished, tmp_path):
    config = tiny_config("base", "stream.take=1")
    first = finished(config)
    (tmp_path / "run" / "result.json").unlink()
    again = quick_run(config, tmp_path / "run")
    assert again.metrics == first.metrics
    assert len(losses_of(tmp_path / "run")) == 2  # nothing is told twice


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not a run folder"):
        run(tiny_config("base"), tmp_path)
    with pytest.raises(UserError, match="is a file"):
        run(tiny_config("base"), tmp_path / "thesis.txt")


def test_hidden_files_are_somebodys_too(tmp_path):
    (tmp_path / "run" / ".git").mkdir(parents=True)
    (tmp_path / "run" / ".git" / "HEAD").write_text("years of work")
    with pytest.raises(UserError, match="not empty and not a run folder"):
        run(tiny_config("base"), tmp_path / "run")
    assert (tmp_path / "run" / ".git" / "HEAD").read_text() == "years of work"


@pytest.mark.parametrize(
    "content", [b"name: x", b"method: abd", b"train: 5\nmethod: {name: abd}", b"[1, 2", b"\xff", b""]
)
def test_a_folder_with_a_configuration_of_something_else_is_left_alone(tmp_path, content):
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"config.yaml is not the configuration of a run\. Choose another `folder`\."):
        run(tiny_config("base"), tmp_path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [content]


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    with RunFolder(tmp_path / "run").lock(), pytest.raises(UserError, match="Another process"):
        run(tiny_config("base"), tmp_path / "run")


@pytest.mark.parametrize("seconds", ["5", -1, float("nan"), None])
def test_seconds_between_checkpoints_are_a_number(tmp_path, seconds):
    with pytest.raises(UserError, match=r"^`checkpoint_seconds` must be a number of at least 0, not "):
        quick_run(tiny_config("base"), tmp_path / "run", checkpoint_seconds=seconds)
    assert not (tmp_path / "run").exists()


def test_a_mistake_leaves_no_folder_behind(tmp_path):
    with pytest.raises(UserError, match="CIFAR-100 is not under"):
        run(configure("cifar100-10", "abd"), tmp_path / "run", data=tmp_path)
    with pytest.raises(UserError, match="cannot be cut"):
        run(tiny_config("base", "stream.split=3"), tmp_path / "run")
    with pytest.raises(UserError, match="only 10 classes"):
        run(tiny_config("base", "stream.classes=12"), tmp_path / "run")
    with pytest.raises(UserError, match="unknown"):
        run(tiny_config("base"), tmp_path / "run", device="abacus")
    assert list(tmp_path.iterdir()) == []


class Contrary(Method):
    """A method that changes what its classifier answers, whenever it is made, and leaves that in no state."""

    def __init__(self, classifier, *given):
        super().__init__(classifier, *given)
        answer = classifier.answer
        classifier.answer = lambda images: -answer(images)


def test_a_model_that_its_method_had_to_answer_for_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(BUILT_IN, "mine", f"{Contrary.__module__}:{Contrary.__name__}")
    with pytest.raises(UserError, match=r"is not the one that was judged: it answers otherwise for \d+ of 48"):
        quick_run(tiny_config("mine", "stream.take=2"), tmp_path / "run", device="cpu")


# --- which images


def test_the_class_order_follows_the_seed(tmp_path):
    for seed in (0, 3):
        order = list(range(10))
        random.seed(seed)
        random.shuffle(order)
        result = run(tiny_config("base", "stream.take=1", "train.epochs=1", seed=seed), tmp_path / str(seed))
        assert result.class_order == order[:2]


def test_an_own_folder_of_photographs_is_learned_and_normalised_by_its_first_task(tmp_path, photos):
    config = configure("digits-5", "abd", settings=[*PHOTOS, "train.epochs=3", "train.batch_size=8"])
    result = run(config, tmp_path / "memory", data=photos)
    assert len(result.metrics.accuracy_after) == 3
    streamed = config.with_settings({"data.storage": "stream"})
    assert run(streamed, tmp_path / "disk", data=photos).metrics == result.metrics
    shape = reverie.load(tmp_path / "memory" / "model").task_learner.classifier.preprocessing
    assert len(shape.mean) == 3
    assert all(0 < value < 1 for value in (*shape.mean, *shape.deviation))


@pytest.mark.parametrize("method", ["rehearsal", "e2e", "bic"])
def test_a_coreset_beside_images_on_disk_is_the_same_as_beside_images_in_memory(tmp_path, photos, method):
    def of(storage):
        settings = [*PHOTOS, "coreset.size=9", "train.batch_size=8", f"data.storage={storage}"]
        return run(configure("digits-5", method, settings=settings), tmp_path / storage, data=photos)

    memory, disk = of("memory"), of("stream")
    assert memory.metrics == disk.metrics
    assert undated(memory) == undated(disk)
    assert memory.ledger[-1].kept_bytes == 9 * (3 * 8 * 8 + 8)
    assert losses_of(tmp_path / "memory") == losses_of(tmp_path / "stream")


def test_who_reads_the_images_of_a_folder_is_told_how_far_it_is(tmp_path, photos):
    class Reading(Observer):
        told = ()

        def reading(self, done, total):
            self.told = (done, total)

    following = Reading()
    config = configure("digits-5", "base", settings=[*PHOTOS, "stream.take=1", "train.epochs=1"])
    run(config, tmp_path / "run", data=photos, observer=following)
    assert following.told == (36, 36)
