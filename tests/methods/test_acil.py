"""ACIL: the network rests after the first task, and the regression is that on all images at once."""

import pytest
import torch

from reverie.data.stream import Task
from reverie.learner.task_learner import TaskLearner
from reverie.methods.acil import ridge_regression
from reverie.nets.class_statistics import ClassStatistics
from reverie.nets.heads import LinearAnswer, expand

TASKS = 3


@pytest.fixture
def learned(tiny, tiny_stream):
    """Three tasks, the images of all of them, and the network after the first."""
    learner = TaskLearner.fresh(tiny("acil", "method.expansion=40", "method.ridge=0.5"), tiny_stream.preprocessing())
    images, network = [], None
    for task in list(tiny_stream)[:TASKS]:
        images.append((task.images.read(torch.arange(task.size)), task.images.labels))
        learner.learn(task)
        network = network or {name: value.clone() for name, value in learner.classifier.backbone.state_dict().items()}
    return learner, *(torch.cat(part) for part in zip(*images, strict=True)), network


def test_only_the_first_task_changes_the_network(learned):
    learner, *_, network = learned
    for name, value in learner.classifier.backbone.state_dict().items():
        assert torch.equal(value, network[name]), name


def test_it_answers_as_ridge_regression_on_all_images_at_once(learned):
    learner, pixels, labels, _ = learned
    head = learner.classifier.answering_head
    assert isinstance(head, LinearAnswer)
    assert head.expansion.shape == (64, 40)
    normalise = learner.method.augment.normalise
    with torch.no_grad():
        features = expand(learner.classifier.features(normalise(pixels)), head.expansion).double()
    targets = torch.nn.functional.one_hot(labels, 2 * TASKS).double()
    expected = torch.linalg.solve(features.T @ features + 0.5 * torch.eye(40), features.T @ targets)
    torch.testing.assert_close(head.weight.double(), expected.T, rtol=1e-3, atol=1e-4)


def test_what_is_kept_is_counted_and_no_image_is(learned):
    learner, *_ = learned
    entry = learner.ledger[-1]
    assert entry.keeps == "class statistics"
    assert entry.kept["class statistics"] == entry.kept_bytes == 6 * 8 + 6 * 40 * 8 + 40 * 41 // 2 * 8
    assert entry.kept["answering head"] > 0
    assert entry.images_kept == 0
    assert "images" in entry.not_kept


def test_a_later_step_with_another_seed_goes_on_with_the_layer_of_the_first(tiny, tiny_stream):
    first, second = list(tiny_stream)[:2]
    learner = TaskLearner.fresh(tiny("acil", "method.expansion=40"), tiny_stream.preprocessing())
    learner.learn(first)
    other = TaskLearner(tiny("acil", "method.expansion=40", seed=1), learner.classifier)
    other.method.statistics, layer = learner.method.statistics, learner.classifier.answering_head.expansion.clone()
    other.learn(second)
    assert torch.equal(other.classifier.answering_head.expansion, layer)
    assert other.score(tiny_stream[:1].test()) > 0.8


def test_the_same_random_layer_serves_all_tasks_and_another_seed_has_another(tiny, tiny_stream):
    def layer(seed):
        learner = TaskLearner.fresh(tiny("acil", "train.epochs=1", seed=seed), tiny_stream.preprocessing())
        return learner.method._expansion()

    assert torch.equal(layer(0), layer(0))
    assert not torch.equal(layer(0), layer(1))


def test_a_small_ridge_is_heeded_task_by_task():
    """Few images and many features: what single precision rounds would be more than the ridge."""
    rng = torch.Generator().manual_seed(0)
    labels, layer = torch.arange(6).repeat_interleave(50), torch.randn(16, 400, generator=rng)
    features = expand(torch.randn(6, 16, generator=rng)[labels] + torch.randn(300, 16, generator=rng), layer)
    found = None
    for first in (0, 2, 4):
        rows = (labels >= first) & (labels < first + 2)
        new = ClassStatistics.measure(features[rows], labels[rows] - first, 2, "shared")
        found = new if found is None else found.joined(new)
    wide, targets = features.double(), torch.nn.functional.one_hot(labels).double()
    expected = torch.linalg.solve(wide.T @ wide + 1e-4 * torch.eye(400), wide.T @ targets).T
    torch.testing.assert_close(ridge_regression(found, 1e-4).double(), expected, rtol=1e-3, atol=1e-4)


# --- RanPAC: the same, with a network that is never trained


def test_a_pretrained_network_is_left_as_it_is(tiny, tiny_stream):
    learner = TaskLearner.fresh(tiny("ranpac", "method.expansion=40"), tiny_stream.preprocessing())
    network = {name: value.clone() for name, value in learner.classifier.backbone.state_dict().items()}
    for task in list(tiny_stream)[:TASKS]:
        learner.learn(task)
    for name, value in learner.classifier.backbone.state_dict().items():
        assert torch.equal(value, network[name]), name
    assert learner.classifier.answering_head.rows == 2 * TASKS


def test_the_order_of_tasks_does_not_matter_to_a_network_at_rest(tiny, tiny_stream):
    """Which class is learned when changes no answer, but for rounding."""
    config, shape = tiny("ranpac", "method.expansion=40"), tiny_stream.preprocessing()
    tasks = list(tiny_stream)[:TASKS]
    backward = [
        Task(number, task.names, 2 * number, task.images.relabel(task.images.labels - task.first_label + 2 * number))
        for number, task in enumerate(reversed(tasks))
    ]
    heads = []
    for order in (tasks, backward):
        learner = TaskLearner.fresh(config, shape)
        for task in order:
            learner.learn(task)
        head = learner.classifier.answering_head
        heads.append(dict(zip(learner.classifier.class_names, head.weight, strict=True)))
    for name, row in heads[0].items():
        torch.testing.assert_close(heads[1][name], row, rtol=1e-3, atol=1e-5)
