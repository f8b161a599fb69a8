"""Augmentation of a batch equals augmentation of each image on its own, written out with plain indexing and Pillow."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torchvision.transforms import RandomResizedCrop

from reverie.config.schema import AugmentConfig
from reverie.data.augment import DRAWS, TRIES, Augmenter, Normaliser, crop_boxes, draw_numbers, resized_crop

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


def test_normalising_and_back_gives_the_same_pixels():
    normalise = Normaliser((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    assert torch.equal(normalise.to_pixels(normalise(pixels())), pixels())


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


def test_numbers_for_boxes_leave_the_others_as_they_were():
    numbers = draw_numbers(5, torch.Generator().manual_seed(3))
    assert numbers.shape == (5, DRAWS)
    assert torch.equal(numbers[:, :6], torch.rand(5, 6, generator=torch.Generator().manual_seed(3)))


def box_by_hand(numbers, width, height):
    """One box, with plain numbers."""
    wide, high = min(width, height * 4 / 3), min(height, width * 4 / 3)
    for i in range(TRIES):
        area = (0.08 + 0.92 * numbers[6 + 2 * i]) * width * height
        aspect = math.exp(math.log(3 / 4) + numbers[7 + 2 * i] * (math.log(4 / 3) - math.log(3 / 4)))
        if math.sqrt(area * aspect) <= width and math.sqrt(area / aspect) <= height:
            wide, high = math.sqrt(area * aspect), math.sqrt(area / aspect)
            break
    return [numbers[1] * (width - wide), numbers[0] * (height - high), wide, high]


@pytest.mark.parametrize(("width", "height"), [(64, 64), (500, 375), (90, 400), (1000, 10)])
def test_a_box_is_the_first_that_fits(width, height):
    numbers = draws(200).double()
    boxes = crop_boxes(numbers, width, height)
    expected = torch.tensor([box_by_hand(row, width, height) for row in numbers.tolist()], dtype=torch.float64)
    torch.testing.assert_close(boxes, expected)
    left, top, wide, high = boxes.unbind(1)
    assert min(left.min(), top.min()) >= 0
    assert (left + wide).max() <= width + 1e-9
    assert (top + high).max() <= height + 1e-9
    assert (wide / high).max() <= 4 / 3 + 1e-9
    assert (wide / high).min() >= 3 / 4 - 1e-9
    if width < 10 * height:
        assert (wide * high).min() >= 0.08 * width * height


def test_boxes_are_spread_as_torchvisions_are():
    ours = crop_boxes(draws(5000), 500, 375)
    image = torch.empty(3, 375, 500)
    drawn = [RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(5000)]
    theirs = torch.tensor(drawn, dtype=torch.float32)[:, [1, 0, 3, 2]]
    for column in range(4):
        a, b = ours[:, column], theirs[:, column]
        for share in (0.1, 0.5, 0.9):
            assert abs(a.quantile(share) - b.quantile(share)) < 18


def test_a_resized_crop_is_pillows_within_its_rounding():
    images, numbers = pixels(32, side=24), draws(32)
    out = resized_crop(images, numbers)
    assert out.dtype == torch.uint8
    for i, (left, top, wide, high) in enumerate(crop_boxes(numbers, 24, 24).tolist()):
        image = Image.fromarray(images[i].permute(1, 2, 0).numpy())
        right, bottom = min(left + wide, 24), min(top + high, 24)
        scaled = image.resize((24, 24), Image.Resampling.BILINEAR, (left, top, right, bottom))
        expected = torch.from_numpy(np.asarray(scaled).copy()).permute(2, 0, 1)
        assert (out[i].int() - expected.int()).abs().max() <= 2
