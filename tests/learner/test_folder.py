"""A run's folder: what it belongs to, what of it may be cleared away, and who is at work in it."""

import subprocess
import sys

import pytest
import yaml

from reverie.errors import UserError
from reverie.learner.folder import RunFolder
from reverie.system.files import SCRATCH
from tests.support.experiments import tiny_config
from tests.support.processes import as_nobody


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


def test_everything_has_its_place(folder):
    assert folder.predictions(0) == folder.path / "tasks" / "01" / "predictions.npz"
    assert folder.task(11).name == "12"
    assert folder.events.file == folder.path / "events.jsonl"
    assert not folder.finished


def test_what_was_claimed_is_stored_and_found_again(folder):
    config = tiny_config("dgr", "train.lr=1e-3", seed=5)
    folder.claim(config, "abc123")
    stored = folder.stored()
    assert stored.config == config
    assert stored.config.own_values == config.own_values
    assert stored.upper_bound == config.upper_bound_digest()
    assert stored.fingerprint == "abc123"
    assert {"reference", "fingerprint"} <= yaml.safe_load(folder.config.read_text()).keys()


@pytest.mark.parametrize("digest", ["12345678901234567890123456789e12", "1e5", "0x1f", "0123", "null", "1_000"])
def test_a_fingerprint_that_looks_like_a_number_stays_text(folder, digest):
    folder.claim(tiny_config("base"), digest)
    assert folder.stored().fingerprint == digest
    folder.claim(tiny_config("base"), digest)  # the same data: nothing to refuse


def test_a_folder_that_version_0_1_claimed_belongs_to_the_same_run(folder):
    config = tiny_config("abd")
    folder.path.mkdir()
    old = {**config.as_dict(), "reference": "0123456789abcdef", "fingerprint": "abc"}
    folder.config.write_text(yaml.safe_dump(old, sort_keys=False))
    folder.refuse_others(config, "abc")
    assert folder.stored().upper_bound == "0123456789abcdef"
    del old["reference"], old["fingerprint"]
    folder.config.write_text(yaml.safe_dump(old, sort_keys=False))
    folder.refuse_others(config, "any")
    assert folder.stored().fingerprint is None
    assert folder.stored().upper_bound == config.upper_bound_digest()


@pytest.mark.parametrize("own", [{"train.nope": [1, 2]}, {"train": [1, 2]}, {"train.lr": [0.1, "x"]}, 5])
def test_values_of_ones_own_that_cannot_be_are_no_configuration(folder, own):
    folder.path.mkdir()
    folder.config.write_text(yaml.safe_dump({**tiny_config("base").as_dict(), "own_values": own}))
    with pytest.raises(UserError, match=r"config\.yaml is not the configuration of a run\. Choose another `folder`\."):
        folder.refuse_others(tiny_config("base"))


def test_a_claim_is_for_good(folder):
    folder.claim(tiny_config("base"), "abc")
    before = folder.config.read_bytes()
    with pytest.raises(UserError, match=r"train\.lr: 0\.1 in the folder, 0\.5 asked for\nChoose another `folder`\."):
        folder.claim(tiny_config("base", "train.lr=0.5"), "abc")
    with pytest.raises(UserError, match="the data are not the same: files were added, removed or changed"):
        folder.claim(tiny_config("base"), "abd")
    assert folder.config.read_bytes() == before


def test_what_makes_no_difference_to_the_figures_is_no_other_run(folder):
    folder.claim(tiny_config("base"), "abc")
    folder.claim(tiny_config("base", "keep=[models]", "evaluate.batch_size=7", "data.storage=stream"), "abc")


def test_what_was_not_kept_is_warned_of(folder, caplog):
    folder.claim(tiny_config("base", "keep=[models]"), "abc")
    folder.warn_of_what_is_not_kept(tiny_config("base", "keep=[models]"))
    assert caplog.text == ""
    folder.warn_of_what_is_not_kept(tiny_config("base", "keep=[models, dreamers]"))
    assert "is finished and did not keep dreamers." in caplog.text


def test_what_a_process_left_that_was_killed_before_it_claimed_the_folder_stands_in_nobodys_way(folder):
    folder.path.mkdir()
    (folder.path / ".lock").touch()
    (folder.path / f"{SCRATCH}config.yaml-12ab").write_text("half of it")
    folder.claim(tiny_config("base"), "abc")
    assert sorted(entry.name for entry in folder.path.iterdir()) == [".lock", "config.yaml"]


def test_a_folder_that_cannot_be_read_is_named(folder):
    folder.claim(tiny_config("base"), "abc")
    folder.config.chmod(0)
    with as_nobody(), pytest.raises(UserError, match=r"cannot be read: Permission denied\. Choose another `folder`\."):
        folder.refuse_others(tiny_config("base"))


HOLD = """
import sys
from pathlib import Path
from reverie.learner.folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time_is_at_work_and_its_lock_goes_with_it(folder):
    command = [sys.executable, "-c", HOLD, str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        assert folder.in_use()
        with pytest.raises(UserError, match="Another process is at work in"), folder.lock():
            pass
        other.kill()
    assert not folder.in_use()
    with folder.lock():
        pass
    assert not folder.in_use()
