"""Augmentation of whole batches as arithmetic on tensors, on any device (docs/method.md, "Data")."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.compile import compilable
from reverie.config.schema import AugmentConfig
from reverie.data.draws import ACROSS, BRIGHTNESS, CONTRAST, CUT_ACROSS, CUT_DOWN, DOWN, FLIP, ORDER
from reverie.data.preprocessing import Normaliser
from reverie.data.trivial import TrivialAugment
from reverie.errors import UserError

_LUMA = (0.299, 0.587, 0.114)  # grey as seen by people (ITU-R 601), from which contrast is measured


class Augmenter:
    """In this order: one way of many, brightness and contrast (either first), flip, crop with zero padding, normalise,
    cut a square out.

    A resized crop comes before all of it, where the pixels come from: in a feed, or in `Images.read`.
    """

    def __init__(self, config: AugmentConfig, normalise: Normaliser) -> None:
        self.config, self.normalise = config, normalise
        self.luma = torch.tensor(_LUMA, device=normalise.mean.device).view(1, 3, 1, 1)
        self.trivial = TrivialAugment(normalise.mean.device) if config.trivial else None

    @compilable
    def __call__(self, pixels: Tensor, draws: Tensor) -> Tensor:
        images = (self.trivial(pixels, draws) if self.trivial else pixels.float()) / 255
        if self.config.brightness or self.config.contrast:
            images = self._jitter(images, draws)
        if self.config.crop or self.config.flip:
            images = self._flip_and_crop(images, draws)
        images = self.normalise.from_unit(images)
        return self._cut_out(images, draws) if self.config.cutout else images

    def _jitter(self, images: Tensor, draws: Tensor) -> Tensor:
        brightness = 1 + self.config.brightness * (2 * draws[:, BRIGHTNESS] - 1).view(-1, 1, 1, 1)
        contrast = 1 + self.config.contrast * (2 * draws[:, CONTRAST] - 1).view(-1, 1, 1, 1)
        bright_first = self._contrasted((images * brightness).clamp(0, 1), contrast)
        contrast_first = (self._contrasted(images, contrast) * brightness).clamp(0, 1)
        return torch.where((draws[:, ORDER] < 0.5).view(-1, 1, 1, 1), bright_first, contrast_first)

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
            rows = rows + (draws[:, DOWN, None] * places).long().clamp(max=2 * pad) - pad
            columns = columns + (draws[:, ACROSS, None] * places).long().clamp(max=2 * pad) - pad
        if self.config.flip:
            columns = torch.where(draws[:, FLIP, None] < 0.5, width - 1 - columns, columns)
        inside = ((rows >= 0) & (rows < height)).unsqueeze(2) & ((columns >= 0) & (columns < width)).unsqueeze(1)
        source = rows.clamp(0, height - 1).unsqueeze(2) * width + columns.clamp(0, width - 1).unsqueeze(1)
        index = source.view(count, 1, -1).expand(-1, channels, -1)
        return images.flatten(2).gather(2, index).view_as(images) * inside.unsqueeze(1)

    def _cut_out(self, images: Tensor, draws: Tensor) -> Tensor:
        """A square whose middle is any pixel becomes the mean colour; at the edge, what of it lies inside."""
        down, across = (
            self._cut(draws[:, number], side)
            for number, side in ((CUT_DOWN, images.shape[2]), (CUT_ACROSS, images.shape[3]))
        )
        return images * ~(down[:, None, :, None] & across[:, None, None, :])

    def _cut(self, draws: Tensor, side: int) -> Tensor:
        """Which rows, or columns, of each image the square takes."""
        places = torch.arange(side, device=draws.device)
        first = (draws * side).long().clamp(max=side - 1).unsqueeze(1) - self.config.cutout // 2
        return (places >= first) & (places < first + self.config.cutout)


def refuse_blank_images(config: AugmentConfig, size: int) -> None:
    """Raises UserError where hardly anything would be left of images of so many pixels a side."""
    if config.cutout >= size:
        raise UserError(
            f"augment.cutout is the side of a square, and {config.cutout} pixels leave hardly anything of images of "
            f"{size}×{size}. Choose a smaller one, such as {size // 2}."
        )
