"""E2E: distillation inside each past task, and the balanced phase with the right teacher for the new classes."""

import copy

import pytest
import torch

from reverie.data.images import MemoryImages
from reverie.engine.observer import Observer
from reverie.learner.task_learner import TaskLearner
from tests.support import by_hand

SIZES = [([2, 1], 2), ([1], 2), ([1, 2, 1], 1), ([3], 3)]


def with_past(sizes):
    """A method that has learned tasks of these sizes, and has two images of each class."""

    def before(method):
        labels = torch.arange(sum(sizes)).repeat_interleave(2)
        pixels = torch.randint(0, 256, (len(labels), 1, 8, 8)).to(torch.uint8)
        method.sizes = list(sizes)
        method.coreset.admit(MemoryImages(pixels, labels), sum(sizes), lambda images, label: range(2))

    return before


@pytest.fixture
def e2e(scene):
    def make(past, new, *settings):
        s = scene("e2e", sum(past), new, *settings, before=with_past(past))
        s.labels = torch.arange(len(s.labels)) % (s.old + s.new)
        return s

    return make


@pytest.mark.parametrize(("past", "new"), SIZES)
def test_the_first_phase_distils_inside_each_past_task(e2e, past, new):
    s = e2e(past, new)
    losses, logits = s.losses(), s.classifier(s.images)
    with torch.no_grad():
        taught = s.method.teacher(s.images)
    expected = {
        "cross_entropy": by_hand.cross_entropy(logits, s.labels),
        "distillation": by_hand.distillation_by_task(logits[:, : s.old], taught, past, 2.0),
    }
    s.assert_same(losses, expected)


@pytest.mark.parametrize(("past", "new"), SIZES)
def test_the_balanced_phase_distils_old_classes_from_the_teacher_and_new_ones_from_the_settled_head(e2e, past, new):
    s = e2e(past, new)
    settled = copy.deepcopy(s.classifier.head)
    with torch.no_grad():
        s.classifier.head.weight += 0.1 * torch.randn_like(s.classifier.head.weight)  # the head has moved since
    s.enter("balance")
    losses = s.losses()
    with torch.no_grad():
        features = s.classifier.backbone.eval()(s.images)
        taught = torch.cat([s.method.teacher(s.images), settled(features)[:, s.old :]], dim=1)
    logits = features @ s.classifier.head.weight.T + s.classifier.head.bias
    expected = {
        "cross_entropy": by_hand.cross_entropy(logits, s.labels),
        "distillation": by_hand.distillation_by_task(logits, taught, [*past, new], 2.0),
    }
    s.assert_same(losses, expected)


def test_each_phase_moves_what_it_should(e2e):
    s = e2e([2, 1], 2)
    losses = s.losses()
    assert s.moved_by(losses["cross_entropy"]) == {"backbone", *(f"head row {i}" for i in range(5))}
    assert s.moved_by(losses["distillation"]) == {"backbone", "head row 0", "head row 1"}  # one class alone: nothing
    s.enter("balance")
    losses = s.losses()
    assert s.moved_by(losses["cross_entropy"]) == {f"head row {i}" for i in range(5)}
    assert s.phase.trainable() == list(s.classifier.head.parameters())


def test_the_first_phase_shows_new_images_and_coreset_once_the_second_the_balanced_coreset_alone(e2e):
    s = e2e([2, 1], 2, "train.batch_size=3", "coreset.size=8")
    learn, balance = s.phases["learn"], s.phases["balance"]
    learn.feed.begin(1, 0)
    labels = torch.cat([learn.feed.draw().labels for _ in range(learn.feed.steps_per_epoch)])
    assert torch.bincount(labels).tolist() == [2, 2, 2, 3, 3]
    assert torch.bincount(balance.feed.labels).tolist() == [1, 1, 2, 2, 2]
    assert (balance.optimizer.lr, learn.optimizer.lr) == (s.method.options.balancing_lr, 0.1)
    assert balance.optimizer.schedule == learn.optimizer.schedule
    assert balance.epochs == learn.epochs


def test_classes_are_drawn_equally_often_on_wish_whether_they_are_in_the_coreset_or_new(e2e):
    s = e2e([2, 1], 2, "train.batch_size=5", "coreset.size=6", "train.even=true")
    learn = s.phases["learn"]
    learn.feed.begin(1, 0)
    labels = torch.cat([learn.feed.draw().labels for _ in range(learn.feed.steps_per_epoch)])
    counts = torch.bincount(labels, minlength=5)
    assert counts.max() - counts.min() <= 1


def test_the_backbone_rests_in_the_balanced_phase_batchnorm_included(tiny, tiny_stream):
    learner = TaskLearner.fresh(tiny("e2e", "coreset.size=20", "train.epochs=1"), tiny_stream.preprocessing())
    learner.learn(tiny_stream[0])
    seen = {}

    class Watch(Observer):
        def phase_ends(self, phase, summary):
            seen[phase.name] = copy.deepcopy(learner.classifier.state_dict())

    learner.learn(tiny_stream[1], Watch())
    moved = {name for name, value in seen["learn"].items() if not torch.equal(value, seen["balance"][name])}
    assert moved == {"head.weight", "head.bias"}


def test_it_remembers_the_sizes_of_past_tasks(tiny, tiny_stream):
    learner = TaskLearner.fresh(tiny("e2e", "train.epochs=1"), tiny_stream.preprocessing())
    for task in list(tiny_stream)[:2]:
        learner.learn(task)
    assert learner.method.state_dict()["sizes"] == [2, 2]
    assert "settled" not in learner.method.state_dict()
    assert "teacher" not in learner.method.state_dict()
