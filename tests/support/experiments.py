"""Small real runs: what they are made with, stopped with, and compared by."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from reverie.config.schema import Config
from reverie.data.images import Dataset, MemoryImages
from reverie.engine.observer import Observer
from reverie.errors import Interrupted
from reverie.learner.events import EpochEnds, PhaseBegins
from reverie.learner.folder import RunFolder
from reverie.runs.configure import configure, load_dataset
from reverie.runs.result import Result
from reverie.runs.run import run

CPU = torch.device("cpu")
# digits, five tasks of two: seconds, not minutes. The networks are the real ones.
TINY = ["data.size=8", "augment.crop=1", "train.epochs=2", "train.batch_size=16", "dream.steps=6", "dream.width=8"]
OWN_SETTINGS = {
    "dgr": ("stream.take=3", "method.width=2", "method.noise=8"),
    "r-dfcil": ("stream.take=3", "method.refinement=0.5"),  # two phases of an epoch
    "lucid": ("stream.take=3", "method.refinement=0.5"),
    "lwf-coreset": ("stream.take=4", "coreset.size=40", "train.epochs=1"),
    "e2e": ("stream.take=4", "coreset.size=40", "train.epochs=1"),
    "bic": ("stream.take=4", "coreset.size=40"),
}


def tiny_config(method: str = "abd", *settings: str, seed: int = 0, recipe: str = "paper") -> Config:
    """A configuration whose run takes seconds."""
    return configure("digits-5", method, seed=seed, recipe=recipe, settings=[*TINY, *settings])


def method_config(method: str, recipe: str = "paper") -> Config:
    """The same with three tasks or four, in which a method goes through all of its phases."""
    return tiny_config(method, *OWN_SETTINGS.get(method, ("stream.take=3",)), recipe=recipe)


@cache
def few_digits(size: int | None = 8) -> Dataset:
    """Of each digit the first 48 training and 12 test images: a task of two is learned in six steps an epoch."""
    digits = load_dataset(tiny_config("base", f"data.size={size}"))
    return replace(digits, train=_first(digits.train, 48), test=_first(digits.test, 12))


def _first(images: MemoryImages, count: int) -> MemoryImages:
    rows = [(images.labels == label).nonzero().flatten()[:count] for label in range(10)]
    return images.select(torch.cat(rows))


def quick_run(config: Config, folder: Path, **options: Any) -> Result:
    """A run on a few digits, for tests to which it does not matter how well they are learned."""
    return run(config, folder, dataset=few_digits(config.data.size), **options)


class StopAt(Observer):
    """Stops the run after the n-th step of a phase of a task, as a signal would."""

    def __init__(self, task: int, phase: str, step: int) -> None:
        self.where, self.now, self.step = (task, phase), (0, ""), step

    def task_begins(self, index, count):
        self.now = (index + 1, "")

    def phase_begins(self, phase, done):
        self.now = (self.now[0], phase.name)

    def step_ends(self, done, snapshot):
        if self.now == self.where and done == self.step:
            raise Interrupted


class CtrlC(StopAt):
    """Somebody presses Ctrl-C in time for the run to stop, with a checkpoint, after that step."""

    def phase_begins(self, phase, done):
        super().phase_begins(phase, done)
        self._press_before_the_last(done)

    def step_ends(self, done, snapshot):
        self._press_before_the_last(done)

    def _press_before_the_last(self, done):
        if self.now == self.where and done == self.step - 1:
            signal.raise_signal(signal.SIGINT)


class StopBeforeTask(Observer):
    """Stops the run when a task, counted from 0, would begin."""

    def __init__(self, index):
        self.index = index

    def task_begins(self, index, count):
        if index == self.index:
            raise Interrupted


class CoresetWatch(Observer):
    """Remembers what was kept whenever a phase began, by task and number of the phase."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, int], Any] = {}
        self._task = 0

    def task_begins(self, index, count):
        self._task = index

    def phase_ready(self, number, state):
        self.kept[self._task, number] = state()["method"].get("coreset")


def figures_of(result: Result) -> dict[str, Any]:
    """What two runs of the same computation have in common."""
    keys = ("metrics", "accuracy_matrix", "class_order", "upper_bound", "data_fingerprint", "config")
    return {key: getattr(result, key) for key in keys} | {"ledger": undated(result)}


def undated(result: Result) -> list[Any]:
    """Its ledger, without the time of day."""
    return [entry.replace(date=None) for entry in result.ledger]


def weights_of(folder: Path) -> dict[str, Tensor]:
    """Of the final model of a run."""
    return load_file(folder / "model" / "model.safetensors")


def losses_of(folder: Path) -> list[tuple[Any, ...]]:
    """Of every epoch, as the events tell."""
    events = RunFolder(folder).events.read()
    return [(e.task, e.phase, e.epoch, e.losses) for e in events if isinstance(e, EpochEnds)]


def beginnings_of(folder: Path) -> list[tuple[int, str, int]]:
    """Of every phase, as the events tell: task, phase, and the step at which it went on."""
    events = RunFolder(folder).events.read()
    return [(e.task, e.phase, e.done) for e in events if isinstance(e, PhaseBegins)]


def assert_same_run(a: Path, b: Path) -> None:
    """The same weights, losses and predictions, to the last bit."""
    assert weights_of(a).keys() == weights_of(b).keys()
    for name, value in weights_of(a).items():
        assert torch.equal(value, weights_of(b)[name]), name
    assert losses_of(a) == losses_of(b)
    files = sorted(file.relative_to(a) for file in (a / "tasks").glob("*/predictions.npz"))
    assert files
    for file in files:
        ours, theirs = np.load(a / file), np.load(b / file)
        assert sorted(ours) == sorted(theirs)
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours), file
