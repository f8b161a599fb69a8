"""Data sets by name: where each is found, how it is read. Nothing here downloads; `download.py` does, when asked."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reverie.config.schema import DataConfig
from reverie.data import imagenet
from reverie.data.folder import Progress, find_files, read_folder
from reverie.data.imagenet import Choose
from reverie.data.images import Dataset, MemoryImages
from reverie.errors import UserError, did_you_mean, explaining

DIGITS_FILE = "sklearn/datasets/data/digits.csv.gz"
DIGITS_NORMALISATION = ((0.305,), (0.376,))
DIGITS_HOLDOUT = 0.2


@dataclass(frozen=True)
class Archive:
    """The official files of a data set, with their MD5 sums as published."""

    title: str
    folder: str
    megabytes: int
    url: str
    md5: str | None  # none: nobody can download it without an account
    files: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()  # of images
    images: int | None = None  # in these folders, all together

    @property
    def parts(self) -> tuple[str, ...]:
        """What must be there."""
        return (*self.files, *self.folders)


ARCHIVES = {
    "cifar10": Archive(
        title="CIFAR-10",
        folder="cifar-10-batches-py",
        megabytes=170,
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        files={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
    ),
    "cifar100": Archive(
        title="CIFAR-100",
        folder="cifar-100-python",
        megabytes=169,
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        files={
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
    ),
    "tinyimagenet": Archive(
        title="Tiny-ImageNet",
        folder="tiny-imagenet-200",
        megabytes=237,
        url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        md5="90528d7ca1a48142e341f4ef8d21d0de",
        folders=("train", "val"),
        images=110_000,
    ),
    "imagenet": Archive(
        title="ImageNet",
        folder="imagenet",
        megabytes=144_000,
        url="https://image-net.org/download.php",
        md5=None,
        folders=("train", "val"),
    ),
}


def read_digits(
    config: DataConfig, root: Path, progress: Progress | None = None, choose: Choose | None = None
) -> Dataset:
    """scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, one channel; they come with the library."""
    table = torch.from_numpy(_digits())
    pixels = (table[:, :-1] * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)
    images = MemoryImages(pixels, table[:, -1].long())
    images = images.resized(config.size) if config.size else images
    held = torch.zeros(len(images), dtype=torch.bool)
    for label in range(10):  # the last fifth of each class, in the order of the file: other hands than the first
        of_class = (images.labels == label).nonzero().flatten()
        held[of_class[-round(DIGITS_HOLDOUT * len(of_class)) :]] = True
    names = tuple(str(digit) for digit in range(10))
    train, test = images.select((~held).nonzero().flatten()), images.select(held.nonzero().flatten())
    return Dataset("digits", train, test, names, DIGITS_NORMALISATION)


def _digits() -> np.ndarray:
    """An image a row, its label at the end: from the library's file, since the library takes seconds to load."""
    with suppress(PackageNotFoundError, OSError):
        return np.loadtxt(str(distribution("scikit-learn").locate_file(DIGITS_FILE)), delimiter=",")
    from sklearn.datasets import load_digits

    bundle = load_digits()
    return np.column_stack([bundle.data, bundle.target])


def read_cifar10(
    config: DataConfig, root: Path, progress: Progress | None = None, choose: Choose | None = None
) -> Dataset:
    folder = locate("cifar10", root)
    train = [_cifar_file(folder / f"data_batch_{i}", b"labels") for i in range(1, 6)]
    images = MemoryImages(torch.cat([part.pixels for part in train]), torch.cat([part.labels for part in train]))
    names = _cifar_names(folder / "batches.meta", b"label_names")
    normalisation = ((0.491400, 0.482158, 0.446531), (0.247032, 0.243485, 0.261588))
    return _cifar("cifar10", config, images, _cifar_file(folder / "test_batch", b"labels"), names, normalisation)


def read_cifar100(
    config: DataConfig, root: Path, progress: Progress | None = None, choose: Choose | None = None
) -> Dataset:
    folder = locate("cifar100", root)
    train, test = (_cifar_file(folder / part, b"fine_labels") for part in ("train", "test"))
    names = _cifar_names(folder / "meta", b"fine_label_names")
    normalisation = ((0.507075, 0.486549, 0.440918), (0.267334, 0.256438, 0.276150))
    return _cifar("cifar100", config, train, test, names, normalisation)


def read_tinyimagenet(
    config: DataConfig, root: Path, progress: Progress | None = None, choose: Choose | None = None
) -> Dataset:
    return imagenet.read_tiny_imagenet(locate("tinyimagenet", root), config, progress)


def read_imagenet(
    config: DataConfig, root: Path, progress: Progress | None = None, choose: Choose | None = None
) -> Dataset:
    return imagenet.read_imagenet(locate("imagenet", root), config, progress, choose)


def read_image_folder(
    config: DataConfig, root: Path, progress: Progress | None = None, choose: Choose | None = None
) -> Dataset:
    size = config.size or 64
    return read_folder(root, size=size, holdout=config.holdout, storage=config.storage, progress=progress)


Reader = Callable[[DataConfig, Path, Progress | None, Choose | None], Dataset]
SOURCES: dict[str, tuple[str, Reader]] = {
    "digits": ("handwritten digits, 10 classes, 8×8, embedded (scikit-learn)", read_digits),
    "cifar10": ("CIFAR-10, 10 classes, 32×32, 60,000 images", read_cifar10),
    "cifar100": ("CIFAR-100, 100 classes, 32×32, 60,000 images", read_cifar100),
    "tinyimagenet": ("Tiny-ImageNet, 200 classes, 64×64, 110,000 images", read_tinyimagenet),
    "imagenet": ("ImageNet (ILSVRC2012), 1,000 classes, 224×224, 1,331,167 images, streamed", read_imagenet),
    "folder": ("any folder of images: train/CLASS/* and test/CLASS/*, or CLASS/*", read_image_folder),
}


def read(config: DataConfig, root: Path, progress: Progress | None = None, choose: Choose | None = None) -> Dataset:
    """The data set that `config` names, from under `root`; `choose` says which classes will be needed."""
    if config.source not in SOURCES:
        hint = did_you_mean(config.source, SOURCES)
        raise UserError(f"data.source {config.source!r} is unknown.{hint} `reverie data list` shows what there is.")
    return SOURCES[config.source][1](config, root, progress, choose)


def refuse_missing(config: DataConfig, root: Path) -> None:
    """A data set that is not there, without reading it."""
    if config.source in ARCHIVES:
        locate(config.source, root)
    elif config.source == "folder":
        find_files(root)


@explaining("read", "Change its permissions, or choose another --data.")
def locate(name: str, root: Path) -> Path:
    """The folder with the official files of `name`, at or under `root`."""
    archive = ARCHIVES[name]
    for folder in (root / archive.folder, root):
        if all((folder / file).is_file() for file in archive.files) and all(
            (folder / inner).is_dir() for inner in archive.folders
        ):
            return folder
    how = (
        f"`reverie data get {name} --data {root}` downloads it ({archive.megabytes} MB from {archive.url})"
        if archive.md5
        else f"Get it from {archive.url} (an account is needed), and unpack it so that {root / archive.folder} holds "
        "train/WNID/*.JPEG and val/WNID/*.JPEG (docs/data.md)"
    )
    raise UserError(
        f"{archive.title} is not under {root}: {archive.folder}/{archive.parts[0]} is missing.\n"
        f"{how}; or point --data at its folder."
    )


def _cifar(
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


def _cifar_file(file: Path, label_key: bytes) -> MemoryImages:
    content = read_pickle(file)
    try:
        pixels, labels = np.asarray(content[b"data"]), torch.tensor(content[label_key])
        return MemoryImages(torch.from_numpy(pixels.reshape(len(labels), 3, 32, 32).copy()), labels)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file} does not hold CIFAR images ({error}). `reverie data check` says more.") from None


def _cifar_names(file: Path, key: bytes) -> tuple[str, ...]:
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
            f"{file} is damaged or not a data file ({error}). `reverie data get` fetches it anew."
        ) from None
