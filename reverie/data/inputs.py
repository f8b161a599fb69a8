"""What a person hands over to be learned: a folder of class folders, a CSV file, arrays, or a torch Dataset.

All become a `Dataset` whose test images are held out, at the size that the classifier takes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from reverie.config.schema import DataConfig
from reverie.data.class_names import checked_names, names_by_label
from reverie.data.decode import LARGE, loaded, pixels_of, why_not
from reverie.data.folder import Progress, decode_files, find_files, hold_out_pictures, split_files
from reverie.data.images import Dataset, Images, MemoryImages
from reverie.errors import UserError, explaining
from reverie.system.files import resolved_path
from reverie.text import plural

LOOKED_AT = 200  # files, spread over all, from which the usual size of an image is taken


class Inputs(Protocol):
    """Labelled images of any size, not yet read."""

    source: str  # as the ledger names it
    names: tuple[str, ...]  # of the classes

    def look(self) -> tuple[int, bool]:
        """Pixels on the shorter side of the usual image, and whether images have colours."""

    def read(self, config: DataConfig, size: int, only: Collection[str], progress: Progress | None = None) -> Dataset:
        """The images of the classes `only`, in RGB."""


class FolderInputs:
    """One sub-folder of images a class, or a CSV file that names images and their classes."""

    def __init__(self, root: Path, holdout: float) -> None:
        self.root = root
        with explaining("read", "Choose another folder."):
            self.source = resolved_path(root).name
        self._train, self._test = find_files(root)
        self._holdout = holdout
        self.names = tuple(sorted(self._train))

    def look(self) -> tuple[int, bool]:
        learned = self._train
        if self._test is None:
            learned = {name: split_files(name, files, self._holdout)[0] for name, files in learned.items() if files}
        files = [file for name in self.names for file in learned.get(name, ())]
        if not files:
            alone = "is only one image of each class" if any(self._train.values()) else "are no images"
            raise UserError(f"There {alone} in {self.root}; some are learned from, and some are held out.")
        sides, colourful, problem = [], False, ""
        for file in files[:: -(-len(files) // LOOKED_AT)]:
            try:
                with Image.open(file) as image:
                    sides.append(min(image.size))
                    colourful = colourful or _has_colours(image)
            except Exception as error:  # Pillow raises almost anything; whoever reads the file will say so
                problem = f"{file} {why_not(file, error)}"
        if not sides:
            raise UserError(f"No file in {self.root} can be read as an image; the last, {problem}.")
        return int(median(sides)), colourful

    def read(self, config: DataConfig, size: int, only: Collection[str], progress: Progress | None = None) -> Dataset:
        train, test = (
            part and {name: part[name] for name in self.names if name in only} for part in (self._train, self._test)
        )
        assert train is not None
        return decode_files(
            "folder",
            self.root,
            train,
            test,
            size=size,
            holdout=self._holdout,
            storage=config.storage,
            progress=progress,
        )


class ArrayInputs:
    """Images in memory, of any size each. Those held out are chosen by a hash of their pixels."""

    def __init__(self, images: Sequence[Tensor], labels: Sequence[int], names: Sequence[str], holdout: float) -> None:
        self.source = "images in memory"
        self.names = tuple(names)
        self.images, self.labels = images, torch.as_tensor(labels, dtype=torch.long)
        self._holdout = holdout

    def look(self) -> tuple[int, bool]:
        some = [self.images[i] for i in range(0, len(self.images), -(-len(self.images) // LOOKED_AT))]
        coloured = any(len(image) == 3 and not (image == image[:1]).all() for image in some)
        return int(median(min(image.shape[1:]) for image in some)), coloured

    def read(self, config: DataConfig, size: int, only: Collection[str], progress: Progress | None = None) -> Dataset:
        names = tuple(name for name in self.names if name in only)
        parts: tuple[list[int], list[int]] = [], []
        for name in names:
            of_class = (self.labels == self.names.index(name)).nonzero().flatten().tolist()
            if len(of_class) < 2:
                raise UserError(
                    f"Class {name!r} has {plural(len(of_class), 'image')}: one to train on and one to test on."
                )
            key = {i: hashlib.blake2b(self.images[i].numpy().tobytes()).digest() for i in of_class}
            split = hold_out_pictures(of_class, key.__getitem__, key.__getitem__, self._holdout)
            for part, chosen in zip(parts, split, strict=True):
                part.extend(chosen)
        train, test = (self._resized(part, names, size) for part in parts)
        return Dataset("memory", train, test, names, None)

    def _resized(self, index: Sequence[int], names: Sequence[str], size: int) -> MemoryImages:
        labels = [names.index(self.names[self.labels[i]]) for i in index]
        return MemoryImages(fitted([self.images[i] for i in index], size), torch.tensor(labels))


def as_inputs(what: Any, names: Sequence[str] | None = None, holdout: float = 0.2) -> Inputs:
    """A folder or CSV file, `(images, labels)`, or a torch Dataset of such pairs. `names` are the classes, by label."""
    if isinstance(what, str | Path):
        if names is not None:
            raise UserError("The classes of a folder are named by its sub-folders; leave `names` out.")
        return FolderInputs(Path(what), holdout)
    return labelled_arrays(what, names, holdout)


def labelled_arrays(what: Any, names: Sequence[str] | None = None, holdout: float = 0.2) -> ArrayInputs:
    """What is in memory, or comes out of a torch Dataset."""
    if isinstance(what, tuple) and len(what) == 2:
        one_by_one = isinstance(what[0], list | tuple)  # which may be of different sizes
        images = [as_pixels(image) for image in what[0]] if one_by_one else as_pixels(what[0])
        if any(image.ndim != 3 for image in images):
            raise UserError("Images come one by one in a list, or all in one array; not batches in a list.")
        if not isinstance(what[1], Iterable):
            raise UserError(f"Labels are a list or an array, one for each image, not {what[1]!r}.")
        labels = list(what[1])
    else:
        listed = hasattr(what, "__getitem__") and hasattr(what, "__len__") and not isinstance(what, Mapping)
        pairs = [what[i] for i in range(len(what))] if listed else [what]
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            raise UserError(
                f"Labelled images are a folder, (images, labels), or a torch Dataset of such pairs, not "
                f"{type(what).__name__}."
            )
        images, labels = [as_pixels(image) for image, _ in pairs], [label for _, label in pairs]
        names = _names_of(what) if names is None else names
    names = None if names is None else names_by_label(names)
    if len(images) != len(labels):
        raise UserError(f"There are {len(images)} images, but {len(labels)} labels.")
    if not labels:
        raise UserError("There are no images.")
    if any(isinstance(label, str) for label in labels):
        if not all(isinstance(label, str) for label in labels):
            raise UserError("Labels are names, or whole numbers; these are some of both.")
        if names is not None and (strange := set(labels) - set(names)):
            raise UserError(f"The label {min(strange)!r} is none of `names`, which labels that are names do not need.")
        names = sorted(set(labels))
        labels = [names.index(label) for label in labels]
    labels = [_whole(label) for label in labels]
    every: Sequence[object] = range(max(labels) + 1) if names is None else [*names]
    if min(labels) < 0 or max(labels) >= len(every):
        raise UserError(f"Labels must be from 0 to {len(every) - 1}, one for each name, not {max(labels, key=abs)}.")
    present = sorted(set(labels))
    its = checked_names(every[label] for label in present)
    return ArrayInputs(images, [present.index(label) for label in labels], its, holdout)


def _names_of(dataset: Any) -> Sequence[str] | None:
    """The class names that a torch Dataset brings, also where it is a part of another (`Subset`)."""
    while dataset is not None:
        if (names := getattr(dataset, "classes", None)) is not None:
            return list(names)
        dataset = getattr(dataset, "dataset", None)
    return None


def _whole(label: Any) -> int:
    try:
        number = float(label)
    except (TypeError, ValueError, RuntimeError):  # a row of numbers, for one
        number = math.nan
    if number != int(number if math.isfinite(number) else 0):
        raise UserError(f"A label is a name or a whole number, not {label!r}.")
    return int(number)


def as_pixels(what: Any) -> Any:
    """One image or many as uint8, channels first: from a PIL image, or an array or tensor (uint8, or float 0..1)."""
    if isinstance(what, Image.Image):
        return torch.from_numpy(pixels_of(what))
    try:
        # What may not be written to is copied, or torch would warn of it.
        array = what if isinstance(what, Tensor) else np.require(what, requirements=("C", "W"))
        pixels = torch.as_tensor(array).detach().cpu()
    except (TypeError, ValueError):
        raise UserError(f"An image is an array, a tensor or a PIL image, not {type(what).__name__}.") from None
    if pixels.ndim not in (3, 4):
        raise UserError(f"Images have three dimensions each, not the shape {tuple(pixels.shape)}.")
    if pixels.shape[-3] not in (1, 3) and pixels.shape[-1] in (1, 3):
        pixels = pixels.movedim(-1, -3)
    if pixels.shape[-3] not in (1, 3):
        raise UserError(f"Images have one channel or three, not the shape {tuple(pixels.shape)}.")
    if pixels.is_floating_point():
        if pixels.numel() and not (pixels.min() >= 0 and pixels.max() <= 1):
            raise UserError("Images of floating-point numbers go from 0 to 1; these do not. Undo their normalisation.")
        pixels = (pixels * 255).round()
    elif pixels.dtype != torch.uint8:
        raise UserError(f"Images are uint8, or floating-point numbers from 0 to 1, not {pixels.dtype}.")
    return pixels.to(torch.uint8).contiguous()


def fitted(images: Iterable[Tensor], size: int) -> Tensor:
    """Images of any size as RGB pixels of one, as files are: the middle of each."""
    pictures = (Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).numpy()) for image in images)
    fit = (ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR) for picture in pictures)
    return torch.from_numpy(np.stack([pixels_of(picture) for picture in fit]))


def in_channels(images: Images, channels: int) -> Images:
    """RGB images as a classifier of so many channels takes them."""
    if channels == images.shape[0]:
        return images
    red, green, blue = images.read(torch.arange(len(images))).long().unbind(dim=1)
    grey = (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16  # to the bit as Pillow has it
    return MemoryImages(grey.unsqueeze(1).to(torch.uint8), images.labels)


def _has_colours(image: Image.Image) -> bool:
    image.draft("RGB", (64, 64))  # which spares a JPEG most of its decoding
    if image.width * image.height > LARGE:
        image, _ = loaded(image, size=64)
    pixels = pixels_of(image.resize((8, 8))).astype(int)
    return bool((pixels.max(axis=0) - pixels.min(axis=0)).max() > 8)
