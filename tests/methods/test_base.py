"""What every method promises: old images are out of reach, and what is kept is declared."""

import pytest
import torch

from reverie.data.feed import Batch
from reverie.data.images import Dataset, MemoryImages
from reverie.data.stream import PastTask, Stream
from reverie.engine.phase import SGD, Adam, AdamW, CosineSchedule, StepSchedule, Warmup
from reverie.learner.task_learner import TaskLearner
from reverie.methods import BUILT_IN, find_method, method_names
from reverie.methods.base import Keeps, Method, count_bytes
from reverie.methods.losses import cross_entropy
from reverie.nets.class_statistics import ClassStatistics
from reverie.nets.heads import PrototypeAnswer
from tests.support.reaching import image_tensors, reachable

DATA_FREE = [name for name in method_names() if find_method(name).keeps == Keeps.NOTHING]
WITH_CORESET = [name for name in method_names() if find_method(name).keeps == Keeps.CORESET]


class Hoarder(Method):
    """A method that keeps images behind everybody's back: on itself, and on the classifier."""

    def end(self, task):
        self.stash = task.images.read(torch.arange(3)).clone()
        self.classifier.stash = self.classifier.backbone.stash = self.stash


class Squatter(Method):
    """One that hides them among the classifier's weights."""

    def end(self, task):
        self.classifier.register_buffer("stash", task.images.read(torch.arange(3)).float())


class Confessor(Method):
    """One that keeps images in its state and does not declare it."""

    def end(self, task):
        self.stash = task.images.read(torch.arange(3))

    def state_dict(self):
        return {"coreset": self.stash} if hasattr(self, "stash") else {}


class Collector(Confessor):
    """The same, declared."""

    keeps = Keeps.CORESET

    def load_state_dict(self, state):
        if "coreset" in state:
            self.stash = state["coreset"]


class Forgetful(Collector):
    """The same, but it does not take all of it back."""

    def load_state_dict(self, state):
        self.stash = state["coreset"][:2]


@pytest.fixture
def learner(tiny, tiny_stream, monkeypatch):
    def make(method: str | type[Method], *settings: str) -> TaskLearner:
        if isinstance(method, type):
            monkeypatch.setitem(BUILT_IN, "mine", f"{method.__module__}:{method.__name__}")
            method = "mine"
        return TaskLearner.fresh(tiny(method, *settings), tiny_stream.preprocessing())

    return make


@pytest.mark.parametrize("name", DATA_FREE)
def test_after_a_task_no_image_of_it_is_within_reach_of_a_data_free_method(learner, tiny_stream, name):
    made = learner(name)
    for task in list(tiny_stream)[:2]:
        images = task.images.read(torch.arange(task.size))
        made.learn(task)
        assert image_tensors(made, images) == []
        with pytest.raises(PastTask):
            _ = task.images
        assert made.method.state_dict() == {}
        assert made.ledger[-1].keeps == "nothing"
        assert made.ledger[-1].kept_bytes == 0


@pytest.mark.parametrize("name", WITH_CORESET)
def test_a_method_with_a_coreset_reaches_exactly_the_images_it_declares(learner, tiny_stream, name):
    made, shown = learner(name, "coreset.size=12"), []
    for task in list(tiny_stream)[:3]:
        shown.append(task.images.read(torch.arange(task.size)))
        made.learn(task)
        stored = made.method.state_dict()["coreset"]
        coreset = {tuple(image) for image in stored["pixels"].flatten(1).tolist()}
        others = [image for image in torch.cat(shown) if tuple(image.flatten().tolist()) not in coreset]
        assert len(coreset) == 12
        assert image_tensors(made, torch.stack(others)) == []
        assert {id(found) for found in image_tensors(made, stored["pixels"])} == {id(stored["pixels"])}
        with pytest.raises(PastTask):
            _ = task.images
        assert made.ledger[-1].keeps == "a coreset"
        assert made.ledger[-1].kept_bytes == count_bytes(made.method.state_dict()) == 12 * (8 * 8 + 8)


def test_the_search_for_images_finds_them_where_they_are_kept(learner, tiny_stream):
    """So that the test above can fail."""
    made, task = learner(Hoarder), tiny_stream[0]
    images = task.images.read(torch.arange(10))
    made.method.end(task)
    assert len(image_tensors(made, images)) == 1  # in three places
    made.classifier.stash = made.classifier.backbone.stash = None
    assert image_tensors(made, images)


def test_a_method_that_hides_images_in_an_attribute_loses_them_with_the_task(learner, tiny_stream):
    made = learner(Hoarder)
    images = tiny_stream[0].images.read(torch.arange(10))
    before = made.method, made.classifier
    made.learn(tiny_stream[0])
    assert image_tensors(made, images) == []
    assert not hasattr(made.method, "stash")
    assert not hasattr(made.classifier, "stash") and not hasattr(made.classifier.backbone, "stash")
    assert (made.method, made.classifier) != before
    assert made.method.classifier is made.classifier
    made.learn(tiny_stream[1])
    assert made.classifier.seen == 4


def test_a_method_that_hides_images_among_the_weights_is_refused(learner, tiny_stream):
    with pytest.raises(RuntimeError, match=r"'mine' takes to the next task is not what .*[Uu]nexpected key.*stash"):
        learner(Squatter).learn(tiny_stream[0])


def test_a_method_whose_state_is_another_after_the_round_trip_is_refused(learner, tiny_stream):
    with pytest.raises(RuntimeError, match=r"'mine' takes to the next task .*: method\.coreset is another tensor"):
        learner(Forgetful).learn(tiny_stream[0])


def test_a_method_is_handed_the_task_and_nothing_that_leads_to_the_stream(learner, tiny_stream):
    made, task = learner("abd"), tiny_stream[0]
    made.method.begin(task)
    made.classifier.grow(task.names)
    phases = list(made.method.phases(task))
    things = [*reachable(made), *reachable(task), *reachable(phases)]
    assert not any(isinstance(thing, Stream | Dataset) for thing in things)
    sizes = {len(thing) for thing in things if isinstance(thing, MemoryImages)}
    assert sizes == {task.size}


def test_keeping_without_declaring_is_an_error(learner, tiny_stream):
    with pytest.raises(RuntimeError, match=r"declares that it keeps nothing, but keeps \['coreset'\]"):
        learner(Confessor).learn(tiny_stream[0])


def test_what_is_declared_is_counted(learner, tiny_stream):
    made = learner(Collector)
    made.learn(tiny_stream[0])
    assert made.ledger[-1].keeps == "a coreset"
    assert made.ledger[-1].kept_bytes == 3 * 8 * 8


@pytest.mark.parametrize(
    ("state", "size"),
    [
        (torch.zeros(3, dtype=torch.int16), 6),
        ([1, 2.5, True, None] * 25, 0),
        ([1, 2.5, True, None] * 25 + [3], 101 * 8),  # as an image could be written
        ({str(number): number for number in range(101)}, 101 * 8),
        ({"text": "ü", "raw": b"123", "set": {4, 5}}, 2 + 3),
        ([2**8000], 1001),
        ({"weight": torch.zeros(2), "inner": {"bias": torch.zeros(1)}}, 12),
        ({"a" * 101: 1}, 101),
        ({"nothing": {}, "empty": torch.zeros(0)}, 7 + 5),
        ({7: torch.zeros(1)}, 4),
    ],
)
def test_whatever_a_state_holds_is_counted(state, size):
    assert count_bytes(state) == size


def test_what_cannot_be_counted_is_no_state():
    with pytest.raises(TypeError, match=r"tensors and plain values, not of object"):
        count_bytes({"a": [object()]})


class Miser(Collector):
    """One that declares class statistics, and keeps something else, which is no tensor."""

    keeps = Keeps.STATISTICS

    def end(self, task):
        self.stash = task.images.read(torch.arange(3)).flatten().tolist()


class Heir(Method):
    """One that keeps class statistics in the head that answers, and does not say so."""

    answers = True

    def end(self, task):
        new = self.features_of(task.images).mean(dim=0).expand(self.total - self.old, -1)
        before = self.classifier.answering_head
        means = new if before is None else torch.cat([before.means[: self.old], new])
        self.classifier.answer_by(PrototypeAnswer(means=means))


class Newcomer(Method):
    """One whose statistics are of the new classes alone."""

    keeps = Keeps.STATISTICS

    def end(self, task):
        labels = task.images.labels - self.old
        features = self.features_of(task.images)
        self.statistics = ClassStatistics.measure(features, labels, self.total - self.old, "means")


def test_keeping_more_than_is_declared_is_an_error(learner, tiny_stream):
    with pytest.raises(RuntimeError, match=r"'mine' declares that it keeps class statistics, but keeps \['coreset'\]"):
        learner(Miser).learn(tiny_stream[0])
    with pytest.raises(RuntimeError, match=r"keeps nothing, but keeps what the head 'prototype' knows of classes"):
        learner(Heir).learn(tiny_stream[0])


def test_statistics_are_of_all_classes(learner, tiny_stream):
    made = learner(Newcomer)
    made.learn(tiny_stream[0])
    with pytest.raises(RuntimeError, match=r"'mine' keeps statistics of 2 of 4 classes"):
        made.learn(tiny_stream[1])


def test_a_carried_generator_is_declared_and_counted(tiny, tiny_stream):
    made = TaskLearner.fresh(tiny("abd", recipe="released"), tiny_stream.preprocessing(), classes=10)
    for task in list(tiny_stream)[:2]:
        made.learn(task)
    state = made.method.state_dict()
    assert made.ledger[-1].keeps == "networks"
    assert made.ledger[-1].kept_bytes == count_bytes(state) > count_bytes(made.method.dreamer.generator.state_dict())
    assert set(state) == {"dreamer"}
    assert "dreamer" not in made.ledger[-1].not_kept


def test_a_carried_dreamer_gets_every_new_teacher(tiny, tiny_stream):
    made = TaskLearner.fresh(tiny("abd", "dream.life=carried", seed=5), tiny_stream.preprocessing(), classes=10)
    first, second, third = list(tiny_stream)[:3]
    made.learn(first)
    made.learn(second)
    assert made.method.dreamer.teacher is made.classifier
    made.method.begin(third)
    dreamer = made.method.dreamer
    assert dreamer.teacher is made.method.teacher is not made.classifier
    assert dreamer.watched.head.weight is dreamer.teacher.head.weight
    assert dreamer.seed == 5


@pytest.mark.parametrize(
    ("method", "loss"),
    [
        ("lwf", "distillation"),
        ("lwf-synthetic", "distillation"),
        ("lwf-coreset", "distillation"),
        ("deepinversion", "distillation_real"),
        ("deepinversion", "distillation_dreamed"),
        ("dgr", "distillation"),
        ("abd", "distillation"),
        ("e2e", "distillation"),
    ],
)
def test_weights_and_temperatures_of_distillation_are_heeded(scene, method, loss):
    def value(*settings):
        return float(scene(method, 3, 2, *settings, phase_name="learn").losses()[loss].detach())

    usual, options = value(), vars(find_method(method).Options())
    if "distillation" in options:
        assert value("method.distillation=0.5") == pytest.approx(0.5 / options["distillation"] * usual)
    if "temperature" in options:
        assert value("method.temperature=5") != pytest.approx(usual)


# --- how a task is trained


NETWORK_PHASES = {"learn", "represent", "balance", "vae"}


@pytest.mark.parametrize("method", [name for name in BUILT_IN if name not in ("joint", "acil", "ranpac")])
def test_every_phase_that_learns_a_network_follows_the_settings_and_no_other_does(scene, method):
    settings = ["train.optimizer=adamw", "train.schedule=cosine", "train.warmup=1", "train.epochs=5"]
    for name, phase in scene(method, 3, 2, *settings).phases.items():
        if name in NETWORK_PHASES:
            assert phase.optimizer.schedule == Warmup(1, CosineSchedule(phase.epochs - 1)), name
            assert isinstance(phase.optimizer, AdamW)
            assert phase.optimizer.weight_decay == scene(method).method.config.train.weight_decay
        else:
            assert type(phase.optimizer) is {"dream": Adam, "refine": SGD, "correct": SGD}[name]
            assert isinstance(phase.optimizer.schedule, StepSchedule if name != "correct" else Warmup)


def test_the_name_that_the_optimizer_had_in_0_1_still_gives_it(scene):
    usual = scene("base").method
    train = usual.config.train
    assert usual.sgd(0.3) == usual.optimizer(0.3)
    assert usual.sgd(0.3) == SGD(0.3, train.momentum, train.weight_decay, StepSchedule(train.milestones, train.gamma))


def test_milestones_are_counted_from_the_beginning_of_the_phase_warm_up_included(scene):
    settings = ["train.epochs=9", "train.warmup=2", "train.milestones=[4, 6]"]
    schedule = scene("base", 3, 2, *settings).method.schedule()
    assert [schedule.factor(epoch) for epoch in range(8)] == pytest.approx([1 / 3, 2 / 3, 1, 1, 0.1, 0.1, 0.01, 0.01])


class Heedless(Method):
    """A method that takes labels past the settings."""

    def first_losses(self, batch):
        return {"cross_entropy": cross_entropy(self.classifier(batch.images), batch.labels)}


def test_a_method_that_would_leave_out_smoothed_labels_is_told(learner, tiny_stream):
    for setting in ("train.label_smoothing=0.1", "train.mixup=0.2"):
        with pytest.raises(
            TypeError, match=r"Heedless does not know train\.label_smoothing and train\.mixup: .* self\.cross_entropy"
        ):
            learner(Heedless, setting).learn(tiny_stream[0])
    learner(Heedless).learn(tiny_stream[0])


@pytest.mark.parametrize("method", [name for name in BUILT_IN if name not in ("joint", "acil", "ranpac")])
def test_labels_are_smoothed_in_every_phase_that_learns_a_network_from_them(scene, method):
    """All other losses are what they were."""
    usual, smooth = scene(method, 3, 2), scene(method, 3, 2, "train.label_smoothing=0.2")
    for name in usual.phases:
        if name in ("dream", "vae", "correct"):
            continue
        usual.enter(name)
        smooth.enter(name)
        before, after = usual.losses(), smooth.losses()
        changed = {key for key in before if not torch.equal(before[key], after[key])}
        expected = {key for key in before if "cross_entropy" in key or key == "fine_tuning"}
        assert changed == expected != set(), name


@pytest.mark.parametrize("method", [name for name in BUILT_IN if name not in ("acil", "ranpac")])
def test_the_gradient_is_clipped_and_the_classifier_averaged_where_a_network_is_learned(scene, method):
    for name, phase in scene(method, 3, 2, "train.clip=0.5", "train.average=0.9").phases.items():
        assert phase.clip == (0.5 if name in NETWORK_PHASES else None), name
        assert phase.averages == ({"classifier": 0.9} if name in ("learn", "represent") else None), name


@pytest.mark.parametrize("method", [name for name in BUILT_IN if name not in ("joint", "acil", "ranpac")])
def test_of_mixed_images_both_labels_count_by_their_share_in_every_method(scene, method):
    """A loss is linear in the share. At 1 it is the usual loss, at 0 that of the other labels; others do not change."""
    made = scene(method, 3, 2, "train.mixup=0.5", phase_name="represent" if method in ("r-dfcil", "lucid") else "learn")
    others = made.labels.flip(0)

    def losses(labels, **mixed):
        rng = torch.Generator().manual_seed(7)
        with torch.no_grad():
            prepared = made.phase.prepare(Batch(made.images, labels, **mixed), rng)
        return made.phase.losses(prepared)

    mixed = losses(made.labels, others=others, share=torch.tensor(0.3))
    first, second = losses(made.labels), losses(others)
    assert any(not torch.equal(first[name], second[name]) for name in first)
    for name, value in mixed.items():
        torch.testing.assert_close(value, 0.3 * first[name] + 0.7 * second[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", [name for name in BUILT_IN if name not in ("acil", "ranpac")])
def test_images_are_mixed_only_where_a_classifier_learns(scene, method):
    for name, phase in scene(method, 3, 2, "train.mixup=0.5").phases.items():
        assert bool(getattr(phase.feed, "mixer", None)) == (name in ("learn", "represent")), name


class Stowaway(Method):
    """A method that hides images behind the names of classes, and behind what describes images and network."""

    def end(self, task):
        class Names(tuple):
            pass

        stash, classifier = task.images.read(torch.arange(3)).clone(), self.classifier
        classifier.class_names = Names(classifier.class_names)
        for place in (classifier.class_names, classifier.preprocessing, classifier.backbone.architecture):
            object.__setattr__(place, "stash", stash)


def test_names_of_classes_and_descriptions_carry_no_images_along(learner, tiny_stream):
    made, images = learner(Stowaway), tiny_stream[0].images.read(torch.arange(10))
    made.learn(tiny_stream[0])
    assert image_tensors(made, images) == []
