"""Augmentation of whole batches as arithmetic on tensors, on any device (docs/method.md, "Data").

Every random choice is a number between 0 and 1 drawn beforehand, `DRAWS` for each image: the same numbers give the same
image whatever the batch, the device or the feed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from reverie.compile import fusable
from reverie.config.schema import AugmentConfig

_DOWN, _ACROSS, _FLIP, _BRIGHTNESS, _CONTRAST, _ORDER, _BOXES = range(7)
TRIES = 10  # boxes that are drawn for a resized crop, of which the first that fits is taken
DRAWS = _BOXES + 2 * TRIES
LEAST_AREA = 0.08  # of a resized crop, as a share of the image
MOST_ASPECT = 4 / 3  # width to height, or height to width
_LUMA = (0.299, 0.587, 0.114)  # grey as seen by people (ITU-R 601), from which contrast is measured


def draw_numbers(images: int, rng: torch.Generator) -> Tensor:
    """`DRAWS` numbers for each image; those of the boxes come last, so that the others do not depend on them."""
    parts = [torch.rand(images, count, generator=rng) for count in (_BOXES, DRAWS - _BOXES)]
    return torch.cat(parts, dim=1)


def crop_boxes(draws: Tensor, width: int, height: int) -> Tensor:
    """Where to cut images of this size: left, top, width and height of a box, [n, 4], in fractions of pixels.

    Area and aspect are drawn until the box fits, as torchvision does. Where none does, it is the largest of allowed
    aspect.
    """
    tries = draws[:, _BOXES:].unflatten(1, (TRIES, 2))
    area = (LEAST_AREA + (1 - LEAST_AREA) * tries[..., 0]) * (width * height)
    aspect = torch.exp((2 * tries[..., 1] - 1) * math.log(MOST_ASPECT))
    widths, heights = (area * aspect).sqrt(), (area / aspect).sqrt()
    fits = (widths <= width) & (heights <= height)
    first, any_fits = fits.byte().argmax(dim=1, keepdim=True), fits.any(dim=1)
    wide, high = widths.gather(1, first)[:, 0], heights.gather(1, first)[:, 0]
    wide = torch.where(any_fits, wide, torch.full_like(wide, min(width, height * MOST_ASPECT)))
    high = torch.where(any_fits, high, torch.full_like(high, min(height, width * MOST_ASPECT)))
    return torch.stack([draws[:, _ACROSS] * (width - wide), draws[:, _DOWN] * (height - high), wide, high], dim=1)


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


class Normaliser:
    """uint8 pixels <-> numbers with zero mean and unit deviation by channel."""

    def __init__(
        self, mean: tuple[float, ...], deviation: tuple[float, ...], device: torch.device | str = "cpu"
    ) -> None:
        self.mean = torch.tensor(mean, device=device).view(1, -1, 1, 1)
        self.deviation = torch.tensor(deviation, device=device).view(1, -1, 1, 1)

    def __call__(self, pixels: Tensor) -> Tensor:
        return self.from_unit(pixels.float() / 255)

    def from_unit(self, images: Tensor) -> Tensor:
        """From pixels between 0 and 1."""
        return (images - self.mean) / self.deviation

    def to_unit(self, images: Tensor) -> Tensor:
        """Back to where pixels lie between 0 and 1. Those of dreams may lie outside."""
        return images * self.deviation + self.mean

    def to_pixels(self, images: Tensor) -> Tensor:
        """Back to uint8, for people to look at."""
        return self.to_unit(images).clamp(0, 1).mul(255).round().to(torch.uint8)


class Augmenter:
    """In this order: brightness and contrast (either first), flip, crop with zero padding, normalise.

    A resized crop comes before all of it, where the pixels come from: in a feed, or in `Images.read`.
    """

    def __init__(self, config: AugmentConfig, normalise: Normaliser) -> None:
        self.config, self.normalise = config, normalise
        self.luma = torch.tensor(_LUMA, device=normalise.mean.device).view(1, 3, 1, 1)

    @fusable
    def __call__(self, pixels: Tensor, draws: Tensor) -> Tensor:
        images = pixels.float() / 255
        if self.config.brightness or self.config.contrast:
            images = self._jitter(images, draws)
        if self.config.crop or self.config.flip:
            images = self._flip_and_crop(images, draws)
        return self.normalise.from_unit(images)

    def _jitter(self, images: Tensor, draws: Tensor) -> Tensor:
        brightness = 1 + self.config.brightness * (2 * draws[:, _BRIGHTNESS] - 1).view(-1, 1, 1, 1)
        contrast = 1 + self.config.contrast * (2 * draws[:, _CONTRAST] - 1).view(-1, 1, 1, 1)
        bright_first = self._contrasted((images * brightness).clamp(0, 1), contrast)
        contrast_first = (self._contrasted(images, contrast) * brightness).clamp(0, 1)
        return torch.where((draws[:, _ORDER] < 0.5).view(-1, 1, 1, 1), bright_first, contrast_first)

    def _contrasted(self, images: Tensor, factor: Tensor) -> Tensor:
        """Away from, or towards, the image's own mean grey."""
        grey = (images * self.luma).sum(dim=1, keepdim=True) if images.shape[1] == 3 else images
        mean = grey.mean(dim=(1, 2, 3), keepdim=True)
        return (mean + factor * (images - mean)).clamp(0, 1)

    def _flip_and_crop(self, images: Tensor, draws: Tensor) -> Tensor:
        """One gather for both. What lies outside the image is black, as it is when padding comes before normalising."""
        count, channels, height, width = images.shape
        rows = torch.arange(height, device=images.device).expand(count, height)
        columns = torch.arange(width, device=images.device).expand(count, width)
        pad = self.config.crop
        if pad:
            places = 2 * pad + 1
            rows = rows + (draws[:, _DOWN, None] * places).long().clamp(max=2 * pad) - pad
            columns = columns + (draws[:, _ACROSS, None] * places).long().clamp(max=2 * pad) - pad
        if self.config.flip:
            columns = torch.where(draws[:, _FLIP, None] < 0.5, width - 1 - columns, columns)
        inside = ((rows >= 0) & (rows < height)).unsqueeze(2) & ((columns >= 0) & (columns < width)).unsqueeze(1)
        source = rows.clamp(0, height - 1).unsqueeze(2) * width + columns.clamp(0, width - 1).unsqueeze(1)
        index = source.view(count, 1, -1).expand(-1, channels, -1)
        return images.flatten(2).gather(2, index).view_as(images) * inside.unsqueeze(1)
