"""TrivialAugment (Müller and Hutter, 2021, its wide space) on whole batches: one way of fourteen for each image.

Every image is computed in every way and keeps its own: moved, blended and mapped in turn. The ways and their strengths
are those of torchvision's `TrivialAugmentWide`; what an image is moved to without having pixels there is black.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from reverie.data.draws import SIGN, STRENGTH, WAY

STRENGTHS = 31
_RISING, _NONE = torch.linspace(0, 1, STRENGTHS), torch.zeros(STRENGTHS)
# Way by way: the strengths, and whether half of them are negative.
WAYS: dict[str, tuple[Tensor, bool]] = {
    "identity": (_NONE, False),
    "shear across": (torch.linspace(0, 0.99, STRENGTHS), True),
    "shear down": (torch.linspace(0, 0.99, STRENGTHS), True),
    "move across": (torch.linspace(0, 32, STRENGTHS).floor(), True),  # pixels
    "move down": (torch.linspace(0, 32, STRENGTHS).floor(), True),
    "turn": (torch.linspace(0, 135, STRENGTHS) * (math.pi / 180), True),
    "brightness": (torch.linspace(0, 0.99, STRENGTHS), True),
    "colour": (torch.linspace(0, 0.99, STRENGTHS), True),
    "contrast": (torch.linspace(0, 0.99, STRENGTHS), True),
    "sharpness": (torch.linspace(0, 0.99, STRENGTHS), True),
    "posterize": (torch.round(_RISING * 6), False),  # bits that are lost
    "solarize": (torch.linspace(255, 0, STRENGTHS), False),  # from this value on
    "stretch": (_NONE, False),
    "equalize": (_NONE, False),
}
_NUMBER = {name: number for number, name in enumerate(WAYS)}
_LUMA = (0.2989, 0.587, 0.114)  # of torchvision


class TrivialAugment:
    """uint8 images and the draws of each in; values from 0 to 255 out, whole numbers still."""

    def __init__(self, device: torch.device) -> None:
        self.strengths = torch.stack([strengths for strengths, _ in WAYS.values()]).to(device)
        self.signed = torch.tensor([signed for _, signed in WAYS.values()], device=device)
        self.luma = torch.tensor(_LUMA, device=device).view(1, 3, 1, 1)
        self.blur = (torch.tensor([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]], device=device) / 13).view(1, 1, 3, 3)

    def __call__(self, pixels: Tensor, draws: Tensor) -> Tensor:
        way = (draws[:, WAY] * len(WAYS)).long().clamp(max=len(WAYS) - 1)
        place = (draws[:, STRENGTH] * STRENGTHS).long().clamp(max=STRENGTHS - 1)
        strength = self.strengths[way, place]
        strength = torch.where(self.signed[way] & (draws[:, SIGN] < 0.5), -strength, strength)
        images = _moved(pixels.to(strength.dtype), way, strength)
        images = self._blended(images, _of(way, 4), _of(strength, 4))
        return _mapped(images, _of(way, 4), _of(strength, 4))

    def _blended(self, images: Tensor, way: Tensor, strength: Tensor) -> Tensor:
        """Away from, or towards: black, the grey image, its mean, the blurred image."""
        grey = (images * self.luma).sum(dim=1, keepdim=True).floor() if images.shape[1] == 3 else images
        other = torch.where(way == _NUMBER["colour"], grey, torch.zeros_like(images))
        other = torch.where(way == _NUMBER["contrast"], grey.mean(dim=(1, 2, 3), keepdim=True), other)
        other = torch.where(way == _NUMBER["sharpness"], self._blurred(images), other)
        blended = ((1 + strength) * images - strength * other).clamp(0, 255).floor()
        blends = (way >= _NUMBER["brightness"]) & (way <= _NUMBER["sharpness"])
        if images.shape[1] != 3:  # blended with themselves, images would lose a value here and there by rounding
            blends &= way != _NUMBER["colour"]
        if min(images.shape[2:]) < 3:
            blends &= way != _NUMBER["sharpness"]
        return torch.where(blends, blended, images)

    def _blurred(self, images: Tensor) -> Tensor:
        """Pixels at the edge stay as they are."""
        if min(images.shape[2:]) < 3:
            return images
        kernel = self.blur.to(images.dtype).expand(images.shape[1], 1, 3, 3)
        with torch.autocast(images.device.type, enabled=False):
            inner = F.conv2d(images, kernel, groups=images.shape[1]).round()
        blurred = images.clone()
        blurred[:, :, 1:-1, 1:-1] = inner
        return blurred


def _moved(images: Tensor, way: Tensor, strength: Tensor) -> Tensor:
    """Each pixel is that of the nearest place where it comes from: sheared from the corner, turned about the middle."""
    count, channels, height, width = images.shape

    def only(name: str) -> Tensor:
        return _of(torch.where(way == _NUMBER[name], strength, torch.zeros_like(strength)), 3)

    x = torch.arange(width, device=images.device).view(1, 1, -1) + 0.5
    y = torch.arange(height, device=images.device).view(1, -1, 1) + 0.5
    angle, right, below = only("turn"), x - width / 2, y - height / 2
    across = width / 2 + angle.cos() * right - angle.sin() * below + only("shear across") * y - only("move across")
    down = height / 2 + angle.sin() * right + angle.cos() * below + only("shear down") * x - only("move down")
    columns, rows = (across - 0.5).round().long(), (down - 0.5).round().long()
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    source = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    index = source.view(count, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, index).view_as(images) * inside.unsqueeze(1)


def _mapped(images: Tensor, way: Tensor, strength: Tensor) -> Tensor:
    """Each value becomes another: with fewer bits, inverted from a value on, stretched to the full range, equalized."""
    step = torch.exp2(torch.where(way == _NUMBER["posterize"], strength, torch.zeros_like(strength)))
    images = torch.where(way == _NUMBER["posterize"], (images / step).floor() * step, images)
    images = torch.where((way == _NUMBER["solarize"]) & (images >= strength), 255 - images, images)
    least, most = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    span = torch.where(most > least, most - least, torch.full_like(most, 255))
    least = torch.where(most > least, least, torch.zeros_like(least))
    stretched = ((images - least) * (255 / span)).clamp(0, 255).floor()
    images = torch.where(way == _NUMBER["stretch"], stretched, images)
    return torch.where(way == _NUMBER["equalize"], _equalized(images), images)


def _equalized(images: Tensor) -> Tensor:
    """Every value about as often as any other, channel by channel."""
    values = images.flatten(2).long()
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(2, values, torch.ones_like(values))
    largest = counts.gather(2, values.amax(dim=2, keepdim=True))  # how often the largest value is there
    step = (values.shape[2] - largest) // 255
    below = F.pad(counts.cumsum(dim=2), (1, 0))[:, :, :-1]
    table = ((below + step // 2) // step.clamp_min(1)).clamp(0, 255)
    equal = torch.where(step > 0, table.gather(2, values), values)
    return equal.view_as(images).to(images.dtype)


def _of(by_image: Tensor, dimensions: int) -> Tensor:
    return by_image.view(-1, *[1] * (dimensions - 1))
