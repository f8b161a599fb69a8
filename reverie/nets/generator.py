"""The generator that dreams: noise in, an image in normalised pixel space out (docs/method.md, "The dreamer")."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from reverie.compile import compilable
from reverie.nets.layers import AlignedConv2d, Double

# An old slip of the field: 0.8 was meant as momentum and stands in the place of epsilon. It changes the function that
# the generator computes, and every published result was made with it.
INNER_EPSILON = 0.8


def upsamplings(size: int) -> int:
    """How often the first map is doubled: to 8 x 8 for 32 and 64 pixels, 7 x 7 for 224."""
    return max(2, math.floor(math.log2(size / 7)))


class Generator(nn.Module):
    """A linear layer to a small map, then blocks of (double, convolve, normalise, leaky ReLU), at last an image.

    The closing BatchNorm has no parameters: each channel has zero mean and unit variance, as normalised images have.
    """

    def __init__(self, size: int, channels: int = 3, noise: int = 1000, width: int | None = None) -> None:
        super().__init__()
        self.size, self.noise = size, noise
        blocks = upsamplings(size)
        self.first_side = math.ceil(size / 2**blocks)
        self.width = width or (128 if size <= 64 else 64)
        narrow = self.width // 2 if size <= 64 else self.width
        widths = [self.width] * blocks + [narrow]
        self.project = nn.Linear(noise, self.width * self.first_side**2)
        self.enter = nn.BatchNorm2d(self.width)
        self.blocks = nn.Sequential(*(self._block(a, b) for a, b in pairwise(widths)))
        self.paint = nn.Sequential(AlignedConv2d(narrow, channels, 3, padding=1), nn.Tanh())
        self.leave = nn.BatchNorm2d(channels, affine=False)

    @staticmethod
    def _block(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(
            Double(),
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after, eps=INNER_EPSILON),
            nn.LeakyReLU(0.2),
        )

    @compilable
    def forward(self, noise: Tensor) -> Tensor:
        maps = self.project(noise).view(-1, self.width, self.first_side, self.first_side)
        painted = self.paint(self.blocks(self.enter(maps)))
        image: Tensor = self.leave(painted[:, :, : self.size, : self.size])
        return image
