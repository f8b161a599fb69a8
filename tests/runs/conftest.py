"""Runs that are made once, and copied by the tests that change them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reverie.config.schema import Config
from reverie.errors import Interrupted
from reverie.runs.result import Result
from tests.support.experiments import CoresetWatch, CtrlC, method_config, quick_run


@dataclass(frozen=True)
class Whole:
    """A run that nobody stopped. Nothing in its folder is to be changed."""

    folder: Path
    result: Result
    coresets: dict[tuple[int, int], Any]  # as `CoresetWatch` has them


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Config], Whole]:
    """The run of a configuration on a few digits, made once."""
    made: dict[str, Whole] = {}

    def get(config: Config) -> Whole:
        if str(config) not in made:
            folder, watch = tmp_path_factory.mktemp("whole") / "run", CoresetWatch()
            result = quick_run(config, folder, observer=watch, command="reverie run x")
            made[str(config)] = Whole(folder, result, watch.kept)
        return made[str(config)]

    return get


@pytest.fixture
def finished(whole: Callable[[Config], Whole], tmp_path: Path) -> Callable[[Config], Result]:
    """A copy of it, which may be changed: `run`, with its upper bounds beside it where it has any."""

    def copy(config: Config) -> Result:
        found = whole(config)
        shutil.copytree(found.folder.parent, tmp_path, dirs_exist_ok=True)
        return found.result

    return copy


@pytest.fixture(scope="session")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ABD's run, stopped inside the last phase of its last task with a checkpoint. Not to be changed."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Interrupted):
        quick_run(method_config("abd"), folder, observer=CtrlC(3, "learn", 7), command="stopped")
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A copy of it, which may be changed."""
    return shutil.copytree(stopped_once, tmp_path / "run")
