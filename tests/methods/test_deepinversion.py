"""Replay of dreams with ordinary distillation."""

import pytest
import torch

from tests.support import by_hand

SIZES = [(3, 2), (1, 2), (2, 1), (1, 1)]


def look(s):
    """What student and teacher make of the batch and its dreams, each pass made on its own."""
    images = torch.cat([s.images, s.dreams()])
    with torch.no_grad():
        taught = s.method.teacher(images)
    return s.classifier(images), taught, len(s.images)


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_lwf_synthetic_distils_real_and_dreamed_alike_with_a_tenth(scene, old, new):
    s = scene("lwf-synthetic", old, new)
    losses = s.losses()
    logits, taught, real = look(s)
    s.assert_same(
        losses,
        {
            "cross_entropy": by_hand.cross_entropy(logits[:real], s.labels),
            "distillation": 0.1 * by_hand.distillation(logits, taught, old, 2.0),
        },
    )


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_deepinversion_pads_with_zeros_for_real_and_dreamed_by_the_paper(scene, old, new):
    s = scene("deepinversion", old, new)
    losses = s.losses()
    logits, taught, real = look(s)
    s.assert_same(
        losses,
        {
            "cross_entropy": by_hand.cross_entropy(logits[:real], s.labels),
            "distillation_real": by_hand.padded_distillation(logits[:real], taught[:real], 2.0),
            "distillation_dreamed": by_hand.padded_distillation(logits[real:], taught[real:], 2.0),
        },
    )


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_deepinversion_distils_real_images_over_old_classes_in_the_released_recipe(scene, old, new):
    s = scene("deepinversion", old, new, recipe="released")
    losses = s.losses()
    logits, taught, real = look(s)
    s.assert_same(
        losses,
        {
            "cross_entropy": by_hand.cross_entropy(logits[:real], s.labels),
            "distillation_real": by_hand.distillation(logits[:real], taught[:real], old, 2.0),
            "distillation_dreamed": by_hand.padded_distillation(logits[real:], taught[real:], 2.0),
        },
    )


def test_padded_distillation_pushes_the_new_rows_down(scene):
    s = scene("deepinversion", 3, 2)
    losses = s.losses()
    assert s.moved_by(losses["distillation_dreamed"]) == {"backbone", *(f"head row {i}" for i in range(5))}


def test_a_dreams_label_is_what_the_teacher_sees_in_it(scene):
    s = scene("deepinversion", 3, 2)
    replay = s.prepared()
    dreams = s.dreams()
    assert torch.equal(replay.images, torch.cat([s.images, dreams]))
    assert torch.equal(replay.labels[: replay.real], s.labels)
    with torch.no_grad():
        assert torch.equal(replay.labels[replay.real :], s.method.teacher(dreams).argmax(1))
