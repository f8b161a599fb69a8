"""Rehearsal: half of each batch from the coreset, and the losses of Base or LwF on all of it."""

import pytest
import torch

from reverie.learner.task_learner import TaskLearner
from tests.support import by_hand


@pytest.fixture
def second_task(tiny, tiny_stream):
    """A learner whose coreset holds the first task's classes, and the phase in which the second is learned."""

    def make(method, *settings):
        learner = TaskLearner.fresh(tiny(method, "coreset.size=10", *settings), tiny_stream.preprocessing())
        first, second = list(tiny_stream)[:2]
        learner.method.begin(first)
        learner.classifier.grow(first.names)
        learner.method.end(first)
        learner.method.begin(second)
        learner.classifier.grow(second.names)
        return learner, second, list(learner.method.phases(second))

    return make


@pytest.mark.parametrize("method", ["rehearsal", "lwf-coreset"])
def test_half_of_each_batch_is_new_and_half_is_drawn_from_the_coreset(second_task, method):
    _, task, (phase,) = second_task(method)
    assert phase.feed.batch_size == 16
    assert phase.feed.steps_per_epoch == task.size // 8  # twice as many as without a coreset
    labels = []
    for seed in (1, 2):
        phase.feed.begin(seed, 0)
        labels.append(torch.stack([phase.feed.draw().labels for _ in range(phase.feed.steps_per_epoch)]))
    for epoch in labels:
        assert (epoch[:, :8] >= 2).all()
        assert (epoch[:, 8:] < 2).all()
    assert not torch.equal(labels[0][:, 8:], labels[1][:, 8:])  # afresh each epoch


def test_a_coreset_smaller_than_half_a_batch_is_drawn_from_again_and_again(second_task):
    _, _, (phase,) = second_task("rehearsal", "coreset.size=4", "train.batch_size=16")
    phase.feed.begin(1, 0)
    assert (phase.feed.draw().labels < 2).sum() == 8


def test_a_batch_of_odd_size_has_one_more_new_image(second_task):
    _, _, (phase,) = second_task("rehearsal", "train.batch_size=7")
    phase.feed.begin(1, 0)
    assert [int((phase.feed.draw().labels < 2).sum()) for _ in range(3)] == [3, 3, 3]


def mixed(s):
    """A batch of old and new classes."""
    s.labels = torch.arange(len(s.labels)) % (s.old + s.new)
    return s


@pytest.mark.parametrize(("old", "new"), [(3, 2), (1, 1)])
def test_rehearsal_is_cross_entropy_over_all_classes_seen(scene, old, new):
    s = mixed(scene("rehearsal", old, new))
    losses = s.losses()
    assert list(losses) == ["cross_entropy"]
    expected = by_hand.cross_entropy(s.classifier(s.images), s.labels)
    torch.testing.assert_close(losses["cross_entropy"], expected, rtol=1e-6, atol=1e-9)
    assert s.moved_by(losses["cross_entropy"]) == {"backbone", *(f"head row {i}" for i in range(old + new))}
    assert not hasattr(s.method, "teacher")


@pytest.mark.parametrize(("old", "new"), [(3, 2), (1, 2), (2, 1), (1, 1)])
def test_lwf_with_a_coreset_distils_the_whole_batch(scene, old, new):
    s = mixed(scene("lwf-coreset", old, new))
    losses, logits = s.losses(), s.classifier(s.images)
    with torch.no_grad():
        taught = s.method.teacher(s.images)
    expected = {
        "cross_entropy": by_hand.cross_entropy(logits, s.labels),
        "distillation": by_hand.distillation(logits, taught, old, 2.0),
    }
    s.assert_same(losses, expected)
