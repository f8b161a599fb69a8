"""The classifier: it grows and forgets by rows, others untouched, and has the same weights for the same seed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie import seeding
from reverie.data.preprocessing import Preprocessing
from reverie.nets import make_backbone
from reverie.nets.classifier import Classifier
from reverie.nets.heads import PrototypeAnswer

SHAPE = Preprocessing(8, (0.0,), (1.0,))


def make(seed: int = 0, rows: int = 0) -> Classifier:
    with seeding.initialising(seed, "backbone"):
        backbone = make_backbone("resnet8", 1)
    return Classifier(backbone, SHAPE, seed, rows)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_growing_adds_rows_and_leaves_the_old_ones_alone(sizes):
    classifier, images = make().eval(), torch.randn(3, 1, 8, 8)
    before = torch.empty(3, 0)
    for task, size in enumerate(sizes):
        classifier.grow([f"{task}.{i}" for i in range(size)])
        logits = classifier(images)
        assert logits.shape == (3, sum(sizes[: task + 1]))
        torch.testing.assert_close(logits[:, : before.shape[1]], before)
        before = logits.detach()


def test_new_rows_begin_unlike_those_before():
    classifier = make()
    classifier.grow(["a", "b"])
    classifier.grow(["c", "d"])
    assert not torch.equal(classifier.head.weight[:2], classifier.head.weight[2:])


def test_with_all_rows_from_the_start_only_the_classes_seen_are_answered():
    classifier = make(rows=10)
    classifier.grow(["a", "b"])
    assert classifier.head.rows == 10
    assert classifier(torch.randn(2, 1, 8, 8)).shape == (2, 2)


def test_a_class_cannot_be_added_twice():
    classifier = make()
    classifier.grow(["a", "b"])
    with pytest.raises(ValueError, match="'a'"):
        classifier.grow(["c", "a"])
    with pytest.raises(ValueError, match="differ"):
        classifier.grow(["c", "c"])
    assert classifier.class_names == ("a", "b")


def test_the_same_seed_gives_the_same_network_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b, other = make(1), make(1), make(2)
    for classifier in (a, b, other):
        classifier.grow(["x", "y"])
    assert torch.equal(torch.rand(3), expected)
    for name, value in a.state_dict().items():
        assert torch.equal(value, b.state_dict()[name])
    assert not torch.equal(a.head.weight, other.head.weight)
    assert not torch.equal(a.backbone.conv.weight, other.backbone.conv.weight)


def test_a_frozen_copy_never_changes():
    classifier = make()
    classifier.grow(["a"])
    teacher = classifier.frozen_copy()
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.add_(1)
    classifier.grow(["b"])
    assert teacher.seen == 1
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert not torch.equal(teacher.head.weight, classifier.head.weight[:1])


def test_corrected_logits_are_scaled_and_shifted_and_the_heads_own_are_not():
    classifier, images = make().eval(), torch.randn(3, 1, 8, 8)
    classifier.grow(["a", "b", "c"])
    raw = classifier(images)
    classifier.correct(1, 2.0, -0.5)
    torch.testing.assert_close(classifier(images), raw * torch.tensor([1.0, 2, 2]) + torch.tensor([0, -0.5, -0.5]))
    torch.testing.assert_close(classifier.head(classifier.features(images)), raw)


def test_new_classes_are_not_corrected_and_a_teacher_has_the_corrections_of_its_time():
    classifier, images = make().eval(), torch.randn(3, 1, 8, 8)
    classifier.grow(["a", "b"])
    classifier.correct(1, 2.0, -0.5)
    teacher, before = classifier.frozen_copy(), classifier(images)
    classifier.grow(["c"])
    assert classifier.factor.tolist() == [1, 2, 1]
    assert classifier.shift.tolist() == [0, -0.5, 0]
    torch.testing.assert_close(classifier(images)[:, :2], before)
    classifier.correct(2, 3.0, 1.0)
    assert classifier.factor.tolist() == [1, 2, 3]
    torch.testing.assert_close(teacher(images), before)


def test_a_state_brings_corrections_and_takes_them_away():
    plain, corrected = make(), make()
    for classifier in (plain, corrected):
        classifier.grow(["a", "b"])
    without = plain.state_dict()
    assert not {"factor", "shift"} & without.keys()  # so what was saved before there were corrections still fits
    corrected.correct(1, 2.0, -0.5)
    plain.load_state_dict(corrected.state_dict())
    assert (plain.factor.tolist(), plain.shift.tolist()) == ([1, 2], [0, -0.5])
    corrected.correct(1, 7.0, 7.0)
    assert plain.factor.tolist() == [1, 2]
    plain.load_state_dict(without)
    assert plain.factor is plain.shift is None


@pytest.mark.parametrize("rows", [0, 5])
def test_corrections_worked_into_the_head_give_the_same_logits(rows):
    classifier = make(rows=rows).eval()
    classifier.grow(["a", "b", "c"])
    classifier.correct(1, 2.0, -0.5)
    classifier.correct(2, 3.0, 0.25)
    images = torch.randn(6, 1, 8, 8)
    before, unseen = classifier(images).detach(), classifier.head.weight[3:].detach().clone()
    classifier.settle()
    assert classifier.factor is classifier.shift is None
    torch.testing.assert_close(classifier(images), before)
    assert torch.equal(classifier.head.weight[3:], unseen)
    classifier.settle()
    torch.testing.assert_close(classifier(images), before)


@pytest.mark.parametrize("rows", [0, 6])
def test_a_class_that_is_dropped_leaves_the_logits_of_the_others_as_they_were(rows):
    classifier, images = make(rows=rows).eval(), torch.randn(3, 1, 8, 8)
    classifier.grow(["a", "b", "c", "d"])
    classifier.correct(1, 2.0, -0.5)
    classifier.correct(3, 3.0, 0.25)
    before, unseen = classifier(images).detach(), classifier.head.weight[4:].detach().clone()
    classifier.drop(["b", "d"])
    assert classifier.class_names == ("a", "c")
    torch.testing.assert_close(classifier(images), before[:, [0, 2]])
    assert torch.equal(classifier.head.weight[2:], unseen)
    classifier.grow(["e"])
    torch.testing.assert_close(classifier(images)[:, :2], before[:, [0, 2]])


def test_what_the_head_itself_had_said_can_be_found_from_corrected_logits():
    classifier, images = make().eval(), torch.randn(3, 1, 8, 8)
    classifier.grow(["a", "b"])
    raw = classifier(images)
    assert not classifier.corrected
    assert classifier.before_correction(raw) is raw
    classifier.correct(1, 2.0, -0.5)
    assert classifier.corrected
    torch.testing.assert_close(classifier.before_correction(classifier(images)), raw)


class Farthest(PrototypeAnswer):
    """It answers otherwise, under the name of another."""

    def scores(self, features):
        return -super().scores(features)


def test_a_head_that_would_be_found_again_as_another_is_refused():
    classifier = make()
    classifier.grow(["a", "b"])
    with pytest.raises(ValueError, match=r"Farthest needs a `name` of its own: 'prototype' is that of another head"):
        classifier.answer_by(Farthest(means=torch.zeros(2, 64)))
    assert classifier.answering_head is None
