"""One image file of any kind -> pixels of one size, in colour or grey, and a word on what had to be converted."""

from __future__ import annotations

import errno
import functools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps

# Pillow warns of EXIF data that are cut off, and of many pixels: neither is a person's to mend. The filter is for the
# whole process, as none belongs to a thread, and behind all others: whoever asks for these warnings gets them.
warnings.filterwarnings("ignore", module=r"PIL\.", append=True)


class NotAnImage(Exception):
    """The file cannot be read as an image, as a whole. The text says why, to be put behind the file's name."""


Box = tuple[float, float, float, float]  # left, top, width, height
Item = TypeVar("Item")
Made = TypeVar("Made")
AHEAD = 64  # items handed to threads before the first is waited for


def by_threads(make: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """`make(item)` for each item, in order. `make` must not use this itself.

    Only a few are begun ahead: who stops asking, with Ctrl-C for one, does not wait for all the others.
    """
    begun: deque[Future[Made]] = deque()
    try:
        for item in items:
            begun.append(_threads().submit(make, item))
            if len(begun) >= AHEAD:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """As long as the process lives."""
    return ThreadPoolExecutor(thread_name_prefix="reverie-images")


def decode(
    file: Path, size: int, margin: float = 0.0, box: Callable[[int, int], Box] | None = None, channels: int = 3
) -> tuple[np.ndarray, set[str]]:
    """Pixels as uint8 [channels, size, size], and what was converted. One channel is grey.

    They show the middle: the largest square, less the share `margin` on each side. Or they show the box that `box`
    gives for the image's width and height.
    """
    try:
        with Image.open(file) as opened:
            upright = ImageOps.exif_transpose(opened)
            upright.load()
    except Exception as error:  # Pillow raises almost anything on damaged files, SyntaxError and struct.error included
        raise why_not(error) from None
    image, converted = _to_rgb(upright)
    if box:
        left, top, wide, high = box(*image.size)
        right, bottom = min(left + wide, image.width), min(top + high, image.height)  # rounding may reach beyond
        image = image.resize((size, size), Image.Resampling.BILINEAR, (left, top, right, bottom))
    elif margin or image.size != (size, size):
        converted.add("another size")
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR, margin)
    if channels == 1:
        image = image.convert("L")
    return np.asarray(image).reshape(size, size, channels).transpose(2, 0, 1).copy(), converted


def why_not(error: Exception) -> NotAnImage:
    """What went wrong with a file: is it damaged, or could nobody look into it?"""
    if isinstance(error, Image.DecompressionBombError):  # made to fill the memory, perhaps; nothing is decoded yet
        return NotAnImage(f"has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels; scale it down")
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # a damaged file may lead to nowhere
        return NotAnImage(f"cannot be read: {error.strerror}")
    return NotAnImage("is not an image that can be read")


def _to_rgb(image: Image.Image) -> tuple[Image.Image, set[str]]:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image, set()
    if image.mode.startswith("I") or image.mode == "F":
        return _from_deep_pixels(image).convert("RGB"), {"16-bit"}
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        solid = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(solid, image.convert("RGBA")).convert("RGB"), {"transparency"}
    return image.convert("RGB"), {"grayscale" if image.mode in ("1", "L") else image.mode}


def _from_deep_pixels(image: Image.Image) -> Image.Image:
    """16-bit, 32-bit and float pixels as 8 bits. Pillow itself would cut the values off at 255."""
    values = np.nan_to_num(np.asarray(image).astype(np.float64), posinf=0.0, neginf=0.0)
    top = values.max(initial=0.0)
    deep = image.mode.startswith("I;16")  # whose values go up to 65535, however dark the image is
    full = 1.0 if image.mode == "F" and top <= 1 else 255.0 if top <= 255 and not deep else 65535.0
    return Image.fromarray(np.clip(values / full * 255, 0, 255).round().astype(np.uint8))


def pixels_of(image: Image.Image) -> np.ndarray:
    """An opened image as uint8 [3, height, width], upright as a file is, and of its own size."""
    return np.asarray(_to_rgb(ImageOps.exif_transpose(image))[0]).transpose(2, 0, 1).copy()
