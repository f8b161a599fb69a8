"""The learner: tasks in, a bigger classifier out; it predicts at any time and can be saved between tasks."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import reverie
from reverie.data import sources
from reverie.data.images import MemoryImages
from reverie.data.stream import Task
from reverie.errors import Diverged, UserError
from reverie.learner.task_learner import TaskLearner
from reverie.methods import method_names
from reverie.model.folder import SavedModel
from reverie.model.learner import Learner
from reverie.nets.classifier import Preprocessing
from reverie.nets.statistics import remembering_layers
from reverie.runs import configure as experiment
from reverie.runs.configure import preprocessing
from tests.conftest import TINY


@pytest.fixture(scope="module")
def taught():
    """A learner that has learned two tasks. Not to be changed."""
    config = experiment.configure("digits-5", "abd", settings=TINY)
    stream = experiment.make_stream(config, sources.read(config.data, Path("data")))
    learner = TaskLearner.fresh(config, preprocessing(stream))
    for task in list(stream)[:2]:
        learner.learn(task)
    return learner


@pytest.fixture
def learned(taught):
    return copy.deepcopy(taught)


def test_it_knows_all_classes_so_far_in_the_order_they_came(learned, tiny_stream):
    assert learned.classifier.class_names == tiny_stream[:2].class_names
    assert [entry["classes"] for entry in learned.ledger] == [list(task.names) for task in list(tiny_stream)[:2]]


def test_predictions_are_sorted_probabilities_over_all_classes_seen(learned, tiny_stream):
    test = tiny_stream[:2].test()
    prediction = learned.predict(test, top=3)
    assert prediction.labels.shape == prediction.probabilities.shape == (len(test), 3)
    assert (prediction.probabilities.diff(dim=1) <= 0).all()
    everything = learned.predict(test, top=99)
    assert everything.labels.shape[1] == 4
    torch.testing.assert_close(everything.probabilities.sum(1), torch.ones(len(test)))
    assert torch.equal(learned.predict(test.pixels).labels, everything.labels[:, :1])


def test_predicting_does_not_change_the_classifier_nor_leave_inference_mode_on(learned, tiny_stream):
    before = {name: value.clone() for name, value in learned.classifier.state_dict().items()}
    for _ in learned.logits(tiny_stream[0].images, batch_size=7):
        assert not torch.is_inference_mode_enabled()
    learned.predict(tiny_stream[0].images)
    assert all(torch.equal(value, before[name]) for name, value in learned.classifier.state_dict().items())


def test_the_batch_size_of_prediction_is_nobodys_business(learned, tiny_stream):
    test = tiny_stream[:2].test()
    a, b = (torch.cat(list(learned.logits(test, size))) for size in (13, 1000))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_every_task_and_every_phase_has_random_numbers_of_its_own(tiny, tiny_stream, monkeypatch):
    seeds = []
    monkeypatch.setattr("reverie.engine.loop.Engine.run", lambda self, phase, seed, *_: seeds.append(seed))
    learner = TaskLearner.fresh(tiny("abd"), preprocessing(tiny_stream))
    for task in list(tiny_stream)[:3]:
        learner.learn(task)
    assert len({*seeds}) == len(seeds) == 5


def test_answers_that_are_no_numbers_are_not_counted_as_answers(learned, tiny_stream):
    with torch.no_grad():
        for parameter in learned.classifier.parameters():
            parameter *= 1e30
    with pytest.raises(Diverged, match="answers are no longer numbers"):
        learned.predict(tiny_stream[:2].test())


def test_a_learned_model_is_saved_and_learns_on_elsewhere(learned, tiny_stream, tmp_path):
    learned.save(tmp_path / "model")
    again = reverie.load(tmp_path / "model").task_learner
    test = tiny_stream[:2].test()
    assert torch.equal(learned.predict(test).probabilities, again.predict(test).probabilities)
    learned.learn(tiny_stream[2])
    again.learn(tiny_stream[2])
    for name, value in learned.classifier.state_dict().items():
        assert torch.equal(value, again.classifier.state_dict()[name])
    assert again.ledger == learned.ledger


def test_images_of_another_shape_are_refused(learned):
    with pytest.raises(UserError, match=r"\(1, 8, 8\), not \(3, 8, 8\)"):
        learned.predict(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))


def test_a_task_out_of_turn_is_refused(learned, tiny_stream):
    with pytest.raises(ValueError, match="begins at class 6"):
        learned.learn(tiny_stream[3])


@pytest.mark.parametrize("change", [{"options": {"gone": 1}}, {"method": "somebodys-own"}])
def test_a_model_answers_whatever_became_of_its_method(taught, tiny_stream, change):
    saved = SavedModel(taught.classifier, replace(taught.config, **change), taught.ledger)
    test = tiny_stream[:2].test()
    assert torch.equal(TaskLearner.of(saved).predict(test).labels, taught.predict(test).labels)
    assert Learner.of(saved).method == "abd"


@pytest.mark.parametrize("method", [name for name in method_names() if name != "joint"])
@pytest.mark.parametrize("recipe", ["paper", "released"])
def test_one_class_at_a_time_and_a_handful_of_images_work(tiny, tiny_stream, method, recipe):
    """One old class, then one new class; tasks smaller than a batch, down to a single image."""
    learner = TaskLearner.fresh(tiny(method, recipe=recipe), preprocessing(tiny_stream), classes=3)
    for label, count in enumerate((20, 3, 1)):
        pixels = torch.randint(0, 256, (count, 1, 8, 8)).to(torch.uint8)
        task = Task(label, [f"class {label}"], label, MemoryImages(pixels, torch.full((count,), label)))
        learner.learn(task)
    assert learner.classifier.seen == 3
    assert all(torch.isfinite(parameter).all() for parameter in learner.classifier.parameters())


def test_in_bf16_it_still_learns(tiny, tiny_stream):
    learner = TaskLearner.fresh(tiny("base", "engine.precision=bf16", "train.epochs=6"), preprocessing(tiny_stream))
    learner.learn(tiny_stream[0])
    test = tiny_stream[:1].test()
    assert (learner.predict(test).labels[:, 0] == test.labels).float().mean() > 0.9


@pytest.mark.parametrize("net", ["timm/test_vit", "timm/test_convnext"])
def test_a_network_without_batchnorm_learns_on_from_the_statistics_it_noted(tiny, tiny_stream, tmp_path, net):
    small = [f"net.name={net}", "train.epochs=1", "dream.steps=2"]
    config, images = tiny("abd", *small), [task.images for task in tiny_stream[:2]]
    larger = [MemoryImages(part.pixels[:40], part.labels[:40]).resized(32) for part in images]
    tasks = [Task(i, tiny_stream[i].names, 2 * i, part) for i, part in enumerate(larger)]
    learner = TaskLearner.fresh(config, Preprocessing(32, (0.3,), (0.37,)))
    learner.learn(tasks[0])
    layers = remembering_layers(learner.classifier)
    assert len(layers) >= 5
    places = [int(layer.noted) for layer in layers]
    learner.save(tmp_path / "model")
    again = reverie.load(tmp_path / "model").task_learner
    for one in (learner, again):
        one.learn(Task(1, tasks[1].names, 2, larger[1]))
    assert [int(layer.noted) for layer in layers] == [2 * count for count in places]  # as many new images as old ones
    for name, value in learner.classifier.state_dict().items():
        assert torch.equal(value, again.classifier.state_dict()[name])


def test_a_network_that_can_remember_nothing_is_refused_before_it_is_trained(tiny):
    config = tiny("abd", "net.name=torchvision/alexnet")
    with pytest.raises(UserError, match="Nothing can be dreamed from torchvision/alexnet"):
        TaskLearner.fresh(config, Preprocessing(64, (0.3,) * 3, (0.37,) * 3))
    TaskLearner.fresh(tiny("lwf", "net.name=torchvision/alexnet"), Preprocessing(64, (0.3,) * 3, (0.37,) * 3))
