"""Every figure on small matrices that can be worked out in one's head, and the laws that hold for all of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie.metrics import (
    accuracy_after,
    accuracy_matrix,
    backward_transfer,
    calibration_error,
    forgetting,
    forgetting_by_task,
    omega_up_to,
    summarise,
)

NAN = math.nan
MATRIX = np.array([[0.9, NAN, NAN], [0.5, 0.8, NAN], [0.6, 0.3, 0.7]])


def test_the_matrix_counts_right_answers_by_task():
    right = [np.array([True, False]), np.array([True, True, False, True])]
    tasks = [np.array([0, 0]), np.array([0, 0, 1, 1])]
    matrix = accuracy_matrix(right, tasks)
    assert matrix[0, 0] == 0.5
    assert matrix[1].tolist() == [1.0, 0.5]
    assert np.isnan(matrix[0, 1])


def test_accuracy_after_a_task_weighs_tasks_by_their_test_images():
    assert accuracy_after(MATRIX, [10, 10, 10]) == pytest.approx([0.9, 0.65, 1.6 / 3])
    assert accuracy_after(MATRIX, [30, 10, 10]) == pytest.approx([0.9, 0.575, (1.8 + 0.3 + 0.7) / 5])


def test_forgetting_is_the_best_there_was_less_what_is_left():
    assert forgetting(MATRIX) == pytest.approx(((0.9 - 0.6) + (0.8 - 0.3)) / 2)
    late = np.array([[0.5, NAN, NAN], [0.7, 0.8, NAN], [0.9, 0.3, 0.7]])  # the first task was best after the second
    assert forgetting(late) == pytest.approx(((0.7 - 0.9) + (0.8 - 0.3)) / 2)


def test_forgetting_by_task_leaves_the_last_task_out_of_the_best():
    better = np.array([[0.8, NAN, NAN], [0.7, 0.6, NAN], [0.75, 0.7, 0.5]])  # the second task was never known as well
    assert forgetting_by_task(better) == pytest.approx([0.05, -0.1])
    assert forgetting(better) == pytest.approx(-0.025)
    assert forgetting_by_task(better[:1, :1]) == []


def test_backward_transfer_is_what_came_after_learning():
    assert backward_transfer(MATRIX) == pytest.approx(((0.6 - 0.9) + (0.3 - 0.8)) / 2)


def test_one_task_has_nothing_to_forget():
    one = np.array([[0.5]])
    assert forgetting(one) is None
    assert backward_transfer(one) is None


def test_omega_is_the_mean_ratio_to_the_upper_bound_up_to_each_task():
    assert omega_up_to([0.8, 0.3], [0.8, 0.6]) == pytest.approx([1.0, 0.75])


def test_the_summary_has_every_figure():
    figures = summarise(MATRIX, [10, 10, 10], [0.95, 0.9, 0.85], offline=[0.9, 0.8, 0.8])
    assert figures.final_accuracy == pytest.approx(1.6 / 3)
    assert figures.average_incremental_accuracy == pytest.approx((0.9 + 0.65 + 1.6 / 3) / 3)
    assert figures.omega == pytest.approx((1 + 0.65 / 0.8 + 1.6 / 3 / 0.8) / 3)
    assert figures.omega_up_to[-1] == figures.omega
    assert summarise(MATRIX, [1, 1, 1], [1, 1, 1]).omega is None


matrices = st.integers(2, 6).flatmap(
    lambda n: st.lists(st.floats(0, 1), min_size=n * n, max_size=n * n).map(
        lambda v: np.where(np.tri(n, dtype=bool), np.array(v).reshape(n, n), np.nan)
    )
)


@given(matrices)
def test_forgetting_is_at_least_the_loss_since_learning(matrix):
    assert forgetting(matrix) >= -backward_transfer(matrix) - 1e-12


@given(matrices)
def test_the_upper_bound_has_omega_one_and_accuracy_lies_within_its_row(matrix):
    images = [3] * len(matrix)
    after = accuracy_after(matrix, images)
    for i, value in enumerate(after):
        assert matrix[i, : i + 1].min() - 1e-12 <= value <= matrix[i, : i + 1].max() + 1e-12
    if min(after) > 0:
        assert omega_up_to(after, after) == pytest.approx([1.0] * len(after))


def test_calibration_error_is_the_gap_between_confidence_and_accuracy_bin_by_bin():
    rng = np.random.default_rng(0)
    sure = [*rng.random(200), 1.0, 1 / 15, 0.0]
    right = [bool(rng.random() < value) for value in sure]
    total = 0.0
    for low in range(15):
        inside = [i for i, value in enumerate(sure) if low / 15 < value <= (low + 1) / 15 or (value == 0 and low == 0)]
        if inside:
            accuracy, confidence = np.mean([right[i] for i in inside]), np.mean([sure[i] for i in inside])
            total += len(inside) / len(sure) * abs(accuracy - confidence)
    assert calibration_error(sure, right) == pytest.approx(total)
    assert calibration_error([1.0, 1.0], [True, True]) == 0
    assert calibration_error([1.0, 1.0], [False, False]) == 1
