"""TrivialAugment on a batch is torchvision's on each image, way by way and strength by strength."""

import pytest
import torch
from torchvision.transforms import InterpolationMode, TrivialAugmentWide
from torchvision.transforms.autoaugment import _apply_op

from reverie.config.schema import AugmentConfig
from reverie.data.augment import Augmenter
from reverie.data.draws import DRAWS, SIGN, STRENGTH, WAY
from reverie.data.preprocessing import Normaliser
from reverie.data.trivial import STRENGTHS, WAYS, TrivialAugment

SPACE = TrivialAugmentWide()._augmentation_space(STRENGTHS)
CPU = torch.device("cpu")


def pixels(count: int, side: int = 17, channels: int = 3) -> torch.Tensor:
    """Smooth images with some noise, whose values are spread unevenly."""
    rng = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, channels, 4, 4, generator=rng) ** 2
    smooth = torch.nn.functional.interpolate(coarse, size=side, mode="bilinear")
    noise = 0.1 * torch.rand(smooth.shape, generator=rng)
    return ((smooth + noise) / 1.1 * 230 + 10).to(torch.uint8)


def draws_for(way: int) -> torch.Tensor:
    """Every strength with both signs."""
    draws = torch.full((2 * STRENGTHS, DRAWS), 0.5)
    draws[:, WAY] = (way + 0.5) / len(WAYS)
    draws[:, STRENGTH] = (torch.arange(2 * STRENGTHS) % STRENGTHS + 0.5) / STRENGTHS
    draws[:, SIGN] = (torch.arange(2 * STRENGTHS) // STRENGTHS) * 0.5 + 0.25
    return draws


def by_torchvision(images: torch.Tensor, way: int) -> torch.Tensor:
    name, (strengths, signed) = [*SPACE.items()][way]
    made = []
    for i, image in enumerate(images):
        strength = float(strengths[i % STRENGTHS]) if strengths.ndim else 0.0
        sign = -1 if signed and i < STRENGTHS else 1
        made.append(_apply_op(image, name, sign * strength, InterpolationMode.NEAREST, None))
    return torch.stack(made)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("way", range(len(WAYS)), ids=[*WAYS])
def test_each_way_is_torchvisions(way, channels):
    """Within a pixel's rounding; places halfway between two pixels may go to either."""
    images = pixels(2 * STRENGTHS, channels=channels)
    ours = TrivialAugment(CPU)(images, draws_for(way))
    off = (ours - by_torchvision(images, way).float()).abs()
    assert (off <= 1).float().mean() > 0.995
    if way and not (channels == 1 and [*WAYS][way] == "colour"):
        assert not torch.equal(ours, images.float())
    assert ours.min() >= 0 and ours.max() <= 255 and torch.equal(ours, ours.round())


def test_there_are_as_many_ways_as_torchvision_has_and_all_are_drawn():
    assert len(WAYS) == len(SPACE)
    assert [signed for _, signed in WAYS.values()] == [signed for _, signed in SPACE.values()]
    draws = torch.rand(4000, DRAWS, generator=torch.Generator().manual_seed(0))
    shares = torch.bincount((draws[:, WAY] * len(WAYS)).long(), minlength=len(WAYS)) / 4000
    assert shares.min() > 0.04


def test_an_image_of_one_colour_and_a_tiny_one_are_no_trouble():
    for side in (1, 2, 5):
        plain = torch.full((len(WAYS), 3, side, side), 7, dtype=torch.uint8)
        draws = torch.full((len(WAYS), DRAWS), 0.99)
        draws[:, WAY] = (torch.arange(len(WAYS)) + 0.5) / len(WAYS)
        assert TrivialAugment(CPU)(plain, draws).isfinite().all()


def test_an_image_is_augmented_alike_in_any_batch_and_before_all_else():
    augment = Augmenter(AugmentConfig(trivial=True, flip=True, cutout=3), Normaliser((0.0,) * 3, (1.0,) * 3))
    images, draws = pixels(40), torch.rand(40, DRAWS, generator=torch.Generator().manual_seed(1))
    whole = augment(images, draws)
    alone = torch.cat([augment(images[i : i + 1], draws[i : i + 1]) for i in range(40)])
    torch.testing.assert_close(whole, alone, rtol=0, atol=1e-6)
    plain = Augmenter(AugmentConfig(flip=True, cutout=3), augment.normalise)
    done = TrivialAugment(CPU)(images, draws).to(torch.uint8)
    torch.testing.assert_close(whole, plain(done, draws), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("way", "shape"), [("colour", (1, 17)), ("sharpness", (3, 2))])
def test_what_there_is_nothing_to_blend_with_stays_as_it_is(way, shape):
    images = pixels(2 * STRENGTHS, channels=shape[0], side=shape[1])
    assert torch.equal(TrivialAugment(CPU)(images, draws_for([*WAYS].index(way))), images.float())
