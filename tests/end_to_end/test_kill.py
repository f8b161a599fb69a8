"""Real processes, really killed: the same command goes on and ends with the very same figures, to the last bit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reverie.learner.events import PhaseBegins
from reverie.learner.folder import RunFolder
from reverie.runs.configure import configure
from reverie.runs.result import read_result
from reverie.runs.run import run
from tests.support.experiments import assert_same_run, beginnings_of

SETTINGS = [
    "data.size=8",
    "augment.crop=1",
    "stream.take=3",
    "train.epochs=4",
    "train.batch_size=16",
    "dream.steps=60",
    "dream.width=16",
]


def command(folder: Path) -> list[str]:
    words = [sys.executable, "-m", "reverie", "run", "digits-5", "--method", "abd", "--out", str(folder)]
    return [*words, "--checkpoint-every", "0.1", *(word for setting in SETTINGS for word in ("--set", setting))]


def stop_inside(folder: Path, task: int, phase: str, how: signal.Signals) -> subprocess.Popen:
    """Start the command and stop it in the middle of a phase, once it has written a checkpoint there."""
    process = subprocess.Popen(command(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    files = RunFolder(folder)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        begun = [event for event in files.events.read() if isinstance(event, PhaseBegins)]
        if begun and (begun[-1].task, begun[-1].phase) == (task, phase) and files.moving.exists():
            break
        time.sleep(0.01)
    assert process.poll() is None, f"ended before it could be stopped: {process.communicate()}"
    os.kill(process.pid, how)
    process.wait(60)
    assert not files.finished
    return process


@pytest.fixture
def untouched(tmp_path) -> Path:
    """A run that nobody stopped, nor started as a process."""
    run(configure("digits-5", "abd", settings=SETTINGS), tmp_path / "untouched")
    return tmp_path / "untouched"


def test_killed_in_training_and_in_dreaming_and_stopped_by_ctrl_c_it_ends_the_same(untouched, tmp_path):
    folder = tmp_path / "abd"
    places = [(1, "learn"), (2, "dream"), (3, "learn")]
    stop_inside(folder, *places[0], signal.SIGKILL)
    stop_inside(folder, *places[1], signal.SIGKILL)
    stopped = stop_inside(folder, *places[2], signal.SIGINT)
    assert stopped.returncode == 130
    assert "The same command goes on from here" in stopped.stderr.read()
    subprocess.run(command(folder), check=True, capture_output=True, timeout=300)
    assert_same_run(untouched, folder)
    result = read_result(folder / "result.json")
    assert result.metrics == read_result(untouched / "result.json").metrics
    assert len(result.sessions) == 4
    assert [place[:2] for place in beginnings_of(folder) if place[2]] == places
