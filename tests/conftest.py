"""What many tests need: a tiny experiment, real folders of images, double precision where figures are compared."""

from __future__ import annotations

import logging
import os
import sys

# One thread a process: two test processes share two cores, and threads that wait for each other cost ten times as much.
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded, and for the commands that tests start

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image

from reverie.cli import app, output
from reverie.config.schema import Config
from reverie.data.images import MemoryImages
from reverie.data.preprocessing import Preprocessing
from reverie.data.stream import Stream, Task
from reverie.engine.device import find_device
from reverie.learner import task_learner
from reverie.learner.ledger import LedgerEntry
from reverie.learner.task_learner import TaskLearner
from reverie.model.job import learn_folder
from reverie.model.saved import SavedModel
from reverie.runs.configure import configure, load_dataset, make_stream
from reverie.runs.run import run
from tests.support.experiments import TINY, tiny_config
from tests.support.images import write_digits
from tests.support.odd_names import COMMAND, ODD

settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def repeatable() -> None:
    """The same random numbers whenever a test is run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def learners_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no device is named, also beside a GPU: figures are compared to the last bit."""
    monkeypatch.setattr(task_learner, "find_device", lambda name: find_device("cpu" if name == "auto" else name))


@pytest.fixture(autouse=True)
def short_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests train for an epoch or two on purpose: that no milestone lies within need not be said."""
    monkeypatch.setattr("reverie.runs.configure.warn_of_a_constant_rate", lambda milestones, epochs: None)


@pytest.fixture
def tiny() -> Callable[..., Config]:
    """A configuration whose run takes seconds."""
    return tiny_config


@pytest.fixture(scope="session")
def small_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four real runs of three tasks: the upper bound, ABD, and fine-tuning with two seeds. Not to be changed."""
    folder = tmp_path_factory.mktemp("made") / "small-table"
    for method, seed in (("joint", 0), ("base", 0), ("base", 1), ("abd", 0)):
        config = tiny_config(method, "stream.take=3", "train.epochs=1", seed=seed)
        run(config, folder / f"{method}-seed{seed}", device="cpu", command="reverie table")
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
    config = tiny_config("abd", "data.source=folder", "stream.split=3", "train.epochs=1", "train.batch_size=4")
    folder = place / ODD[0]
    run(config, folder, data=place / "photos", device="cpu", command=COMMAND)
    return folder


@pytest.fixture
def tiny_stream(tiny: Callable[..., Config]) -> Stream:
    config = tiny("base")
    return make_stream(config, load_dataset(config))


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


@pytest.fixture(scope="session")
def photo_model() -> SavedModel:
    """A classifier of the classes of `photos`, of which it has learned two in a first step and one in a second."""
    config = configure("digits-5", "base", settings=[*TINY, "train.epochs=12", "train.batch_size=8"])
    pixels = torch.randint(0, 120, (36, 3, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = torch.arange(36) % 3
    pixels[torch.arange(36), labels] += 130
    learner = TaskLearner.fresh(config, Preprocessing(16, (0.4,) * 3, (0.25,) * 3))
    learner.learn(Task(0, ["apple", "banana", "cherry"], 0, MemoryImages(pixels, labels)))
    ledger = [
        LedgerEntry(date="2026-01-01T00:00:00+00:00", classes=["apple", "banana"], images={"apple": 12, "banana": 12}),
        LedgerEntry(date="2026-02-02T00:00:00+00:00", classes=["cherry"], images={"cherry": 12}),
    ]
    return SavedModel(learner.classifier, config, ledger)


@pytest.fixture
def reverie(monkeypatch, tmp_path, capsys):
    """Runs the command in this process, in an empty folder: (exit code, what it printed, what it complained of)."""
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("reverie")
    monkeypatch.setattr(logger, "handlers", list(logger.handlers))  # the command logs to its own console
    monkeypatch.setattr(logger, "level", logger.level)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["reverie", *words])
        monkeypatch.setattr(output.console, "width", 200)
        with pytest.raises(SystemExit) as left:
            app.main()
            raise SystemExit(0)
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return call


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the digits 0, 1 and 2, and folders of others. Nothing in it is to be changed."""
    root = tmp_path_factory.mktemp("world")
    write_digits(root / "first", (0, 1, 2), 20)
    write_digits(root / "second", (3, 4), 20)
    write_digits(root / "mixed", (2, 5), 20)
    write_digits(root / "known", (0, 1), 20)
    learn_folder(root / "first", root / "old", settings={"train.epochs": 20}, device="cpu")
    return root
