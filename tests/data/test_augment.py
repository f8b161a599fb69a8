"""Augmentation of a batch equals augmentation of each image on its own, written out with plain indexing and Pillow."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from reverie.config.schema import AugmentConfig
from reverie.data.augment import Augmenter
from reverie.data.draws import CUT_ACROSS, CUT_DOWN, DRAWS
from reverie.data.preprocessing import Normaliser

IDENTITY = Normaliser((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def pixels(count=16, side=9, seed=0):
    return torch.randint(0, 256, (count, 3, side, side), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def draws(count=16, seed=1):
    return torch.rand(count, DRAWS, generator=torch.Generator().manual_seed(seed))


def test_without_choices_only_normalisation_is_left():
    normalise = Normaliser((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    out = Augmenter(AugmentConfig(), normalise)(pixels(), draws())
    expected = (pixels().double() / 255 - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor(
        [0.2, 0.3, 0.4]
    ).view(3, 1, 1)
    torch.testing.assert_close(out, expected.float(), rtol=1e-5, atol=1e-5)


def test_flip_and_crop_are_those_of_a_padded_image():
    config = AugmentConfig(crop=2, flip=True)
    numbers = draws(64)
    images = pixels(64)
    out = Augmenter(config, IDENTITY)(images, numbers)
    for i in range(64):
        down, across = int(numbers[i, 0] * 5), int(numbers[i, 1] * 5)
        image = images[i].flip(2) if numbers[i, 2] < 0.5 else images[i]
        padded = torch.zeros(3, 13, 13, dtype=torch.uint8)
        padded[:, 2:11, 2:11] = image
        expected = padded[:, down : down + 9, across : across + 9].float() / 255
        assert torch.equal(out[i], expected)


def test_crops_reach_every_place_and_flips_half_of_the_images():
    numbers = draws(4000)
    marked = torch.zeros(4000, 1, 5, 5, dtype=torch.uint8)
    marked[:, :, 2, 1] = 255
    out = Augmenter(AugmentConfig(crop=1, flip=True), Normaliser((0.0,), (1.0,)))(marked, numbers)
    rows, columns = out[:, 0].flatten(1).argmax(1) // 5, out[:, 0].flatten(1).argmax(1) % 5
    assert set(rows.tolist()) == {1, 2, 3}
    assert set(columns.tolist()) == {0, 1, 2, 3, 4}  # column 1, or 3 when mirrored, moved by -1, 0 or 1
    assert 0.45 < (numbers[:, 2] < 0.5).float().mean() < 0.55


def test_jitter_is_pillows_within_its_rounding():
    config = AugmentConfig(brightness=63 / 255, contrast=0.8)
    numbers, images = draws(32), pixels(32, side=8)
    out = Augmenter(config, IDENTITY)(images, numbers)
    for i in range(32):
        image = Image.fromarray(images[i].permute(1, 2, 0).numpy())
        brightness = 1 + 63 / 255 * (2 * float(numbers[i, 3]) - 1)
        contrast = 1 + 0.8 * (2 * float(numbers[i, 4]) - 1)
        steps = [(ImageEnhance.Brightness, brightness), (ImageEnhance.Contrast, contrast)]
        for enhancer, factor in steps if numbers[i, 5] < 0.5 else steps[::-1]:
            image = enhancer(image).enhance(factor)
        expected = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255
        torch.testing.assert_close(out[i], expected, rtol=0, atol=3.1 / 255)


def test_jitter_works_on_one_channel():
    grey = pixels(4)[:, :1]
    out = Augmenter(AugmentConfig(contrast=0.5), Normaliser((0.0,), (1.0,)))(grey, draws(4))
    assert out.shape == grey.shape
    assert 0 <= out.min() <= out.max() <= 1


@pytest.mark.parametrize("config", [AugmentConfig(crop=2, flip=True, brightness=0.2, contrast=0.8)])
def test_an_image_is_augmented_alike_in_any_batch(config):
    augment, images, numbers = Augmenter(config, IDENTITY), pixels(10), draws(10)
    whole = augment(images, numbers)
    alone = torch.cat([augment(images[i : i + 1], numbers[i : i + 1]) for i in range(10)])
    torch.testing.assert_close(whole, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("side", [1, 2, 3, 6])
def test_a_square_anywhere_becomes_the_mean_colour(side):
    images, numbers = pixels(60) | 1, draws(60)
    normalise = Normaliser((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    out = Augmenter(AugmentConfig(cutout=side), normalise)(images, numbers)
    expected = Augmenter(AugmentConfig(), normalise)(images, numbers)
    for i in range(60):
        down, across = int(numbers[i, CUT_DOWN] * 9) - side // 2, int(numbers[i, CUT_ACROSS] * 9) - side // 2
        expected[i, :, max(0, down) : down + side, max(0, across) : across + side] = 0
    assert torch.equal(out, expected)
    assert len({tuple(image[0].eq(0).nonzero().flatten().tolist()) for image in out}) > 20
