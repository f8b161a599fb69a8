"""The dreamer: its losses against the formulas, what it moves, and what its dreams depend on."""

import logging
from dataclasses import replace

import pytest
import torch

from reverie.config.schema import DreamConfig
from reverie.data.preprocessing import ImageStatistics, Preprocessing
from reverie.engine.loop import Engine
from reverie.errors import UserError
from reverie.methods.dreamer import Dreamer, Noise, watching
from reverie.nets.backbone import Backbone
from reverie.nets.classifier import Classifier
from reverie.nets.statistics import batchnorm_layers
from tests.support import by_hand
from tests.support.dreams import SMALL, dreamer, teacher


def noise(made: Dreamer, seed: int = 0) -> Noise:
    phase = made.phase()
    return phase.prepare(phase.feed.draw(), torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("classes", [1, 3])
def test_the_four_losses_are_those_of_the_paper(classes):
    made = dreamer(classes, batch=4)
    losses = made.losses(noise(made))
    images = made.generator(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))
    layers = batchnorm_layers(made.teacher)
    inputs: list[torch.Tensor] = []
    handles = [layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for layer in layers]
    logits = made.teacher.head(made.teacher.features(images))
    for handle in handles:
        handle.remove()
    blurred = torch.stack([torch.stack([by_hand.blurred(channel) for channel in image]) for image in images])
    expected = {
        "content": by_hand.content(logits, 1000),
        "diversity": by_hand.diversity(logits),
        "statistics": 50
        * by_hand.statistics(inputs, [layer.running_mean for layer in layers], [layer.running_var for layer in layers]),
        "prior": 1e-3 * ((images - blurred) ** 2).mean(),
    }
    assert losses.keys() == expected.keys()
    weights = list(made.generator.parameters())
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value, rtol=1e-6, atol=1e-9)
        ours = torch.autograd.grad(losses[name], weights, retain_graph=True, allow_unused=True, materialize_grads=True)
        theirs = torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)


def test_training_moves_the_generator_and_nothing_else():
    made = dreamer()
    before = {name: value.clone() for name, value in made.teacher.state_dict().items()}
    weights = [parameter.clone() for parameter in made.generator.parameters()]
    Engine(torch.device("cpu")).run(made.phase(), 0)
    for name, value in made.teacher.state_dict().items():
        assert torch.equal(value, before[name])
    assert any(not torch.equal(a, b) for a, b in zip(weights, made.generator.parameters(), strict=True))


def test_no_hook_stays_behind():
    made = dreamer()
    Engine(torch.device("cpu")).run(made.phase(), 0)
    assert not any(layer._forward_pre_hooks for layer in batchnorm_layers(made.teacher))


def test_every_batchnorm_layer_is_watched():
    made = dreamer()
    twin = watching(made.teacher)
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(twin(images), made.teacher(images))
    assert len([layer for layer in twin.modules() if getattr(layer, "met", None)]) == 7
    assert len(batchnorm_layers(made.teacher)) == 7


def test_a_watched_twin_takes_no_memory_and_follows_its_model():
    made = dreamer()
    for a, b in zip(made.watched.state_dict().values(), made.teacher.state_dict().values(), strict=True):
        assert a.data_ptr() == b.data_ptr()
    made.teacher.load_state_dict(teacher(seed=5).state_dict())
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(made.watched(images), made.teacher(images))


@pytest.mark.parametrize(("size", "counts"), [(8, [500, 100]), (224, [40] * 15)])
def test_a_gallery_takes_no_more_memory_for_large_images(monkeypatch, size, counts):
    made, asked = dreamer(), []
    monkeypatch.setattr(made.teacher, "preprocessing", Preprocessing(size, (0.3,), (0.4,)))
    monkeypatch.setattr(made, "sample", lambda count, rng: asked.append(count) or torch.zeros(count, 1, 8, 8))
    assert [len(images) for images, *_ in made.gallery(600)] == counts
    assert asked == counts


def test_dreams_depend_on_seed_task_and_teacher_and_on_nothing_else():
    torch.manual_seed(1)
    a = dreamer()
    torch.manual_seed(2)
    b = dreamer()
    for made in (a, b):
        Engine(torch.device("cpu")).run(made.phase(), 11)
    images, labels, _ = next(a.gallery(8))
    assert torch.equal(images, next(b.gallery(8))[0])
    assert torch.equal(images, next(a.gallery(8))[0])
    assert torch.equal(labels, a.teacher(images).argmax(1))
    assert not torch.equal(next(dreamer(seed=1).gallery(8))[0], next(dreamer().gallery(8))[0])
    assert not torch.equal(next(dreamer(task=2).gallery(8))[0], next(dreamer().gallery(8))[0])
    rng = torch.Generator
    assert torch.equal(a.sample(4, rng().manual_seed(3)), a.sample(4, rng().manual_seed(3)))
    assert not torch.equal(a.sample(4, rng().manual_seed(3)), a.sample(4, rng().manual_seed(4)))


def test_sampling_uses_running_statistics_and_leaves_them_alone():
    made = dreamer()
    before = {name: value.clone() for name, value in made.generator.state_dict().items()}
    rng = torch.Generator().manual_seed(0)
    together = made.sample(6, rng)
    for name, value in made.generator.state_dict().items():
        assert torch.equal(value, before[name])
    assert not together.requires_grad
    noise = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([made.generator.eval()(row[None]) for row in noise])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_coverage_says_which_classes_are_dreamed_of(caplog):
    made = dreamer(classes=4)
    with torch.no_grad():
        made.teacher.head.weight.zero_()
        made.teacher.head.bias.copy_(torch.tensor([0.0, 5.0, 0.0, 0.0]))
    with caplog.at_level(logging.WARNING, "reverie"):
        summary = made.coverage()
    assert summary["classes"] == 4
    assert summary["covered"] == 1
    assert summary["shares"] == [0, 1, 0, 0]
    assert "collapse to 1 of 4" in caplog.text


@pytest.mark.parametrize(("shown", "collapsed"), [([0, 1], False), ([0], True), ([0, 1, 2, 3], False)])
def test_dreams_collapse_when_they_show_fewer_than_half_of_the_classes(caplog, monkeypatch, shown, collapsed):
    made = dreamer(classes=4)
    labels = torch.tensor(shown).repeat(25)
    monkeypatch.setattr(made, "gallery", lambda count: [(None, labels, torch.ones(len(labels)))])
    with caplog.at_level(logging.WARNING, "reverie"):
        assert made.coverage()["covered"] == len(shown)
    assert ("collapse" in caplog.text) is collapsed


def test_one_old_class_is_no_collapse(caplog):
    with caplog.at_level(logging.WARNING, "reverie"):
        assert dreamer(classes=1).coverage()["covered"] == 1
    assert not caplog.records


def test_a_teacher_without_batchnorm_is_refused():
    class Flat(Backbone):
        feature_dim = 64

        def forward(self, images):
            return images.flatten(1)

    plain = Classifier(Flat(), Preprocessing(8, (0.3,), (0.4,)))
    plain.grow(["a"])
    with pytest.raises(UserError, match="no BatchNorm, LayerNorm or GroupNorm layers"):
        Dreamer(plain, SMALL, 4, 0, 1)


def test_dreams_have_the_mean_and_deviation_of_natural_images_in_the_range_that_the_classifier_takes():
    """Whose pixels are normalised by 0.5 and 0.5: its own images have neither zero mean nor unit deviation."""
    shown, (mean, deviation) = teacher(), (0.45, 0.2)
    shown.preprocessing = Preprocessing(8, (0.5,), (0.5,), ImageStatistics((mean,), (deviation,)))
    made, plain = Dreamer(shown, SMALL, 50, 0, 1), dreamer()
    ours, theirs = (each.sample(4, torch.Generator().manual_seed(0)) for each in (made, plain))
    torch.testing.assert_close(ours, (theirs * deviation + mean - 0.5) / 0.5)
    images = made.as_input(made.generator.train()(torch.randn(50, 6)))
    assert images.mean().item() == pytest.approx((mean - 0.5) / 0.5, abs=1e-4)
    assert images.std().item() == pytest.approx(deviation / 0.5, abs=1e-3)


def test_a_classifier_normalised_by_its_own_images_takes_dreams_as_they_are():
    made = dreamer()
    images = torch.randn(2, 1, 8, 8)
    assert made.as_input(images) is images


def test_the_smoothness_of_a_dream_does_not_depend_on_the_range_of_its_pixels():
    shown = teacher()
    shown.preprocessing = Preprocessing(8, (0.5,), (0.5,), ImageStatistics((0.45,), (0.2,)))
    made, plain = Dreamer(shown, SMALL, 5, 0, 1), dreamer()
    assert torch.equal(made.losses(noise(made))["prior"], plain.losses(noise(plain))["prior"])
    assert not torch.equal(made.losses(noise(made))["statistics"], plain.losses(noise(plain))["statistics"])


def test_a_carried_dreamer_keeps_weights_and_adam_through_its_state():
    config = DreamConfig(steps=5, noise=6, width=8, life="carried")
    a, b = dreamer(config=config), dreamer(config=config, seed=9)
    Engine(torch.device("cpu")).run(a.phase(), 0)
    b.load_state_dict(a.state_dict())
    assert b.memory.state["state"][0]["step"] == 5
    for made in (a, b):
        made.teach(teacher(4, seed=5), task=2)
        Engine(torch.device("cpu")).run(made.phase(), 1)
    for x, y in zip(a.generator.parameters(), b.generator.parameters(), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("mixed", [False, True])
def test_a_dreamer_is_trained_in_full_precision_unless_it_is_said_otherwise(mixed):
    assert dreamer(config=replace(SMALL, mixed=mixed)).phase().full_precision is not mixed


def test_a_class_counts_as_dreamed_of_from_a_tenth_of_its_share_on(monkeypatch):
    made, asked = dreamer(4), []

    def gallery(count):
        asked.append(count)
        labels = torch.tensor([0] * 12 + [1] * 300 + [2] * 188)  # 13 would be a tenth of a fair share
        yield torch.empty(0), labels, torch.full((500,), 0.5)

    monkeypatch.setattr(made, "gallery", gallery)
    found = made.coverage()
    assert found["covered"] == 2
    assert found["shares"] == [0.024, 0.6, 0.376, 0.0]
    assert asked == [500]
    many = dreamer(40)
    monkeypatch.setattr(many, "gallery", gallery)
    many.coverage()
    assert asked == [500, 800]
