"""One image file of any kind -> pixels of one size, in colour or grey, and a word on what had to be converted."""

from __future__ import annotations

import errno
import functools
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from reverie.text import listing

# Pillow warns of EXIF data that are cut off, and of many pixels: neither is a person's to mend. The filter is for the
# whole process, as none belongs to a thread, and behind all others: whoever asks for these warnings gets them.
warnings.filterwarnings("ignore", module=r"PIL\.", append=True)

# Memory in blocks as large as these goes back to the system at once. What threads free in Pillow's smaller ones would
# stay with each of them.
if Image.core.get_block_size() < 64 << 20:
    Image.core.set_block_size(64 << 20)

with suppress(ImportError):  # the extra `heic`
    import pillow_heif

    pillow_heif.register_heif_opener()


class NotAnImage(Exception):
    """The file cannot be read as an image, as a whole. The text says why, to be put behind the file's name."""


Box = tuple[float, float, float, float]  # left, top, width, height
Item = TypeVar("Item")
Made = TypeVar("Made")
AHEAD = 64  # items handed to threads before the first is waited for
LARGE = 1 << 26  # pixels, 8192 x 8192; a larger picture is halved, as often as it must be, before it is scaled
AT_ONCE = 1 << 27  # pixels that all threads together decode, at 4 to 8 bytes each; a picture of more is decoded alone
NAMED = 10  # files of one problem that are named
STRIP = 1 << 20  # pixels that are converted at once
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by EXIF's orientation


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


class Room:
    """So many pixels may be decoded at the same time, by all threads together. Who wants more waits for all of it."""

    def __init__(self, pixels: int) -> None:
        self.pixels = self.free = pixels
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, pixels: int) -> Iterator[None]:
        pixels = min(pixels, self.pixels)
        with self._changed:
            self._changed.wait_for(lambda: self.free >= pixels)
            self.free -= pixels
        try:
            yield
        finally:
            with self._changed:
                self.free += pixels
                self._changed.notify_all()


ROOM = Room(AT_ONCE)


def decode(
    file: Path, size: int, margin: float = 0.0, box: Callable[[int, int], Box] | None = None, channels: int = 3
) -> tuple[np.ndarray, set[str]]:
    """Pixels as uint8 [channels, size, size], and what was converted. One channel is grey.

    They show the middle: the largest square, less the share `margin` on each side. Or they show the box that `box`
    gives for the image's width and height.
    """
    with ExitStack() as room:  # given back when nothing is left of the picture in its full size
        image, converted = _fitted(room, file, size, margin, box)
    if channels == 1:
        image = image.convert("L")
    return np.asarray(image).reshape(size, size, channels).transpose(2, 0, 1).copy(), converted


def _fitted(
    room: ExitStack, file: Path, size: int, margin: float, box: Callable[[int, int], Box] | None
) -> tuple[Image.Image, set[str]]:
    try:
        with Image.open(file) as opened:
            room.enter_context(ROOM.taken(opened.width * opened.height))
            image, converted = loaded(opened, size)
    except Exception as error:  # Pillow raises almost anything on damaged files, SyntaxError and struct.error included
        raise why_not(file, error) from None
    if box:
        left, top, wide, high = box(*image.size)
        right, bottom = min(left + wide, image.width), min(top + high, image.height)  # rounding may reach beyond
        return image.resize((size, size), Image.Resampling.BILINEAR, (left, top, right, bottom)), converted
    if margin or image.size != (size, size):
        converted.add("another size")
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR, margin)
    return image, converted


def loaded(opened: Image.Image, size: int) -> tuple[Image.Image, set[str]]:
    """In RGB and upright, and, where it is large, smaller than it was, though no smaller than `size`."""
    whole, smaller = opened.size, _reduction(*opened.size, size)
    if smaller > 1:  # only then, since pixels come out otherwise: a JPEG is never decoded at its full size
        opened.draft(opened.mode, (opened.width // smaller, opened.height // smaller))
    done = round(whole[0] / opened.width)
    return _upright(opened, smaller // done)


def _upright(opened: Image.Image, smaller: int = 1) -> tuple[Image.Image, set[str]]:
    opened.load()
    turn = TURNS.get(opened.getexif().get(ExifTags.Base.Orientation, 1))
    image, converted = _to_rgb(opened, smaller)
    return image if turn is None else image.transpose(turn), converted


def _reduction(width: int, height: int, size: int) -> int:
    """A power of two by which the sides of a large picture are divided; of others it is one."""
    by = 1
    while (width // by) * (height // by) > LARGE and min(width, height) // (2 * by) >= size:
        by *= 2
    return by


BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"II*\0", b"MM\0*")  # of what Pillow reads
FOREIGN = {b"%PDF": "PDF", b"<svg": "SVG", b"\xff\x0a": "JPEG XL", b"\0\0\0\x0cJXL ": "JPEG XL"}
HEIC = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}


def why_not(file: Path, error: Exception) -> NotAnImage:
    """What went wrong with a file: is it damaged, of another kind, or could nobody look into it?"""
    if isinstance(error, Image.DecompressionBombError):  # made to fill the memory, perhaps; nothing is decoded yet
        return NotAnImage(f"has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels; scale it down")
    if isinstance(error, MemoryError):
        return NotAnImage("does not fit into the memory; scale it down")
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # a damaged file may lead to nowhere
        return NotAnImage(f"cannot be read: {error.strerror}")
    if isinstance(error, UnidentifiedImageError):
        return NotAnImage(_unidentified(file))
    if isinstance(error, EOFError) or "truncated" in str(error).lower():
        return NotAnImage("is cut off: its end is missing")
    return NotAnImage("is damaged")


def _unidentified(file: Path) -> str:
    """Pillow does not know what it is; perhaps we do."""
    with file.open("rb") as stream:
        first = stream.read(64)
    if not first:
        return "is empty"
    if first[4:8] == b"ftyp":
        return _of_iso_media(first[8 : int.from_bytes(first[:4], "big")])
    for beginning, name in FOREIGN.items():
        if first.startswith(beginning):
            return f"is {name}, a format that is not supported; save it as JPEG or PNG"
    known = first.startswith(BEGINNINGS) or first[8:12] == b"WEBP"
    return "is damaged" if known else "is not an image that can be read"


def _of_iso_media(brands: bytes) -> str:
    """HEIC, AVIF or a video, which telephones put beside each other."""
    names = {brands[i : i + 4] for i in range(0, len(brands), 4)}
    readable = Image.registered_extensions()
    if names & {b"avif", b"avis"}:
        return (
            "is damaged" if ".avif" in readable else "is AVIF, which this Pillow does not read; save it as JPEG or PNG"
        )
    if names & HEIC:
        return "is damaged" if ".heic" in readable else "is HEIC, which is read after pip install 'reverie[heic]'"
    return "is a video, not an image"


def problem_lines(problems: Mapping[str, str], then: str) -> list[str]:
    """A line for each kind of problem: which files have it, and what is done with them (`then`: skipped)."""
    by_kind: dict[str, list[str]] = {}
    for file, problem in problems.items():
        by_kind.setdefault(problem, []).append(file)
    return [
        f"{files[0]} {problem}; {then}."
        if len(files) == 1
        else f"{len(files)} files {then}, each of which {problem}: {listing(files, NAMED, str)}."
        for problem, files in by_kind.items()
    ]


def _to_rgb(image: Image.Image, smaller: int = 1) -> tuple[Image.Image, set[str]]:
    """A loaded image in RGB, divided by `smaller` on each side; in strips, so that no second whole one is made."""
    if smaller == 1 and (image.mode == "RGB" and "transparency" not in image.info):
        return image, set()
    full = _full_scale(image) if _is_deep(image) else 0.0
    made: Image.Image | None = None
    for top, strip in _strips(image, smaller):
        part, converted = _strip_to_rgb(strip, full)
        part = part.reduce(smaller) if smaller > 1 else part
        if part.height * smaller >= image.height:
            return part, converted
        made = made or Image.new("RGB", (part.width, -(-image.height // smaller)))
        made.paste(part, (0, top // smaller))
    assert made is not None
    return made, converted


def _strips(image: Image.Image, rows: int = 1) -> Iterator[tuple[int, Image.Image]]:
    """Where each begins, and itself, of a multiple of so many rows. A small image is one strip."""
    if image.width * image.height <= STRIP:
        yield 0, image
        return
    high = max(1, STRIP // (image.width * rows)) * rows
    for top in range(0, image.height, high):
        yield top, image.crop((0, top, image.width, min(top + high, image.height)))


def _strip_to_rgb(image: Image.Image, full: float) -> tuple[Image.Image, set[str]]:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image, set()
    if full:
        values = np.clip(_deep_values(image) / full * 255, 0, 255).round()
        return Image.fromarray(values.astype(np.uint8)).convert("RGB"), {"16-bit"}
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("LA") if image.mode == "La" else image
        solid = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(solid, image.convert("RGBA")).convert("RGB"), {"transparency"}
    return image.convert("RGB"), {"grayscale" if image.mode in ("1", "L") else image.mode}


def _is_deep(image: Image.Image) -> bool:
    """Of 16-bit, 32-bit or float pixels, which Pillow itself would cut off at 255."""
    return image.mode.startswith("I") or image.mode == "F"


def _deep_values(image: Image.Image) -> np.ndarray:
    return np.nan_to_num(np.asarray(image).astype(np.float64), posinf=0.0, neginf=0.0)


def _full_scale(image: Image.Image) -> float:
    """The value that becomes white."""
    if image.mode.startswith("I;16") or image.format in ("PNG", "PPM"):  # up to 65535, however dark the image is
        return 65535.0
    top = max(_deep_values(strip).max(initial=0.0) for _, strip in _strips(image))
    return 1.0 if image.mode == "F" and top <= 1 else 255.0 if top <= 255 else 65535.0


def pixels_of(image: Image.Image) -> np.ndarray:
    """An opened image as uint8 [3, height, width], upright as a file is, and of its own size."""
    return np.asarray(_upright(image)[0]).transpose(2, 0, 1).copy()
