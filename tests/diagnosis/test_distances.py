"""MID and MMD: equal to their formulas written out, and right on the average."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie.diagnosis import distances
from tests.support.distances_by_hand import mid_by_hand, mmd_by_hand


def samples(seed, sizes=(7, 5), features=3, shift=0.5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(sizes[0], features)), rng.normal(shift, 1.3, size=(sizes[1], features))


def mmd(a, b, bandwidth):
    pairs = (a, a), (b, b), (a, b)
    return distances.unbiased_squared_mmd(
        *(distances.gaussian_kernel(distances.squared_distances(x, y), bandwidth) for x, y in pairs)
    )


@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(2, 9), st.integers(1, 4), st.floats(-1e3, 1e3))
def test_both_are_their_formulas(seed, m, n, features, shift):
    a, b = samples(seed, (m, n), features, shift)
    assert distances.mean_image_distance(a, b) == pytest.approx(mid_by_hand(a, b), rel=1e-9)
    assert mmd(a, b, 1.7) == pytest.approx(mmd_by_hand(a, b, 1.7), abs=1e-9)


@given(st.integers(0, 10**6), st.floats(0.01, 100), st.floats(-100, 100))
def test_mid_has_no_unit(seed, scale, shift):
    """It is measured in the reference's deviations, feature by feature."""
    a, b = samples(seed)
    factors = np.array([scale, 1.0, 1 / scale])
    there = distances.mean_image_distance(a * factors + shift, b * factors + shift)
    assert there == pytest.approx(distances.mean_image_distance(a, b), rel=1e-6)


def test_mid_looks_from_the_reference():
    a, b = samples(0)
    assert distances.mean_image_distance(a, b) != pytest.approx(distances.mean_image_distance(b, a))
    assert distances.mean_image_distance(a, a) == 0


def test_a_feature_that_does_not_vary_in_the_reference_is_left_out_and_counted():
    a, b = samples(0)
    dead, alive = np.full((7, 1), 3.0), np.full((5, 1), 4.0)
    with_it = distances.mean_image_distance(np.hstack([a, dead]), np.hstack([b, alive]))
    assert with_it == pytest.approx(distances.mean_image_distance(a, b))
    assert distances.dead_features(np.hstack([a, dead])) == 1
    assert distances.dead_features(a) == 0


def test_distances_are_exact_far_from_the_origin():
    a, b = samples(0, shift=0)
    near, far = (distances.squared_distances(a + by, b + by) for by in (0.0, 1e6))
    np.testing.assert_allclose(far, near, rtol=1e-6)
    assert distances.squared_distances(a, a).diagonal().max() < 1e-12


def test_the_bandwidth_is_the_median_over_different_rows():
    points = np.array([[0.0], [1.0], [3.0]])  # distances 1, 2, 3
    assert distances.median_distance(distances.squared_distances(points, points)) == 2
    same = np.zeros((4, 2))
    assert distances.median_distance(distances.squared_distances(same, same)) == 1  # nothing is divided by zero


@pytest.mark.parametrize("shift", [0.0, 0.4, 1.5])
def test_mmd_is_unbiased(shift):
    """Over many small samples of two normal distributions its mean is the true value, known in closed form."""
    bandwidth, draws, rng = 0.8, 4000, np.random.default_rng(7)
    flat = bandwidth / math.sqrt(bandwidth**2 + 2)
    true = 2 * flat * (1 - math.exp(-(shift**2) / (2 * (bandwidth**2 + 2))))
    values = [mmd(rng.normal(size=(4, 1)), rng.normal(shift, size=(6, 1)), bandwidth) for _ in range(draws)]
    error = np.std(values) / math.sqrt(draws)
    assert abs(np.mean(values) - true) < 3 * error
    biased = np.mean(values) + (1 - flat) / 4 + (1 - flat) / 6  # what pairing rows with themselves would add
    assert abs(biased - true) > 20 * error


def test_mmd_of_two_samples_of_one_distribution_is_near_zero_on_both_sides():
    rng = np.random.default_rng(3)
    values = []
    for _ in range(60):
        a, b = rng.normal(size=(100, 8)), rng.normal(size=(100, 8))
        values.append(mmd(a, b, 4.0))
    assert max(map(abs, values)) < 0.02
    assert min(values) < 0 < max(values)
    assert mmd(a, b + 1, 4.0) > 10 * max(values)
