"""What an image must be before a classifier sees it: its size, its channels, and how its pixels are normalised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from reverie.config.schema import as_plain, settings
from reverie.data.images import Images, images_at_once
from reverie.system.records import build

NATURAL_MEAN, NATURAL_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's photographs

ByChannel = Annotated[tuple[float, ...], Field(strict=False, min_length=1, max_length=16)]
Deviations = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(strict=False, min_length=1, max_length=16)]


@settings("images")
class ImageStatistics:
    """Mean and deviation of images, by channel, with pixels counted from 0 to 1."""

    mean: ByChannel
    deviation: Deviations

    @classmethod
    def natural(cls, channels: int) -> ImageStatistics:
        """Of photographs in colour, or of their mean channel."""
        if channels == 3:
            return cls(NATURAL_MEAN, NATURAL_DEVIATION)
        return cls((sum(NATURAL_MEAN) / 3,) * channels, (sum(NATURAL_DEVIATION) / 3,) * channels)


@settings("preprocessing")
class Preprocessing:
    """Images of `size` pixels a side, less `mean` and divided by `deviation`, by channel."""

    size: Annotated[int, Field(ge=1, le=16_384)]
    mean: ByChannel
    deviation: Deviations
    images: ImageStatistics | None = None  # of the training images, where they are not normalised by their own

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.deviation):
            raise ValueError("preprocessing must have a mean and a deviation for each channel.")

    @property
    def channels(self) -> int:
        return len(self.mean)

    def without_normalisation(self) -> Preprocessing:
        """The same images, pixels between 0 and 1."""
        images = self.images or ImageStatistics(self.mean, self.deviation)
        return replace(self, mean=(0.0,) * self.channels, deviation=(1.0,) * self.channels, images=images)

    def as_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = as_plain(self)
        return {key: value for key, value in plain.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        return build(cls, values, "preprocessing.")


class Normaliser:
    """uint8 pixels <-> numbers with zero mean and unit deviation by channel."""

    def __init__(
        self, mean: tuple[float, ...], deviation: tuple[float, ...], device: torch.device | str = "cpu"
    ) -> None:
        self.mean = torch.tensor(mean, device=device).view(1, -1, 1, 1)
        self.deviation = torch.tensor(deviation, device=device).view(1, -1, 1, 1)

    @classmethod
    def of(cls, shape: Preprocessing | ImageStatistics, device: torch.device | str = "cpu") -> Normaliser:
        return cls(shape.mean, shape.deviation, device)

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


def pixel_statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation by channel, pixels counted from 0 to 1, from at most 5000 images spread over the set."""
    index = torch.linspace(0, len(images) - 1, min(5000, len(images))).long()
    total = squares = torch.zeros(images.shape[0], dtype=torch.double)
    for part in index.split(images_at_once(images.shape[1])):
        pixels = images.read(part).double().div(255).transpose(0, 1).flatten(1)
        total, squares = total + pixels.sum(dim=1), squares + pixels.square().sum(dim=1)
    places = len(index) * images.shape[1] * images.shape[2]
    mean = total / places
    deviation = (squares / places - mean.square()).clamp_min(0).sqrt().clamp_min(1e-3)
    return tuple(round(m, 6) for m in mean.tolist()), tuple(round(d, 6) for d in deviation.tolist())
