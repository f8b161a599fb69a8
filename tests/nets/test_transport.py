"""The map from old features to new ones: least squares, drawn towards no change, and what it leaves unexplained."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.nets.class_statistics import ClassStatistics
from reverie.nets.transport import PENALTIES, SeenByBoth, Transport, _groups, _Rows

SIZE, FIXED = 5, 4


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


# --- with fixed features


def a_world(telling: float, classes: int = 12, each: int = 40, seed: int = 0):
    """Classes that move in part as their fixed features say, in part as their features do. Half of them are new."""
    rng = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=rng)  # noqa: E731
    labels = torch.arange(classes).repeat_interleave(each)
    before = 2 * draw(classes, SIZE)[labels] + draw(len(labels), SIZE)
    fixed = 2 * draw(classes, FIXED)[labels] + 0.3 * draw(len(labels), FIXED)
    matrix, shift = an_affine_map(seed + 1)
    after = before @ matrix + shift + telling * fixed @ draw(FIXED, SIZE) + 0.1 * draw(len(labels), SIZE)
    new = labels >= classes // 2
    old = classes // 2
    means = torch.stack([fixed[labels == label].mean(dim=0) for label in range(old)])
    statistics = ClassStatistics.measure(before[~new], labels[~new], old, fixed=means)
    there = torch.stack([after[labels == label].mean(dim=0) for label in range(old)])
    return statistics, SeenByBoth(before[new], after[new], labels=labels[new], fixed=fixed[new]), there


def test_fixed_features_tell_where_classes_go_that_features_alone_do_not():
    statistics, seen, there = a_world(telling=1.0)
    plain = Transport.fit([replace(seen, fixed=None)], 1e-3)
    both = Transport.fit([seen], 1e-3)
    assert plain.of_fixed is None and both.of_fixed is not None and both.penalty in PENALTIES
    lost, found = ((transport.take(statistics).means - there).norm(dim=1).mean() for transport in (plain, both))
    assert found < 0.2 * lost
    assert both.unexplained < plain.unexplained
    torch.testing.assert_close(both.take(statistics).covariances, plain.take(statistics).covariances)


def test_where_fixed_features_do_not_help_classes_held_out_they_are_not_asked():
    statistics, seen, _ = a_world(telling=0.0)
    strange = replace(seen, fixed=torch.randn(len(seen.before), FIXED, generator=torch.Generator().manual_seed(3)))
    plain, both = Transport.fit([replace(seen, fixed=None)], 1e-3), Transport.fit([strange], 1e-3)
    torch.testing.assert_close(both.take(statistics).means, plain.take(statistics).means, rtol=1e-2, atol=5e-2)


@pytest.mark.parametrize("more", [0, 400])  # with more fixed features than there are images
def test_it_is_least_squares_with_a_penalty_on_fixed_features_that_vary_by_one(more):
    _, seen, _ = a_world(telling=1.0)
    others = torch.randn(len(seen.before), more, generator=torch.Generator().manual_seed(4))
    seen = replace(seen, fixed=torch.cat([seen.fixed, others], dim=1))
    found = Transport.fit([seen], 1e-3)
    before, fixed = seen.before.double(), seen.fixed.double()
    sizes = fixed.var(dim=0, correction=0).sqrt()
    inputs = torch.cat([before - before.mean(dim=0), (fixed - fixed.mean(dim=0)) / sizes], dim=1)
    change = seen.after.double() - before
    change = change - change.mean(dim=0)
    ridge = 1e-3 * before.var(dim=0, correction=0).mean()
    penalties = torch.diag(torch.tensor([ridge] * SIZE + [found.penalty] * (FIXED + more), dtype=torch.double))
    solution = torch.linalg.solve(inputs.T @ inputs / len(inputs) + penalties, inputs.T @ change / len(inputs))
    torch.testing.assert_close(found.of_means, torch.eye(SIZE).double() + solution[:SIZE], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.of_fixed, solution[SIZE:] / sizes[:, None], rtol=1e-5, atol=1e-6)
    middle = before.mean(dim=0) @ found.of_means + fixed.mean(dim=0) @ found.of_fixed + found.shift_of_means
    torch.testing.assert_close(middle, seen.after.double().mean(dim=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("each", [1, 2, 5])
def test_few_new_classes_of_few_images_move_statistics_all_the_same(classes, each):
    statistics, seen, _ = a_world(telling=0.5)
    names = seen.labels.unique()[:classes]
    rows = torch.cat([(seen.labels == name).nonzero().flatten()[:each] for name in names])
    few = SeenByBoth(seen.before[rows], seen.after[rows], labels=seen.labels[rows], fixed=seen.fixed[rows])
    assert bool(Transport.fit([few], 1e-3).take(statistics).means.isfinite().all())


def test_fixed_features_that_never_vary_tell_nothing():
    statistics, seen, _ = a_world(telling=1.0)
    silent = replace(seen, fixed=torch.ones_like(seen.fixed))
    assert bool(Transport.fit([silent], 1e-3).take(statistics).means.isfinite().all())


def test_dreams_without_fixed_features_leave_a_map_of_features_alone():
    _, seen, _ = a_world(telling=1.0)
    dreams = SeenByBoth(seen.before[:20], seen.after[:20], 0.3)
    assert Transport.fit([seen, dreams], 1e-3).of_fixed is None


def test_a_map_of_fixed_features_is_none_for_statistics_without_them():
    _, seen, _ = a_world(telling=1.0)
    without = ClassStatistics.measure(features(40), torch.arange(40) % 2, 2)
    with pytest.raises(ValueError, match="these class statistics have none"):
        Transport.fit([seen], 1e-3).take(without)


def test_all_views_of_an_image_are_held_out_together():
    before = torch.randn(2 * 11, SIZE, generator=torch.Generator().manual_seed(0))
    rows = _Rows.of([SeenByBoth(before, before, labels=torch.zeros(22).long(), fixed=before, views=2)])
    folds, _ = _groups(rows, 22, views=2)
    assert torch.equal(folds[:11], folds[11:]) and len(folds.unique()) == 5


def test_without_a_penalty_few_images_still_have_a_map():
    statistics, seen, _ = a_world(telling=0.5)
    few = SeenByBoth(100 * seen.before[:3], 100 * seen.after[:3], labels=seen.labels[:3], fixed=seen.fixed[:3])
    assert bool(Transport.fit([few], 0.0).take(statistics).means.isfinite().all())
