"""Data sets by name: where each is found, how it is read. Nothing here downloads; `download.py` does, when asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reverie.config.schema import DataConfig
from reverie.data.cifar import read_cifar10, read_cifar100
from reverie.data.digits import read_digits
from reverie.data.folder import Progress, find_files, read_folder
from reverie.data.imagenet import Choose, read_imagenet, read_tiny_imagenet
from reverie.data.images import Dataset
from reverie.errors import UserError, explaining
from reverie.text import did_you_mean


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


@explaining("read", "Change its permissions, or choose another `data`.")
def locate(name: str, root: Path) -> Path:
    """The folder with the official files of `name`, at or under `root`."""
    archive = ARCHIVES[name]
    for folder in (root / archive.folder, root):
        if all((folder / file).is_file() for file in archive.files) and all(
            (folder / inner).is_dir() for inner in archive.folders
        ):
            return folder
    how = (
        f"`download_dataset({name!r}, {str(root)!r})` downloads it ({archive.megabytes} MB from {archive.url})"
        if archive.md5
        else f"Get it from {archive.url} (an account is needed), and unpack it so that {root / archive.folder} holds "
        "train/WNID/*.JPEG and val/WNID/*.JPEG (docs/data.md)"
    )
    raise UserError(
        f"{archive.title} is not under {root}: {archive.folder}/{archive.parts[0]} is missing.\n"
        f"{how}; or let `data` be its folder."
    )


Reader = Callable[[DataConfig, Path, Progress | None, Choose | None], Dataset]


@dataclass(frozen=True)
class NamedSource:
    """A data set that `data.source` can name."""

    about: str
    read: Reader


SOURCES = {
    "digits": NamedSource(
        "handwritten digits, 10 classes, 8×8, embedded (scikit-learn)",
        lambda config, root, progress, choose: read_digits(config),
    ),
    "cifar10": NamedSource(
        "CIFAR-10, 10 classes, 32×32, 60,000 images",
        lambda config, root, progress, choose: read_cifar10(locate("cifar10", root), config),
    ),
    "cifar100": NamedSource(
        "CIFAR-100, 100 classes, 32×32, 60,000 images",
        lambda config, root, progress, choose: read_cifar100(locate("cifar100", root), config),
    ),
    "tinyimagenet": NamedSource(
        "Tiny-ImageNet, 200 classes, 64×64, 110,000 images",
        lambda config, root, progress, choose: read_tiny_imagenet(locate("tinyimagenet", root), config, progress),
    ),
    "imagenet": NamedSource(
        "ImageNet (ILSVRC2012), 1,000 classes, 224×224, 1,331,167 images, streamed",
        lambda config, root, progress, choose: read_imagenet(locate("imagenet", root), config, progress, choose),
    ),
    "folder": NamedSource(
        "any folder of images: train/CLASS/* and test/CLASS/*, or CLASS/*",
        lambda config, root, progress, choose: read_folder(
            root, size=config.size or 64, holdout=config.holdout, storage=config.storage, progress=progress
        ),
    ),
}


def read_dataset(
    config: DataConfig, root: Path, progress: Progress | None = None, choose: Choose | None = None
) -> Dataset:
    """The data set that `config` names, from under `root`; `choose` says which classes will be needed."""
    if config.source not in SOURCES:
        hint = did_you_mean(config.source, SOURCES)
        raise UserError(f"data.source {config.source!r} is unknown.{hint} `list_datasets()` names what there is.")
    return SOURCES[config.source].read(config, root, progress, choose)


def refuse_missing(config: DataConfig, root: Path) -> None:
    """A data set that is not there, without reading it."""
    if config.source in ARCHIVES:
        locate(config.source, root)
    elif config.source == "folder":
        find_files(root)
