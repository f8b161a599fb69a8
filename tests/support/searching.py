"""Look for images in files: their pixels in any layout and number format, compressed or not, and their names.

Every run of `RUN` pixels that follow each other in an image is looked for at every byte of a file, and of whatever can
be unpacked from it. A run of any row, so of any patch at least that wide, is enough.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

RUN = 8
DISTINCT = 5  # values that a run must have, since runs of black are everywhere
DEEPEST = 4  # a picture in an archive in a file
MOST = 1 << 27  # bytes that are unpacked at a place
ALIKE = 0.9  # correlation of pictures that show the same
SMALL = 16  # pixels a side, at which pictures are compared

Normalisation = tuple[Sequence[float], Sequence[float]]  # mean and deviation by channel

_RANDOM = np.random.default_rng(0).integers(0, 2**63, 256, dtype=np.uint64) | np.uint64(1)
_FACTORS = {size: np.uint64(0x9E3779B97F4A7C15 + 2 * size) for size in (1, 2, 4, 8, 16, 32)}


class Search:
    """For images [channels, height, width] of uint8, and the files they are from."""

    def __init__(
        self, images: Sequence[np.ndarray], files: Sequence[Path], normalisations: Sequence[Normalisation]
    ) -> None:
        runs: dict[int, list[np.ndarray]] = {size: [] for size in (8, 16, 32, 64)}
        for image in images:
            for numbers in _formats(torch.from_numpy(image), normalisations):
                size = RUN * numbers.element_size()
                runs[size].extend(_runs(numbers, torch.from_numpy(image)))
        for file in files:
            runs[32] += [hashes for _, hashes in _windows(_as_line(_telling_bytes(file.read_bytes())), {32})]
        self.wanted = {size: _Wanted(np.concatenate(parts)) for size, parts in runs.items()}
        self.pictures = np.stack([_small(image.transpose(1, 2, 0)) for image in images])
        self.searched: dict[bytes, set[str]] = {}  # what was found, by digest
        self.names = [
            name.encode(code) for file in files for name in (file.name, file.stem) for code in ("utf-8", "utf-16-le")
        ]

    def folder(self, root: Path) -> dict[str, set[str]]:
        """What is found below a folder, by file."""
        files = (file for file in sorted(root.rglob("*")) if file.is_file() and not file.is_symlink())
        found = {}
        for file in files:
            raw = file.read_bytes()
            digest = hashlib.sha256(raw).digest()  # many files are copies of others
            if digest not in self.searched:
                self.searched[digest] = self.content(raw)
            found[str(file.relative_to(root))] = self.searched[digest]
        return {name: kinds for name, kinds in found.items() if kinds}

    def content(self, raw: bytes) -> set[str]:
        found = set()
        for layer in _layers(raw):
            if isinstance(layer, np.ndarray):
                if (self.pictures @ _small(layer) > ALIKE).any():
                    found.add("picture")
                layer = layer.tobytes()
            if any(name in layer for name in self.names):
                found.add("name")
            if any(self.wanted[size].in_any(hashes) for size, hashes in _windows(_as_line(layer), {*self.wanted})):
                found.add("pixels")
        return found


class _Wanted:
    """A set of hashes that can be asked about millions at a time."""

    def __init__(self, hashes: np.ndarray) -> None:
        self.sorted = np.sort(hashes)
        self.table = np.zeros(1 << 24, bool)
        self.table[self.sorted >> np.uint64(40)] = True

    def in_any(self, hashes: np.ndarray) -> bool:
        likely = hashes[self.table[hashes >> np.uint64(40)]]
        places = np.searchsorted(self.sorted, likely).clip(max=len(self.sorted) - 1)
        return bool((self.sorted[places] == likely).any())


def _as_line(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, np.uint8)


def _windows(raw: np.ndarray, sizes: set[int]) -> Iterator[tuple[int, np.ndarray]]:
    """By size, a hash of all bytes that follow each other in a line, so many at a time; sizes are powers of two."""
    hashes, width = _RANDOM[raw], 1
    while 2 * width <= min(max(sizes), raw.shape[-1]):
        hashes = hashes[..., :-width] * _FACTORS[width] + hashes[..., width:]
        width *= 2
        if width in sizes:
            yield width, hashes


def _formats(image: torch.Tensor, normalisations: Sequence[Normalisation]) -> Iterator[torch.Tensor]:
    """The same pixels as the numbers that programs make of them."""
    for kind in (torch.uint8, torch.int16, torch.int32, torch.int64):
        yield image.to(kind)
    unit = image.float() / 255
    for values in (image.float(), unit, *(normalise(unit, *means) for means in normalisations)):
        for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            yield values.to(kind)


def normalise(image: torch.Tensor, mean: Sequence[float], deviation: Sequence[float]) -> torch.Tensor:
    """An image between 0 and 1 as a network sees it."""
    return (image - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(deviation).view(-1, 1, 1)


def _runs(numbers: torch.Tensor, image: torch.Tensor) -> Iterator[np.ndarray]:
    """Hashes of all runs along rows, along columns, and along rows with the channels of a pixel beside each other."""
    size = numbers.element_size()
    for layout in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
        lines, pixels = (part.permute(layout).contiguous() for part in (numbers, image))
        if layout == (1, 2, 0):
            lines, pixels = lines.flatten(1), pixels.flatten(1)
        ordered = pixels.unfold(-1, RUN, 1).sort(dim=-1).values
        telling = 1 + (ordered[..., 1:] != ordered[..., :-1]).sum(dim=-1) >= DISTINCT
        for _, hashes in _windows(lines.view(torch.uint8).numpy(), {RUN * size}):
            yield hashes[..., ::size][telling.numpy()]


def _telling_bytes(raw: bytes) -> bytes:
    """The pixels of a JPEG or PNG file, as compressed: headers and ends are the same in all files."""
    first = max(raw.rfind(b"\xff\xda") + 14, raw.find(b"IDAT") + 8)
    return raw[first:-20]


def _small(picture: np.ndarray) -> np.ndarray:
    """Grey, of one size, without its mean, of length one: so that a product is a correlation."""
    grey = picture.astype(np.float64).mean(axis=2) if picture.ndim == 3 else picture.astype(np.float64)
    resized = Image.fromarray(grey.astype(np.float32)).resize((SMALL, SMALL), Image.Resampling.BOX)
    values = np.asarray(resized, np.float64).ravel()
    values -= values.mean()
    return values / max(float(np.linalg.norm(values)), 1e-9)


# --- unpacking


def _layers(raw: bytes, depth: int = 0) -> Iterator[bytes | np.ndarray]:
    """The content, and all that can be unpacked from it at any place; pictures as their pixels."""
    yield raw
    if depth == DEEPEST:
        return
    for place in re.finditer(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff", raw):
        picture = _picture(raw[place.start() :])
        if picture is not None:
            yield picture
    for packed in (*_deflated(raw), *_base64(raw)):
        yield from _layers(packed, depth + 1)


def _picture(raw: bytes) -> np.ndarray | None:
    try:
        with Image.open(io.BytesIO(raw)) as image:
            return np.asarray(image.convert("L" if image.mode == "L" else "RGB"))
    except Exception:  # not a picture after all, or one that is cut off
        return None


def _deflated(raw: bytes) -> Iterator[bytes]:
    """Members of zip archives, gzip and zlib streams; of those that are cut off, what is there."""
    for place in re.finditer(rb"PK\x03\x04", raw):
        header = raw[place.start() : place.start() + 30]
        if len(header) == 30 and int.from_bytes(header[8:10], "little") == 8:
            names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
            yield from _inflated(raw, place.start() + 30 + names, -zlib.MAX_WBITS)
    for place in re.finditer(rb"\x1f\x8b\x08", raw):
        yield from _inflated(raw, place.start(), zlib.MAX_WBITS | 16)
    for place in re.finditer(rb"\x78[\x01\x5e\x9c\xda]", raw):
        yield from _inflated(raw, place.start(), zlib.MAX_WBITS)


def _inflated(raw: bytes, first: int, window: int) -> Iterator[bytes]:
    unpacker, made, step = zlib.decompressobj(window), [], 1 << 14
    try:
        for place in range(first, len(raw), step):
            made.append(unpacker.decompress(raw[place : place + step], MOST))
            if unpacker.eof:
                break
    except zlib.error:
        pass
    content = b"".join(made)
    if len(content) > RUN:
        yield content


def _base64(raw: bytes) -> Iterator[bytes]:
    for place in re.finditer(rb"[A-Za-z0-9+/]{48,}={0,2}", raw):
        text = place[0][: len(place[0]) // 4 * 4]
        yield base64.b64decode(text)
