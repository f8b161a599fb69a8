"""scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, one channel; they come with the library."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution

import numpy as np
import torch

from reverie.config.schema import DataConfig
from reverie.data.images import Dataset, MemoryImages

FILE = "sklearn/datasets/data/digits.csv.gz"
NORMALISATION = ((0.305,), (0.376,))
HOLDOUT = 0.2


def read_digits(config: DataConfig) -> Dataset:
    table = torch.from_numpy(_table())
    pixels = (table[:, :-1] * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)
    images = MemoryImages(pixels, table[:, -1].long())
    images = images.resized(config.size) if config.size else images
    held = torch.zeros(len(images), dtype=torch.bool)
    for label in range(10):  # the last fifth of each class, in the order of the file: other hands than the first
        of_class = (images.labels == label).nonzero().flatten()
        held[of_class[-round(HOLDOUT * len(of_class)) :]] = True
    names = tuple(str(digit) for digit in range(10))
    train, test = images.select((~held).nonzero().flatten()), images.select(held.nonzero().flatten())
    return Dataset("digits", train, test, names, NORMALISATION)


def _table() -> np.ndarray:
    """An image a row, its label at the end: from the library's file, since the library takes seconds to load."""
    with suppress(PackageNotFoundError, OSError):
        return np.loadtxt(str(distribution("scikit-learn").locate_file(FILE)), delimiter=",")
    from sklearn.datasets import load_digits

    bundle = load_digits()
    return np.column_stack([bundle.data, bundle.target])
