"""What fixed features say beyond features: discriminant analysis, believed as far as new images bear it out."""

import pytest
import torch

from reverie.nets.class_statistics import ClassStatistics
from reverie.nets.fixed_evidence import FixedView, _believe, _Evidence, _halves, _Spread, with_fixed_evidence
from reverie.nets.fixed_features import make_filters
from reverie.nets.heads import FixedLinearAnswer

FEATURES, FIXED, OLD, NEW = 4, 6, 3, 3
CLASSES = OLD + NEW


def world(telling: float, each: int = 60, seed: int = 0):
    """Features that tell little, and fixed ones that tell so much more; statistics of all, new images of some."""
    rng = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=rng)  # noqa: E731
    labels = torch.arange(CLASSES).repeat_interleave(each)
    features = draw(CLASSES, FEATURES)[labels] + draw(len(labels), FEATURES)
    spread = draw(FIXED, FIXED)
    fixed = (
        telling * draw(CLASSES, FIXED)[labels] + draw(len(labels), FIXED) @ spread + features @ draw(FEATURES, FIXED)
    )
    means = torch.stack([fixed[labels == label].mean(dim=0) for label in range(CLASSES)])
    statistics = ClassStatistics.measure(features, labels, CLASSES, fixed=means)
    new = labels >= OLD
    return statistics, FixedView(features[new], fixed[new], labels[new]), features, fixed, labels


def heads(statistics, view):
    plain = statistics.linear(200, torch.Generator().manual_seed(1))
    samples, labels = statistics.sample(100, torch.Generator().manual_seed(2))
    plain.calibrate(samples, labels)
    return plain, with_fixed_evidence(plain, statistics, view, make_filters(3), samples.unflatten(0, (-1, 100)))


def right(head, inputs, labels) -> float:
    return float((head(inputs).argmax(dim=1) == labels).double().mean())


def test_old_classes_are_told_apart_though_only_new_images_show_how_fixed_features_spread():
    statistics, view, features, fixed, labels = world(telling=3.0)
    plain, both = heads(statistics, view)
    assert isinstance(both, FixedLinearAnswer)
    old = labels < OLD
    without = right(plain, features[old], labels[old])
    assert right(both, torch.cat([features, fixed], dim=1)[old], labels[old]) > without + 0.15


def test_fixed_features_that_tell_nothing_hardly_matter():
    statistics, view, features, fixed, labels = world(telling=0.0, each=200)
    plain, both = heads(statistics, view)
    given = torch.cat([features, fixed], dim=1)
    assert right(both, given, labels) > right(plain, features, labels) - 0.03


def test_of_features_alone_it_says_what_it_was_made_of():
    statistics, view, features, *_ = world(telling=3.0)
    plain, both = heads(statistics, view)
    torch.testing.assert_close(both.by_features(features), plain(features), rtol=1e-3, atol=1e-3)
    assert torch.equal(plain.by_features(features), plain.scores(features))


def test_what_both_say_is_the_sum_of_two_logarithms_of_probabilities():
    statistics, view, features, fixed, _ = world(telling=2.0)
    plain, both = heads(statistics, view)
    evidence = _Evidence.of(statistics, view)
    believed = _believe(statistics, view)
    sizes = torch.diag(evidence.spread.sizes)
    covariance = sizes @ (evidence.spread.correlations + believed.shrinkage * torch.eye(FIXED).double()) @ sizes
    rest = fixed.double() - features.double() @ evidence.foretold
    likely = torch.stack(
        [torch.distributions.MultivariateNormal(mean, covariance).log_prob(rest) for mean in evidence.means], dim=1
    )
    expected = (plain(features).double() + likely / believed.temperature) / both.temperature
    found = both(torch.cat([features, fixed], dim=1)).double()
    torch.testing.assert_close(found - found[:, :1], expected - expected[:, :1], rtol=1e-3, atol=1e-2)


def test_a_discriminant_is_that_of_the_nearest_mean_where_all_directions_spread_alike():
    means = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()
    weight, bias = _Spread(torch.eye(3).double(), torch.ones(3).double()).discriminant(means, 0.0)
    values = torch.randn(40, 3, generator=torch.Generator().manual_seed(1)).double()
    assert torch.equal((values @ weight.T + bias).argmax(dim=1), torch.cdist(values, means).argmin(dim=1))


@pytest.mark.parametrize(
    "view",
    [
        FixedView(torch.randn(3, FEATURES), torch.randn(3, FIXED), torch.tensor([3, 4, 5])),
        FixedView(torch.randn(40, FEATURES), torch.ones(40, FIXED), torch.arange(40) % NEW + OLD),
    ],
)
def test_too_few_images_or_images_alike_leave_the_head_as_it_is(view):
    statistics, *_ = world(telling=1.0)
    plain, both = heads(statistics, view)
    assert both is plain


def test_statistics_without_fixed_features_leave_the_head_as_it_is():
    _, view, features, _, labels = world(telling=1.0)
    plain, both = heads(ClassStatistics.measure(features, labels, CLASSES), view)
    assert both is plain


@pytest.mark.parametrize("each", [1, 2, 5])
def test_a_handful_of_images_is_enough_to_answer(each):
    statistics, _, features, fixed, labels = world(telling=1.0)
    rows = torch.cat([(labels == label).nonzero().flatten()[:each] for label in range(OLD, CLASSES)])
    few = FixedView(features[rows].repeat(2, 1), fixed[rows].repeat(2, 1), labels[rows].repeat(2), views=2)
    _, both = heads(statistics, few)
    inputs = torch.cat([features, fixed], dim=1) if isinstance(both, FixedLinearAnswer) else features
    assert bool(both(inputs).isfinite().all())


def test_all_views_of_an_image_are_in_one_half_and_each_class_is_in_both():
    labels = torch.tensor([5, 3, 5, 3, 3, 5, 5])
    half = _halves(labels.repeat(2), views=2)
    assert torch.equal(half[:7], half[7:])
    for label in (3, 5):
        ours = half[:7][labels == label]
        assert abs(int(ours.sum()) - int((1 - ours).sum())) <= 1


def test_what_the_asked_half_shows_does_not_tell_how_far_to_believe_the_other():
    """More features than images: whoever fits them to all images finds that the rest of fixed features is tiny."""
    rng = torch.Generator().manual_seed(0)
    features, labels = torch.randn(48, 40, generator=rng), torch.arange(6).repeat_interleave(8)
    fixed = torch.rand(48, 20, generator=rng)  # which tell nothing
    means = torch.stack([fixed[labels == label].mean(dim=0) for label in range(6)])
    statistics = ClassStatistics.measure(features, labels, 6, fixed=means)
    others = torch.randn(600, 40, generator=rng) * statistics.pooled().diagonal().sqrt().float()
    asked, names = statistics.means.repeat(100, 1) + others, torch.arange(6).repeat(100)
    plain, both = heads(statistics, FixedView(features, fixed, labels))
    inputs = torch.cat([asked, torch.rand(600, 20, generator=rng)], dim=1) if both is not plain else asked
    unlikely = [
        float(torch.nn.functional.cross_entropy(head(values), names))
        for head, values in ((plain, asked), (both, inputs))
    ]
    assert unlikely[1] < unlikely[0] + 0.1


def test_classes_of_one_image_each_do_not_end_in_numbers_that_are_none():
    statistics, _, features, fixed, labels = world(telling=1.0)
    rows = torch.cat([(labels == label).nonzero().flatten()[:1] for label in range(CLASSES)])
    view = FixedView(features[rows].repeat(2, 1), fixed[rows].repeat(2, 1), labels[rows].repeat(2), views=2)
    plain, both = heads(statistics, view)
    assert both is plain


def test_what_does_not_vary_in_new_images_is_not_asked():
    statistics, view, features, fixed, labels = world(telling=2.0)
    blank = view.fixed.clone()
    blank[:, 0] = 0.0
    _, both = heads(statistics, FixedView(view.features, blank, view.labels))
    assert not bool(both.evidence[:, 0].any())
    old = labels < OLD
    assert right(both, torch.cat([features, fixed], dim=1)[old], labels[old]) > 0.6


def test_a_class_that_is_removed_leaves_no_mean_behind():
    statistics, view, features, fixed, _ = world(telling=2.0)
    _, both = heads(statistics, view)
    inputs, kept = torch.cat([features, fixed], dim=1), torch.tensor([0, 2, 3, 5])
    before = both(inputs)[:, kept]
    both.select(kept)
    torch.testing.assert_close(both(inputs), before, rtol=1e-3, atol=1e-3)
    assert not bool(both.middle.any())


@pytest.mark.parametrize("rows", [5, 30, 80])
def test_discriminant_analysis_is_its_formula_however_few_images_there_are(rows):
    rng = torch.Generator().manual_seed(rows)
    inside, means = (torch.randn(count, 40, generator=rng, dtype=torch.double) for count in (rows, 3))
    inside[:, 0] *= 5
    weight, bias = _Spread.of(inside).discriminant(means, shrinkage=0.1)
    sizes = inside.square().mean(dim=0).sqrt()
    spread = inside.T @ inside / rows + 0.1 * torch.diag(sizes.square())
    middle = means.mean(dim=0)
    expected = torch.linalg.solve(spread, (means - middle).T).T
    torch.testing.assert_close(weight, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(bias, -(expected * (means + middle)).sum(dim=1) / 2, rtol=1e-5, atol=1e-6)
