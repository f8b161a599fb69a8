"""What many tests need: a tiny experiment, real folders of images, double precision where figures are compared."""

from __future__ import annotations

import os

# One thread a process: two test processes share two cores, and threads that wait for each other cost ten times as much.
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded, and for the commands that tests start

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image

from reverie import runs
from reverie.config import Config
from reverie.data import sources
from reverie.data.stream import Stream

settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

# digits, five tasks of two: seconds, not minutes. The networks are the real ones.
TINY = ["data.size=8", "augment.crop=1", "train.epochs=2", "train.batch_size=16", "dream.steps=6", "dream.width=8"]


@pytest.fixture(autouse=True)
def repeatable() -> None:
    """The same random numbers whenever a test is run."""
    torch.manual_seed(0)


@pytest.fixture
def tiny() -> Callable[..., Config]:
    """A configuration whose run takes seconds."""

    def make(method: str = "abd", *settings: str, seed: int = 0, recipe: str = "paper") -> Config:
        return runs.configure("digits-5", method, seed=seed, recipe=recipe, settings=[*TINY, *settings])

    return make


@pytest.fixture
def tiny_stream(tiny: Callable[..., Config]) -> Stream:
    config = tiny("base")
    return runs.make_stream(config, sources.read(config.data, Path("data")))


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of small real image files: three classes of coloured noise, twelve each, PNG and JPEG."""
    rng = np.random.default_rng(0)
    root = tmp_path / "photos"
    for label, name in enumerate(("apple", "banana", "cherry")):
        folder = root / name
        folder.mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(0, 120, (20, 24, 3), dtype=np.uint8)
            pixels[:, :, label] += 130
            Image.fromarray(pixels).save(folder / f"{number}.{'png' if number % 2 else 'jpg'}")
    return root
