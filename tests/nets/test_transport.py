"""The map from old features to new ones: least squares, drawn towards no change, and what it leaves unexplained."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.nets.class_statistics import ClassStatistics
from reverie.nets.transport import SeenByBoth, Transport

SIZE = 5


def features(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(seed))


def an_affine_map(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(SIZE, SIZE, generator=rng), torch.randn(SIZE, generator=rng)


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_an_affine_map_is_found_again_and_leaves_nothing(seed):
    matrix, shift = an_affine_map(seed)
    before = features(60, seed + 1)
    found = Transport.fit([SeenByBoth(before, before @ matrix + shift)], 0.0)
    torch.testing.assert_close(found.matrix, matrix.double(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.shift, shift.double(), rtol=1e-4, atol=1e-4)
    assert found.unexplained < 1e-6
    assert found.residual.abs().max() < 1e-4


def test_it_is_that_of_least_squares_with_the_covariance_of_what_is_left():
    matrix, shift = an_affine_map()
    before = features(200)
    after = before @ matrix + shift + 0.5 * features(200, 7)
    found = Transport.fit([SeenByBoth(before, after)], 0.0)
    wide = torch.cat([before, torch.ones(200, 1)], dim=1).double()
    solution = torch.linalg.lstsq(wide, after.double()).solution
    torch.testing.assert_close(torch.cat([found.matrix, found.shift[None]]), solution, rtol=1e-6, atol=1e-8)
    left = after.double() - wide @ solution
    torch.testing.assert_close(found.residual, left.T @ left / 200, rtol=1e-5, atol=1e-8)
    assert found.unexplained == pytest.approx(float(left.square().sum() / after.double().square().sum()))


def test_weights_are_those_of_all_images_of_a_kind_together():
    matrix, shift = an_affine_map()
    few, many = features(30), features(90, 2)
    ours, others = SeenByBoth(few, few @ matrix), SeenByBoth(many, many + shift)
    equal = Transport.fit([ours, others], 0.0)
    repeated = SeenByBoth(few.repeat(3, 1), (few @ matrix).repeat(3, 1))
    torch.testing.assert_close(Transport.fit([repeated, others], 0.0).matrix, equal.matrix)
    alone = Transport.fit([ours, SeenByBoth(others.before, others.after, 0.0)], 0.0)
    torch.testing.assert_close(alone.matrix, matrix.double(), rtol=1e-4, atol=1e-4)
    half = Transport.fit([ours, SeenByBoth(others.before, others.after, 0.5)], 0.0).matrix
    assert (alone.matrix - half).norm() < (alone.matrix - equal.matrix).norm()


@pytest.mark.parametrize("count", [1, 3])
def test_where_few_images_tell_little_features_stay_where_they_were(count):
    before = features(count)
    found = Transport.fit([SeenByBoth(before, before + 1)], 1e-3)
    torch.testing.assert_close(found.matrix, torch.eye(SIZE, dtype=torch.double), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.shift, torch.ones(SIZE, dtype=torch.double), rtol=0, atol=1e-5)


def test_a_large_ridge_is_no_change_but_a_shift():
    matrix, shift = an_affine_map()
    before = features(100)
    found = Transport.fit([SeenByBoth(before, before @ matrix + shift)], 1e9)
    torch.testing.assert_close(found.matrix, torch.eye(SIZE, dtype=torch.double), rtol=0, atol=1e-6)


def test_features_that_are_all_alike_make_no_trouble():
    same = torch.zeros(4, SIZE)
    found = Transport.fit([SeenByBoth(same, same)], 0.0)
    assert bool(found.matrix.isfinite().all()) and bool(found.residual.isfinite().all())


@pytest.mark.parametrize("form", ["own", "diagonal", "shared", "means"])
def test_statistics_are_taken_along_with_what_is_left_on_top(form):
    matrix, shift = an_affine_map()
    before, labels = features(200), torch.arange(200) % 2
    transport = Transport.fit([SeenByBoth(before, before @ matrix + shift + 0.3 * features(200, 9))], 0.0)
    statistics = ClassStatistics.measure(before, labels, 2, form)
    moved, plain = transport.take(statistics), transport.take(statistics, with_residual=False)
    expected = statistics.moved(transport.matrix, transport.shift)
    torch.testing.assert_close(plain.means, expected.means)
    torch.testing.assert_close(moved.means, expected.means)
    if form == "own":
        torch.testing.assert_close(
            moved.covariances - plain.covariances, transport.residual.float().expand(2, -1, -1), rtol=1e-3, atol=5e-3
        )
    if form == "diagonal":
        torch.testing.assert_close(
            moved.variances - plain.variances, transport.residual.diagonal().float().expand(2, -1), rtol=1e-3, atol=1e-4
        )
