"""Real files of images: digits as PNG, data sets in their official layouts, and pictures read back."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from reverie.config.schema import DataConfig
from reverie.data.digits import read_digits

WNIDS = ("n01443537", "n02012849", "n03126707", "n04067472")  # in sorted order
WORDS = ("goldfish, Carassius auratus", "crane", "crane", "reel")


def write_digits(root: Path, digits: Iterable[int], images: int = 1000, part: str = "train") -> Path:
    """Real handwritten digits as PNG files, one folder a digit: at most so many of each."""
    dataset = read_digits(DataConfig())
    found = dataset.train if part == "train" else dataset.test
    for digit in digits:
        folder = root / str(digit)
        folder.mkdir(parents=True)
        for number, pixels in enumerate(found.pixels[found.labels == digit][:images]):
            Image.fromarray(pixels[0].numpy()).save(folder / f"{number}.png")
    return root


def write_jpeg(file: Path, label: int, number: int, width: int, height: int, mode: str = "RGB") -> None:
    """Noise in a colour of the class."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng([label, number]).integers(0, 60, (height, width, 3), dtype=np.uint8)
    pixels += np.array([(180, 0, 0), (0, 180, 0), (0, 0, 180), (180, 180, 0)][label], np.uint8)
    Image.fromarray(pixels).convert(mode).save(file)


def write_tiny_imagenet(root: Path, layout: str = "official") -> Path:
    """Layouts of val/: `official`, or rearranged by class as `by class` or `by class, images`."""
    folder = root / "tiny-imagenet-200"
    annotations, number = [], 0
    for label, wnid in enumerate(WNIDS):
        for i in range(4):
            write_jpeg(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", label, i, 64, 64)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("not an image")
        for i in range(3):
            below = {"official": "images", "by class": wnid, "by class, images": f"{wnid}/images"}[layout]
            write_jpeg(folder / "val" / below / f"val_{number}.JPEG", label, 10 + i, 64, 64)
            annotations.append(f"val_{number}.JPEG\t{wnid}\t0\t32\t44\t62\n")
            number += 1
    (folder / "val" / "val_annotations.txt").write_text("".join(annotations))
    (folder / "wnids.txt").write_text("\n".join(reversed(WNIDS)))
    lines = [f"{wnid}\t{words}\n" for wnid, words in zip(WNIDS, WORDS, strict=True)]
    (folder / "words.txt").write_text("".join([*lines, "n00001740\tentity\n"]))
    return folder


def write_imagenet(root: Path, per_class: int = 6) -> Path:
    folder = root / "imagenet"
    for label, wnid in enumerate(WNIDS):
        for i in range(per_class):
            write_jpeg(folder / "train" / wnid / f"{wnid}_{i}.JPEG", label, i, 40 + 8 * i, 48)
        for i in range(2):
            write_jpeg(folder / "val" / wnid / f"ILSVRC2012_val_{label}{i}.JPEG", label, 10 + i, 64, 48)
    return folder


def write_cifar100(root: Path, per_class: int = 2) -> None:
    """Small files of the official layout, as pickles."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        labels = list(range(100)) * per_class
        data = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        content = {b"data": data, b"fine_labels": labels, b"coarse_labels": labels, b"filenames": [b"x"] * len(labels)}
        (folder / part).write_bytes(pickle.dumps(content, protocol=3))
    names = [f"class {i}".encode() for i in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": names}, protocol=3))


def opened(content: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(content))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))
