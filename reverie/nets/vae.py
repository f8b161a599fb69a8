"""The autoencoder of generative replay: an image to a few numbers and back (docs/method.md, "Generative replay")."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from reverie.nets.layers import AlignedConv2d, widened


def halvings(size: int) -> int:
    """How often an image is halved: to 4 x 4 for 8, 32 and 64 pixels, 7 x 7 for 224."""
    return max(1, math.floor(math.log2(size / 4)))


class VAE(nn.Module):
    """Convolutions that halve an image, a normal distribution over `noise` numbers, convolutions that double it again.

    It takes pixels between 0 and 1 and decodes to their logits. There is no BatchNorm.
    """

    def __init__(self, size: int, channels: int = 3, noise: int = 1024, width: int = 64) -> None:
        super().__init__()
        self.size, self.noise, self.wide = size, noise, 8 * width
        times = halvings(size)
        self.first_side = math.ceil(size / 2**times)  # of the decoder; what is too much is cut off at the end
        narrow, between = [width] if times > 1 else [], times - 2
        down = [channels, *narrow, *[2 * width] * between, self.wide]
        up = [self.wide, *[4 * width] * between, *narrow, channels]
        encoded = self.wide * (size >> times) ** 2
        self.encoder = nn.Sequential(*(layer for a, b in pairwise(down) for layer in (_half(a, b), nn.ReLU())))
        self.mean, self.log_variance = nn.Linear(encoded, noise), nn.Linear(encoded, noise)
        self.project = nn.Linear(noise, self.wide * self.first_side**2)
        self.decoder = nn.Sequential(*[layer for a, b in pairwise(up) for layer in (_twice(a, b), nn.ReLU())][:-1])

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the variance, in single precision, whatever is computed in."""
        maps = self.encoder(images).flatten(1)
        return widened(self.mean(maps)), widened(self.log_variance(maps))

    def decode(self, codes: Tensor) -> Tensor:
        """Logits of the pixels, in single precision."""
        maps = self.project(codes).view(-1, self.wide, self.first_side, self.first_side)
        return widened(self.decoder(maps)[:, :, : self.size, : self.size])


def _half(before: int, after: int) -> nn.Module:
    return AlignedConv2d(before, after, 4, stride=2, padding=1)


def _twice(before: int, after: int) -> nn.Module:
    return nn.ConvTranspose2d(before, after, 4, stride=2, padding=1)
