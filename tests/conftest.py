"""What many tests need: a tiny experiment, real folders of images, double precision where figures are compared."""

from __future__ import annotations

import os
import signal
import sys

# One thread a process: two test processes share two cores, and threads that wait for each other cost ten times as much.
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded, and for the commands that tests start

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image

from reverie.cli import app as cli
from reverie.config.schema import Config, DataConfig
from reverie.data import sources
from reverie.data.images import MemoryImages
from reverie.data.stream import Stream, Task
from reverie.learner.task_learner import TaskLearner
from reverie.model.acceptance import Acceptance
from reverie.model.folder import SavedModel
from reverie.model.job import learn_folder
from reverie.model.step import Wish
from reverie.nets.classifier import Preprocessing
from reverie.runs import configure as experiment
from reverie.runs import run as runs

settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

# digits, five tasks of two: seconds, not minutes. The networks are the real ones.
TINY = ["data.size=8", "augment.crop=1", "train.epochs=2", "train.batch_size=16", "dream.steps=6", "dream.width=8"]
# Names that would do harm if a page took them for markup.
ODD = ["<img src=x onerror=hacked=1>", "\"a\" & 'b' <b>", "${body} $$ {{x}}"]
COMMAND = "reverie run </script><script>hacked=1</script>"


@pytest.fixture(autouse=True)
def repeatable() -> None:
    """The same random numbers whenever a test is run."""
    torch.manual_seed(0)


@pytest.fixture
def tiny() -> Callable[..., Config]:
    """A configuration whose run takes seconds."""

    def make(method: str = "abd", *settings: str, seed: int = 0, recipe: str = "paper") -> Config:
        return experiment.configure("digits-5", method, seed=seed, recipe=recipe, settings=[*TINY, *settings])

    return make


@pytest.fixture(scope="session")
def small_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four real runs of three tasks: the upper bound, ABD, and fine-tuning with two seeds. Not to be changed."""
    folder = tmp_path_factory.mktemp("made") / "small-table"
    for method, seed in (("joint", 0), ("base", 0), ("base", 1), ("abd", 0)):
        settings = [*TINY, "stream.take=3", "train.epochs=1"]
        config = experiment.configure("digits-5", method, seed=seed, settings=settings)
        runs.execute(config, folder / f"{method}-seed{seed}", device="cpu", command="reverie table")
    return folder


@pytest.fixture(scope="session")
def odd_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose classes and folder have names that would do harm if they were taken for markup."""
    place = tmp_path_factory.mktemp("odd")
    rng = np.random.default_rng(0)
    for name in ODD:
        (place / "photos" / name).mkdir(parents=True)
        for number in range(10):
            Image.fromarray(rng.integers(0, 255, (12, 12, 3), dtype=np.uint8)).save(
                place / "photos" / name / f"{number}.png"
            )
    settings = [*TINY, "data.source=folder", "stream.split=3", "train.epochs=1", "train.batch_size=4"]
    folder = place / ODD[0]
    runs.execute(
        experiment.configure("digits-5", "abd", settings=settings),
        folder,
        data=place / "photos",
        device="cpu",
        command=COMMAND,
    )
    return folder


@pytest.fixture
def tiny_stream(tiny: Callable[..., Config]) -> Stream:
    config = tiny("base")
    return experiment.make_stream(config, sources.read(config.data, Path("data")))


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def write_digits(root: Path, digits: Iterable[int], images: int = 1000, part: str = "train") -> Path:
    """Real handwritten digits as PNG files, one folder a digit: at most so many of each."""
    dataset = sources.read_digits(DataConfig(), Path("data"))
    found = dataset.train if part == "train" else dataset.test
    for digit in digits:
        folder = root / str(digit)
        folder.mkdir(parents=True)
        for number, pixels in enumerate(found.pixels[found.labels == digit][:images]):
            Image.fromarray(pixels[0].numpy()).save(folder / f"{number}.png")
    return root


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


@pytest.fixture(scope="session")
def photo_model() -> SavedModel:
    """A classifier of the classes of `photos`, of which it has learned two in a first step and one in a second."""
    config = experiment.configure("digits-5", "base", settings=[*TINY, "train.epochs=12", "train.batch_size=8"])
    pixels = torch.randint(0, 120, (36, 3, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = torch.arange(36) % 3
    pixels[torch.arange(36), labels] += 130
    learner = TaskLearner.fresh(config, Preprocessing(16, (0.4,) * 3, (0.25,) * 3))
    learner.learn(Task(0, ["apple", "banana", "cherry"], 0, MemoryImages(pixels, labels)))
    ledger = [
        {"date": "2026-01-01T00:00:00+00:00", "classes": ["apple", "banana"], "images": {"apple": 12, "banana": 12}},
        {"date": "2026-02-02T00:00:00+00:00", "classes": ["cherry"], "images": {"cherry": 12}},
    ]
    return SavedModel(learner.classifier, config, ledger)


@contextmanager
def as_nobody() -> Iterator[None]:
    """As a user to whom something can be denied, which root is not."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def hear_ctrl_c() -> None:
    """In a new process: a shell that runs these tests in the background would have it ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def reverie(monkeypatch, tmp_path, capsys):
    """Runs the command in this process, in an empty folder: (exit code, what it printed, what it complained of)."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["reverie", *words])
        monkeypatch.setattr(cli.console, "width", 200)
        with pytest.raises(SystemExit) as left:
            cli.main()
            raise SystemExit(0)
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return call


# --- a person's own model

QUICK_STEP = ("train.epochs=2", "dream.steps=6", "dream.width=8", "train.batch_size=16")


def wish(**given: Any) -> Wish:
    return Wish(settings=QUICK_STEP, **given)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the digits 0, 1 and 2, and folders of others. Nothing in it is to be changed."""
    root = tmp_path_factory.mktemp("world")
    write_digits(root / "first", (0, 1, 2), 20)
    write_digits(root / "second", (3, 4), 20)
    write_digits(root / "mixed", (2, 5), 20)
    write_digits(root / "known", (0, 1), 20)
    learn_folder(root / "first", root / "old", wish=Wish(settings=("train.epochs=20",)), device="cpu")
    return root


def extended(world: Path, folder: str, to: Path, **given: Any) -> tuple[SavedModel, Acceptance]:
    return learn_folder(world / folder, to, world / "old", wish(**given), device="cpu")
