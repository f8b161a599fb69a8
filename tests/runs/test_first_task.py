"""The first task is shared where it is the same to the last bit, and nowhere else."""

import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import reverie
from reverie.data.feed import Batch
from reverie.data.images import Dataset
from reverie.data.stream import Task
from reverie.errors import Interrupted
from reverie.learner.task_learner import TaskLearner
from reverie.methods import BUILT_IN, find_method
from reverie.methods.base import Method
from reverie.methods.deepinversion import DeepInversion
from reverie.methods.dreamer import Dreamer
from reverie.runs import first_task
from reverie.runs.first_task import FirstTask, FirstTaskEntry
from reverie.runs.result import read_result
from reverie.system.files import read_json, read_state, write_json
from reverie.system.locks import try_lock
from reverie.system.provenance import Environment, digest
from reverie.system.records import as_record
from tests.support.experiments import CtrlC, assert_same_run, figures_of, losses_of, quick_run, tiny_config

ONE = ("stream.take=1", "train.epochs=1")
TWO = ("stream.take=2", "train.epochs=1")


def entries(folder, kind="first-tasks"):
    return sorted((folder / kind).glob("*/entry.json"))


def read_entry(file):
    return as_record(FirstTaskEntry, read_json(file))


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    """A folder with a finished run of one task in it, `base`, that shares it. Not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    quick_run(tiny_config("base", *ONE), folder / "base", share_first_task=True)
    return folder


@pytest.fixture
def trained(trained_once, tmp_path):
    """A copy of it, which may be changed."""
    return shutil.copytree(trained_once, tmp_path / "trained")


def run_beside(folder, method="lwf", *settings, **options):
    return quick_run(tiny_config(method, *(settings or ONE)), folder / method, share_first_task=True, **options)


@pytest.mark.parametrize(
    ("first", "second", "recipe"),
    [
        (("base", "train.epochs=2"), ("lwf", "train.epochs=2"), "paper"),
        (("lwf",), ("joint",), "paper"),
        (("deepinversion",), ("abd",), "paper"),
        (("abd",), ("abd", "method.fine_tuning=0.5"), "released"),
    ],
)
def test_a_run_that_finds_its_first_task_ends_with_the_same_bits(whole, tmp_path, first, second, recipe):
    ours, theirs = (tiny_config(which[0], *TWO, *which[1:], recipe=recipe) for which in (second, first))
    quick_run(theirs, tmp_path / "first", share_first_task=True)
    assert len(entries(tmp_path)) == 1
    shared, alone = quick_run(ours, tmp_path / "second", share_first_task=True), whole(ours)
    assert figures_of(shared) == figures_of(alone.result)
    assert_same_run(tmp_path / "second", alone.folder)
    assert losses_of(tmp_path / "second")[0][:3] == (1, "learn", 1)
    assert shared.first_task.trained_by.as_dict() == {
        "preset": "digits-5", "method": first[0], "recipe": recipe, "seed": 0
    }  # fmt: skip
    assert alone.result.first_task is None
    assert sorted(entry.name for entry in alone.folder.parent.iterdir()) in (["run"], ["run", "upper-bounds"])
    assert shared.phases == alone.result.phases
    assert len(entries(tmp_path)) == 1


def test_what_it_cost_counts_for_both_and_is_marked(trained):
    a, b = read_result(trained / "base" / "result.json"), run_beside(trained)
    assert a.first_task is None
    cost = b.first_task.seconds
    for result in (a, b):
        assert 0 < cost <= result.seconds.by_task[0]["learn"] < cost + 1
    entry = read_entry(entries(trained)[0])
    assert (entry.trained_by.method, entry.seconds) == ("base", cost)
    assert entry.session.environment.torch == torch.__version__


# --- dreams of the first task


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """A folder with a finished run of DeepInversion in it."""
    folder = tmp_path_factory.mktemp("beside")
    quick_run(tiny_config("deepinversion", *TWO, "stream.take=3"), folder / "deepinversion", share_first_task=True)
    assert len(entries(folder, "first-dreams")) == 1  # those of the third task are everybody's own
    return folder


def beside_it(folder, method, *settings):
    config = tiny_config(method, *TWO, *settings)
    return quick_run(config, folder / f"{method}{''.join(settings)}", share_first_task=True)


def test_methods_that_share_a_teacher_share_its_dreams(beside):
    kept = entries(beside, "first-dreams")
    a, b = read_result(beside / "deepinversion" / "result.json"), beside_it(beside, "abd")
    assert a.first_dreams is None
    assert b.first_task.trained_by.method == b.first_dreams.trained_by.method == "deepinversion"
    shared, own = b.first_dreams.seconds, b.seconds.by_task[1]["dream"]
    assert shared < a.seconds.by_task[1]["dream"]  # a look at the dreams after the last step is everyone's own
    assert shared < own
    ours, theirs = losses_of(beside / "abd"), losses_of(beside / "deepinversion")
    assert ours[:2] == theirs[:2]
    assert ours[1][:2] == (2, "dream")
    assert entries(beside, "first-dreams") == kept


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
    assert result.first_task is not None
    assert result.first_dreams is None


@pytest.mark.parametrize("setting", ["dream.steps=3", "dream.lr=0.01", "dream.width=4", "dream.batch_size=8"])
def test_dreams_made_otherwise_are_not_shared(beside, setting):
    result = beside_it(beside, "abd", setting)
    assert result.first_task is not None
    assert result.first_dreams is None


# --- what is the same, and what is not


class Asked(Exception):
    """A run has looked for its first task, under this key."""


@pytest.fixture(scope="module")
def key_of(tmp_path_factory):
    """The key under which a run looks for its first task; none if it does not."""

    def ask(self, key, phase):
        raise Asked(key)

    def key(method, *settings, **others):
        folder = tmp_path_factory.mktemp("asking") / "run"
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(FirstTask, "_find", ask)
            try:
                quick_run(tiny_config(method, *settings, **others), folder, share_first_task=True)
            except Asked as asked:
                return str(asked)
        return None

    return key


@pytest.fixture(scope="module")
def usual(key_of):
    """Of the plainest method."""
    key = key_of("base")
    assert key is not None
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
def test_what_differs_is_not_shared(key_of, usual, others):
    assert None is not key_of("lwf", *others.pop("settings", []), **others) != usual


@pytest.mark.parametrize("same", ["dream.steps=3", "stream.take=3", "evaluate.top=5", "data.storage=stream"])
def test_what_makes_no_difference_to_the_first_task_is(key_of, usual, same):
    assert key_of("deepinversion", same) == usual


def test_abd_begins_as_all_others_do_unless_its_head_has_rows_of_future_classes(key_of, usual):
    assert key_of("abd") == usual
    released = [key_of(method, recipe="released") for method in ("abd", "lwf", "deepinversion")]
    assert None is not released[0] != released[1] == released[2]


@pytest.mark.parametrize("method", ["lwf", "r-dfcil", "rehearsal", "lwf-coreset", "e2e", "bic"])
def test_methods_that_keep_something_or_learn_in_two_phases_begin_as_all_others_do(key_of, usual, method):
    assert key_of(method) == usual


def test_other_code_and_another_machine_share_nothing(key_of, usual, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(first_task, "_code", lambda: "other")
        assert key_of("base") != usual
    with monkeypatch.context() as patched:
        elsewhere = Environment(device="cpu", threads=7)
        patched.setattr("reverie.system.provenance.environment", lambda device: elsewhere)
        assert key_of("base") != usual
    with monkeypatch.context() as patched:
        patched.setattr(Dataset, "fingerprint", lambda self: "other")
        assert key_of("base") != usual


def test_code_is_other_code_when_any_file_of_the_package_is_another(tmp_path, monkeypatch):
    """Of all its folders, not of the one that the file lies in which asks."""
    package, code = Path(reverie.__file__).parent, first_task._code.__wrapped__
    found = {code()}
    copy = shutil.copytree(package, tmp_path / "reverie", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(first_task, "__file__", str(copy / "runs" / "first_task.py"))
    assert found == {code()}
    files = sorted(copy.rglob("*.py"))
    assert {"engine", "learner", "methods", "nets", "data"} <= {file.parent.name for file in files}
    for file in files:
        text = file.read_bytes()
        file.write_bytes(text + b"\n")
        found.add(code())
        file.write_bytes(text)
    assert len(found) == len(files) + 1
    (copy / "methods" / "plain.py").rename(copy / "methods" / "plainer.py")
    assert code() not in found


class OwnLosses(Method):
    """Another loss in the first task."""

    def first_losses(self, batch):
        return {name: 2 * loss for name, loss in super().first_losses(batch).items()}


class OwnLabels(Method):
    """Its losses are the usual ones, but not what they make of labels."""

    def by_label(self, loss, labels):
        return 2 * super().by_label(loss, labels)


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


@pytest.mark.parametrize(
    "setting",
    ["train.clip=1.0", "train.label_smoothing=0.1", "train.average=0.9", "train.mixup=0.2", "train.rotations=all"],
)
def test_a_phase_that_the_settings_add_to_is_nobody_elses(key_of, setting):
    assert key_of("base", setting) is None


@pytest.mark.parametrize("method", [OwnLosses, OwnLabels, Prepared, Watching, Fraction, Renamed, Frozen, Nudged])
def test_a_method_that_does_anything_else_in_its_first_task_finds_nothing(key_of, monkeypatch, usual_of_one, method):
    monkeypatch.setitem(BUILT_IN, "mine", f"{__name__}:{method.__name__}")
    assert key_of("mine", *ONE) != usual_of_one


@pytest.fixture(scope="module")
def usual_of_one(key_of):
    return key_of("base", *ONE)


class TwoPhases(Method):
    """The usual phase, then one of its own."""

    def phases(self, task):
        yield from super().phases(task)
        phase = self.learning(task, self.losses)
        phase.name = "again"
        yield phase


def test_phases_after_the_shared_one_are_trained(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(BUILT_IN, "mine", f"{__name__}:TwoPhases")
    result = run_beside(trained, "mine", *TWO)
    assert result.first_task.trained_by.method == "base"
    quick_run(tiny_config("mine", *TWO), tmp_path / "alone" / "mine")
    assert_same_run(trained / "mine", tmp_path / "alone" / "mine")


# --- runs that are stopped, and runs that wait


def test_phases_that_were_interrupted_and_went_on_in_the_same_place_are_shared(beside, tmp_path):
    config = tiny_config("deepinversion", *TWO)
    for where in ((1, "learn", 4), (1, "learn", 5), (2, "dream", 3), (2, "dream", 4)):
        with pytest.raises(Interrupted):
            quick_run(config, tmp_path / "a", share_first_task=True, observer=CtrlC(*where))
    quick_run(config, tmp_path / "a", share_first_task=True)
    for kind in ("first-tasks", "first-dreams"):
        (stopped,) = entries(tmp_path, kind)
        straight = beside / kind / stopped.parent.name / stopped.name
        ours, theirs = read_entry(stopped), read_entry(straight)
        assert (ours.trained_by, ours.epochs) == (theirs.trained_by, theirs.epochs)
        ours, theirs = (read_state(file.parent / "snapshot.pt")["moves"] for file in (stopped, straight))
        assert [*map(digest, ours.values())] == [*map(digest, theirs.values())]


def test_a_first_task_that_went_on_elsewhere_is_not_handed_on(tmp_path, monkeypatch):
    with pytest.raises(Interrupted):
        run_beside(tmp_path, "base", observer=CtrlC(1, "learn", 5))
    elsewhere = Environment(device="cpu", threads=7)
    monkeypatch.setattr("reverie.system.provenance.environment", lambda device: elsewhere)
    run_beside(tmp_path, "base")
    assert entries(tmp_path) == []


def test_a_run_killed_after_it_found_its_first_task_still_says_so(trained):
    with pytest.raises(Interrupted):
        run_beside(trained, "lwf", *TWO, observer=CtrlC(2, "learn", 5))
    result = run_beside(trained, "lwf", *TWO)
    assert result.first_task.trained_by.method == "base"
    assert len(losses_of(trained / "lwf")) == 2


@pytest.mark.parametrize("it_ends", [True, False])
def test_a_run_waits_while_another_trains_the_same_and_trains_it_if_the_other_does_not_end(trained, tmp_path, it_ends):
    entry = entries(trained)[0].parent
    assert [*entry.parent.iterdir()] == [entry]  # nobody has a claim any more
    entry.rename(tmp_path / "not yet")
    claim = try_lock(entry.parent / f"{entry.name}.lock")
    with ThreadPoolExecutor(1) as pool:
        lwf = pool.submit(run_beside, trained)
        with pytest.raises(TimeoutError):
            lwf.result(timeout=1)
        if it_ends:
            (tmp_path / "not yet").rename(entry)
        claim.release()
    found = lwf.result().first_task
    assert found.trained_by.method == "base" if it_ends else found is None
    assert [*entry.parent.iterdir()] == [entry]


def test_a_run_that_waits_can_be_stopped(trained, monkeypatch):
    entry = entries(trained)[0].parent
    shutil.rmtree(entry)
    claim = try_lock(entry.parent / f"{entry.name}.lock")
    clock = SimpleNamespace(sleep=lambda seconds: signal.raise_signal(signal.SIGINT))  # somebody presses Ctrl-C
    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(first_task, "time", clock)
        run_beside(trained)
    claim.release()
    assert run_beside(trained).first_task is None


@pytest.mark.parametrize("damage", ["snapshot", "epochs", "seconds", "trained_by", "everything"])
def test_a_first_task_of_which_a_part_is_damaged_or_missing_is_trained_again(trained, damage, caplog):
    (file,) = entries(trained)
    entry = read_json(file)
    if damage == "snapshot":
        file.with_name("snapshot.pt").write_bytes(b"half")
    else:
        entry.pop(damage, None)
        write_json(file, [] if damage == "everything" else entry)
    assert run_beside(trained).first_task is None
    assert "cannot be read" in caplog.text
    assert "it is trained again" in caplog.text


def test_a_first_task_that_is_of_another_shape_than_it_says_is_trained_again(trained, caplog):
    (file,) = entries(trained)
    write_json(file, read_json(file) | {"seconds": "many"})
    assert run_beside(trained).first_task is None
    assert "seconds must be a number, not 'many'" in caplog.text


# --- which losses are plain


class OnlyAClassifier:
    """A stand-in for a method that has nothing but its classifier, and takes labels as all others do."""

    config, _mixed = tiny_config("base"), None
    smoothing, cross_entropy, by_label = Method.smoothing, Method.cross_entropy, Method.by_label

    def __init__(self, classifier: nn.Module) -> None:
        self.classifier = classifier

    def __setattr__(self, name, value):
        assert name in ("classifier", "_heeds_labels"), f"sets {name}"
        super().__setattr__(name, value)


@pytest.mark.parametrize("losses_of", first_task.PLAIN_LOSSES, ids=lambda losses: losses.__qualname__)
def test_plain_losses_need_the_classifier_and_the_batch_alone(tiny_stream, losses_of):
    classifier = TaskLearner.for_stream(tiny_config("base"), tiny_stream).classifier
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
