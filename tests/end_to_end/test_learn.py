"""`reverie learn` as a person uses it: real processes, real PNG folders, old images deleted, really killed."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from reverie.cli.app import main
from reverie.model.job import learn_folder
from reverie.model.learner import load
from tests.support.images import write_digits

QUICK = ("train.epochs=15", "train.batch_size=8", "dream.steps=50", "dream.width=8")


def command(*words, settings=()):
    set_all = (word for setting in settings for word in ("--set", setting))
    return [sys.executable, "-m", "reverie", "learn", *(str(word) for word in words), *set_all, "--device", "cpu"]


def learn(*words):
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def accuracy(model, test):
    """Over all classes, on images that nobody has learned from."""
    return load(model, device="cpu").score(test)


def three_steps(root, learn, parts, images, *words):
    """The same first model extended twice by each method, the images of each step deleted before the next."""

    def step(method, digits, to, *old):
        folder = write_digits(root / "photos", digits, images)
        printed = learn(folder, "--to", to, *old, "--method", method, *words)
        assert "verdict" in printed and to.name in printed
        shutil.rmtree(folder)
        return to

    models, first = {}, step("abd", parts[0], root / "first")
    for method in ("abd", "base"):
        second = step(method, parts[1], root / f"{method}-second", "--from", first)
        models[method] = step(method, parts[2], root / f"{method}-third", "--from", second)
    test = write_digits(root / "test", sorted(digit for digits in parts for digit in digits), part="test")
    return {method: accuracy(model, test) for method, model in models.items()}


@pytest.mark.long
def test_ten_digits_in_three_steps_without_any_flag(tmp_path, capsys):
    began = time.monotonic()
    right = three_steps(tmp_path, learn, [(0, 1, 2, 3), (4, 5, 6), (7, 8, 9)], 1000)
    with capsys.disabled():
        shown = ", ".join(f"{method} {100 * value:.1f} %" for method, value in right.items())
        sys.stdout.write(f"\nall ten digits, learned in three steps: {shown} ({time.monotonic() - began:.0f} s)\n")
    assert right["abd"] > 0.8
    assert right["abd"] > right["base"] + 0.35


def test_six_digits_in_three_small_steps(tmp_path, monkeypatch, capsys):
    """The same in one process, with few images."""

    def learn(*words):
        monkeypatch.setattr(sys, "argv", ["reverie", *command(*words)[3:]])
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code
        return capsys.readouterr().out

    quick = ["train.epochs=15", "dream.steps=100", "dream.width=16"]
    right = three_steps(tmp_path, learn, [(0, 1), (4, 6), (7, 9)], 40, *(f"--set={setting}" for setting in quick))
    assert right["abd"] > right["base"] + 0.25, right


def test_killed_the_same_command_goes_on_to_the_same_model(world, tmp_path):
    old, second = world / "old", world / "second"
    whole, target, work = (tmp_path / name for name in ("whole", "new", ".new.learning"))
    again = command(second, "--from", old, "--to", target, "--checkpoint-every", "0.05", settings=QUICK)
    process = subprocess.Popen(again, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and process.poll() is None:
        events = (work / "events.jsonl").read_text() if (work / "events.jsonl").exists() else ""
        if '"phase": "learn"' in events and (work / "checkpoint" / "moving.pt").exists():
            break
        time.sleep(0.01)
    assert process.poll() is None, "ended before it could be stopped"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not target.exists() and work.exists()
    process = subprocess.Popen(again, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    learn_folder(second, whole, old=old, settings=QUICK, device="cpu")
    said = process.communicate(timeout=100)[1]
    assert process.returncode == 0, said
    ours, theirs = (load_file(model / "model.safetensors") for model in (target, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not work.exists()
