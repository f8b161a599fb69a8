"""Fixed features: the same for everybody and for good, blind to brightness, of images of any size."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from reverie.nets.fixed_features import COUNT, FILTERS, SIDE, fixed_features, make_filters


def pictures(count: int = 2, channels: int = 3, side: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(seed))


def ramp(channels: int) -> torch.Tensor:
    """A picture that needs no random numbers."""
    return torch.sin(torch.arange(channels * 64, dtype=torch.double) ** 1.5).float().view(1, channels, 8, 8)


@pytest.mark.parametrize(
    ("channels", "weights", "total", "features"),
    [
        (1, [0.7013018, -1.0088143, -0.5086865, 0.671688], 1337.5149, [0.8300781, 0.8823242, 0.4113770, 0.7348633]),
        (3, [-0.0450891, -1.1616653, -0.859279, -0.4636434], 4325.3604, [0.9951172, 1.2841797, 1.1416016, 1.1464844]),
    ],
)
def test_they_never_change(channels, weights, total, features):
    """Models keep means of them: with other filters, or another formula, these would be means of something else."""
    filters = make_filters(channels)
    torch.testing.assert_close(filters.flatten()[[0, 1, 100, -1]], torch.tensor(weights), rtol=1e-4, atol=1e-5)
    assert float(filters.abs().sum()) == pytest.approx(total, rel=1e-4)
    found = fixed_features(ramp(channels), filters)[0]
    torch.testing.assert_close(found[[0, 1, 100, -1]], torch.tensor(features), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_filters_do_not_see_brightness(channels):
    filters = make_filters(channels)
    assert filters.shape == (FILTERS, channels, 3, 3)
    assert filters.flatten(1).sum(dim=1).abs().max() < 1e-4
    images = pictures(channels=channels)
    torch.testing.assert_close(
        fixed_features(images + 0.5, filters), fixed_features(images, filters), rtol=1e-2, atol=2e-3
    )


def test_features_are_the_formula():
    """Of one filter, in plain loops over patches."""
    images, filters = pictures(1), make_filters(3)[:1]
    padded = F.pad(images, (1, 1, 1, 1), mode="replicate")[0].double()
    answers = torch.zeros(8, 8, dtype=torch.double)
    for row in range(8):
        for column in range(8):
            patch = padded[:, row : row + 3, column : column + 3]
            contrast = (patch.var(correction=0) + 0.05).sqrt()
            answers[row, column] = (patch * filters[0]).sum() / contrast
    quarters = [answers[above, left] for above in (slice(4), slice(4, 8)) for left in (slice(4), slice(4, 8))]
    expected = [(sign * quarter - 1).clamp_min(0).mean().sqrt() for sign in (1, -1) for quarter in quarters]
    found = fixed_features(images, filters)[0].double()
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-3, atol=1e-4)


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3]))
@settings(max_examples=25, deadline=None)
def test_images_of_any_size_have_as_many(height, width, channels):
    images = torch.randn(2, channels, height, width)
    found = fixed_features(images, make_filters(channels))
    assert found.shape == (2, COUNT) and found.dtype == torch.float
    assert bool((found >= 0).all()) and bool(found.isfinite().all())
    assert torch.equal(found, found.half().float())


def test_large_images_are_shrunk_first():
    filters = make_filters(3)
    small = pictures(side=SIDE)
    large = F.interpolate(small, scale_factor=3, mode="nearest")
    torch.testing.assert_close(fixed_features(large, filters), fixed_features(small, filters), rtol=1e-2, atol=1e-2)


def test_a_flat_image_has_none():
    assert not bool(fixed_features(torch.full((1, 3, 8, 8), 0.7), make_filters(3)).any())


def test_those_of_an_image_do_not_depend_on_others():
    images, filters = pictures(5), make_filters(3)
    torch.testing.assert_close(fixed_features(images[3:4], filters), fixed_features(images, filters)[3:4])
