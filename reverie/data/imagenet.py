"""Tiny-ImageNet and ImageNet, from folders of the official layout. Classes are WordNet ids, in sorted order."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from reverie.config.schema import DataConfig
from reverie.data.folder import Progress, decode_files, files_below, folders_in
from reverie.data.images import Dataset, DiskImages
from reverie.data.preprocessing import NATURAL_DEVIATION, NATURAL_MEAN
from reverie.errors import UserError, explaining

TINY_NORMALISATION = ((0.4389, 0.4114, 0.3682), (0.2402, 0.2350, 0.2268))
NORMALISATION = (NATURAL_MEAN, NATURAL_DEVIATION)
MARGIN = 1 / 16  # on each side: of 256 pixels on the short side, the 224 in the middle are seen

Choose = Callable[[int], Sequence[int]]
"""The classes that will be needed, out of so many that there are."""

log = logging.getLogger("reverie")


@explaining("read", "Change its permissions, or choose another `data`.")
def read_tiny_imagenet(folder: Path, config: DataConfig, progress: Progress | None = None) -> Dataset:
    """200 classes, 64 pixels. The official validation images are the test images."""
    listed = folder / "wnids.txt"
    wnids = sorted(
        listed.read_text().split() if listed.is_file() else [sub.name for sub in folders_in(folder / "train")]
    )
    _expect(200, wnids, folder)
    train = {wnid: _images_of(wnid, folder / "train") for wnid in wnids}
    official = folder / "val" / "images"
    if official.is_dir() and any(official.iterdir()):
        test = _annotated(official, folder / "val" / "val_annotations.txt", wnids)
    else:
        test = {wnid: _images_of(wnid, folder / "val") for wnid in wnids}
    return decode_files(
        "tinyimagenet",
        folder,
        train,
        test,
        size=config.size or 64,
        storage=config.storage,
        class_names=_class_names(wnids, folder),
        normalisation=TINY_NORMALISATION,
        progress=progress,
    )


@explaining("read", "Change its permissions, or choose another `data`.")
def read_imagenet(
    folder: Path, config: DataConfig, progress: Progress | None = None, choose: Choose | None = None
) -> Dataset:
    """1,000 classes, 224 pixels, streamed. The official validation images, by class, are the test images.

    Only the classes that `choose` names are opened, and their files are listed, not decoded. So the fingerprint is of
    the names and sizes of these files, and a damaged one is found when it is its turn (`DiskImages`).
    """
    if config.storage == "memory":
        raise UserError("ImageNet is too large for data.storage=memory; leave it at auto.")
    wnids = [sub.name for sub in folders_in(folder / "train")]
    tested = {sub.name for sub in folders_in(folder / "val")}
    if not tested:
        raise UserError(
            f"{folder / 'val'} has no sub-folders. The validation images must be sorted by class, as val/WNID/*.JPEG;\n"
            "torchvision.datasets.ImageNet does it when it unpacks the official archives (docs/data.md)."
        )
    for wnid in sorted(tested ^ {*wnids}):
        here, there = ("val", "train") if wnid in tested else ("train", "val")
        raise UserError(f"Class {wnid} of {folder} is in {here}/ but not in {there}/; each class must be in both.")
    _expect(1000, wnids, folder)
    labels = sorted(choose(len(wnids)) if choose else range(len(wnids)))
    content = hashlib.blake2b(digest_size=16)

    def part(name: str, done: int) -> DiskImages:
        found = []
        for count, label in enumerate(labels, start=1):
            for file in _images_of(wnids[label], folder / name):
                found.append((file, label))
                content.update(f"{name} {label} {file.name} {file.stat().st_size}\n".encode("utf-8", "surrogateescape"))
            if progress:
                progress(done + count, 2 * len(labels))
        files = tuple(file for file, _ in found)
        numbers = torch.tensor([label for _, label in found])
        return DiskImages(files, numbers, config.size or 224, MARGIN, checked=False)

    train, test = part("train", 0), part("val", len(labels))
    return Dataset("imagenet", train, test, _class_names(wnids, folder), NORMALISATION, content.hexdigest())


def _expect(count: int, wnids: Sequence[str], folder: Path) -> None:
    if len(wnids) != count:
        log.warning(
            "%s has %d classes, not %d: their numbers, and so their order, are not the official ones.",
            folder,
            len(wnids),
            count,
        )


def _images_of(wnid: str, part: Path) -> list[Path]:
    """The JPEG files of a class, in the order of their names: in its folder, or in one called `images` below it."""
    if not (part / wnid).is_dir():
        raise UserError(f"Class {wnid} is missing: there is no folder {part / wnid}. Unpack the data set again.")
    files = [file for file in files_below(part / wnid) if file.suffix.lower() in (".jpeg", ".jpg")]
    if not files:
        raise UserError(f"Class {wnid} has no JPEG files in {part / wnid}. Unpack the data set again.")
    return files


def _annotated(images: Path, annotations: Path, wnids: Sequence[str]) -> dict[str, list[Path]]:
    """The files of each class as a list beside them says: name and class, separated by a tab, and more."""
    if not annotations.is_file():
        raise UserError(f"{annotations} is missing: it says which class the images in {images} are of.")
    by_class: dict[str, list[Path]] = {wnid: [] for wnid in wnids}
    for line in sorted(annotations.read_text().splitlines()):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in by_class:
            raise UserError(f"{annotations} has a line without a known class: {line!r}.")
        by_class[wnid].append(images / name)
    there = {file.name for file in images.iterdir()}
    for wnid, files in by_class.items():
        missing = [file for file in files if file.name not in there]
        if missing or not files:
            what = f"{missing[0]} is missing" if missing else f"Class {wnid} has no images in {annotations}"
            raise UserError(f"{what}. Unpack the data set again.")
    return by_class


def _class_names(wnids: Sequence[str], folder: Path) -> tuple[str, ...]:
    """WordNet's first name of each class, where a file of names is there. Classes of one name get their ids added."""
    words: dict[str, str] = {}
    for file in (folder / "words.txt", folder / "LOC_synset_mapping.txt"):
        for line in file.read_text("utf-8", errors="replace").splitlines() if file.is_file() else ():
            wnid, *names = line.split(maxsplit=1)
            words[wnid] = "".join(names).split(",")[0].strip()
    first = [words.get(wnid) or wnid for wnid in wnids]
    uses = Counter(first)
    return tuple(f"{name} ({wnid})" if uses[name] > 1 else name for name, wnid in zip(first, wnids, strict=True))
