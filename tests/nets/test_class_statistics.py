"""Class statistics: measured by their formulas, moved as features move, usable however few images there were."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reverie.methods.base import count_bytes
from reverie.nets.class_statistics import MOST_FEATURES, ClassStatistics, shrink

SIZE, CLASSES = 6, 3
STEP = 2**-10  # between neighbouring numbers of half precision just below one
FORMS = ("means", "own", "diagonal", "shared")


def drawn(images: int = 40, size: int = SIZE, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features of three classes that differ in mean and spread, and their labels."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat_interleave(images)
    mixing = torch.randn(CLASSES, size, size, generator=rng)
    noise = torch.randn(len(labels), 1, size, generator=rng)
    return (noise @ mixing[labels])[:, 0] + 4 * labels[:, None], labels


def measured(form: str = "own", **given) -> ClassStatistics:
    features, labels = drawn(**given)
    return ClassStatistics.measure(features, labels, CLASSES, form)


def assert_same(ours: ClassStatistics, theirs: ClassStatistics, **tolerance: float) -> None:
    """Correlations are rounded to half precision, which may differ by a step where both differ by less."""
    assert ours.form == theirs.form
    for name, value in vars(theirs).items():
        if value is None or name == "covariances":
            assert (getattr(ours, name) is None) == (value is None)
        else:
            torch.testing.assert_close(getattr(ours, name), value, **tolerance)
    if theirs.covariances is not None:
        ours_rounded, theirs_rounded = correlations(ours.covariances), correlations(theirs.covariances)
        torch.testing.assert_close(
            ours_rounded, theirs_rounded, rtol=0, atol=tolerance["atol"] and max(tolerance["atol"], STEP)
        )
        ours_there, theirs_there = (part.covariances.diagonal(dim1=1, dim2=2) for part in (ours, theirs))
        torch.testing.assert_close(ours_there, theirs_there, **tolerance)


def correlations(matrices: Tensor) -> Tensor:
    deviations = matrices.diagonal(dim1=1, dim2=2).sqrt()
    return matrices / deviations[:, :, None] / deviations[:, None]


def test_they_are_the_mean_and_the_covariance_of_each_class():
    features, labels = drawn()
    found = measured()
    assert found.counts.tolist() == [40] * CLASSES
    for label in range(CLASSES):
        own = features[labels == label].double()
        torch.testing.assert_close(found.means[label].double(), own.mean(dim=0), rtol=1e-5, atol=1e-5)
        expected = own.T.cov(correction=0)
        torch.testing.assert_close(
            correlations(found.covariances[label][None].double()), correlations(expected[None]), rtol=0, atol=STEP / 2
        )
        torch.testing.assert_close(found.covariances[label].diagonal().double(), expected.diagonal())
    torch.testing.assert_close(measured("diagonal").variances, found.covariances.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(measured("shared").shared.float(), found.covariances.mean(dim=0), rtol=1e-2, atol=1e-2)
    assert measured("means").state_dict().keys() == {"counts", "means"}


def test_above_512_features_a_covariance_of_a_class_is_its_diagonal():
    assert measured("own", images=3, size=MOST_FEATURES).form == "own"
    many = measured("own", images=3, size=MOST_FEATURES + 1)
    assert many.form == "diagonal"
    assert many.state_dict().keys() == {"counts", "means", "variances"}


@pytest.mark.parametrize("form", FORMS)
def test_classes_measured_one_after_the_other_are_those_measured_at_once(form):
    features, labels = drawn()
    parts = [
        ClassStatistics.measure(features[labels == label], labels[labels == label] - label, 1, form)
        for label in range(3)
    ]
    assert_same(parts[0].joined(parts[1]).joined(parts[2]), measured(form), rtol=1e-5, atol=1e-5)


def test_those_of_another_form_or_size_are_not_joined_and_both_are_named():
    small = ClassStatistics.measure(*drawn(size=SIZE - 1), CLASSES, "means")
    with pytest.raises(ValueError, match=rf"means alone, of {SIZE - 1} features.*\(means alone, of {SIZE} features"):
        measured("means").joined(small)
    with pytest.raises(
        ValueError, match=r"one covariance of all classes, .*\(a mean and a covariance for each class, of"
    ):
        measured("own").joined(measured("shared"))


@pytest.mark.parametrize("form", FORMS)
def test_what_is_moved_is_what_would_be_measured_of_moved_features(form):
    features, labels = drawn()
    rng = torch.Generator().manual_seed(1)
    matrix, shift = torch.randn(SIZE, SIZE, generator=rng), torch.randn(SIZE, generator=rng)
    if form == "diagonal":  # which is all that it can know
        matrix = torch.diag(matrix.diagonal())
    moved = ClassStatistics.measure(features @ matrix + shift, labels, CLASSES, form)
    assert_same(measured(form).moved(matrix, shift), moved, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("form", ["own", "diagonal", "shared"])
def test_what_a_map_leaves_unexplained_is_added_to_every_covariance(form):
    residual = torch.eye(SIZE) * 2
    plain, added = measured(form), measured(form).moved(torch.eye(SIZE), residual=residual)
    before, after = plain.pooled(), added.pooled()
    expected = before + 2 if form == "diagonal" else before + 2 * torch.eye(SIZE)
    rounding = STEP * float(after.diagonal().max()) if form == "own" else 1e-5
    torch.testing.assert_close(after, expected.double(), rtol=1e-5, atol=rounding)


@pytest.mark.parametrize("form", FORMS)
def test_they_are_the_same_after_a_way_through_a_state(form):
    found = measured(form)
    assert_same(ClassStatistics.from_state(found.state_dict()), found, rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_a_class_that_is_gone_leaves_the_others_as_they_were(form):
    found = measured(form)
    kept = found.select(torch.tensor([2, 0]))
    assert torch.equal(kept.means, found.means[[2, 0]])
    assert kept.form == form and len(kept) == 2
    if form == "own":
        assert torch.equal(kept.covariances, found.covariances[[2, 0]])


# --- few images


@given(images=st.integers(1, 12), size=st.integers(2, 24), pooled=st.floats(0, 1), form=st.sampled_from(FORMS[1:]))
@settings(max_examples=40, deadline=None)
def test_however_few_images_every_covariance_has_an_inverse_and_answers(images, size, pooled, form):
    features, labels = drawn(images, size)
    found = ClassStatistics.measure(features, labels, CLASSES, form)
    covariances = found.shrunk(pooled)
    least = covariances.min() if covariances.ndim == 2 else torch.linalg.eigvalsh(covariances).min()
    assert least > 0
    head = found.gaussians(pooled)
    head.check(size)
    assert bool(head(features).isfinite().all())
    assert bool(found.sample(5, torch.Generator().manual_seed(0), pooled)[0].isfinite().all())


def test_images_that_are_all_alike_still_answer():
    same = torch.ones(6, SIZE) * torch.arange(2).repeat_interleave(3)[:, None]
    found = ClassStatistics.measure(same, torch.arange(2).repeat_interleave(3), 2)
    assert found.gaussians()(same).argmax(dim=1).tolist() == [0, 0, 0, 1, 1, 1]


def test_a_class_of_a_single_image_gets_the_covariance_of_all():
    features, labels = drawn()
    rows = torch.cat([torch.arange(40), torch.tensor([40])])
    found = ClassStatistics.measure(features[rows], labels[rows], 2)
    torch.testing.assert_close(found.shrunk()[1], shrink(found.pooled(), 41), rtol=3e-3, atol=1e-2)


@pytest.mark.parametrize("form", ["own", "diagonal"])
@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
def test_a_class_of_copies_of_an_image_counts_as_one_of_a_single_image_whatever_the_scale(form, scale):
    features, labels = drawn()
    rows = torch.cat([torch.arange(40), torch.full([3], 40)])
    noise = 1 + 1e-7 * torch.randn(len(rows), SIZE, generator=torch.Generator().manual_seed(0))  # of rounding
    found = ClassStatistics.measure(scale * noise * features[rows], labels[rows], 2, form)
    torch.testing.assert_close(found.shrunk()[1], shrink(found.pooled(), 43), rtol=3e-3, atol=0.01 * scale**2)
    alone = ClassStatistics.measure(scale * noise[40:] * features[rows[40:]], labels[rows[40:]] - 1, 1, form)
    assert bool(alone.gaussians()(scale * features).isfinite().all())


def test_the_share_that_is_shrunk_is_the_formula_and_falls_with_the_images():
    covariance = measured().covariances[0].double()
    for images in (3, 10, 1000):
        trace, squares = covariance.trace(), (covariance @ covariance).trace()
        share = ((1 - 2 / SIZE) * squares + trace**2) / ((images + 1 - 2 / SIZE) * (squares - trace**2 / SIZE))
        share = share.clamp(max=1)
        expected = (1 - share) * covariance + share * trace / SIZE * torch.eye(SIZE)
        torch.testing.assert_close(shrink(covariance, images), expected, rtol=1e-4, atol=1e-4)
    assert torch.allclose(shrink(covariance, 10**7), covariance, rtol=1e-3, atol=1e-3)


# --- what answers


def test_the_likeliest_class_is_that_of_torchs_own_distributions():
    features, found = drawn()[0], measured()
    head = found.gaussians(0.3)
    each = [
        torch.distributions.MultivariateNormal(mean.double(), covariance).log_prob(features.double())
        for mean, covariance in zip(found.means, found.shrunk(0.3), strict=True)
    ]
    expected = torch.stack(each, dim=1)
    ours = head(features).double()
    torch.testing.assert_close(ours - ours[:, :1], expected - expected[:, :1], rtol=1e-3, atol=1e-2)


def test_samples_are_spread_as_the_classes_are():
    found = measured(images=4000)
    features, labels = found.sample(20_000, torch.Generator().manual_seed(3))
    again = ClassStatistics.measure(features, labels, CLASSES)
    assert_same(ClassStatistics(found.counts, again.means, again.covariances), found, rtol=0.1, atol=0.3)
    assert torch.equal(features, found.sample(20_000, torch.Generator().manual_seed(3))[0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"means": torch.zeros(3)}, "a row for each class"),
        ({"correlations": torch.zeros(3, 6)}, "6 features have 15 correlations, not 6"),
        ({"correlations": torch.zeros(2, 15)}, "a row for each class"),
        ({"correlations": None}, "are tensors"),
        ({"correlations": torch.full((3, 15), torch.nan)}, "no longer numbers"),
        ({"correlations": torch.full((3, 15), 2.0)}, "correlations above one"),
        ({"covariances": torch.zeros(3, 21)}, "covariances twice"),
        ({"fixed": torch.zeros(2, 8)}, "fixed of class statistics have the shape"),
        ({"fixed": torch.tensor(1.0)}, "shape"),
        ({"means": torch.tensor(1.0)}, "a row for each class"),
        ({"counts": torch.tensor([1, 0, 2])}, "at least one image"),
        ({"counts": torch.full([3], 2**62)}, "at least one image"),
        ({"counts": torch.ones(3)}, "counts of class statistics are of the type torch.float32"),
        ({"counts": torch.ones(3, dtype=torch.bool)}, "of the type torch.bool"),
        ({"means": torch.ones(3, 6).long()}, "means of class statistics are of the type torch.int64"),
        ({"diagonals": -torch.ones(3, 6)}, "variances below zero"),
        ({"means": torch.full((3, 6), torch.nan)}, "no longer numbers"),
        ({"images": torch.zeros(3)}, "do not consist of"),
        ({"means": [1, 2]}, "are tensors"),
        ({"variances": torch.ones(3, 6)}, "one kind of covariance"),
    ],
)
def test_strange_states_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        ClassStatistics.from_state({**measured().state_dict(), **change})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (torch.zeros(3, 6), "of 6 features has 21 numbers, not 6"),
        (torch.zeros(2, 21), "shape"),
        (-torch.ones(3, 21), "variances below zero"),
    ],
)
def test_strange_covariances_of_an_earlier_version_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        ClassStatistics.from_state({**earlier(measured()), "covariances": change})


def earlier(found: ClassStatistics) -> dict[str, Tensor]:
    """As versions wrote them that kept half of each covariance in single precision."""
    rows, columns = torch.tril_indices(SIZE, SIZE)
    return {"counts": found.counts, "means": found.means, "covariances": found.covariances[:, rows, columns]}


def test_covariances_of_an_earlier_version_are_read():
    assert_same(ClassStatistics.from_state(earlier(measured())), measured(), rtol=0, atol=0)


def test_a_class_without_an_image_cannot_be_measured():
    with pytest.raises(ValueError, match="each of the 4 classes needs an image"):
        ClassStatistics.measure(*drawn(), 4)


def test_half_of_each_matrix_is_kept_and_correlations_in_half_precision():
    found = measured("own")
    state = found.state_dict()
    assert state["correlations"].shape == (3, 15) and state["correlations"].dtype == torch.half
    again = ClassStatistics.from_state(state)
    assert torch.equal(again.covariances, found.covariances) and torch.equal(again.covariances, again.covariances.mT)
    of_64 = ClassStatistics.measure(torch.randn(20, 64), torch.arange(20) % 2, 2)
    assert count_bytes(of_64.state_dict()) == 2 * (8 + 4 * 64 + 4 * 64 + 2 * 64 * 63 // 2)


# --- fixed features


def test_means_of_fixed_features_stay_when_the_network_moves_and_go_with_their_class():
    fixed = torch.rand(CLASSES, 8)
    found = ClassStatistics.measure(*drawn(), CLASSES, fixed=fixed)
    assert torch.equal(found.fixed, fixed.half().float())  # as exact as they are kept
    assert torch.equal(found.moved(2 * torch.eye(SIZE)).fixed, found.fixed)
    assert torch.equal(found.select(torch.tensor([2, 0])).fixed, found.fixed[[2, 0]])
    assert torch.equal(found.joined(found).fixed, found.fixed.repeat(2, 1))
    assert torch.equal(ClassStatistics.from_state(found.state_dict()).fixed, found.fixed)
    assert found.state_dict()["fixed"].dtype == torch.half
    assert found.joined(measured()).fixed is None  # of some classes alone they tell nothing


def test_what_classes_share_is_kept_in_double_precision_through_every_step():
    features, labels = drawn()
    one = ClassStatistics.measure(features[labels == 0], labels[labels == 0], 1, "shared")
    two = ClassStatistics.measure(features[labels > 0], labels[labels > 0] - 1, 2, "shared")
    both = ClassStatistics.from_state(one.joined(two).state_dict())
    wide, eye = features.double(), torch.eye(SIZE, dtype=torch.double)
    centred = wide - torch.stack([wide[labels == label].mean(dim=0) for label in range(CLASSES)])[labels]
    for found in (both, both.moved(eye), both.select(torch.arange(CLASSES))):
        torch.testing.assert_close(found.shared, centred.T @ centred / len(wide), rtol=1e-13, atol=1e-13)
        assert found.means.dtype == torch.double
    assert {measured(form).means.dtype for form in ("means", "own", "diagonal")} == {torch.float}


def test_statistics_of_an_earlier_version_are_read_in_double_precision():
    state = {
        name: value.float() if name != "counts" else value for name, value in measured("shared").state_dict().items()
    }
    assert ClassStatistics.from_state(state).joined(measured("shared")).shared.dtype == torch.double
