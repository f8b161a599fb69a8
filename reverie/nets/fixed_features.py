"""Fixed features: what one layer of random filters, the same for everybody, makes of an image.

A network that learns on moves the features of old classes; these never move. The mean that a class had when its images
were there stays true, so it tells where the class has gone (`nets/transport.py`), and it answers, too
(`nets/fixed_evidence.py`). docs/lucid.md has the equations. Random features that are never trained, and class means of
them, are the idea of RanDumb (Prabhu et al., 2024).

Nothing here may ever change, not even by a little: means that models keep would mean something else.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

FILTERS, WIDTH = 256, 3  # so many, of so many pixels a side
COUNT = 8 * FILTERS  # in each quarter of the image, each filter and its negative
SIDE = 32  # pixels: larger images are shrunk to it
THRESHOLD = 1.0  # of answers, whose deviation is about one
QUIET = 0.05  # the variance of a patch, below which it counts as flat
SEED = 2021
ALIKE_CHANNELS, ALIKE_PIXELS, FLOOR = 0.92, 5.0, 0.02  # of photographs: by these, filters are whitened
TOGETHER = 4  # images, so that all they answer fits the cache of a CPU


def fixed_features(images: Tensor, filters: Tensor) -> Tensor:
    """Of normalised images [n, channels, height, width]: [n, 8 * filters], as exact as half precision has them.

    Each patch is compared with each filter, by contrast and not by brightness. What exceeds a threshold is averaged
    over each quarter of the image, and its root taken.
    """
    if images.device.type == "cpu" and not torch.compiler.is_compiling():  # which is true of an export, too
        return torch.cat([_fixed_features(some, filters) for some in images.split(TOGETHER)])
    return _fixed_features(images, filters)


def _fixed_features(images: Tensor, filters: Tensor) -> Tensor:
    with torch.autocast(images.device.type, enabled=False):
        images = images.float()
        if max(images.shape[2:]) > SIDE:
            images = F.adaptive_avg_pool2d(images, SIDE)
        patches = F.unfold(F.pad(images, (WIDTH // 2,) * 4, mode="replicate"), WIDTH)  # [n, pixels of one, patches]
        variance = patches.square().mean(dim=1, keepdim=True) - patches.mean(dim=1, keepdim=True).square()
        contrast = (variance.clamp_min(0) + QUIET).rsqrt()
        answers = F.softshrink(filters.flatten(1) @ (patches * contrast), THRESHOLD)
        over, signed = _quarters(answers.clamp_min(0), *images.shape[2:]), _quarters(answers, *images.shape[2:])
        found = torch.cat([over, over - signed], dim=1).flatten(1).clamp_min(0).sqrt()
        return found.half().float()


def _quarters(values: Tensor, height: int, width: int) -> Tensor:
    """[n, filters, patches]: means over the four quarters, which share a middle row and a middle column."""
    rows, columns = (height + 1) // 2, (width + 1) // 2
    above, below = slice(rows), slice(height - rows, height)
    left, right = slice(columns), slice(width - columns, width)
    values = values.unflatten(2, (height, width))
    sums = [values[:, :, there, beside].sum(dim=(2, 3)) for there in (above, below) for beside in (left, right)]
    return torch.stack(sums, dim=2) / (rows * columns)


@functools.cache
def make_filters(channels: int) -> Tensor:
    """[FILTERS, channels, WIDTH, WIDTH]: random directions among the patches of photographs, once these are whitened.

    Neighbouring pixels of photographs are alike, and so are their colours; what is not is worth looking at. The weights
    of a filter sum up to zero, so that it does not see brightness.
    """
    size = channels * WIDTH**2
    drawn = torch.tensor(list(_normals(FILTERS * size)), dtype=torch.double).view(FILTERS, size)
    drawn = drawn / drawn.norm(dim=1, keepdim=True)
    places = torch.cartesian_prod(*[torch.arange(WIDTH, dtype=torch.double)] * 2)
    pixels = torch.exp(-torch.cdist(places, places) / ALIKE_PIXELS)
    colours = torch.full((channels, channels), ALIKE_CHANNELS, dtype=torch.double).fill_diagonal_(1)
    values, vectors = torch.linalg.eigh(torch.kron(colours, pixels))
    whitening = vectors @ torch.diag((values + FLOOR).rsqrt()) @ vectors.T
    filters = drawn @ whitening
    return (filters - filters.mean(dim=1, keepdim=True)).float().view(FILTERS, channels, WIDTH, WIDTH)


def _normals(count: int) -> Iterator[float]:
    """Normally distributed numbers that no version of any library draws differently (splitmix64, Box and Muller)."""
    for first, second in _pairs(count):
        yield math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)


def _pairs(count: int) -> Iterator[tuple[float, float]]:
    state, mask, drawn = SEED, 2**64 - 1, []
    for _ in range(2 * count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        drawn.append(((mixed ^ (mixed >> 31)) >> 11) / 2**53)
    return zip(drawn[::2], drawn[1::2], strict=True)
