"""Real processes, really killed: the same command goes on and ends with the very same figures, to the last bit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from reverie.runs.configure import configure
from reverie.runs.run import execute

SETTINGS = [
    "data.size=8",
    "augment.crop=1",
    "stream.take=3",
    "train.epochs=6",
    "train.batch_size=16",
    "dream.steps=100",
    "dream.width=16",
]


def command(method: str, folder: Path) -> list[str]:
    words = [sys.executable, "-m", "reverie", "run", "digits-5", "--method", method, "--out", str(folder)]
    return [*words, "--checkpoint-every", "0.1", *(word for setting in SETTINGS for word in ("--set", setting))]


def finish(method: str, folder: Path) -> dict:
    subprocess.run(command(method, folder), check=True, capture_output=True, timeout=300)
    return json.loads((folder / "result.json").read_text())


def stop_inside(method: str, folder: Path, task: int, phase: str, how: signal.Signals) -> subprocess.Popen:
    """Start the command and stop it in the middle of a phase, once it has written a checkpoint there."""
    process = subprocess.Popen(command(method, folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    events, moving = folder / "events.jsonl", folder / "checkpoint" / "moving.pt"
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        lines = [json.loads(line) for line in events.read_text().splitlines() if line] if events.exists() else []
        begun = [e for e in lines if e["event"] == "phase begins"]
        if begun and (begun[-1]["task"], begun[-1]["phase"]) == (task, phase) and moving.exists():
            break
        time.sleep(0.01)
    assert process.poll() is None, f"ended before it could be stopped: {process.communicate()}"
    os.kill(process.pid, how)
    process.wait(60)
    assert not (folder / "result.json").exists()
    return process


def losses(folder: Path) -> list:
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [(e["task"], e["phase"], e["epoch"], e["losses"]) for e in lines if e["event"] == "epoch"]


def assert_same(a: Path, b: Path) -> None:
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (a, b))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert losses(a) == losses(b)
    for task in ("01", "02", "03"):
        x, y = (np.load(folder / "tasks" / task / "predictions.npz") for folder in (a, b))
        assert all(np.array_equal(x[name], y[name]) for name in x)
    results = [json.loads((folder / "result.json").read_text()) for folder in (a, b)]
    assert results[0]["metrics"] == results[1]["metrics"]


@pytest.fixture
def untouched(tmp_path) -> Path:
    """A run that nobody stopped, nor started as a process."""
    execute(configure("digits-5", "abd", settings=SETTINGS), tmp_path / "untouched")
    return tmp_path / "untouched"


def test_killed_in_training_and_in_dreaming_and_stopped_by_ctrl_c_it_ends_the_same(untouched, tmp_path):
    folder = tmp_path / "abd"
    stop_inside("abd", folder, 1, "learn", signal.SIGKILL)
    stop_inside("abd", folder, 2, "dream", signal.SIGKILL)
    stopped = stop_inside("abd", folder, 3, "learn", signal.SIGINT)
    assert stopped.returncode == 130
    assert "The same command goes on from here" in stopped.stderr.read()
    result = finish("abd", folder)
    assert_same(untouched, folder)
    assert len(result["sessions"]) == 4
