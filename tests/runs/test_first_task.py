"""The first task is shared where it is the same to the last bit, and nowhere else."""

import json
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from reverie.data.feed import Batch
from reverie.data.images import Dataset
from reverie.data.stream import Task
from reverie.errors import Interrupted
from reverie.learner.checkpoint import lock_file
from reverie.learner.task_learner import TaskLearner
from reverie.methods import BUILT_IN, find_method
from reverie.methods.base import Method
from reverie.methods.deepinversion import DeepInversion
from reverie.methods.dreamer import Dreamer
from reverie.runs.configure import configure, preprocessing
from reverie.runs.run import execute, first_task
from reverie.system import files as disk
from reverie.system.provenance import digest
from tests.conftest import TINY
from tests.runs.test_run import StopAt, assert_same_run, figures, losses

TWO = ("stream.take=2", "train.epochs=1")
QUICK = [*TINY, "train.epochs=1"]


def entries(folder, kind="first-tasks"):
    return sorted((folder / kind).glob("*/entry.json"))


@pytest.mark.parametrize(
    ("first", "second", "recipe"),
    [
        (("base", "train.epochs=2"), ("lwf", "train.epochs=2"), "paper"),
        (("lwf",), ("joint",), "paper"),
        (("deepinversion",), ("abd",), "paper"),
        (("abd",), ("abd", "method.fine_tuning=0.5"), "released"),
    ],
)
def test_a_run_that_finds_its_first_task_ends_with_the_same_bits(tiny, tmp_path, first, second, recipe):
    trained, found = (tiny(which[0], *TWO, *which[1:], recipe=recipe) for which in (first, second))
    execute(trained, tmp_path / "shared" / "first", share_first_task=True)
    assert len(entries(tmp_path / "shared")) == 1
    shared = execute(found, tmp_path / "shared" / "second", share_first_task=True)
    alone = execute(found, tmp_path / "alone" / "second")
    assert figures(shared)["metrics"] == figures(alone)["metrics"]
    assert figures(shared)["ledger"] == figures(alone)["ledger"]
    assert_same_run(tmp_path / "shared" / "second", tmp_path / "alone" / "second")
    assert losses(tmp_path / "shared" / "second")[0][:3] == (1, "learn", 1)
    assert shared["first_task"]["trained_by"] == {
        "preset": "digits-5", "method": first[0], "recipe": recipe, "seed": 0
    }  # fmt: skip
    assert alone["first_task"] is None
    assert sorted(entry.name for entry in (tmp_path / "alone").iterdir()) in (["second"], ["second", "upper-bounds"])
    assert shared["phases"] == alone["phases"]
    assert len(entries(tmp_path / "shared")) == 1


def test_what_it_cost_counts_for_both_and_is_marked(tiny, tmp_path):
    a, b = (execute(tiny(name, *TWO), tmp_path / name, share_first_task=True) for name in ("base", "lwf"))
    assert a["first_task"] is None
    cost = b["first_task"]["seconds"]
    for result in (a, b):
        assert 0 < cost <= result["seconds"]["by_task"][0]["learn"] < cost + 1
    entry = json.loads(entries(tmp_path)[0].read_text())
    assert (entry["trained_by"]["method"], entry["seconds"]) == ("base", cost)
    assert "torch" in entry["session"]["environment"]


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """A folder with a finished run of DeepInversion in it."""
    folder = tmp_path_factory.mktemp("beside")
    config = configure("digits-5", "deepinversion", settings=[*QUICK, "stream.take=3"])
    execute(config, folder / "deepinversion", share_first_task=True)
    return folder


def beside_it(folder, method, *settings):
    config = configure("digits-5", method, settings=[*QUICK, *TWO, *settings])
    return execute(config, folder / f"{method}{''.join(settings)}", share_first_task=True)


def test_methods_that_share_a_teacher_share_its_dreams(beside):
    a, b = json.loads((beside / "deepinversion" / "result.json").read_text()), beside_it(beside, "abd")
    assert a["first_dreams"] is None
    assert b["first_task"]["trained_by"]["method"] == b["first_dreams"]["trained_by"]["method"] == "deepinversion"
    shared, own = b["first_dreams"]["seconds"], b["seconds"]["by_task"][1]["dream"]
    assert shared < a["seconds"]["by_task"][1]["dream"]  # a look at the dreams after the last step is everyone's own
    assert shared < own
    ours, theirs = losses(beside / "abd"), losses(beside / "deepinversion")
    assert ours[:2] == theirs[:2]
    assert ours[1][:2] == (2, "dream")
    assert len(entries(beside, "first-dreams")) == 1  # those of the third task are everybody's own


class OwnDreamer(Dreamer):
    """Another loss."""

    def losses(self, noise):
        return {"prior": super().losses(noise)["prior"]}


class DreamsOtherwise(DeepInversion):
    """Replays dreams of its own making."""

    def _new_dreamer(self, teacher, task):
        return OwnDreamer(teacher, self.config.dream, self.config.train.batch_size, self.config.seed, task)


class DreamsOfAnother(DeepInversion):
    """Replays the usual dreams of a teacher that is not quite the classifier."""

    def begin(self, task):
        super().begin(task)
        if self.teacher is not None:
            with torch.no_grad():
                self.teacher.head.bias.add_(1e-3)


class WatchesItsTeacher(DeepInversion):
    """Replays the usual dreams, with an eye on every pass of the teacher."""

    def begin(self, task):
        super().begin(task)
        if self.teacher is not None:
            self.teacher.backbone.register_forward_hook(lambda *args: None)


@pytest.mark.parametrize("method", [DreamsOtherwise, DreamsOfAnother, WatchesItsTeacher])
def test_a_method_that_dreams_otherwise_finds_no_dreams(beside, monkeypatch, method):
    name = method.__name__
    monkeypatch.setitem(BUILT_IN, name, f"{__name__}:{name}")
    result = beside_it(beside, name)
    assert result["first_task"] is not None
    assert result["first_dreams"] is None


@pytest.mark.parametrize("setting", ["dream.steps=3", "dream.lr=0.01", "dream.width=4", "dream.batch_size=8"])
def test_dreams_made_otherwise_are_not_shared(beside, setting):
    result = beside_it(beside, "abd", setting)
    assert result["first_task"] is not None
    assert result["first_dreams"] is None


class Asked(Exception):
    """A run has looked for its first task, under this key."""


@pytest.fixture
def key_of(tmp_path, monkeypatch):
    """The key under which a run looks for its first task; none if it does not."""

    def ask(self, key, phase):
        raise Asked(key)

    monkeypatch.setattr(first_task.FirstTask, "_find", ask)

    def key(config):
        folder = tmp_path / "asking"
        try:
            execute(config, folder, share_first_task=True)
        except Asked as asked:
            return str(asked)
        finally:
            shutil.rmtree(folder)
        return None

    return key


@pytest.mark.parametrize(
    "others",
    [
        {"seed": 1},
        {"recipe": "released"},
        {"settings": ["train.lr=0.05"]},
        {"settings": ["train.milestones=[1]"]},
        {"settings": ["train.epochs=1"]},
        {"settings": ["train.batch_size=8"]},
        {"settings": ["augment.crop=0"]},
        {"settings": ["stream.order=natural"]},
        {"settings": ["stream.split=2"]},
        {"settings": ["net.name=resnet14"]},
        {"settings": ["data.size=10"]},
        {"settings": ["engine.precision=bf16"]},
        {"settings": ["train.even=true"]},
    ],
    ids=str,
)
def test_what_differs_is_not_shared(tiny, key_of, others):
    method, settings = others.pop("method", "lwf"), others.pop("settings", [])
    assert key_of(tiny("lwf")) == key_of(tiny("base"))
    assert None is not key_of(tiny(method, *settings, **others)) != key_of(tiny("base"))


@pytest.mark.parametrize("same", ["dream.steps=3", "stream.take=3", "evaluate.top=5", "data.storage=stream"])
def test_what_makes_no_difference_to_the_first_task_is(tiny, key_of, same):
    assert key_of(tiny("deepinversion", same)) == key_of(tiny("base"))


def test_abd_begins_as_all_others_do_unless_its_head_has_rows_of_future_classes(tiny, key_of):
    assert key_of(tiny("abd")) == key_of(tiny("base"))
    released = [key_of(tiny(method, recipe="released")) for method in ("abd", "lwf", "deepinversion")]
    assert None is not released[0] != released[1] == released[2]


@pytest.mark.parametrize("method", ["r-dfcil", "rehearsal", "lwf-coreset", "e2e", "bic"])
def test_methods_that_keep_something_or_learn_in_two_phases_begin_as_all_others_do(tiny, key_of, method):
    assert key_of(tiny(method)) == key_of(tiny("base"))


def test_other_code_and_another_machine_share_nothing(tiny, key_of, monkeypatch):
    usual = key_of(tiny("base"))
    with monkeypatch.context() as patched:
        patched.setattr(first_task, "_code", lambda: "other")
        assert key_of(tiny("base")) != usual
    with monkeypatch.context() as patched:
        patched.setattr("reverie.system.provenance.environment", lambda device: {"device": "cpu", "threads": 7})
        assert key_of(tiny("base")) != usual
    with monkeypatch.context() as patched:
        patched.setattr(Dataset, "fingerprint", lambda self: "other")
        assert key_of(tiny("base")) != usual


class OwnLosses(Method):
    """Another loss in the first task."""

    def first_losses(self, batch):
        return {name: 2 * loss for name, loss in super().first_losses(batch).items()}


class Prepared(Method):
    """The same losses, from something prepared."""

    def phases(self, task):
        yield self.learning(task, self.first_losses, prepare=lambda batch, rng: batch)


class Watching(Method):
    """The same losses, with an eye on every pass."""

    def begin(self, task):
        super().begin(task)
        self.classifier.backbone.register_forward_hook(lambda *args: None)


class Fraction(Method):
    """The same losses, on some of the images."""

    def phases(self, task):
        part = Task(task.index, task.names, task.first_label, task.images.select(torch.arange(task.size - 20)))
        yield self.learning(part, self.first_losses)


class Renamed(Method):
    """The same phase under another name, and so with other random numbers."""

    def phases(self, task):
        phase = super().learning(task, self.first_losses)
        phase.name = "other"
        yield phase


class Frozen(Method):
    """The same phase, but not all of the classifier learns."""

    def begin(self, task):
        super().begin(task)
        next(self.classifier.parameters()).requires_grad_(False)


class Nudged(Method):
    """The same phase from other initial weights."""

    def begin(self, task):
        super().begin(task)
        with torch.no_grad():
            next(self.classifier.parameters()).add_(1e-3)


@pytest.mark.parametrize("method", [OwnLosses, Prepared, Watching, Fraction, Renamed, Frozen, Nudged])
def test_a_method_that_does_anything_else_in_its_first_task_finds_nothing(tiny, key_of, monkeypatch, method):
    monkeypatch.setitem(BUILT_IN, "mine", f"{__name__}:{method.__name__}")
    quick = "stream.take=1", "train.epochs=1"
    assert key_of(tiny("mine", *quick)) != key_of(tiny("base", *quick))


class TwoPhases(Method):
    """The usual phase, then one of its own."""

    def phases(self, task):
        yield from super().phases(task)
        phase = self.learning(task, self.losses)
        phase.name = "again"
        yield phase


def test_phases_after_the_shared_one_are_trained(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(BUILT_IN, "mine", f"{__name__}:TwoPhases")
    execute(tiny("base", *TWO), tmp_path / "shared" / "first", share_first_task=True)
    result = execute(tiny("mine", *TWO), tmp_path / "shared" / "run", share_first_task=True)
    assert result["first_task"]["trained_by"]["method"] == "base"
    execute(tiny("mine", *TWO), tmp_path / "alone" / "run")
    assert_same_run(tmp_path / "shared" / "run", tmp_path / "alone" / "run")


@pytest.mark.parametrize("where", [(1, "learn", 5), (2, "dream", 3)])
def test_a_phase_that_was_interrupted_and_went_on_in_the_same_place_is_shared(tiny, tmp_path, where):
    config = tiny("deepinversion", *TWO)

    def go_on(folder, **options):
        return execute(config, folder, share_first_task=True, checkpoint_seconds=0, **options)

    for step in (0, 1):
        with pytest.raises(Interrupted):
            go_on(tmp_path / "stopped" / "a", observer=StopAt(*where[:2], where[2] + step))
    go_on(tmp_path / "stopped" / "a")
    go_on(tmp_path / "straight" / "a")
    for kind in ("first-tasks", "first-dreams"):
        stopped, straight = (entries(tmp_path / name, kind)[0] for name in ("stopped", "straight"))
        assert stopped.parent.name == straight.parent.name
        ours, theirs = (json.loads(file.read_text()) for file in (stopped, straight))
        assert [ours[name] for name in ("trained_by", "epochs")] == [theirs[name] for name in ("trained_by", "epochs")]
        ours, theirs = (disk.read_state(file.parent / "snapshot.pt")["moves"] for file in (stopped, straight))
        assert [*map(digest, ours.values())] == [*map(digest, theirs.values())]


def test_a_first_task_that_went_on_elsewhere_is_not_handed_on(tiny, tmp_path, monkeypatch):
    with pytest.raises(Interrupted):
        execute(
            tiny("base", *TWO), tmp_path / "a", share_first_task=True,
            observer=StopAt(1, "learn", 5), checkpoint_seconds=0,
        )  # fmt: skip
    monkeypatch.setattr("reverie.system.provenance.environment", lambda device: {"device": "cpu", "threads": 7})
    execute(tiny("base", *TWO), tmp_path / "a", share_first_task=True)
    assert entries(tmp_path) == []


def test_a_run_killed_after_it_found_its_first_task_still_says_so(tiny, tmp_path):
    execute(tiny("base", *TWO), tmp_path / "base", share_first_task=True)
    with pytest.raises(Interrupted):
        execute(
            tiny("lwf", *TWO), tmp_path / "lwf", share_first_task=True,
            observer=StopAt(2, "learn", 5), checkpoint_seconds=0,
        )  # fmt: skip
    result = execute(tiny("lwf", *TWO), tmp_path / "lwf", share_first_task=True)
    assert result["first_task"]["trained_by"]["method"] == "base"
    assert len(losses(tmp_path / "lwf")) == 2


@pytest.mark.parametrize("it_ends", [True, False])
def test_a_run_waits_while_another_trains_the_same_and_trains_it_if_the_other_does_not_end(tiny, tmp_path, it_ends):
    execute(tiny("base", *TWO), tmp_path / "base", share_first_task=True)
    entry = entries(tmp_path)[0].parent
    assert [*entry.parent.iterdir()] == [entry]  # nobody has a claim any more
    entry.rename(tmp_path / "not yet")
    with ThreadPoolExecutor(1) as pool, lock_file(entry.parent / f"{entry.name}.lock"):
        lwf = pool.submit(execute, tiny("lwf", *TWO), tmp_path / "lwf", share_first_task=True)
        with pytest.raises(TimeoutError):
            lwf.result(timeout=1)
        if it_ends:
            (tmp_path / "not yet").rename(entry)
    found = lwf.result()["first_task"]
    assert found["trained_by"]["method"] == "base" if it_ends else found is None
    assert [*entry.parent.iterdir()] == [entry]


def test_a_run_that_waits_can_be_stopped(tiny, tmp_path, monkeypatch):
    execute(tiny("base", *TWO), tmp_path / "base", share_first_task=True)
    entry = entries(tmp_path)[0].parent
    shutil.rmtree(entry)
    clock = SimpleNamespace(sleep=lambda seconds: signal.raise_signal(signal.SIGINT))  # somebody presses Ctrl-C
    monkeypatch.setattr(first_task, "time", clock)
    with lock_file(entry.parent / f"{entry.name}.lock"), pytest.raises(Interrupted):
        execute(tiny("lwf", *TWO), tmp_path / "lwf", share_first_task=True)
    monkeypatch.undo()
    assert execute(tiny("lwf", *TWO), tmp_path / "lwf", share_first_task=True)["first_task"] is None


def test_a_damaged_first_task_is_trained_again(tiny, tmp_path):
    execute(tiny("base", *TWO), tmp_path / "base", share_first_task=True)
    (entries(tmp_path)[0].parent / "snapshot.pt").write_bytes(b"half")
    assert execute(tiny("lwf", *TWO), tmp_path / "lwf", share_first_task=True)["first_task"] is None


@pytest.mark.parametrize("damage", ["epochs", "seconds", "trained_by", "everything"])
def test_a_first_task_of_which_a_part_is_missing_is_trained_again(tiny, tmp_path, damage, caplog):
    execute(tiny("base", *TWO), tmp_path / "base", share_first_task=True)
    (file,) = entries(tmp_path)
    entry = disk.read_json(file)
    entry.pop(damage, None)
    disk.write_json(file, [] if damage == "everything" else entry)
    assert execute(tiny("lwf", *TWO), tmp_path / "lwf", share_first_task=True)["first_task"] is None
    assert "cannot be read" in caplog.text and "it is trained again" in caplog.text


class OnlyAClassifier:
    """A stand-in for a method that has nothing but its classifier."""

    def __init__(self, classifier: nn.Module) -> None:
        self.classifier = classifier

    def __setattr__(self, name, value):
        assert name == "classifier", f"sets {name}"
        super().__setattr__(name, value)


@pytest.mark.parametrize("losses_of", first_task.PLAIN_LOSSES, ids=lambda losses: losses.__qualname__)
def test_plain_losses_need_the_classifier_and_the_batch_alone(tiny, tiny_stream, losses_of):
    classifier = TaskLearner.fresh(tiny("base"), preprocessing(tiny_stream)).classifier
    classifier.grow(["a", "b"])
    classifier.eval()
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    batch = Batch(torch.randn(6, 1, 8, 8), torch.randint(2, (6,)))
    made = losses_of(OnlyAClassifier(classifier), batch)
    assert all(loss.requires_grad for loss in made.values())
    assert all(torch.equal(value, before[name]) for name, value in classifier.state_dict().items())


def test_methods_of_the_paper_that_share_their_first_task():
    plain = {name for name in BUILT_IN if find_method(name).first_losses is Method.first_losses}
    assert {"joint", "base", "lwf", "lwf-synthetic", "deepinversion", "abd"} <= plain
    assert {"r-dfcil", "rehearsal", "lwf-coreset", "e2e", "bic"} <= plain
