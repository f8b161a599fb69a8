"""Generative replay: the losses of both networks, what each phase moves, and what is kept."""

from dataclasses import replace

import pytest
import torch

import reverie
from reverie.engine.loop import Engine
from reverie.engine.phase import SGD, StepSchedule
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.nets import count_parameters
from tests.support import by_hand
from tests.support.reaching import image_tensors

SMALL = ("method.noise=4", "method.width=1")
SIZES = [(3, 2), (1, 2), (2, 1), (1, 1)]


@pytest.fixture
def dgr(scene):
    def make(phase: str, old: int = 3, new: int = 2, recipe: str = "paper"):
        s = scene("dgr", old, new, *SMALL, recipe=recipe, phase_name=phase)
        with torch.no_grad():
            for parameter in s.method.vae.parameters():  # no longer what it was in the last task
                parameter += 0.05 * torch.randn(parameter.shape)
        return replace(s, images=s.images.sigmoid())

    return make


def painted(s, rng):
    """What the past VAE makes of noise, in pixels between 0 and 1."""
    with torch.no_grad():
        return 1 / (1 + torch.exp(-s.method.past.decode(torch.randn(len(s.images), 4, generator=rng))))


@pytest.mark.parametrize("recipe", ["paper", "released"])
@pytest.mark.parametrize(("old", "new"), SIZES)
def test_the_classifier_learns_from_weighted_cross_entropy_and_distillation_on_painted_images(dgr, old, new, recipe):
    s = dgr("learn", old, new, recipe)
    losses = s.losses()
    images = torch.cat([s.images, painted(s, torch.Generator().manual_seed(7))])
    with torch.no_grad():
        taught = s.method.teacher(images)[len(s.images) :]
    labels = torch.cat([s.labels, taught.argmax(1)])
    logits = s.classifier(images)
    weights = by_hand.abd_weights(labels, old, old + new)
    expected = {
        "cross_entropy": by_hand.cross_entropy(logits, labels, weights),
        "distillation": by_hand.distillation(logits[len(s.images) :], taught, old, 2.0),
    }
    s.assert_same(losses, expected)
    assert s.moved_by(losses["cross_entropy"]) == {"backbone", *(f"head row {i}" for i in range(old + new))}


def test_distillation_does_not_touch_the_new_rows(dgr):
    s = dgr("learn")
    assert s.moved_by(s.losses()["distillation"]) == {"backbone", "head row 0", "head row 1", "head row 2"}


def expected_of_the_vae(vae, images, weights, noise):
    mean, log_variance = vae.encode(images)
    codes = torch.stack([m + torch.sqrt(torch.exp(v)) * e for m, v, e in zip(mean, log_variance, noise, strict=True)])
    return {
        "reconstruction": by_hand.reconstruction(vae.decode(codes), images, weights),
        "divergence": by_hand.code_divergence(mean, log_variance) / 64,
    }


def assert_same_for_the_vae(vae, losses, expected):
    assert losses.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(losses[name], expected[name], rtol=1e-6, atol=1e-9)
        parameters = list(vae.parameters())
        for ours, theirs in zip(
            *(
                torch.autograd.grad(
                    loss[name], parameters, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                for loss in (losses, expected)
            ),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-9)


def test_the_vae_learns_new_and_painted_images_with_the_weights_of_their_tasks(dgr):
    s = dgr("vae")
    rng = torch.Generator().manual_seed(7)
    images = torch.cat([s.images, painted(s, rng)])
    noise = torch.randn(len(images), 4, generator=rng)
    weights = [2 / 5] * len(s.images) + [3 / 5] * len(s.images)
    assert_same_for_the_vae(s.method.vae, s.losses(), expected_of_the_vae(s.method.vae, images, weights, noise))
    assert s.moved_by(sum(s.losses().values())) == set()  # nothing of the classifier


def test_in_the_first_task_the_vae_learns_real_images_alone(dgr):
    s = dgr("vae")
    s.method.old, s.method.past = 0, None
    losses = s.losses()
    noise = torch.randn(len(s.images), 4, generator=torch.Generator().manual_seed(7))
    expected = expected_of_the_vae(s.method.vae, s.images, [1.0] * len(s.images), noise)
    assert_same_for_the_vae(s.method.vae, losses, expected)


def test_both_phases_have_the_classifiers_schedule_and_no_weight_decay(tiny, tiny_stream):
    assert tiny("base").train.weight_decay > 0
    learner = TaskLearner.fresh(tiny("dgr", "train.milestones=[1]"), tiny_stream.preprocessing())
    assert learner.config.train.weight_decay == 0  # and that is what the record says
    assert tiny("dgr", "train.weight_decay=0.01").train.weight_decay == 0.01  # unless somebody wants it
    learner.method.begin(tiny_stream[0])
    learner.classifier.grow(tiny_stream[0].names)
    learn, vae = learner.method.phases(tiny_stream[0])
    assert learn.optimizer == vae.optimizer == SGD(0.1, 0.9, 0.0, StepSchedule((1,), 0.1))
    assert learn.trainable() == list(learner.classifier.parameters())
    assert vae.trainable() == list(learner.method.vae.parameters())
    assert learn.memory is vae.memory is None


def test_neither_phase_needs_to_come_first(tiny, tiny_stream):
    """Both learn from the past VAE and the past classifier, which rest."""
    ends = []
    for backwards in (False, True):
        learner = TaskLearner.fresh(tiny("dgr", "train.epochs=1"), tiny_stream.preprocessing())
        learner.learn(tiny_stream[0])
        task = tiny_stream[1]
        learner.method.begin(task)
        learner.classifier.grow(task.names)
        phases = list(learner.method.phases(task))
        for phase in reversed(phases) if backwards else phases:
            Engine(torch.device("cpu")).run(phase, seed=len(phase.name))
        ends.append({**learner.classifier.state_dict(), **learner.method.vae.state_dict()})
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_between_tasks_the_vae_is_kept_and_counted_and_no_image_is(tiny, tiny_stream):
    learner = TaskLearner.fresh(tiny("dgr", "train.epochs=1"), tiny_stream.preprocessing())
    kept = 4 * count_parameters(learner.method.vae)
    for task in list(tiny_stream)[:2]:
        images = task.images.read(torch.arange(task.size))
        learner.learn(task)
        assert image_tensors(learner, images) == []
        assert set(learner.method.state_dict()) == {"vae"}
        assert (learner.ledger[-1].keeps, learner.ledger[-1].kept_bytes) == ("networks", kept)


def test_the_classifier_sees_pixels_between_0_and_1_and_that_of_another_method_does_not(tiny, tiny_stream):
    shape = tiny_stream.preprocessing()
    plain = TaskLearner.fresh(tiny("dgr"), shape)
    assert (plain.classifier.preprocessing.mean, plain.classifier.preprocessing.deviation) == ((0.0,), (1.0,))
    assert TaskLearner.fresh(tiny("lwf"), shape).classifier.preprocessing == shape
    feed = next(iter(_phases(plain, tiny_stream[0]))).feed
    feed.begin(0, 0)
    images = feed.draw().images
    assert (images.min(), images.max() > 0.5, images.max() <= 1) == (0, True, True)


def _phases(learner, task):
    learner.method.begin(task)
    learner.classifier.grow(task.names)
    return learner.method.phases(task)


def test_a_saved_model_answers_but_cannot_learn_on_without_its_vae(tiny, tiny_stream, tmp_path):
    learner = TaskLearner.fresh(tiny("dgr", "train.epochs=1"), tiny_stream.preprocessing())
    learner.learn(tiny_stream[0])
    reverie.save_model(learner, tmp_path / "model")
    again = reverie.load(tmp_path / "model").task_learner
    test = tiny_stream[:1].test()
    assert torch.equal(again.predict(test).labels, learner.predict(test).labels)
    with pytest.raises(UserError, match="saved model holds the classifier alone"):
        again.learn(tiny_stream[1])


def test_a_width_that_is_none_is_refused(tiny):
    with pytest.raises(UserError, match=r"method\.width must be a whole number from 1 to 1,024, not 0"):
        tiny("dgr", "method.width=0")
