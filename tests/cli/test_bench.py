"""`reverie bench` as a person types it."""

import json
from pathlib import Path

import pytest

from tests.support.mistakes import assert_mistake

WORDS = ["bench", "digits-5", "--methods", "base", "--tasks", "1", "--steps", "5", "--device", "cpu"]


def test_the_benchmark_says_what_is_measured_unless_told(reverie):
    assert "[default: cifar100-10]" in reverie("bench", "--help")[1]


def test_the_benchmark_prints_a_table_and_writes_a_file(reverie, tmp_path):
    code, out, err = reverie(*WORDS, "--out", "speed.json")
    assert code == 0
    assert "eager fp32, ms" in out
    assert err == "base, task 1, eager fp32\n"  # what is measured now
    written = json.loads((tmp_path / "speed.json").read_text())
    assert written["environment"]["device"] == "cpu"
    assert written["command"].startswith("reverie bench digits-5")
    assert written["measurements"][0]["phase"] == "learn"
    said = "speed.json exists already. Choose another --out, or say --overwrite."
    assert_mistake(reverie, [*WORDS, "--out", "speed.json"], said)
    code, out, err = reverie(*WORDS, "--out", "speed.json", "--overwrite", "--json")
    assert code == 0
    speed = json.loads(out)
    assert speed["measurements"][0]["milliseconds"] > 0
    assert json.loads((tmp_path / "speed.json").read_text()) == speed


MISTAKES = {
    "bench digit-5": "Did you mean 'digits-5'?",
    "bench digits-5 --methods ,": "--methods wants one or several names, with commas between them, not ','.",
    "bench digits-5 --methods abdd": "Did you mean 'abd'? `reverie methods` names them.",
    "bench digits-5 --modes slow --device cpu": "--modes takes fp32, tf32, captured, fast, not 'slow'",
    "bench digits-5 --tasks two": "--tasks wants numbers such as 0,1,2, not 'two'.",
    "bench digits-5 --tasks 9": "--tasks: digits-5 has tasks 1 to 5, not 9.",
    "bench digits-5 --steps 4": "Invalid value for '--steps'",
    "bench digits-5 --steps 100000000000": "Invalid value for '--steps'",
    "bench digits-5 --set train.epoch=1": "Did you mean 'train.epochs'?",
    "bench digits-5 --device abacus": "The device 'abacus' is unknown",
    "bench digits-5 --out /dev/null/x.json": "/dev/null cannot be written: Not a directory. Choose another --out.",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_told_in_a_line_or_two_and_leaves_nothing(reverie, words):
    assert_mistake(reverie, words, MISTAKES[words])


def test_a_folder_is_no_file_to_write(reverie):
    Path("folder").mkdir()
    assert_mistake(reverie, "bench digits-5 --out folder", "folder is a folder. Name a file: --out.")
