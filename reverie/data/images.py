"""Sets of labelled images, in memory or on disk, behind one small interface; and a data set made of two of them."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from reverie.data.decode import Box, NotAnImage, by_threads, decode
from reverie.data.draws import crop_boxes, resized_crop
from reverie.errors import UserError
from reverie.text import byte_size, plural

MOST_BYTES = 16 << 30  # of images that are enlarged in memory
log = logging.getLogger("reverie")


class Images(Protocol):
    """Labelled images of one size. `read` gives pixels as uint8 [n, channels, side, side].

    With the random numbers of `draws.draw_numbers`, one row an image, it gives resized crops.
    """

    @property
    def labels(self) -> Tensor: ...
    @property
    def shape(self) -> tuple[int, int, int]: ...
    def __len__(self) -> int: ...
    def select(self, index: Tensor) -> Images: ...
    def relabel(self, labels: Tensor) -> Images: ...
    def read(self, index: Tensor, draws: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True)
class MemoryImages:
    """Images that are decoded already, as tensors or numpy arrays.

    `pixels` are uint8 [n, channels, side, side], from 0 to 255; `labels` are whole numbers [n], the place of each
    image's class among the names.
    """

    pixels: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixels", torch.as_tensor(self.pixels))
        object.__setattr__(self, "labels", torch.as_tensor(self.labels))
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4 or len(self.pixels) != len(self.labels):
            raise ValueError("pixels must be uint8 [n, channels, height, width], with one label each")
        if self.labels.is_floating_point():
            raise ValueError("labels must be whole numbers")
        object.__setattr__(self, "labels", self.labels.long())

    def __repr__(self) -> str:
        return f"MemoryImages({plural(len(self), 'image')} of {'×'.join(map(str, self.shape))})"

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, index: Tensor) -> MemoryImages:
        return MemoryImages(self.pixels[index], self.labels[index])

    def relabel(self, labels: Tensor) -> MemoryImages:
        return MemoryImages(self.pixels, labels)

    def read(self, index: Tensor, draws: Tensor | None = None) -> Tensor:
        pixels = self.pixels[index]
        return pixels if draws is None else resized_crop(pixels, draws)

    def resized(self, size: int) -> MemoryImages:
        if self.shape[1:] == (size, size):
            return self
        taken = len(self) * self.shape[0] * size * size
        if taken > MOST_BYTES:
            raise UserError(
                f"{len(self):,} images of {size} pixels a side would take {byte_size(taken)} of memory. Choose a "
                "smaller data.size."
            )
        parts = [_scaled(part, size) for part in self.pixels.split(images_at_once(size))]
        return MemoryImages(torch.cat(parts), self.labels)


def _scaled(pixels: Tensor, size: int) -> Tensor:
    scaled = F.interpolate(pixels.float(), size=(size, size), mode="bilinear", antialias=True)
    return scaled.round().clamp(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class DiskImages:
    """Images that are decoded when they are asked for, by threads, since there are too many to hold.

    Where nobody has looked into the files before (`checked` is false), one that cannot be read is warned of by name,
    and the next of its class is shown in its place: the same one every time.
    """

    files: tuple[Path, ...]
    labels: Tensor
    size: int
    margin: float = 0.0  # a share of the image that is left off on each side, unless a crop is asked for
    checked: bool = True

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.size, self.size

    def __len__(self) -> int:
        return len(self.files)

    def select(self, index: Tensor) -> DiskImages:
        return replace(self, files=tuple(self.files[i] for i in index.tolist()), labels=self.labels[index])

    def relabel(self, labels: Tensor) -> DiskImages:
        return replace(self, labels=labels)

    def read(self, index: Tensor, draws: Tensor | None = None) -> Tensor:
        rows: Iterable[Tensor | None] = repeat(None) if draws is None else draws.split(1)
        return torch.stack([*by_threads(self._pixels, zip(index.tolist(), rows, strict=False))])

    def _pixels(self, asked: tuple[int, Tensor | None]) -> Tensor:
        i, draws = asked
        try:
            return self._decoded(i, draws)
        except NotAnImage as error:
            problem = str(error)
        if self.checked:
            raise UserError(
                f"{self.files[i]} could be read when the run began, but now {problem}. "
                "Put it back as it was; the same command then goes on."
            )
        _warn_once(self.files[i], problem)
        same = (self.labels == self.labels[i]).nonzero().flatten().tolist()
        here = same.index(i)
        for other in (*same[here + 1 :], *same[:here]):
            with suppress(NotAnImage):
                return self._decoded(other, draws)
        raise UserError(f"{self.files[i]} cannot be read, nor can any other image of its class.")

    def _decoded(self, i: int, draws: Tensor | None) -> Tensor:
        box = None if draws is None else functools.partial(_crop_box, draws)
        return torch.from_numpy(decode(self.files[i], self.size, self.margin, box)[0])


def _crop_box(draws: Tensor, width: int, height: int) -> Box:
    left, top, wide, high = crop_boxes(draws, width, height)[0].tolist()
    return left, top, wide, high


@functools.cache
def _warn_once(file: Path, problem: str) -> None:
    log.warning("%s %s; the next of its class stands in for it.", file, problem)


@dataclass(frozen=True)
class JoinedImages:
    """Several sets as one, some in memory, some on disk."""

    parts: tuple[Images, ...]
    rows: Tensor  # where each image is, the parts laid end to end
    labels: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.parts[0].shape

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, index: Tensor) -> JoinedImages:
        return JoinedImages(self.parts, self.rows[index], self.labels[index])

    def relabel(self, labels: Tensor) -> JoinedImages:
        return JoinedImages(self.parts, self.rows, labels)

    def read(self, index: Tensor, draws: Tensor | None = None) -> Tensor:
        rows, first = self.rows[index], 0
        pixels = torch.empty(len(rows), *self.shape, dtype=torch.uint8)
        for part in self.parts:
            here = (rows >= first) & (rows < first + len(part))
            if here.any():
                pixels[here] = part.read(rows[here] - first, None if draws is None else draws[here])
            first += len(part)
        return pixels


def join(*parts: Images) -> Images:
    """Several sets as one: in memory where all of them are."""
    labels = torch.cat([part.labels for part in parts])
    in_memory = [part for part in parts if isinstance(part, MemoryImages)]
    if len(in_memory) == len(parts):
        return MemoryImages(torch.cat([part.pixels for part in in_memory]), labels)
    return JoinedImages(parts, torch.arange(len(labels)), labels)


@dataclass(frozen=True)
class Dataset:
    """Training and test images with labels 0..K-1 in the order of `class_names`.

        train, test = (reverie.MemoryImages(pixels, labels) for pixels, labels in (mine, others))
        dataset = reverie.Dataset("mine", train, test, ("cat", "dog"), normalisation=None)
        reverie.run(config, dataset=dataset)

    `name` is for people. `normalisation` is mean and deviation by channel, of pixels between 0 and 1; none: taken from
    the images of the first task. `content` is a digest of the content, for sources that may not hold the pixels.
    A very large one holds images of those classes only that were asked for; the names are always all.
    """

    name: str
    train: Images
    test: Images
    class_names: tuple[str, ...]
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None = (
        None  # mean and deviation by channel, where published
    )
    content: str | None = None  # a digest of the content, from a source that may not hold the pixels

    def __repr__(self) -> str:
        images = f"{len(self.train)} training and {plural(len(self.test), 'test image')}"
        return f"Dataset({self.name!r}, {images}, {plural(len(self.class_names), 'class')})"

    def fingerprint(self) -> str:
        """Equal for equal data, wherever it lies and however it is stored."""
        content = [self.content] if self.content else [_digest(self.train), _digest(self.test)]
        parts = "\n".join([*self.class_names, *content])
        return hashlib.blake2b(parts.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _digest(images: Images) -> str:
    """Of every pixel and label."""
    pixels = images.read(torch.arange(len(images)))
    content = hashlib.blake2b(digest_size=16)
    content.update(str(tuple(pixels.shape)).encode())
    content.update(pixels.numpy().data)
    content.update(images.labels.numpy().tobytes())
    return content.hexdigest()


def images_at_once(size: int) -> int:
    """How many images go through a network together where nothing is trained: fewer where they are large."""
    return max(1, min(500, 500 * 64**2 // size**2))
