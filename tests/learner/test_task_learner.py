"""The learner: tasks in, a bigger classifier out; it predicts at any time and can be saved between tasks."""

import copy
from dataclasses import replace

import pytest
import torch

from reverie.data.images import MemoryImages
from reverie.data.preprocessing import Preprocessing
from reverie.data.stream import Task
from reverie.engine.phase import Stage
from reverie.errors import Diverged, UserError
from reverie.learner.task_learner import TaskLearner
from reverie.methods import method_names
from reverie.methods.base import Method
from reverie.model.folder import load_model, save_model
from reverie.model.learner import Learner
from reverie.model.saved import SavedModel
from reverie.nets.heads import PrototypeAnswer
from reverie.nets.statistics import remembering_layers
from reverie.runs.configure import make_stream
from tests.support.experiments import few_digits, tiny_config


@pytest.fixture(scope="module")
def taught():
    """A learner that has learned two tasks. Not to be changed."""
    config = tiny_config("abd")
    stream = make_stream(config, few_digits())
    learner = TaskLearner.for_stream(config, stream)
    for task in stream[:2]:
        learner.learn(task)
    return learner


@pytest.fixture
def stream():
    """The tasks that it learns."""
    return make_stream(tiny_config("abd"), few_digits())


@pytest.fixture
def learned(taught):
    return copy.deepcopy(taught)


def test_it_knows_all_classes_so_far_in_the_order_they_came(learned, stream):
    assert learned.classifier.class_names == stream[:2].class_names
    assert [entry.classes for entry in learned.ledger] == [list(task.names) for task in list(stream)[:2]]


def test_predictions_are_sorted_probabilities_over_all_classes_seen(learned, stream):
    test = stream[:2].test()
    prediction = learned.predict(test, top=3)
    assert prediction.labels.shape == prediction.probabilities.shape == (len(test), 3)
    assert (prediction.probabilities.diff(dim=1) <= 0).all()
    everything = learned.predict(test, top=99)
    assert everything.labels.shape[1] == 4
    torch.testing.assert_close(everything.probabilities.sum(1), torch.ones(len(test)))
    assert torch.equal(learned.predict(test.pixels).labels, everything.labels[:, :1])


def test_predicting_does_not_change_the_classifier_nor_leave_inference_mode_on(learned, stream):
    before = {name: value.clone() for name, value in learned.classifier.state_dict().items()}
    for _ in learned.logits(stream[0].images, batch_size=7):
        assert not torch.is_inference_mode_enabled()
    learned.predict(stream[0].images)
    assert all(torch.equal(value, before[name]) for name, value in learned.classifier.state_dict().items())


def test_the_batch_size_of_prediction_is_nobodys_business(learned, stream):
    test = stream[:2].test()
    a, b = (torch.cat(list(learned.logits(test, size))) for size in (13, 1000))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_every_task_and_every_phase_has_random_numbers_of_its_own(tiny, stream, monkeypatch):
    seeds = []
    monkeypatch.setattr("reverie.engine.loop.Engine.run", lambda self, phase, seed, *_: seeds.append(seed))
    learner = TaskLearner.fresh(tiny("abd"), stream.preprocessing())
    for task in list(stream)[:3]:
        learner.learn(task)
    assert len({*seeds}) == len(seeds) == 5


def test_logits_that_are_no_numbers_are_not_counted_as_predictions(learned, stream):
    with torch.no_grad():
        for parameter in learned.classifier.parameters():
            parameter *= 1e30
    with pytest.raises(Diverged, match="logits are no longer numbers"):
        learned.predict(stream[:2].test())


def test_a_learned_model_is_saved_and_learns_on_elsewhere(learned, stream, tmp_path):
    save_model(learned, tmp_path / "model")
    again = load_model(tmp_path / "model").task_learner()
    test = stream[:2].test()
    assert torch.equal(learned.predict(test).probabilities, again.predict(test).probabilities)
    learned.learn(stream[2])
    again.learn(stream[2])
    for name, value in learned.classifier.state_dict().items():
        assert torch.equal(value, again.classifier.state_dict()[name])
    assert again.ledger == learned.ledger


def test_saving_as_version_0_1_did_still_works_and_says_what_to_write_instead(learned, tmp_path):
    with pytest.warns(DeprecationWarning, match=r"use reverie\.save_model\(learner, folder\)"):
        learned.save(tmp_path / "model")
    assert load_model(tmp_path / "model").classifier.class_names == learned.classifier.class_names


def test_the_score_is_the_share_of_images_that_are_named_rightly(learned, stream):
    test = stream[:2].test()
    right = learned.predict(test).labels[:, 0] == test.labels
    assert learned.score(test) == right.double().mean()


def test_a_learner_takes_the_state_of_another_between_two_tasks(learned, stream):
    again = TaskLearner.for_stream(learned.config, stream)
    again.load_state_dict(learned.state_dict())
    assert again.ledger == learned.ledger
    for one in (learned, again):
        one.learn(stream[2])
    for name, value in learned.classifier.state_dict().items():
        assert torch.equal(value, again.classifier.state_dict()[name])


@pytest.mark.parametrize("state", [{}, {"classes": "ab", "classifier": {}, "method": {}, "ledger": []}])
def test_what_is_no_state_of_a_learner_is_refused(learned, stream, state):
    with pytest.raises(UserError):
        TaskLearner.for_stream(learned.config, stream).load_state_dict(state)


def test_images_of_another_shape_are_refused(learned):
    with pytest.raises(UserError, match=r"\(1, 8, 8\), not \(3, 8, 8\)"):
        learned.predict(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))


def test_a_task_out_of_turn_is_refused(learned, stream):
    with pytest.raises(
        UserError, match=r"begins at class 6, but . are known\. Learn the tasks of a stream in their order"
    ):
        learned.learn(stream[3])


def test_what_is_no_set_of_labelled_images_has_no_score(learned):
    with pytest.raises(UserError, match=r"`images` are labelled, .*, not 'photos'\. `evaluate` takes a folder"):
        learned.score("photos")


def test_a_device_goes_by_its_name_and_one_that_is_not_there_is_a_mistake(tiny, stream, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert TaskLearner.for_stream(tiny("base"), stream).device == torch.device("cpu")
    assert TaskLearner.for_stream(tiny("base"), stream, torch.device("cpu")).device == torch.device("cpu")
    with pytest.raises(UserError, match="The device cuda was asked for"):
        TaskLearner.for_stream(tiny("base"), stream, "cuda")
    with pytest.raises(UserError, match="`config` is what"):
        TaskLearner.for_stream("digits-5", stream)


@pytest.mark.parametrize("change", [{"options": {"gone": 1}}, {"method": "somebodys-own"}])
def test_a_model_predicts_whatever_became_of_its_method(taught, stream, change):
    saved = SavedModel(taught.classifier, replace(taught.config, **change), taught.ledger)
    test = stream[:2].test()
    assert torch.equal(saved.task_learner().predict(test).labels, taught.predict(test).labels)
    assert Learner.of(saved).method == "abd"


@pytest.mark.parametrize("method", [name for name in method_names() if name != "joint"])
@pytest.mark.parametrize("recipe", ["paper", "released"])
def test_one_class_at_a_time_and_a_handful_of_images_work(tiny, stream, method, recipe):
    """One old class, then one new class; tasks smaller than a batch, down to a single image."""
    learner = TaskLearner.fresh(tiny(method, recipe=recipe), stream.preprocessing(), classes=3)
    for label, count in enumerate((20, 3, 1)):
        pixels = torch.randint(0, 256, (count, 1, 8, 8)).to(torch.uint8)
        task = Task(label, [f"class {label}"], label, MemoryImages(pixels, torch.full((count,), label)))
        learner.learn(task)
    assert learner.classifier.seen == 3
    assert all(torch.isfinite(parameter).all() for parameter in learner.classifier.parameters())


def test_in_bf16_it_still_learns(tiny, tiny_stream):
    learner = TaskLearner.fresh(tiny("base", "engine.precision=bf16", "train.epochs=6"), tiny_stream.preprocessing())
    learner.learn(tiny_stream[0])
    test = tiny_stream[:1].test()
    assert (learner.predict(test).labels[:, 0] == test.labels).float().mean() > 0.9


@pytest.mark.parametrize("net", ["timm/test_vit", "timm/test_convnext"])
def test_a_network_without_batchnorm_learns_on_from_the_statistics_it_noted(tiny, stream, tmp_path, net):
    small = [f"net.name={net}", "train.epochs=1", "dream.steps=2"]
    config, images = tiny("abd", *small), [task.images for task in stream[:2]]
    larger = [MemoryImages(part.pixels[:40], part.labels[:40]).resized(32) for part in images]
    tasks = [Task(i, stream[i].names, 2 * i, part) for i, part in enumerate(larger)]
    learner = TaskLearner.fresh(config, Preprocessing(32, (0.3,), (0.37,)))
    learner.learn(tasks[0])
    layers = remembering_layers(learner.classifier)
    assert len(layers) >= 5
    places = [int(layer.noted) for layer in layers]
    save_model(learner, tmp_path / "model")
    again = load_model(tmp_path / "model").task_learner()
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


def test_what_a_loop_handles_is_printed_in_short(learned, stream):
    task = stream[0]
    assert repr(stream).startswith(f"Stream({len(stream)} tasks, ")
    assert repr(task).startswith("Task(1, ") and "classes: '" in repr(task)
    task.close()
    assert repr(task).startswith("Task(1, closed, ")
    assert repr(learned) == f"TaskLearner({learned.config.method!r}, {learned.classifier.seen} classes known, on cpu)"
    assert repr(learned.predict(stream[:1].test(), top=2)).endswith(" images, the likeliest 2 of each)")


# --- methods that do not keep their word


class Twice(Method):
    def phases(self, task):
        yield Stage("fit", lambda rng: None)
        yield Stage("fit", lambda rng: None)


class Silent(Method):
    """Says nothing of the head that it gives."""

    def phases(self, task):
        yield Stage("fit", lambda rng: self.classifier.answer_by(PrototypeAnswer(means=torch.zeros(self.total, 64))))


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (Twice, r"'mine' has two phases or stages called 'fit' in one task"),
        (Silent, r"'mine' gives the classifier an answering head and does not declare it.* `answers = True`"),
    ],
)
def test_what_would_go_wrong_later_is_an_error_at_once(stream, monkeypatch, method, says):
    monkeypatch.setattr("reverie.methods._registered", {"mine": method})
    learner = TaskLearner.for_stream(tiny_config("mine"), stream)
    with pytest.raises(RuntimeError, match=says):
        learner.learn(stream[0])


def test_a_square_that_leaves_nothing_of_the_images_is_refused_before_anything_is_learned(tiny, stream):
    with pytest.raises(UserError, match=r"augment\.cutout .* 8 pixels leave hardly anything of images of 8×8\. Choose"):
        TaskLearner.for_stream(tiny("base", "augment.cutout=8"), stream)
    TaskLearner.for_stream(tiny("base", "augment.cutout=7"), stream)
