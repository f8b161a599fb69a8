"""Any folder of images as a data set: `train/CLASS/*` and `test/CLASS/*`, or `CLASS/*` split reproducibly."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from PIL import Image

from reverie.data.decode import NotAnImage, by_threads, decode, problem_lines
from reverie.data.images import Dataset, DiskImages, Images, MemoryImages
from reverie.data.listed import files_by_label, is_list
from reverie.errors import UserError, explaining
from reverie.text import listing, plural

Progress = Callable[[int, int], None]
Item = TypeVar("Item")
MEMORY_LIMIT = 4 << 30  # bytes of pixels; above, `storage: auto` leaves the images on disk
NAMED_COPIES = 3
PARTS = ("train", "test", "val")

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
    train, test = find_files(root)
    return decode_files("folder", root, train, test, size=size, holdout=holdout, storage=storage, progress=progress)


def decode_files(
    name: str,
    root: Path,
    train: dict[str, list[Path]],
    test: dict[str, list[Path]] | None,
    *,
    size: int,
    holdout: float = 0.2,
    storage: Literal["auto", "memory", "stream"] = "auto",
    class_names: tuple[str, ...] | None = None,
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """A data set of files by class, every one of them looked into. Classes are in sorted order.

    Where there are no `test` files, a share `holdout` of each class's files that can be read is held out.
    """
    names = tuple(sorted(train))
    others = test or {}
    for key in names:
        _refuse_too_few(key, root, train[key], enough=1 if test else 2)
        if test is not None:
            _refuse_too_few(key, root, test[key], enough=1)
    files = [(file, label) for label, key in enumerate(names) for file in (*train[key], *others.get(key, ()))]
    in_memory = storage == "memory" or (storage == "auto" and _fit_into_memory(files, size))
    digests, pixels = _decode_all([file for file, _ in files], size, in_memory, progress)
    content = hashlib.blake2b(digest_size=16)

    def part(which: dict[str, list[Path]], kind: str) -> Images:
        kept = [(file, label) for label, key in enumerate(names) for file in which[key] if file in digests]
        left = {label for _, label in kept}
        for label, missing in enumerate(names):
            if label not in left:
                raise UserError(f"Class {missing!r} in {root} has no {kind} image that can be read.")
        content.update(kind.encode())
        for file, label in kept:
            content.update(label.to_bytes(4, "big") + digests[file])
        return _images(kept, size, pixels if in_memory else None)

    if test is None:
        found = {key: [file for file in train[key] if file in digests] for key in names}
        for key in names:
            _refuse_too_few(key, root, found[key], enough=2, which=" that can be read")
        split = {key: split_files(key, found[key], holdout, digests) for key in names}
        train, test = ({key: both[side] for key, both in split.items()} for side in (0, 1))
        _warn_of_copies(found, digests)
    else:
        _warn_of_copies({key: [*train[key], *test[key]] for key in names}, digests)
    _warn_of_seen(train, test, digests)
    parts = part(train, "training"), part(test, "test")
    return Dataset(name, *parts, class_names or names, normalisation, content.hexdigest())


def readable(files: Sequence[tuple[Path, int]], size: int, progress: Progress | None = None) -> Images:
    """Those of the files, each with its label, that can be read; the others are warned of. There may be none."""
    in_memory = _fit_into_memory(files, size)
    digests, pixels = _decode_all([file for file, _ in files], size, in_memory, progress)
    return _images([item for item in files if item[0] in digests], size, pixels if in_memory else None)


def _fit_into_memory(files: Sequence[object], size: int) -> bool:
    return len(files) * 3 * size * size <= MEMORY_LIMIT


def _images(files: Sequence[tuple[Path, int]], size: int, pixels: dict[Path, np.ndarray] | None) -> Images:
    """With their labels: in memory where the pixels are given, otherwise on disk."""
    labels = torch.tensor([label for _, label in files], dtype=torch.long)
    if pixels is None or not files:
        return DiskImages(tuple(file for file, _ in files), labels, size)
    return MemoryImages(torch.from_numpy(np.stack([pixels[file] for file, _ in files])), labels)


@explaining("read", "Change its permissions, or choose another folder.")
def find_files(root: Path) -> tuple[dict[str, list[Path]], dict[str, list[Path]] | None]:
    """The files of each class, unread: for training and for testing, or all of them where nobody has parted them."""
    if is_list(root):
        return files_by_label(root), None
    if not root.is_dir():
        raise UserError(f"There is no folder {root}. Give a folder with one sub-folder of images a class.")
    parts = _parts(root)
    if len(parts) == 2:
        train, test = (_classes(root / part) for part in parts)
        for name in sorted(train.keys() ^ test.keys()):
            here, there = parts if name in train else parts[::-1]
            raise UserError(f"Class {name!r} of {root} is in {here}/ but not in {there}/; each class must be in both.")
        return train, test
    return _classes(root.joinpath(*parts)), None


def _parts(root: Path) -> list[str]:
    """`train` and `test` (or `val`), `train` alone, or none where the folders are classes. What is both is refused."""
    for folder in folders_in(root):
        if folder.name not in PARTS and folder.name.lower() in PARTS and _holds_classes(folder):
            raise UserError(f"{folder} holds folders: rename it to {folder.name.lower()!r}, if these are classes.")
    found = [name for name in PARTS if _holds_classes(root / name)]
    if not found:
        return []
    others = [folder.name for folder in folders_in(root) if folder.name not in found]
    if "train" not in found and not others:
        raise UserError(f"{root} has {found[0]}/ but no train/. Put training images into train/CLASS/.")
    left_out = [name for name in others if "train" in found and name in PARTS]  # images without classes
    if strange := [name for name in others if name not in left_out]:
        raise UserError(
            f"{root} has {found[0]}/, which holds folders, and {strange[0]!r} beside it. If {found[0]}/ holds the "
            f"classes, move {strange[0]!r} into it or away; if {found[0]!r} is a class, put its images right into it."
        )
    for name in (*found[2:], *left_out):
        log.warning("%s is left aside.", root / name)
    return found[:2]


def _holds_classes(folder: Path) -> bool:
    """Or is it the folder of a class by that name, which holds images? Trains are a class of CIFAR-100."""
    if not folder.is_dir() or not folders_in(folder):
        return False
    return not any(entry.is_file() and not entry.name.startswith(".") for entry in folder.iterdir())


def _classes(folder: Path) -> dict[str, list[Path]]:
    found = {sub.name: files_below(sub) for sub in class_folders(folder)}
    if not found:
        raise UserError(f"{folder} has no sub-folders. reverie expects one folder of images a class.")
    _question_depth(folder, found)
    return found


def _question_depth(folder: Path, found: Mapping[str, Sequence[Path]]) -> None:
    """A class that holds folders of images alone may be a folder of classes: then a person is one level too high."""
    pictures = {"", *Image.registered_extensions()}
    deep = {}
    for name, files in found.items():
        places = [file.relative_to(folder / name).parts for file in files if file.suffix.lower() in pictures]
        if places and all(len(parts) > 1 for parts in places):
            deep[name] = sorted({parts[0] for parts in places})
    if deep and len(found) == 1:
        ((name, inner),) = deep.items()
        raise UserError(
            f"{folder / name} is the only folder in {folder}, and holds folders alone: {listing(inner)}. If these are "
            f"the classes, give {folder / name} instead; if {name!r} is a class, put one of its images right into it."
        )
    if many := [name for name, inner in deep.items() if len(inner) > 1]:
        log.warning(
            "In %s there are folders alone (%s) in %s; they count as one class. Should each be a class, give a folder "
            "that has them side by side.",
            folder,
            listing(deep[many[0]]),
            listing(many[:1]) + (f", and so in {listing(many[1:])}" if many[1:] else ""),
        )


def _refuse_too_few(name: str, root: Path, files: Sequence[Path], enough: int, which: str = "") -> None:
    if not files:
        raise UserError(f"Class {name!r} in {root} has no images{which}. Add some, or remove the folder.")
    if len(files) < enough:
        raise UserError(
            f"Class {name!r} in {root} has a single image{which}: one to train on and one to test on are needed."
        )


def class_folders(folder: Path) -> list[Path]:
    """The folders in it. Images that lie beside them belong to no class, which is said."""
    folders, pictures = folders_in(folder), Image.registered_extensions()
    loose = [file for file in folder.iterdir() if file.suffix.lower() in pictures and file.is_file()]
    if folders and loose:
        images = plural(len(loose), "image")
        log.warning("%s holds %s beside the folders of its classes; left aside.", folder, images)
    return folders


def folders_in(folder: Path) -> list[Path]:
    entries = sorted(entry for entry in folder.iterdir() if not _hidden(entry.name))
    for link in (entry for entry in entries if entry.is_symlink()):
        if not link.exists():
            log.warning("%s is a link that leads nowhere; left out.", link)
        elif folder.resolve().is_relative_to(link.resolve()):
            raise UserError(f"{link} is a link back to {link.resolve()}, in which it lies. Remove the link.")
    return [entry for entry in entries if entry.is_dir()]


def _hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))


def files_below(folder: Path) -> list[Path]:
    """All files below it but hidden ones. A folder that may not be read is an error, not an empty one."""

    def refuse(error: OSError) -> None:
        raise error

    found = []
    for below, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not _hidden(name)]
        for link in (inner for inner in (Path(below, name) for name in (*folders, *names)) if inner.is_symlink()):
            if not link.is_file():
                log.warning("%s is a link that leads nowhere or to a folder; left out.", link)
        found += [Path(below, name) for name in names if not _hidden(name)]
    return sorted(file for file in found if file.is_file())


def split_files(
    name: str, files: Sequence[Path], share: float, digests: Mapping[Path, bytes] | None = None
) -> tuple[list[Path], list[Path]]:
    """A split by a hash of the file's name, so that it does not depend on where the folder lies or on its order.

    Where the `digests` of their pixels are given, copies of a picture are all on the side of the first of them.
    """
    key = {file: hashlib.blake2b(f"{name}/{file.name}".encode("utf-8", "surrogateescape")).digest() for file in files}
    picture = {file: digests[file] if digests else file for file in files}
    return hold_out_pictures(files, key.__getitem__, picture.__getitem__, share)


def hold_out_pictures(
    items: Sequence[Item], key: Callable[[Item], bytes], picture: Callable[[Item], Hashable], share: float
) -> tuple[list[Item], list[Item]]:
    """As `hold_out`, with all items of the same picture on one side, unless there is no other picture."""
    firsts: dict[Hashable, Item] = {}
    for item in items:
        firsts.setdefault(picture(item), item)
    if len(firsts) in (1, len(items)):
        return hold_out(items, key, share)
    held = {picture(item) for item in hold_out([*firsts.values()], key, share)[1]}
    return [item for item in items if picture(item) not in held], [item for item in items if picture(item) in held]


def _warn_of_copies(files: Mapping[str, Sequence[Path]], digests: Mapping[Path, bytes]) -> None:
    """Of pictures that are there twice as the network sees them: in two classes, or in one."""
    found: dict[bytes, list[tuple[str, Path]]] = {}
    for name, those in files.items():
        for file in those:
            if file in digests:
                found.setdefault(digests[file], []).append((name, file))
    twice = [copies for copies in found.values() if len(copies) > 1]
    torn = [copies for copies in twice if len({name for name, _ in copies}) > 1]
    if torn:
        pairs = [" and ".join(map(printable, dict(reversed(copies)).values())) for copies in torn]  # one of each class
        log.warning(
            "%s in more than one class, which contradict each other: %s. Leave each in the class that it shows.",
            "The same picture is" if len(torn) == 1 else f"{len(torn)} pictures are",
            listing(pairs, NAMED_COPIES, str),
        )
    again = [copies for copies in twice if len({name for name, _ in copies}) == 1]
    if again:
        extra = sum(len(copies) - 1 for copies in again)
        log.warning(
            "%s as another of the same class: %s, for one. Copies are never parted when images are held out.",
            "1 file shows the same picture" if extra == 1 else f"{extra} files show the same picture",
            " and ".join(printable(file) for _, file in again[0][:2]),
        )


def _warn_of_seen(
    train: Mapping[str, Sequence[Path]], test: Mapping[str, Sequence[Path]], digests: Mapping[Path, bytes]
) -> None:
    """Of held-out pictures that are learned from, too: accuracy on them says little."""
    learned = {digests[file] for files in train.values() for file in files if file in digests}
    seen = [file for files in test.values() for file in files if digests.get(file) in learned]
    if seen:
        log.warning(
            "Of the pictures held out, %s learned from, too: %s, for one. Accuracy on them is no measure.",
            "1 is" if len(seen) == 1 else f"{len(seen)} are",
            printable(seen[0]),
        )


def printable(file: Path) -> str:
    """Its name need not be text."""
    return os.fsencode(file).decode(errors="backslashreplace")


def hold_out(items: Sequence[Item], key: Callable[[Item], bytes], share: float) -> tuple[list[Item], list[Item]]:
    """Those to learn from, and a share to judge by: the first in the order of `key`. At least one of each."""
    held = set(sorted(items, key=key)[: max(1, min(len(items) - 1, round(share * len(items))))])
    return [item for item in items if item not in held], [item for item in items if item in held]


def _decode_all(
    files: Sequence[Path], size: int, keep: bool, progress: Progress | None
) -> tuple[dict[Path, bytes], dict[Path, np.ndarray]]:
    """A digest of every file that can be decoded, and its pixels if they are to be kept; the others are warned of."""
    digests: dict[Path, bytes] = {}
    pixels: dict[Path, np.ndarray] = {}
    converted: Counter[str] = Counter()
    skipped: dict[str, str] = {}

    def attempt(file: Path) -> tuple[np.ndarray, set[str]] | NotAnImage:
        try:
            return decode(file, size)
        except NotAnImage as error:
            return error

    outcomes = zip(files, by_threads(attempt, files), strict=True)
    for done, (file, outcome) in enumerate(outcomes, start=1):
        if isinstance(outcome, NotAnImage):
            skipped[printable(file)] = str(outcome)
        else:
            digests[file] = hashlib.blake2b(outcome[0].tobytes(), digest_size=16).digest()
            if keep:
                pixels[file] = outcome[0]
            converted.update(outcome[1])
        if progress:
            progress(done, len(files))
    for line in problem_lines(skipped, "skipped"):
        log.warning("%s", line)
    if converted:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(converted.items()))
        log.info("Converted to RGB, %d×%d pixels: %s (of %d images).", size, size, kinds, len(digests))
    return digests, pixels
