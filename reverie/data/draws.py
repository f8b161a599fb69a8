"""The random numbers of augmentation, and the crops that they decide.

Every random choice is a number between 0 and 1 drawn beforehand, `DRAWS` for each image: the same numbers give the same
image whatever the batch, the device or the feed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

DOWN, ACROSS, FLIP, BRIGHTNESS, CONTRAST, ORDER, BOXES = range(7)  # which number decides what
TRIES = 10  # boxes that are drawn for a resized crop, of which the first that fits is taken
CUT_DOWN, CUT_ACROSS, WAY, STRENGTH, SIGN, DRAWS = range(BOXES + 2 * TRIES, BOXES + 2 * TRIES + 6)
LEAST_AREA = 0.08  # of a resized crop, as a share of the image
MOST_ASPECT = 4 / 3  # width to height, or height to width


def draw_numbers(images: int, rng: torch.Generator) -> Tensor:
    """`DRAWS` numbers for each image, kind after kind as they were invented: earlier ones do not depend on later."""
    parts = [torch.rand(images, count, generator=rng) for count in (BOXES, CUT_DOWN - BOXES, DRAWS - CUT_DOWN)]
    return torch.cat(parts, dim=1)


def crop_boxes(draws: Tensor, width: int, height: int) -> Tensor:
    """Where to cut images of this size: left, top, width and height of a box, [n, 4], in fractions of pixels.

    Area and aspect are drawn until the box fits, as torchvision does. Where none does, it is the largest of allowed
    aspect.
    """
    tries = draws[:, BOXES:CUT_DOWN].unflatten(1, (TRIES, 2))
    area = (LEAST_AREA + (1 - LEAST_AREA) * tries[..., 0]) * (width * height)
    aspect = torch.exp((2 * tries[..., 1] - 1) * math.log(MOST_ASPECT))
    widths, heights = (area * aspect).sqrt(), (area / aspect).sqrt()
    fits = (widths <= width) & (heights <= height)
    first, any_fits = fits.byte().argmax(dim=1, keepdim=True), fits.any(dim=1)
    wide, high = widths.gather(1, first)[:, 0], heights.gather(1, first)[:, 0]
    wide = torch.where(any_fits, wide, torch.full_like(wide, min(width, height * MOST_ASPECT)))
    high = torch.where(any_fits, high, torch.full_like(high, min(height, width * MOST_ASPECT)))
    return torch.stack([draws[:, ACROSS] * (width - wide), draws[:, DOWN] * (height - high), wide, high], dim=1)


def resized_crop(pixels: Tensor, draws: Tensor) -> Tensor:
    """A box of each uint8 image, scaled to its full size. Images on disk are cut while they are decoded, instead."""
    height, width = pixels.shape[2:]
    left, top, wide, high = crop_boxes(draws, width, height)[..., None].unbind(dim=1)
    across = left + wide * (torch.arange(width, device=pixels.device) + 0.5) / width
    down = top + high * (torch.arange(height, device=pixels.device) + 0.5) / height
    across, down = 2 * across / width - 1, 2 * down / height - 1  # as grid_sample counts: from -1 to 1, edge to edge
    grid = torch.stack(torch.broadcast_tensors(across[:, None, :], down[:, :, None]), dim=-1)
    scaled = F.grid_sample(pixels.to(grid.dtype), grid, padding_mode="border", align_corners=False)
    return scaled.round().to(torch.uint8)
