"""LwF: cross-entropy over all classes seen, distillation over the old ones. LwF.MC: yes or no for every class."""

import pytest
import torch

from tests.support import by_hand


@pytest.mark.parametrize(("old", "new"), [(3, 2), (1, 2), (2, 1), (1, 1)])
def test_lwf_is_cross_entropy_and_distillation_on_the_new_images(scene, old, new):
    s = scene("lwf", old, new)
    losses = s.losses()
    logits = s.classifier(s.images)
    with torch.no_grad():
        taught = s.method.teacher(s.images)
    expected = {
        "cross_entropy": by_hand.cross_entropy(logits, s.labels),
        "distillation": by_hand.distillation(logits, taught, old, 2.0),
    }
    s.assert_same(losses, expected)


def test_lwf_distillation_does_not_touch_the_new_rows(scene):
    s = scene("lwf", 3, 2)
    losses = s.losses()
    assert s.moved_by(losses["distillation"]) == {"backbone", "head row 0", "head row 1", "head row 2"}


def test_the_teacher_is_the_classifier_of_the_last_task_and_never_moves(scene):
    s = scene("lwf", 3, 2)
    teacher = s.method.teacher
    assert teacher.seen == 3
    assert not teacher.training
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


@pytest.mark.parametrize("recipe", ["paper", "released"])
@pytest.mark.parametrize(("old", "new"), [(3, 2), (1, 2), (2, 1), (1, 1)])
def test_lwf_mc_is_one_binary_cross_entropy_over_all_classes_seen(scene, old, new, recipe):
    s = scene("lwf-mc", old, new, recipe=recipe)
    losses = s.losses()
    with torch.no_grad():
        taught = s.method.teacher(s.images)
    expected = by_hand.binary_cross_entropy(s.classifier(s.images), s.labels, taught)
    s.assert_same(losses, {"binary_cross_entropy": expected})
    assert s.moved_by(losses["binary_cross_entropy"]) == {"backbone", *(f"head row {i}" for i in range(old + new))}


def test_lwf_mc_asks_yes_or_no_in_the_first_task_too(scene):
    s = scene("lwf-mc", 3, 2)
    losses = s.method.first_losses(s.batch())
    expected = by_hand.binary_cross_entropy(s.classifier(s.images), s.labels)
    torch.testing.assert_close(losses["binary_cross_entropy"], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("old", "new"), [(3, 2), (1, 2), (2, 1), (1, 1)])
def test_lwf_mc_with_softmax_has_both_the_label_and_the_teacher_as_targets(scene, old, new):
    s = scene("lwf-mc", old, new, "method.answers=softmax")
    with torch.no_grad():
        taught = s.method.teacher(s.images)
    expected = torch.zeros(())
    for logits, label, theirs in zip(s.classifier(s.images), s.labels.tolist(), taught, strict=True):
        targets = [*by_hand.softmax(theirs), *(float(label == k) for k in range(old, old + new))]
        answers = by_hand.softmax(logits)
        expected = expected - sum(targets[k] * torch.log(answers[k]) for k in range(old + new)) / len(s.labels)
    losses = s.losses()
    torch.testing.assert_close(losses["cross_entropy"] + losses["distillation"], expected, rtol=1e-6, atol=1e-9)
    first = s.method.first_losses(s.batch())
    s.assert_same(first, {"cross_entropy": by_hand.cross_entropy(s.classifier(s.images), s.labels)})
