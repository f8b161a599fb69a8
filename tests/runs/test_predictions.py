"""Predictions: what is kept of a pass over the test images."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reverie.runs.predictions import Predictions


def make(labels, tops, local=None, uncorrected=None):
    as_numbers = [np.array(x, np.int32) if x is not None else None for x in (labels, tops, local, uncorrected)]
    return Predictions(*as_numbers)


def test_right_at_one_and_at_five():
    p = make([3, 1], [[3, 0, 1], [0, 2, 1]])
    assert p.right().tolist() == [True, False]
    assert p.right(5).tolist() == [True, True]
    assert p.accuracy() == 0.5


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_every_class_belongs_to_its_task(sizes):
    labels = np.arange(sum(sizes), dtype=np.int32)
    expected = [task for task, size in enumerate(sizes) for _ in range(size)]
    assert Predictions(labels, labels[:, None]).tasks(sizes).tolist() == expected


def test_bytes_and_back():
    p = make([3, 1], [[3, 0], [0, 1]], [3, 0])
    again = Predictions.from_bytes(p.to_bytes())
    assert again.local.tolist() == [3, 0]
    assert again.top.tolist() == [[3, 0], [0, 1]]
    assert again.uncorrected is None
    assert again.before_correction() is again
    assert Predictions.from_bytes(p.without_local().to_bytes()).local is None


def test_what_a_corrected_classifier_would_have_said_is_kept_beside():
    p = make([3, 1], [[3, 0], [0, 1]], [3, 0], [[0, 3], [1, 0]])
    again = Predictions.from_bytes(p.to_bytes())
    assert again.right().tolist() == [True, False]
    assert again.before_correction().right().tolist() == [False, True]
