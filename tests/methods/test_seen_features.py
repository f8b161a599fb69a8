"""What statistics are made of: features of all new images, by both networks of some, and fixed ones."""

import pytest
import torch

import reverie.methods.seen_features as module
from reverie.learner.task_learner import TaskLearner
from reverie.methods.seen_features import fixed_features_of, see_dreams, see_images
from reverie.nets.fixed_features import COUNT, fixed_features, make_filters


@pytest.fixture
def method(tiny, tiny_stream):
    """Of lucid, in its second task: two classes old, two new, mirror images count."""
    learner = TaskLearner.fresh(tiny("lucid", "augment.flip=true"), tiny_stream.preprocessing())
    learner.learn(tiny_stream[0])
    method, task = learner.method, tiny_stream[1]
    method.begin(task)
    learner.classifier.grow(task.names)
    for work in method.dreamer.making():
        del work  # an untrained dreamer will do
    return method, task


def test_all_new_images_are_seen_as_they_are_and_mirrored(method):
    method, task = method
    seen = see_images(method, task.images, method.teacher, method.old, fixed=True)
    assert seen.views == 2 and len(seen.features) == len(seen.labels) == 2 * task.size
    torch.testing.assert_close(seen.some.before, method.features_of(task.images, method.teacher, mirrored=True))
    torch.testing.assert_close(seen.some.after, seen.features)
    assert torch.equal(seen.some.labels, task.images.labels.repeat(2))
    shown = method.augment.normalise(task.images.read(torch.arange(task.size)))
    filters = make_filters(task.images.shape[0])
    direct = torch.cat([fixed_features(view, filters) for view in (shown, shown.flip(3))])
    torch.testing.assert_close(seen.some.fixed, direct, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(fixed_features_of(method, task.images), direct[: task.size], rtol=1e-3, atol=1e-3)
    for label in (2, 3):
        expected = direct[seen.labels == label].double().mean(dim=0)
        torch.testing.assert_close(seen.fixed_means[label - 2], expected, rtol=1e-3, atol=1e-3)


def test_of_very_many_images_some_are_looked_at_closer_and_means_are_of_all(method, monkeypatch):
    method, task = method
    whole = see_images(method, task.images, method.teacher, method.old, fixed=True)
    monkeypatch.setattr(module, "MOST", 7)
    seen = see_images(method, task.images, method.teacher, method.old, fixed=True)
    assert len(seen.features) == 2 * task.size and len(seen.some.before) == len(seen.some.fixed) == 14
    torch.testing.assert_close(seen.fixed_means, whole.fixed_means)
    chosen = torch.linspace(0, task.size - 1, 7).long()
    rows = torch.cat([chosen, chosen + task.size])
    torch.testing.assert_close(seen.some.before, whole.some.before[rows])
    torch.testing.assert_close(seen.some.fixed, whole.some.fixed[rows])
    assert torch.equal(seen.view.labels, whole.labels[rows])


def test_without_fixed_features_there_is_nothing_to_ask(method):
    method, task = method
    seen = see_images(method, task.images, None, method.old, fixed=False)
    assert seen.fixed_means is None and seen.view is None and seen.some.fixed is None
    assert torch.equal(seen.some.before, seen.some.after)  # without a teacher


def test_dreams_are_the_same_ones_each_time_and_bear_what_the_teacher_sees(method):
    method, _ = method
    seen, again = (see_dreams(method, method.dreamer, 20, method.teacher, fixed=True) for _ in range(2))
    assert torch.equal(seen.before, again.before) and torch.equal(seen.fixed, again.fixed)
    assert seen.fixed.shape == (20, COUNT) and seen.after.shape == (20, 64)
    dreams = torch.cat([images for images, *_ in method.dreamer.gallery(20)])
    torch.testing.assert_close(seen.before, method.teacher.features(dreams))
    assert torch.equal(seen.labels, method.teacher(dreams).argmax(dim=1))
    assert see_dreams(method, method.dreamer, 20, method.teacher, fixed=False).fixed is None
