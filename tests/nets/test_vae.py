"""The VAE: as many parameters as published, any size, and the ladder of halvings."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.nets import count_parameters
from reverie.nets.vae import VAE, halvings


def test_for_32_pixels_it_has_the_published_number_of_parameters():
    assert count_parameters(VAE(32)) == 28_722_179


def channels(vae: VAE) -> tuple[list[int], list[int]]:
    """Going in, and coming out."""
    return [layer.out_channels for layer in vae.encoder[::2]], [layer.out_channels for layer in vae.decoder[::2]]


@pytest.mark.parametrize(
    ("size", "side", "inwards", "outwards"),
    [
        (8, 4, [512], [3]),
        (16, 4, [64, 512], [64, 3]),
        (32, 4, [64, 128, 512], [256, 64, 3]),
        (64, 4, [64, 128, 128, 512], [256, 256, 64, 3]),
        (224, 7, [64, 128, 128, 128, 512], [256, 256, 256, 64, 3]),
    ],
)
def test_the_ladder_is_longer_for_larger_images(size, side, inwards, outwards):
    with torch.device("meta"):  # shapes alone: nobody needs 77 million numbers here
        vae = VAE(size)
    assert (halvings(size), vae.first_side) == (len(inwards), side)
    assert channels(vae) == (inwards, outwards)
    assert vae.mean.in_features == vae.project.out_features == 512 * side**2


@settings(max_examples=20, deadline=None)
@given(size=st.integers(4, 70), colours=st.sampled_from([1, 3]), width=st.sampled_from([1, 4]))
def test_any_size_goes_in_and_comes_out(size, colours, width):
    vae = VAE(size, colours, noise=5, width=width)
    mean, log_variance = vae.encode(torch.rand(2, colours, size, size))
    assert mean.shape == log_variance.shape == (2, 5)
    assert vae.decode(mean).shape == (2, colours, size, size)


def test_in_mixed_precision_its_answers_are_single():
    vae = VAE(8, 1, noise=3, width=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mean, log_variance = vae.encode(torch.rand(2, 1, 8, 8))
        assert {mean.dtype, log_variance.dtype, vae.decode(mean).dtype} == {torch.float32}


def test_it_learns_to_paint_what_it_was_shown():
    """Two kinds of images, left half white or right half white, come back, and are painted from noise."""
    torch.manual_seed(0)
    vae = VAE(8, 1, noise=2, width=2)
    images = torch.zeros(2, 1, 8, 8)
    images[0, :, :, :4] = images[1, :, :, 4:] = 1
    images = images.repeat(16, 1, 1, 1)
    adam = torch.optim.Adam(vae.parameters(), 0.01)
    for _ in range(150):
        mean, log_variance = vae.encode(images)
        logits = vae.decode(mean + (log_variance / 2).exp() * torch.randn(mean.shape))
        spread = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, images) + spread / 64
        adam.zero_grad()
        loss.backward()
        adam.step()
    painted = vae.decode(torch.randn(50, 2)).sigmoid()
    nearest = torch.cdist(painted.flatten(1), images[:2].flatten(1)).min(dim=1)
    assert nearest.values.median() < 1.5  # of 8 between the two kinds
    assert set(nearest.indices.tolist()) == {0, 1}
