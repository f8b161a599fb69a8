"""Random numbers of augmentation, and the crops that they decide, beside Pillow's and torchvision's."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from reverie.data.draws import DRAWS, TRIES, crop_boxes, draw_numbers, resized_crop


def pixels(count, side):
    return torch.randint(0, 256, (count, 3, side, side), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def draws(count):
    return torch.rand(count, DRAWS, generator=torch.Generator().manual_seed(1))


def test_numbers_for_boxes_leave_the_others_as_they_were():
    numbers = draw_numbers(5, torch.Generator().manual_seed(3))
    assert numbers.shape == (5, DRAWS)
    rng = torch.Generator().manual_seed(3)
    assert torch.equal(numbers[:, :6], torch.rand(5, 6, generator=rng))
    assert torch.equal(numbers[:, 6:26], torch.rand(5, 20, generator=rng))  # those of boxes, from before cutout


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
