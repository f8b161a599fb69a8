"""LDC: class means that are moved by the map that squares would choose, and the nearest of them answers."""

import pytest
import torch
from torch.nn import functional as F

from reverie.learner.task_learner import TaskLearner
from reverie.methods.ldc import linear_map
from reverie.nets.heads import CosineAnswer


def test_the_map_is_that_of_least_squares():
    rng = torch.Generator().manual_seed(0)
    before, noise = torch.randn(100, 6, generator=rng), torch.randn(100, 6, generator=rng)
    after = before @ torch.randn(6, 6, generator=rng) + 0.1 * noise
    expected = torch.linalg.lstsq(before.double(), after.double()).solution
    torch.testing.assert_close(linear_map(before, after, 0.0), expected, rtol=1e-6, atol=1e-8)
    smaller = linear_map(before, after, 10.0)
    assert smaller.norm() < expected.norm()


def test_a_map_of_fewer_images_than_features_is_a_map_all_the_same():
    few = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    found = linear_map(few, 2 * few, 1e-6)
    assert bool(found.isfinite().all())
    torch.testing.assert_close(few.double() @ found, 2 * few.double(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
@pytest.mark.parametrize("scale", [1e-9, 1e6])
def test_the_map_does_not_depend_on_the_scale_of_features(scale, ridge):
    rng = torch.Generator().manual_seed(0)
    before, after = torch.randn(50, 6, generator=rng), torch.randn(50, 6, generator=rng)
    expected = linear_map(before, after, ridge)
    torch.testing.assert_close(linear_map(scale * before, scale * after, ridge), expected, rtol=1e-5, atol=1e-6)


def test_features_that_are_all_zero_are_left_where_they_are():
    assert bool(linear_map(torch.zeros(3, 4), torch.zeros(3, 4), 1e-6).isfinite().all())


def test_losses_are_cross_entropy_among_new_classes_and_distillation_of_old_ones(scene):
    seen = scene("ldc", 3, 2)
    with torch.no_grad():
        taught = seen.method.teacher(seen.images)
    logits = seen.classifier(seen.images)
    soft = F.softmax(taught / 2, dim=1)
    kept = -(soft * F.log_softmax(logits[:, :3] / 2, dim=1)).sum(dim=1).mean()
    expected = {
        "local_cross_entropy": F.cross_entropy(logits[:, 3:], seen.labels - 3),
        "distillation": 10 * kept,
    }
    seen.assert_same(seen.losses(), expected)


@pytest.fixture
def learned(tiny, tiny_stream):
    learner = TaskLearner.fresh(tiny("ldc"), tiny_stream.preprocessing())
    first, second = list(tiny_stream)[:2]
    learner.learn(first)
    return learner, second


def test_old_means_move_with_the_network_and_new_ones_are_measured(learned):
    learner, task = learned
    before, teacher = learner.method.statistics, learner.classifier.frozen_copy()
    images = task.images.select(torch.arange(task.size))
    learner.learn(task)
    after, method = learner.method.statistics, learner.method
    matrix = linear_map(method.features_of(images, teacher), method.features_of(images), 1e-3)
    torch.testing.assert_close(after.means[:2].double(), before.means.double() @ matrix, rtol=1e-3, atol=1e-3)
    for label in (2, 3):
        own = method.features_of(images.select((images.labels == label).nonzero().flatten()))
        torch.testing.assert_close(after.means[label], own.mean(dim=0), rtol=1e-4, atol=1e-4)
    assert after.form == "means"
    head = learner.classifier.answering_head
    assert isinstance(head, CosineAnswer)
    assert torch.equal(head.directions, after.means)


def test_what_is_kept_is_a_mean_for_each_class(learned):
    learner, task = learned
    learner.learn(task)
    entry = learner.ledger[-1]
    assert (entry.keeps, entry.kept_bytes) == ("class statistics", 4 * (8 + 64 * 4))
    assert entry.images_kept == 0


def test_another_method_finds_neither_head_nor_statistics(learned, tiny):
    learner, task = learned
    other = TaskLearner(tiny("lwf"), learner.classifier)
    assert other.classifier.answering_head is not None
    other.learn(task)
    assert other.classifier.answering_head is None
    assert other.method.statistics is None
    assert other.ledger[-1].keeps == "nothing"
