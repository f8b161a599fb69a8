"""Base and the upper bound: cross-entropy over the classes seen."""

import torch

from reverie.methods.base import Keeps
from reverie.methods.plain import Joint
from tests.support import by_hand


def test_base_is_cross_entropy_over_all_classes_seen(scene):
    s = scene("base", old=3, new=2)
    losses = s.losses()
    assert list(losses) == ["cross_entropy"]
    logits = s.classifier.head(s.classifier.features(s.images))
    expected = by_hand.cross_entropy(logits, s.labels)
    torch.testing.assert_close(losses["cross_entropy"], expected, rtol=1e-6, atol=1e-9)
    assert s.moved_by(losses["cross_entropy"]) == {"backbone", *(f"head row {i}" for i in range(5))}


def test_base_leaves_future_rows_alone_where_the_head_has_them(scene):
    s = scene("base", 3, 2, recipe="released")
    losses = s.losses()
    assert s.classifier.head.rows == 9
    assert s.moved_by(losses["cross_entropy"]) == {"backbone", *(f"head row {i}" for i in range(5))}


def test_the_upper_bound_says_that_it_keeps_everything():
    assert Joint.keeps == Keeps.EVERYTHING
