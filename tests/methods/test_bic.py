"""BiC: losses that look through earlier corrections, a hold-out, and two numbers a task that change predictions."""

import copy
import logging

import pytest
import torch
from PIL import Image

import reverie
from reverie.data.images import DiskImages, MemoryImages
from reverie.engine.observer import Observer
from reverie.learner.task_learner import TaskLearner
from reverie.methods.bic import Correction, _divide
from reverie.runs.configure import load_dataset, make_stream
from reverie.runs.predictions import predict_test_images
from tests.support import by_hand
from tests.support.experiments import tiny_config


def corrected(row, factor, shift):
    return [factor[k] * value + shift[k] for k, value in enumerate(row)]


def with_past(count):
    """Some images of each old class, and a correction of all but the first."""

    def before(method):
        classes = method.classifier.seen
        labels = torch.arange(classes).repeat_interleave(count)
        pixels = torch.randint(0, 256, (len(labels), 1, 8, 8)).to(torch.uint8)
        method.coreset.admit(MemoryImages(pixels, labels), classes, lambda images, label: range(count))
        method.classifier.correct(1, 1.4, -0.3)

    return before


@pytest.fixture
def bic(scene):
    def make(old, new, *settings, count=3):
        s = scene("bic", old, new, *settings, before=with_past(count))
        s.labels = torch.arange(len(s.labels)) % (old + new)
        s.classifier.correct(old, 1.0, 0.0)  # new classes have none yet
        return s

    return make


@pytest.mark.parametrize(("old", "new"), [(3, 2), (2, 1), (2, 4)])
def test_stage_one_weighs_the_two_losses_and_looks_through_earlier_corrections(bic, old, new):
    s = bic(old, new)
    with torch.no_grad():  # of which the teacher has its own
        s.classifier.factor[:old] += 0.1
        s.method.teacher.shift += 0.2
    losses = s.losses()
    raw = s.classifier.head(s.classifier.features(s.images))
    logits = torch.stack([torch.stack(corrected(row, s.classifier.factor, s.classifier.shift)) for row in raw])
    teacher = s.method.teacher
    with torch.no_grad():
        answers = teacher.head(teacher.features(s.images))
        taught = torch.stack([torch.stack(corrected(row, teacher.factor, teacher.shift)) for row in answers])
    share = old / (old + new)
    expected = {
        "cross_entropy": (1 - share) * by_hand.cross_entropy(logits, s.labels),
        "distillation": share * by_hand.distillation(logits, taught, old, 2.0),
    }
    s.assert_same(losses, expected)


def test_stage_one_moves_the_network_and_no_correction(bic):
    s = bic(3, 2)
    losses = s.losses()
    assert s.moved_by(losses["distillation"]) == {"backbone", "head row 0", "head row 1", "head row 2"}
    assert s.moved_by(losses["cross_entropy"]) == {"backbone", *(f"head row {i}" for i in range(5))}
    assert {id(p) for p in s.phase.trainable()} == {id(p) for p in s.classifier.parameters()}


def test_stage_two_is_cross_entropy_with_all_corrections_and_moves_two_numbers(bic):
    s = bic(3, 2)
    s.enter("correct")
    correction = s.method.correction
    with torch.no_grad():
        correction.factor += 0.5
        correction.shift -= 0.7
    losses = s.losses()
    with torch.no_grad():
        raw = s.classifier.eval().head(s.classifier.features(s.images))
    factor = [*s.classifier.factor.tolist()[:3], correction.factor, correction.factor]
    shift = [*s.classifier.shift.tolist()[:3], correction.shift, correction.shift]
    logits = torch.stack([torch.stack(corrected(row, factor, shift)) for row in raw])
    expected = by_hand.cross_entropy(logits, s.labels)
    torch.testing.assert_close(losses["cross_entropy"], expected, rtol=1e-6, atol=1e-9)
    parameters = list(correction.parameters())
    ours = torch.autograd.grad(losses["cross_entropy"], parameters)
    theirs = torch.autograd.grad(expected, parameters)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-9)
    assert s.phase.trainable() == parameters
    assert len(parameters) == 2
    assert s.phase.optimizer.lr == s.method.options.correction_lr
    assert s.phase.optimizer.weight_decay == s.method.config.train.weight_decay


def pixels_of(feed):
    return {tuple(image) for image in feed.pixels.flatten(1).tolist()}


@pytest.mark.parametrize(("size", "held"), [(65, 3), (40, 2), (19, 1), (8, 1)])
def test_the_hold_out_is_the_first_of_each_class_and_is_not_trained_on(tiny, tiny_stream, size, held):
    """A tenth of the coreset shared by two old classes, but one a class at least."""
    learner = TaskLearner.fresh(tiny("bic", f"coreset.size={size}"), tiny_stream.preprocessing())
    first, second = list(tiny_stream)[:2]
    learner.method.begin(first)
    learner.classifier.grow(first.names)
    learner.method.end(first)
    learner.method.begin(second)
    learner.classifier.grow(second.names)
    coreset, images = learner.method.coreset.images, second.images
    learn, correct = learner.method.phases(second)
    assert torch.bincount(correct.feed.labels).tolist() == [held] * 4
    first_images = [images.pixels[images.labels == label][:held] for label in (2, 3)]
    first_images += [coreset.pixels[coreset.labels == label][:held] for label in (0, 1)]
    assert pixels_of(correct.feed) == {tuple(image) for image in torch.cat(first_images).flatten(1).tolist()}
    assert not pixels_of(learn.feed) & pixels_of(correct.feed)
    assert len(learn.feed.pixels) == len(coreset) + len(images) - 4 * held


def test_a_class_of_one_image_is_trained_on_and_without_old_images_nothing_is_corrected(bic, caplog):
    with caplog.at_level(logging.WARNING, "reverie"):
        s = bic(3, 2, count=1)
    assert list(s.phases) == ["learn"]
    assert sorted(s.phases["learn"].feed.labels.tolist()) == [0, 1, 2, 3, 3, 4, 4]
    assert "a single image of 3 of the 3 old classes" in caplog.text


def test_where_each_class_has_two_images_nothing_is_warned_of(bic, caplog):
    with caplog.at_level(logging.WARNING, "reverie"):
        bic(3, 2, count=2)
    assert "single image" not in caplog.text


def test_for_a_held_out_file_that_cannot_be_read_another_of_its_class_stands_in(tmp_path):
    files = []
    for number in range(4):
        files.append(tmp_path / f"{number}.png")
        Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(files[-1])
    files[0].write_bytes(b"no image")
    images = DiskImages(tuple(files), torch.zeros(4, dtype=torch.long), size=8, checked=False)
    train, held_out = _divide(images, 1)
    assert (len(train), len(held_out)) == (3, 1)
    assert held_out.read(torch.tensor([0]))[0, 0, 0, 0] == 60


@pytest.fixture(scope="module")
def trained():
    config = tiny_config("bic", "method.correction_lr=0.05", "coreset.size=60", "train.epochs=3")
    stream = make_stream(config, load_dataset(config))
    learner = TaskLearner.for_stream(config, stream)
    for task in stream[:3]:
        learner.learn(task)
    return learner


@pytest.fixture
def learned(trained):
    """Three tasks, with a correction for each but the first; for the test to change."""
    return copy.deepcopy(trained)


def test_corrections_accumulate_one_a_task_and_change_predictions(learned, tiny_stream):
    factor, shift = learned.classifier.factor, learned.classifier.shift
    for values, initial in ((factor, 1.0), (shift, 0.0)):
        assert values[:2].tolist() == [initial] * 2
        assert values[2] == values[3] != initial
        assert values[4] == values[5] != initial
        assert values[2] != values[4]
    test = tiny_stream[:3].test()
    with_correction = torch.cat(list(learned.logits(test)))
    learned.classifier.factor = learned.classifier.shift = None
    raw = torch.cat(list(learned.logits(test)))
    torch.testing.assert_close(with_correction, factor * raw + shift)
    assert not torch.equal(with_correction.argmax(1), raw.argmax(1))


def test_predictions_are_kept_corrected_and_as_they_were_before(learned, tiny_stream):
    """The released code predicts without its corrections: so both can be compared."""
    kept = predict_test_images(learned, tiny_stream[:3].test(), [2, 2, 2])
    test = tiny_stream[:3].test()
    assert kept.top.tolist() == torch.cat(list(learned.logits(test))).topk(5).indices.tolist()
    learned.classifier.factor = learned.classifier.shift = None
    assert kept.uncorrected.tolist() == torch.cat(list(learned.logits(test))).topk(5).indices.tolist()
    assert kept.accuracy() != kept.before_correction().accuracy()
    assert predict_test_images(learned, test, [2, 2, 2]).uncorrected is None


def test_corrections_survive_saving_and_loading(learned, tiny_stream, tmp_path):
    reverie.save_model(learned, tmp_path / "model")
    again = reverie.load(tmp_path / "model").task_learner
    test = tiny_stream[:3].test()
    assert torch.equal(again.classifier.factor, learned.classifier.factor)
    assert torch.equal(again.predict(test, top=9).probabilities, learned.predict(test, top=9).probabilities)


def test_the_network_rests_while_the_correction_is_learned(tiny, tiny_stream):
    learner = TaskLearner.fresh(tiny("bic", "coreset.size=60", "train.epochs=1"), tiny_stream.preprocessing())
    learner.learn(tiny_stream[0])
    seen = {}

    class Watch(Observer):
        def phase_ends(self, phase, summary):
            seen[phase.name] = {name: value.clone() for name, value in learner.classifier.state_dict().items()}

    learner.learn(tiny_stream[1], Watch())
    assert seen["learn"].keys() == seen["correct"].keys()
    assert all(torch.equal(value, seen["correct"][name]) for name, value in seen["learn"].items())


def test_a_correction_touches_the_classes_of_its_task_alone():
    correction = Correction(2)
    logits = torch.randn(4, 5)
    assert torch.equal(correction(logits), logits)
    with torch.no_grad():
        correction.factor.fill_(2)
        correction.shift.fill_(-1)
    assert torch.equal(correction(logits), torch.cat([logits[:, :2], 2 * logits[:, 2:] - 1], dim=1))
