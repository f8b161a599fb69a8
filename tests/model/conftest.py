"""Models that are made once. Nothing in them is to be changed: a test that changes a folder makes a copy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reverie.errors import Interrupted
from reverie.learner.task_learner import TaskLearner
from reverie.model.folder import save_model
from reverie.model.saved import SavedModel
from reverie.runs.configure import load_dataset, make_stream
from tests.support.experiments import StopAt, tiny_config
from tests.support.models import awkward_model, extended


@pytest.fixture
def no_command_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program of one's own: a command that a test before ran in this process has its log on stdout."""
    monkeypatch.setattr(logging.getLogger("reverie"), "handlers", [])


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they lie."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="session")
def photo_folder(photo_model: SavedModel, made: Path) -> Path:
    """`photo_model` as a folder, with a threshold of its own."""
    save_model(replace(photo_model, rejection=0.6), made / "photos")
    return made / "photos"


@pytest.fixture(scope="session")
def awkward_folder(made: Path) -> Path:
    """`awkward_model` as a folder: classes with awkward names, and every file that there can be."""
    save_model(awkward_model(), made / "awkward")
    return made / "awkward"


@pytest.fixture(scope="session")
def digits_folder(made: Path) -> Path:
    """The first task of a run, as a folder without a report."""
    stream = make_stream(tiny_config("base"), load_dataset(tiny_config("base")))
    learner = TaskLearner.for_stream(tiny_config("base", "train.epochs=1"), stream, "cpu")
    learner.learn(stream[0])
    save_model(learner, made / "digits")
    return made / "digits"


@pytest.fixture(scope="session")
def second_model(world: Path, made: Path) -> Path:
    """The old model of the `world` with `second` learned onto it, in one go."""
    extended(world, "second", made / "second")
    return made / "second"


@pytest.fixture(scope="session")
def stopped_jobs(world: Path, made: Path) -> Callable[[str, int], Path]:
    """Jobs for `second`, interrupted after a step of a phase, with a checkpoint of every step: their work folders."""

    def stop(phase: str, step: int) -> Path:
        work = made / f".{phase}-{step}.learning"
        if not work.exists():
            observer = StopAt(0, phase, step)
            with pytest.raises(Interrupted):
                extended(world, "second", made / f"{phase}-{step}", observer=observer, checkpoint_seconds=0)
        return work

    return stop
