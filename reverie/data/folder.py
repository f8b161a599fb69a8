"""Any folder of images as a data set: `train/CLASS/*` and `test/CLASS/*`, or `CLASS/*` split reproducibly."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from reverie.data.decode import NotAnImage, decode
from reverie.data.images import Dataset, DiskImages, Images, MemoryImages
from reverie.errors import UserError

Progress = Callable[[int, int], None]
MEMORY_LIMIT = 4 << 30  # bytes of pixels; above, `storage: auto` leaves the images on disk
NAMED_WARNINGS = 10

log = logging.getLogger("reverie")


def read_folder(
    root: Path,
    *,
    size: int,
    holdout: float = 0.2,
    storage: Literal["auto", "memory", "stream"] = "auto",
    progress: Progress | None = None,
) -> Dataset:
    """Classes are the names of the folders, in sorted order."""
    train, test = find_files(root, holdout)
    names = tuple(sorted(train))
    files = [(file, label) for label, name in enumerate(names) for file in (*train[name], *test[name])]
    bytes_needed = len(files) * 3 * size * size
    in_memory = storage == "memory" or (storage == "auto" and bytes_needed <= MEMORY_LIMIT)
    pixels = _decode_all([file for file, _ in files], size, in_memory, progress)

    def part(which: dict[str, list[Path]], kind: str) -> Images:
        kept = [(file, label) for label, name in enumerate(names) for file in which[name] if file in pixels]
        left = {label for _, label in kept}
        for label, name in enumerate(names):
            if label not in left:
                raise UserError(f"Class {name!r} in {root} has no {kind} image that can be read.")
        labels = torch.tensor([label for _, label in kept])
        if in_memory:
            return MemoryImages(torch.from_numpy(np.stack([pixels[file] for file, _ in kept])), labels)
        return DiskImages(tuple(file for file, _ in kept), labels, size)

    return Dataset("folder", part(train, "training"), part(test, "test"), names, None)


def find_files(root: Path, holdout: float = 0.2) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """The files of each class for training and for testing, unread."""
    if not root.is_dir():
        raise UserError(f"There is no folder {root}. Point --data at a folder with one sub-folder of images a class.")
    test_root = next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
    if (root / "train").is_dir() and test_root:
        train, test = _classes(root / "train"), _classes(test_root)
        for name in sorted(train.keys() ^ test.keys()):
            here, there = ("train", test_root.name) if name in train else (test_root.name, "train")
            raise UserError(f"Class {name!r} of {root} is in {here}/ but not in {there}/; each class must be in both.")
        return train, test
    train, test = {}, {}
    for name, files in _classes(root / "train" if (root / "train").is_dir() else root).items():
        if len(files) < 2:
            raise UserError(
                f"Class {name!r} in {root} has a single image: one to train on and one to test on are needed."
            )
        train[name], test[name] = _hold_out(name, files, holdout)
    return train, test


def _classes(folder: Path) -> dict[str, list[Path]]:
    try:
        folders = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        found = {
            sub.name: sorted(file for file in sub.rglob("*") if file.is_file() and not file.name.startswith("."))
            for sub in folders
        }
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be read: {error.strerror}.") from None
    if not found:
        raise UserError(f"{folder} has no sub-folders. reverie expects one folder of images a class.")
    for name, files in found.items():
        if not files:
            raise UserError(f"Class {name!r} in {folder} has no images. Add some, or remove the folder.")
    return found


def _hold_out(name: str, files: Sequence[Path], share: float) -> tuple[list[Path], list[Path]]:
    """A split by a hash of the file's name, so that it does not depend on where the folder lies or on its order."""
    key = {file: hashlib.blake2b(f"{name}/{file.name}".encode()).digest() for file in files}
    held = set(sorted(files, key=key.__getitem__)[: max(1, min(len(files) - 1, round(share * len(files))))])
    return [file for file in files if file not in held], [file for file in files if file in held]


def _decode_all(files: Sequence[Path], size: int, keep: bool, progress: Progress | None) -> dict[Path, np.ndarray]:
    """Every file that can be decoded, with its pixels (or a placeholder); the others are named in a warning."""
    pixels: dict[Path, np.ndarray] = {}
    converted: Counter[str] = Counter()
    skipped: list[str] = []
    placeholder = np.empty(0, np.uint8)

    def attempt(file: Path) -> tuple[np.ndarray, set[str]] | NotAnImage:
        try:
            return decode(file, size)
        except NotAnImage as error:
            return error

    with ThreadPoolExecutor() as threads:
        for done, (file, outcome) in enumerate(zip(files, threads.map(attempt, files), strict=True), start=1):
            if isinstance(outcome, NotAnImage):
                skipped.append(str(file))
            else:
                pixels[file] = outcome[0] if keep else placeholder
                converted.update(outcome[1])
            if progress:
                progress(done, len(files))
    for name in skipped[:NAMED_WARNINGS]:
        log.warning("%s is not an image that can be read; skipped.", name)
    if len(skipped) > NAMED_WARNINGS:
        log.warning("… and %d more files that cannot be read.", len(skipped) - NAMED_WARNINGS)
    if converted:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(converted.items()))
        log.info("Converted to RGB, %d×%d pixels: %s (of %d images).", size, size, kinds, len(pixels))
    return pixels
