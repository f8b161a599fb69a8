"""A job on disk: stopped anywhere it goes on to the same model; nothing of the images is in it; nothing is lost."""

import errno
import io
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from PIL import Image
from rich.console import Console

from reverie.engine.observer import Observer
from reverie.errors import Diverged, Interrupted, UserError
from reverie.methods import BUILT_IN
from reverie.methods.base import Keeps, Method
from reverie.model import folder as model_folder
from reverie.model import job
from reverie.model.folder import load_model, model_digest, save_model
from reverie.model.job import learn_folder
from reverie.nets import OWN_BACKBONES
from reverie.nets.backbone import Backbone
from reverie.system import files
from reverie.system.files import state_bytes
from reverie.system.locks import locked_folder
from tests.support.experiments import StopAt
from tests.support.models import QUICK_STEP, assert_same_weights, extended


@pytest.fixture
def stopped(stopped_jobs, tmp_path):
    """Puts a job for `second` beside the target `new` that was interrupted after a step of a phase: its folder."""

    def put(phase, step):
        return shutil.copytree(stopped_jobs(phase, step), tmp_path / ".new.learning")

    return put


# --- going on


@pytest.mark.parametrize(("phase", "step"), [("dream", 3), ("learn", 1)])
def test_a_stopped_job_goes_on_to_the_same_model(world, second_model, tmp_path, phase, step):
    given = {"old": world / "old", "settings": QUICK_STEP, "device": "cpu", "checkpoint_seconds": 0}
    with pytest.raises(Interrupted):
        learn_folder(world / "second", tmp_path / "new", observer=StopAt(0, phase, step), **given)
    assert not (tmp_path / "new").exists() and (tmp_path / ".new.learning" / "job.json").is_file()
    begun = Begun()
    report = learn_folder(world / "second", tmp_path / "new", observer=begun, **given)
    saved, whole = load_model(tmp_path / "new"), load_model(second_model)
    assert_same_weights(saved, whole)
    assert (saved.rejection, saved.acceptance) == (whole.rejection, report)
    assert begun.phases[0] == (phase, step)  # not from the beginning
    assert [entry.name for entry in tmp_path.iterdir()] == ["new"]


class Begun(Observer):
    """What was begun, and how many of its steps were done before."""

    def __init__(self):
        self.phases = []

    def phase_begins(self, phase, done):
        self.phases.append((phase.name, done))


@pytest.mark.parametrize("damage", [lambda raw: raw[:5000], lambda raw: state_bytes({"another": 1})])
def test_a_damaged_checkpoint_costs_the_steps_of_its_phase_and_not_the_job(
    world, second_model, stopped, tmp_path, caplog, damage
):
    moving = stopped("learn", 2) / "checkpoint" / "moving.pt"
    moving.write_bytes(damage(moving.read_bytes()))
    saved, _ = extended(world, "second", tmp_path / "new")
    assert "moving.pt is damaged" in caplog.text and "its phase begins anew" in caplog.text
    assert_same_weights(saved, load_model(second_model))


@pytest.mark.parametrize("key", ["asked", "config"])
def test_a_damaged_record_of_a_job_is_an_error_that_says_what_to_do(world, stopped, tmp_path, key):
    file = stopped("dream", 1) / "job.json"
    told = json.loads(file.read_text())
    for damaged in ({name: value for name, value in told.items() if name != key}, {**told, key: 5}, [], None):
        file.write_text(json.dumps(damaged))
        with pytest.raises(UserError, match=r"job\.json is damaged: .* Delete .*learning to begin anew") as refused:
            extended(world, "second", tmp_path / "new")
        assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    "raw", [b"", b"no JSON", b"\xff", b"[" * 100_000, b"9" * 5000, b'{"asked": {}, "config": {}, "made": 5}']
)
def test_a_record_of_a_job_that_is_none_is_an_error_that_says_what_to_do(world, stopped, tmp_path, raw):
    (stopped("dream", 1) / "job.json").write_bytes(raw)
    with pytest.raises(UserError, match=r"job\.json is damaged: .* Delete .*learning to begin anew"):
        extended(world, "second", tmp_path / "new")


def test_a_configuration_that_is_none_in_a_record_of_a_job_is_told_by_its_key(world, stopped, tmp_path):
    file = stopped("dream", 1) / "job.json"
    told = json.loads(file.read_text())
    told["config"]["train"]["epochs"] = -1
    file.write_text(json.dumps(told))
    with pytest.raises(UserError, match=r"job\.json is damaged: train\.epochs must be .* Delete .* to begin anew"):
        extended(world, "second", tmp_path / "new")


@pytest.mark.parametrize("budget", ["0.5s", 0.5])
def test_a_stopped_job_keeps_the_schedule_that_its_budget_gave(world, tmp_path, monkeypatch, budget):
    given = {"settings": {"dream.width": 8}, "budget": budget}
    with pytest.raises(Interrupted):
        extended(world, "second", tmp_path / "new", observer=StopAt(0, "learn", 1), **given)
    stored = json.loads((tmp_path / ".new.learning" / "job.json").read_text())
    assert stored["asked"]["the budget"] == 0.5
    monkeypatch.setattr(job, "within_budget", None)  # not measured again
    saved, _ = extended(world, "second", tmp_path / "new", **given)
    assert saved.config.as_dict() == stored["config"]


def test_settings_by_key_and_as_texts_are_the_same_job(world, second_model, stopped, tmp_path):
    stopped("learn", 2)
    by_key = {"train.epochs": 2, "dream.steps": 6, "dream.width": 8, "train.batch_size": 16}
    begun = Begun()
    saved, _ = extended(world, "second", tmp_path / "new", settings=by_key, observer=begun)
    assert begun.phases == [("learn", 2)]
    assert_same_weights(saved, load_model(second_model))


def test_another_job_for_the_same_target_is_refused_with_the_difference(world, second_model, stopped, tmp_path):
    stopped("dream", 1)
    with pytest.raises(UserError, match=r"not ended, with other values of: the images, the rule for known classes\."):
        extended(world, "mixed", tmp_path / "new", on_known_class="skip")
    with pytest.raises(UserError, match=r"other values of: the seed, the settings\. Repeat that command"):
        extended(world, "second", tmp_path / "new", seed=1, settings=QUICK_STEP[:1])
    save_model(replace(load_model(world / "old"), rejection=0.123), tmp_path / "other")
    with pytest.raises(UserError, match=r"other values of: the model to extend\."):
        learn_folder(world / "second", tmp_path / "new", old=tmp_path / "other", settings=QUICK_STEP, device="cpu")
    saved, _ = extended(world, "second", tmp_path / "new")  # the first one is still whole
    assert_same_weights(saved, load_model(second_model))


def test_a_model_that_is_replaced_while_the_images_are_read_is_named_as_it_was(world, tmp_path):
    shutil.copytree(world / "old", tmp_path / "old")
    save_model(replace(load_model(world / "old"), rejection=0.123), tmp_path / "next")

    class Replace(Observer):
        def reading(self, done, total):
            if (tmp_path / "next").exists():
                (tmp_path / "old").rename(tmp_path / "before")
                (tmp_path / "next").rename(tmp_path / "old")

    given = {"settings": QUICK_STEP, "device": "cpu", "observer": Replace()}
    learn_folder(world / "second", tmp_path / "new", old=tmp_path / "old", **given)
    lineage = load_model(tmp_path / "new").lineage
    assert lineage == (model_digest(world / "old"),) != (model_digest(tmp_path / "old"),)


def test_two_processes_cannot_make_the_same_model(world, tmp_path):
    with locked_folder(tmp_path / ".new.learning", ""), pytest.raises(UserError, match="Another process is at work"):
        extended(world, "second", tmp_path / "new")


# --- what is told


@pytest.mark.usefixtures("no_command_yet")
def test_what_is_decided_is_shown_on_stderr_where_it_is_wanted_and_nothing_on_stdout(world, tmp_path, capsys):
    extended(world, "second", tmp_path / "new", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "2 new classes: '3', '4', beside 3 known" in err and "method abd: 6 steps of dreaming" in err
    extended(world, "second", tmp_path / "silent")
    assert capsys.readouterr() == ("", "")


def test_progress_is_shown_on_a_terminal_of_ones_own_beside_an_observer(world, stopped, tmp_path):
    stopped("dream", 3)
    shown, begun = io.StringIO(), Begun()
    terminal = Console(file=shown, force_terminal=True, width=200)
    extended(world, "second", tmp_path / "new", progress=terminal, observer=begun)
    assert "goes on from the last checkpoint: phase" in shown.getvalue()
    assert "dream goes on at step 3 of 6" in shown.getvalue() and "learn epoch 2/2" in shown.getvalue()
    assert begun.phases == [("dream", 3), ("learn", 0)]


def test_without_a_gpu_and_with_large_images_a_budget_is_advised(world, tmp_path):
    class Told(Observer):
        def __init__(self):
            self.lines = []

        def decided(self, line):
            self.lines.append(line)

        def phase_begins(self, phase, done):
            raise Interrupted

    told = Told()
    with pytest.raises(Interrupted):
        learn_folder(world / "first", tmp_path / "new", settings={"data.size": 32}, device="cpu", observer=told)
    assert told.lines[-1] == "without a GPU this may take hours; a budget of 30min would make it fit"


# --- what is left behind


def test_nothing_is_left_of_a_job_that_could_not_begin(world, tmp_path, monkeypatch):
    def fail(*_):
        raise UserError("no")

    monkeypatch.setattr(job, "within_budget", fail)
    with pytest.raises(UserError, match="no"):
        extended(world, "second", tmp_path / "new", settings=(), budget=9)
    assert not [*tmp_path.iterdir()]


def test_there_is_no_pixel_and_no_file_name_in_the_work_folder(world, stopped_jobs):
    kept = b"".join(file.read_bytes() for file in stopped_jobs("learn", 1).rglob("*") if file.is_file())
    assert len(kept) > 100_000
    for file in (world / "second").rglob("*.png"):
        image = Image.open(file)
        assert image.tobytes() not in kept and image.convert("RGB").tobytes() not in kept
        assert str(file).encode() not in kept


@pytest.mark.parametrize("net", ["timm/nonesuch", "torchvision/alexnet"])
def test_a_job_that_could_not_train_one_step_stands_in_nobodys_way(world, tmp_path, net):
    with pytest.raises(UserError):
        learn_folder(
            world / "first",
            tmp_path / "new",
            backbone=net,
            settings={"data.size": 32, "train.epochs": 1},
            device="cpu",
        )
    assert not [*tmp_path.iterdir()]


def test_a_job_that_was_killed_before_its_first_checkpoint_stands_in_nobodys_way(world, stopped, tmp_path):
    (stopped("dream", 1) / "checkpoint" / "resting.pt").unlink()
    extended(world, "second", tmp_path / "new", seed=3, method="base")
    assert [entry.name for entry in tmp_path.iterdir()] == ["new"]


def test_what_another_job_left_when_it_was_killed_while_clearing_up_is_not_gone_on_from(world, stopped, tmp_path):
    (stopped("learn", 1) / "job.json").unlink()
    made, _ = extended(world, "second", tmp_path / "new", seed=1)
    alone, _ = extended(world, "second", tmp_path / "alone", seed=1)
    assert_same_weights(made, alone)


KILLED = """
import os, signal
from pathlib import Path
from reverie.cli.app import main

real = Path.unlink

def unlink(file, *given, **also):
    if file.name == "job.json":
        os.kill(os.getpid(), signal.SIGKILL)
    real(file, *given, **also)

Path.unlink = unlink
main()
"""


def test_killed_when_the_model_was_there_the_same_command_ends_well_and_clears_up(world, tmp_path, reverie):
    words = ["learn", str(world / "second"), "--from", str(world / "old"), "--method", "base", "--device", "cpu"]
    words += ["--set", "train.epochs=1", "--to", "new"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], cwd=tmp_path, capture_output=True, timeout=100)
    assert killed.returncode == -signal.SIGKILL and (tmp_path / "new").exists()
    made = model_digest(tmp_path / "new")
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
        assert model_digest(place / "new") == made and not (place / ".new.learning").exists()


def test_a_begun_job_outlasts_a_model_that_somebody_else_put_in_its_place(world, stopped, tmp_path):
    work = stopped("dream", 1)
    shutil.copytree(world / "old", tmp_path / "new")
    with pytest.raises(UserError, match=r"exists already.* \S*/\.new\.learning is of a job that has not ended"):
        extended(world, "second", tmp_path / "new")
    assert (work / "checkpoint" / "resting.pt").exists()


def test_a_refused_job_removes_nothing_that_is_somebody_elses(world, tmp_path):
    shutil.copytree(world / "old", tmp_path / "new")
    hidden = tmp_path / ".new.learning"
    (hidden / "checkpoint").mkdir(parents=True)
    (hidden / "notes.txt").write_text("dear to somebody")
    with pytest.raises(UserError, match=r"exists already, and stays as it is\. Choose another `to`\.$"):
        extended(world, "second", tmp_path / "new")
    assert (hidden / "notes.txt").read_text() == "dear to somebody"
    (hidden / "notes.txt").unlink()
    with locked_folder(hidden, ""), pytest.raises(UserError, match="exists already"):
        extended(world, "second", tmp_path / "new")
    assert hidden.exists()  # another process was at work there
    with pytest.raises(UserError, match="exists already"):
        extended(world, "second", tmp_path / "new")
    assert not hidden.exists()


def test_a_link_that_leads_nowhere_is_refused_before_anything_is_learned(world, tmp_path, monkeypatch):
    (tmp_path / "new").symlink_to(tmp_path / "nowhere")
    monkeypatch.setattr(job, "plan_step", None)  # not even looked at
    with pytest.raises(UserError, match="/new is a link that leads nowhere"):
        extended(world, "second", tmp_path / "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["new"]


def test_a_job_that_diverged_is_given_up_so_that_it_can_be_tried_with_a_lower_rate(world, tmp_path):
    wild = {"train.epochs": 10, "train.lr": 1000, "train.weight_decay": 1}
    with pytest.raises(Diverged, match="no longer a number"):
        extended(world, "second", tmp_path / "new", method="base", settings=wild)
    assert not [*tmp_path.iterdir()]
    extended(world, "second", tmp_path / "new", method="base")


@pytest.mark.parametrize(
    ("file", "then"), [("resting.pt", "begins anew"), ("model.safetensors", "goes on from the last checkpoint")]
)
def test_a_full_disk_names_the_model_and_costs_nothing(world, tmp_path, monkeypatch, file, then):
    real = files.write_bytes

    def full(path, content):
        if path.name == file:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    with monkeypatch.context() as patched:
        for module in (files, model_folder):
            patched.setattr(module, "write_bytes", full)
        with pytest.raises(UserError, match=rf"/new cannot be made: No space left on device\. Make room.* {then}\."):
            extended(world, "second", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    extended(world, "second", tmp_path / "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["new"]


def test_a_place_where_nothing_can_be_written_is_told_by_the_name_that_the_person_gave(world, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("of somebody")
    monkeypatch.setattr(job, "plan_step", None)  # before an image is read
    with pytest.raises(UserError, match=r"/file/new cannot be written: Not a directory\. Make room, or choose a `to`"):
        extended(world, "second", tmp_path / "file" / "new")
    assert (tmp_path / "file").read_text() == "of somebody"


# --- what is saved is what was judged


class Shaken(Backbone):
    """A network with random numbers that are in no state."""

    feature_dim = 8

    def __init__(self, channels):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)
        self.register_buffer("mixing", torch.randn(64 * channels, 8), persistent=False)

    def forward(self, images):
        return self.norm(images.flatten(1) @ self.mixing)


def test_a_model_that_answers_otherwise_when_it_is_read_back_is_not_written(world, tmp_path, monkeypatch):
    monkeypatch.setitem(OWN_BACKBONES, "shaken", Shaken)
    given = {"backbone": "shaken", "settings": ("data.size=8", "train.epochs=8", "train.lr=0.1"), "device": "cpu"}
    with pytest.raises(
        UserError,
        match=r"/new was not written: read back, .* otherwise for \d+ of \d+ held-out .* network 'shaken' must",
    ):
        learn_folder(world / "first", tmp_path / "new", method="base", **given)
    assert not [*tmp_path.iterdir()]


class Greedy(Method):
    """A method that keeps more than a model folder holds, and says so late."""

    spare = None

    def __init__(self, *given):
        super().__init__(*given)
        self.keeps = Keeps.NETWORKS


class Sly(Greedy):
    """The same, said when it is too late."""

    def __init__(self, *given):
        Method.__init__(self, *given)

    def end(self, task):
        self.keeps, self.spare = Keeps.NETWORKS, torch.zeros(3)

    def state_dict(self):
        return {} if self.spare is None else {"spare": self.spare}

    def load_state_dict(self, state):
        self.spare = state.get("spare")


@pytest.mark.parametrize(("method", "what", "phases"), [(Greedy, "networks", 0), (Sly, "spare", 1)])
def test_what_a_model_folder_cannot_hold_is_not_lost_in_silence(world, tmp_path, monkeypatch, method, what, phases):
    monkeypatch.setitem(BUILT_IN, "mine", f"{method.__module__}:{method.__name__}")
    begun = Begun()
    with pytest.raises(UserError, match=rf"'mine' keeps {what} from one step .* a model folder cannot hold more than"):
        extended(world, "second", tmp_path / "new", method="mine", observer=begun)
    assert len(begun.phases) == phases
    assert not (tmp_path / "new").exists()


def test_a_list_of_files_is_learned_as_the_folder_is(world, tmp_path):
    files = sorted((world / "first").rglob("*.png"))
    table = tmp_path / "first.csv"
    table.write_text("\n".join(["path,label", *(f"{file},{file.parent.name}" for file in files)]))
    made = []
    for what, name in ((table, "of-list"), (world / "first", "of-folder")):
        learn_folder(what, tmp_path / name, settings={"train.epochs": 1}, device="cpu")
        made.append(load_model(tmp_path / name))
    assert [model.ledger[0].source for model in made] == ["first.csv", "first"]
    assert made[0].ledger[0].fingerprint == made[1].ledger[0].fingerprint
    assert torch.equal(made[0].classifier.head.weight, made[1].classifier.head.weight)
