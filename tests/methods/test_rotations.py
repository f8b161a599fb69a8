"""Turned images as further classes: the loss by hand, in every method, and only while a task is learned."""

import pytest
import torch
from torch.nn import functional as F

from reverie.learner.task_learner import TaskLearner
from reverie.methods import BUILT_IN
from reverie.methods.rotations import RotationHead, rotation_loss, turned

LEARNED = ("learn", "represent")


def test_images_are_turned_by_quarters_one_after_the_other():
    images = torch.arange(2 * 1 * 2 * 2).view(2, 1, 2, 2)
    made = turned(images)
    assert torch.equal(made[:2], images)
    assert made[2].tolist() == [[[1, 3], [0, 2]]]
    assert torch.equal(made[4:6], images.flip(2, 3))
    assert torch.equal(turned(made[2:4])[:2].rot90(3, (2, 3)), images)


@pytest.mark.parametrize("images", [1, 3, 8])
def test_turned_one_way_each_a_quarter_of_the_images_is_shown_each_way(images):
    shown, labels = torch.rand(images, 1, 2, 2), torch.arange(images)
    made = turned(shown, all_ways=False)
    assert made.shape == shown.shape
    order = torch.cat([labels[turns::4] for turns in range(4)])
    for row, label in zip(made, order.tolist(), strict=True):
        assert torch.equal(row, shown[label].rot90(label % 4, (1, 2)))
    logits = torch.full((images, 4 * images), -50.0)
    for row, label in enumerate(order.tolist()):
        logits[row, 4 * label + label % 4] = 50.0
    assert float(rotation_loss(logits, labels, 0, all_ways=False)) < 1e-6


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_over_class_and_turn_of_new_images_alone(smoothing):
    logits, labels, first = torch.randn(12, 8), torch.tensor([4, 1, 5]), 4
    by_hand = []
    for turns in range(4):
        for row, label in enumerate(labels.tolist()):
            if label >= first:
                target = torch.tensor([4 * (label - first) + turns])
                by_hand.append(F.cross_entropy(logits[[3 * turns + row]], target, label_smoothing=smoothing))
    torch.testing.assert_close(rotation_loss(logits, labels, first, smoothing), sum(by_hand) / 12)


@pytest.mark.parametrize("method", [name for name in BUILT_IN if name not in ("joint", "acil", "ranpac")])
def test_every_method_has_it_besides_its_own_losses_which_stay_what_they_were(scene, method):
    name = "represent" if method in ("r-dfcil", "lucid") else "learn"
    usual, made = scene(method, 3, 2, phase_name=name), scene(method, 3, 2, "train.rotations=all", phase_name=name)
    before, after = usual.losses(), made.losses()
    assert {*after} == {*before, "rotations"}
    assert all(torch.equal(before[key], after[key]) for key in before)
    logits = made.phase.moves["rotations"](made.classifier.features(turned(made.images)))
    weight = made.method.rotation_weight
    torch.testing.assert_close(after["rotations"], weight * rotation_loss(logits, made.labels, 3))
    assert weight == 1 or name == "represent"
    for other, phase in made.phases.items():
        assert ("rotations" in phase.moves) == (other in LEARNED), other


def test_running_statistics_stay_those_of_upright_images(scene):
    usual, made = scene("base"), scene("base", 3, 2, "train.rotations=all")
    usual.losses()
    made.losses()
    for name, value in usual.classifier.state_dict().items():
        if "running" in name:
            assert torch.equal(value, made.classifier.state_dict()[name])
    assert {layer.momentum for layer in made.classifier.modules() if hasattr(layer, "momentum")} == {0.1}


def test_the_head_is_of_the_task_and_gone_after_it(tiny, tiny_stream):
    heads = {}
    for wanted in ("first", "all"):
        learner = TaskLearner.fresh(tiny("lwf", f"train.rotations={wanted}"), tiny_stream.preprocessing())
        for task in list(tiny_stream)[:2]:
            made = []
            phases = learner.method.phases
            learner.method.phases = lambda task, phases=phases, made=made: (made.append(p) or p for p in phases(task))
            learner.learn(task)
            heads[wanted, task.index] = [phase.moves.get("rotations") for phase in made]
        assert not [module for module in learner.classifier.modules() if isinstance(module, RotationHead)]
        assert learner.method.state_dict() == {}
    assert heads["first", 1] == [None]
    assert [len(heads[key][0].linear.weight) for key in (("first", 0), ("all", 0), ("all", 1))] == [8, 8, 8]
    assert torch.equal(heads["first", 0][0].linear.weight, heads["all", 0][0].linear.weight)
    assert not torch.equal(heads["all", 0][0].linear.bias, heads["all", 1][0].linear.bias)
