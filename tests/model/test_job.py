"""A job on disk: stopped anywhere it goes on to the same model; nothing of the images is in it; nothing is lost."""

import errno
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from PIL import Image

from reverie.errors import Diverged, Interrupted, UserError
from reverie.learner.checkpoint import locked
from reverie.learner.task_learner import LearnerObserver
from reverie.model import folder as model_io
from reverie.model import step as extend
from reverie.model.job import learn_folder
from reverie.model.step import Wish
from reverie.system import files as disk
from tests.conftest import QUICK_STEP, extended, wish


class StopAt(LearnerObserver):
    """As Ctrl-C does, at a step of a phase."""

    def __init__(self, phase, step):
        self.phase, self.step, self.name = phase, step, ""

    def phase_begins(self, phase, done):
        self.name = phase.name

    def step_ends(self, done, snapshot):
        if (self.name, done) == (self.phase, self.step):
            raise Interrupted


def stopped(world, to, phase, step):
    """A job that was interrupted, with a checkpoint of every step."""
    with pytest.raises(Interrupted):
        learn_folder(
            world / "second",
            to,
            world / "old",
            wish(),
            device="cpu",
            observer=StopAt(phase, step),
            checkpoint_seconds=0,
        )


@pytest.mark.parametrize(("phase", "step"), [("dream", 3), ("learn", 1)])
def test_a_stopped_job_goes_on_to_the_same_model(world, tmp_path, phase, step):
    whole, _ = extended(world, "second", tmp_path / "whole")
    stopped(world, tmp_path / "new", phase, step)
    assert not (tmp_path / "new").exists() and (tmp_path / ".new.learning" / "job.json").is_file()
    saved, _ = extended(world, "second", tmp_path / "new")
    for name, value in whole.classifier.state_dict().items():
        assert torch.equal(value, saved.classifier.state_dict()[name])
    assert saved.rejection == whole.rejection
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["new", "whole"]


@pytest.mark.parametrize("damage", [lambda raw: raw[:5000], lambda raw: disk.state_bytes({"another": 1})])
def test_a_damaged_checkpoint_costs_the_steps_of_its_phase_and_not_the_job(world, tmp_path, caplog, damage):
    whole, _ = extended(world, "second", tmp_path / "whole")
    stopped(world, tmp_path / "new", "learn", 2)
    moving = tmp_path / ".new.learning" / "checkpoint" / "moving.pt"
    moving.write_bytes(damage(moving.read_bytes()))
    saved, _ = extended(world, "second", tmp_path / "new")
    assert "moving.pt is damaged" in caplog.text and "its phase begins anew" in caplog.text
    for name, value in whole.classifier.state_dict().items():
        assert torch.equal(value, saved.classifier.state_dict()[name])


@pytest.mark.parametrize("key", ["asked", "config"])
def test_a_damaged_record_of_a_job_is_an_error_that_says_what_to_do(world, tmp_path, key):
    stopped(world, tmp_path / "new", "dream", 1)
    file = tmp_path / ".new.learning" / "job.json"
    told = json.loads(file.read_text())
    for damaged in ({name: value for name, value in told.items() if name != key}, {**told, key: 5}, []):
        file.write_text(json.dumps(damaged))
        with pytest.raises(UserError, match=r"job\.json is damaged\. Delete .*learning to begin anew"):
            extended(world, "second", tmp_path / "new")


def test_a_stopped_job_keeps_the_schedule_that_its_budget_gave(world, tmp_path, monkeypatch):
    timed = Wish(settings=("dream.width=8",), budget=1.5)
    arguments = (world / "second", tmp_path / "new", world / "old", timed)
    with pytest.raises(Interrupted):
        learn_folder(*arguments, device="cpu", observer=StopAt("learn", 1))
    stored = json.loads((tmp_path / ".new.learning" / "job.json").read_text())["config"]
    monkeypatch.setattr(extend, "within", None)  # not measured again
    saved, _ = learn_folder(*arguments, device="cpu")
    assert saved.config.as_dict() == stored


def test_another_job_for_the_same_target_is_refused_with_the_difference(world, tmp_path):
    with pytest.raises(Interrupted):
        learn_folder(
            world / "second", tmp_path / "new", world / "old", wish(), device="cpu", observer=StopAt("dream", 1)
        )
    with pytest.raises(UserError, match=r"not ended, with other values of: the images, the rule for known classes\."):
        extended(world, "mixed", tmp_path / "new", on_known_class="skip")
    with pytest.raises(UserError, match=r"other values of: the seed, the settings\. Repeat that command"):
        learn_folder(
            world / "second", tmp_path / "new", world / "old", Wish(seed=1, settings=QUICK_STEP[:1]), device="cpu"
        )
    model_io.save(tmp_path / "other", replace(model_io.load(world / "old"), rejection=0.123))
    with pytest.raises(UserError, match=r"other values of: the model to extend\."):
        learn_folder(world / "second", tmp_path / "new", tmp_path / "other", wish(), device="cpu")
    extended(world, "second", tmp_path / "new")  # the first one is still whole


def test_a_model_that_is_replaced_while_the_images_are_read_is_named_as_it_was(world, tmp_path):
    shutil.copytree(world / "old", tmp_path / "old")
    model_io.save(tmp_path / "next", replace(model_io.load(world / "old"), rejection=0.123))

    def replaced(done, total):
        if (tmp_path / "next").exists():
            (tmp_path / "old").rename(tmp_path / "before")
            (tmp_path / "next").rename(tmp_path / "old")

    saved, _ = learn_folder(
        world / "second", tmp_path / "new", tmp_path / "old", wish(), device="cpu", reading=replaced
    )
    assert saved.lineage == (model_io.digest(world / "old"),) != (model_io.digest(tmp_path / "old"),)


def test_two_processes_cannot_make_the_same_model(world, tmp_path):
    with locked(tmp_path / ".new.learning", ""), pytest.raises(UserError, match="Another process is at work"):
        extended(world, "second", tmp_path / "new")


def test_nothing_is_left_of_a_job_that_could_not_begin(world, tmp_path, monkeypatch):
    def fail(*_):
        raise UserError("no")

    monkeypatch.setattr(extend, "within", fail)
    with pytest.raises(UserError, match="no"):
        learn_folder(world / "second", tmp_path / "new", world / "old", Wish(budget=9), device="cpu")
    assert not [*tmp_path.iterdir()]


def test_there_is_no_pixel_and_no_file_name_in_the_work_folder(world, tmp_path):
    stopped(world, tmp_path / "new", "learn", 1)
    kept = b"".join(file.read_bytes() for file in (tmp_path / ".new.learning").rglob("*") if file.is_file())
    assert len(kept) > 100_000
    for file in (world / "second").rglob("*.png"):
        image = Image.open(file)
        assert image.tobytes() not in kept and image.convert("RGB").tobytes() not in kept
        assert str(file).encode() not in kept


@pytest.mark.parametrize("net", ["timm/nonesuch", "torchvision/alexnet"])
def test_a_job_that_could_not_train_one_step_stands_in_nobodys_way(world, tmp_path, net):
    wrong = Wish(settings=(f"net.name={net}", "data.size=32", "train.epochs=1"))
    with pytest.raises(UserError):
        learn_folder(world / "first", tmp_path / "new", wish=wrong, device="cpu")
    assert not [*tmp_path.iterdir()]


def test_a_job_that_was_killed_before_its_first_checkpoint_stands_in_nobodys_way(world, tmp_path):
    stopped(world, tmp_path / "new", "dream", 1)
    (tmp_path / ".new.learning" / "checkpoint" / "resting.pt").unlink()
    learn_folder(world / "second", tmp_path / "new", world / "old", wish(seed=3, method="base"), device="cpu")
    assert [entry.name for entry in tmp_path.iterdir()] == ["new"]


def test_what_another_job_left_when_it_was_killed_while_clearing_up_is_not_gone_on_from(world, tmp_path):
    stopped(world, tmp_path / "new", "learn", 1)
    (tmp_path / ".new.learning" / "job.json").unlink()
    made, _ = extended(world, "second", tmp_path / "new", seed=1)
    alone, _ = extended(world, "second", tmp_path / "alone", seed=1)
    for name, value in made.classifier.state_dict().items():
        assert torch.equal(value, alone.classifier.state_dict()[name])


KILLED = """
import os, signal, sys
from pathlib import Path
from reverie.cli import app as cli

real = Path.unlink

def unlink(file, *given, **also):
    if file.name == "job.json":
        os.kill(os.getpid(), signal.SIGKILL)
    real(file, *given, **also)

Path.unlink = unlink
cli.main()
"""


def test_killed_when_the_model_was_there_the_same_command_ends_well_and_clears_up(world, tmp_path, reverie):
    words = ["learn", str(world / "second"), "--from", str(world / "old"), "--method", "base", "--device", "cpu"]
    words += ["--set", "train.epochs=1", "--to", "new"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], cwd=tmp_path, capture_output=True, timeout=100)
    assert killed.returncode == -signal.SIGKILL and (tmp_path / "new").exists()
    made = model_io.digest(tmp_path / "new")
    for name in ("other", "cleared"):
        shutil.copytree(tmp_path / "new", tmp_path / name / "new")
        shutil.copytree(tmp_path / ".new.learning", tmp_path / name / ".new.learning")
    code, out, _ = reverie(*words, "--check", str(world / "first"))
    assert code == 0
    assert "new was whole when the command was killed" in out and "verdict: " in out
    assert "first was not asked for then, and not looked at" in out
    code, _, err = reverie(*words)
    assert code == 2 and "new exists already, and stays as it is" in err
    code, _, err = reverie(*words[:-1], "other/new", "--seed", "1")  # another command is not told that it ended well
    assert code == 2 and "new exists already, and stays as it is" in err
    (tmp_path / "cleared" / ".new.learning" / "job.json").unlink()  # killed a moment later
    code, _, err = reverie(*words[:-1], "cleared/new")
    assert code == 2 and "new exists already, and stays as it is" in err
    for place in (tmp_path, tmp_path / "other", tmp_path / "cleared"):
        assert model_io.digest(place / "new") == made and not (place / ".new.learning").exists()


def test_a_begun_job_outlasts_a_model_that_somebody_else_put_in_its_place(world, tmp_path):
    stopped(world, tmp_path / "new", "dream", 1)
    shutil.copytree(world / "old", tmp_path / "new")
    with pytest.raises(UserError, match=r"exists already.* \S*/\.new\.learning is of a job that has not ended"):
        extended(world, "second", tmp_path / "new")
    assert (tmp_path / ".new.learning" / "checkpoint" / "resting.pt").exists()


def test_a_refused_job_removes_nothing_that_is_somebody_elses(world, tmp_path):
    shutil.copytree(world / "old", tmp_path / "new")
    hidden = tmp_path / ".new.learning"
    (hidden / "checkpoint").mkdir(parents=True)
    (hidden / "notes.txt").write_text("dear to somebody")
    with pytest.raises(UserError, match=r"exists already, and stays as it is\. Choose another --to\.$"):
        extended(world, "second", tmp_path / "new")
    assert (hidden / "notes.txt").read_text() == "dear to somebody"
    (hidden / "notes.txt").unlink()
    with locked(hidden, ""), pytest.raises(UserError, match="exists already"):
        extended(world, "second", tmp_path / "new")
    assert hidden.exists()  # another process was at work there
    with pytest.raises(UserError, match="exists already"):
        extended(world, "second", tmp_path / "new")
    assert not hidden.exists()


def test_a_link_that_leads_nowhere_is_refused_before_anything_is_learned(world, tmp_path, monkeypatch):
    (tmp_path / "new").symlink_to(tmp_path / "nowhere")
    monkeypatch.setattr(extend, "plan", None)  # not even looked at
    with pytest.raises(UserError, match="/new is a link that leads nowhere"):
        extended(world, "second", tmp_path / "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["new"]


def test_a_job_that_diverged_is_given_up_so_that_it_can_be_tried_with_a_lower_rate(world, tmp_path):
    wild = Wish(method="base", settings=("train.epochs=3", "train.lr=1e30"))
    with pytest.raises(Diverged, match="no longer a number"):
        learn_folder(world / "second", tmp_path / "new", world / "old", wild, device="cpu")
    assert not [*tmp_path.iterdir()]
    extended(world, "second", tmp_path / "new", method="base")


@pytest.mark.parametrize(
    ("file", "then"), [("resting.pt", "begins anew"), ("model.safetensors", "goes on from the last checkpoint")]
)
def test_a_full_disk_names_the_model_and_costs_nothing(world, tmp_path, monkeypatch, file, then):
    real = disk.write_bytes

    def full(path, content):
        if path.name == file:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "write_bytes", full)
        with pytest.raises(UserError, match=rf"/new cannot be made: No space left on device\. Make room.* {then}\."):
            extended(world, "second", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    extended(world, "second", tmp_path / "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["new"]


def test_a_place_where_nothing_can_be_written_is_told_by_the_name_that_the_person_gave(world, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("of somebody")
    monkeypatch.setattr(extend, "plan", None)  # before an image is read
    with pytest.raises(UserError, match=r"/file/new cannot be written: Not a directory\. Make room, or choose a --to"):
        extended(world, "second", tmp_path / "file" / "new")
    assert (tmp_path / "file").read_text() == "of somebody"
