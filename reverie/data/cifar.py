"""CIFAR-10 and CIFAR-100, from the official files, which are pickles; no code that they might name is run."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reverie.config.schema import DataConfig
from reverie.data.images import Dataset, MemoryImages
from reverie.errors import UserError

NORMALISATION_10 = ((0.491400, 0.482158, 0.446531), (0.247032, 0.243485, 0.261588))
NORMALISATION_100 = ((0.507075, 0.486549, 0.440918), (0.267334, 0.256438, 0.276150))


def read_cifar10(folder: Path, config: DataConfig) -> Dataset:
    train = [_images(folder / f"data_batch_{i}", b"labels") for i in range(1, 6)]
    images = MemoryImages(torch.cat([part.pixels for part in train]), torch.cat([part.labels for part in train]))
    names = _class_names(folder / "batches.meta", b"label_names")
    return _dataset("cifar10", config, images, _images(folder / "test_batch", b"labels"), names, NORMALISATION_10)


def read_cifar100(folder: Path, config: DataConfig) -> Dataset:
    train, test = (_images(folder / part, b"fine_labels") for part in ("train", "test"))
    names = _class_names(folder / "meta", b"fine_label_names")
    return _dataset("cifar100", config, train, test, names, NORMALISATION_100)


def _dataset(
    name: str,
    config: DataConfig,
    train: MemoryImages,
    test: MemoryImages,
    class_names: tuple[str, ...],
    normalisation: tuple[tuple[float, ...], tuple[float, ...]],
) -> Dataset:
    if config.size:
        train, test = train.resized(config.size), test.resized(config.size)
    return Dataset(name, train, test, class_names, normalisation)


def _images(file: Path, label_key: bytes) -> MemoryImages:
    content = read_pickle(file)
    try:
        pixels, labels = np.asarray(content[b"data"]), torch.tensor(content[label_key])
        return MemoryImages(torch.from_numpy(pixels.reshape(len(labels), 3, 32, 32).copy()), labels)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file} does not hold CIFAR images ({error}). `check_dataset` says more.") from None


def _class_names(file: Path, key: bytes) -> tuple[str, ...]:
    try:
        return tuple(name.decode() for name in read_pickle(file)[key])
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} does not hold CIFAR's class names ({error}).") from None


class _DataOnly(pickle.Unpickler):
    """Reads numbers, text and NumPy arrays; a pickle that asks for anything else, and so could run code, is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.empty(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_pickle(file: Path) -> Any:
    """The content of a data file from Python 2's days, read without running any code it might name."""
    try:
        return _DataOnly(io.BytesIO(file.read_bytes()), encoding="bytes").load()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise UserError(
            f"{file} is damaged or not a data file ({error}). `download_dataset` fetches it anew."
        ) from None
