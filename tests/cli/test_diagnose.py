"""`reverie diagnose` as a person types it."""

import json
import shutil
from pathlib import Path

import pytest

from reverie.data.images import Dataset
from reverie.diagnosis.measure import KEEP
from reverie.runs.result import read_result
from reverie.runs.run import run
from tests.support.experiments import TINY, quick_run, tiny_config
from tests.support.mistakes import assert_mistake

SET = [word for setting in [*TINY, "train.epochs=1"] for word in ("--set", setting)]
FILES = {"mid.png", "mmd.png", "tsne.png", "confusion.png", "dreams.png", "diagnosis.json"}


def test_the_papers_figures_with_one_command_that_trains_nothing_twice(reverie, tmp_path):
    words = ["diagnose", "--paper", "--preset", "digits-5", "--out", "figures", *SET]
    code, said, _ = reverie(*words)
    assert code == 0
    assert "task 2/2 learned" in said
    assert "The paper's finding (DeepInversion: dreams farther than the new task; ABD: nearer)" in said
    assert {file.name for file in (tmp_path / "figures").iterdir() if file.is_file()} >= FILES
    code, out, err = reverie(*words, "--json")
    assert (code, "learned" in err) == (0, False)
    facts = json.loads(out)
    assert facts == json.loads((tmp_path / "figures" / "diagnosis.json").read_text())
    assert facts["command"].startswith("reverie diagnose --paper")
    assert [one["method"] for one in facts["runs"]] == ["deepinversion", "abd"]
    assert facts["paper"]["expected"] == {"deepinversion": "farther", "abd": "nearer"}
    result = read_result(tmp_path / "figures" / "abd" / "result.json")
    assert result.first_dreams.trained_by.method == "deepinversion"
    assert len(result.task_sizes) == 2


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """Two runs that can be diagnosed, but share nothing."""
    folder = tmp_path_factory.mktemp("strangers")
    for method, seed in (("deepinversion", 0), ("abd", 1)):
        run(tiny_config(method, "train.epochs=1", "stream.take=2", KEEP, seed=seed), folder / method, device="cpu")
    return folder


def test_a_run_that_is_there_is_diagnosed_in_its_own_folder(reverie, strangers):
    folder = shutil.copytree(strangers / "deepinversion", "one")
    code, said, _ = reverie("diagnose", "one")
    assert code == 0
    assert "MID dreamed" in said
    assert "DeepInversion: seen from real old images, dreams lie" in said
    assert "The paper's finding" not in said
    assert {file.name for file in Path(folder, "diagnosis").iterdir()} == FILES


def test_what_a_run_cannot_be_diagnosed_for_is_told_in_flags(reverie, strangers, monkeypatch):
    one, other = str(strangers / "deepinversion"), str(strangers / "abd")
    said = assert_mistake(reverie, ["diagnose", one, other], "so they cannot be compared.")
    assert "with --share-first-task, or let `reverie diagnose --paper` make them." in said
    assert_mistake(reverie, ["diagnose", one, "--task", "1"], "--task must be 2 or more")
    monkeypatch.setattr(Dataset, "fingerprint", lambda self: "another")
    assert_mistake(reverie, ["diagnose", one, "--data", "elsewhere"], "learned from. Choose another --data.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("diagnose", "Say which run, by its folder; or let --paper make two."),
        ("diagnose nowhere", "nowhere is not a run folder: it has no config.yaml."),
        ("diagnose nowhere --paper", "--paper makes its own runs; leave the folder out, or leave --paper out."),
        ("diagnose nowhere --set train.epochs=1", "--set belongs to --paper"),
        ("diagnose --paper --preset digit-5", "Did you mean 'digits-5'?"),
        ("diagnose --paper --preset digits-5 --seed x", "Invalid value for '--seed'"),
        ("diagnose --paper --preset digits-5 --task x", "Invalid value for '--task'"),
        ("diagnose --paper --preset digits-5 --set train.epoch=1", "Did you mean 'train.epochs'?"),
        ("diagnose --paper --preset digits-5 --device abacus", "The device 'abacus' is unknown"),
        ("diagnose --paper --preset digits-5 --out /dev/null/x", "Not a directory. Choose another --out."),
        ("diagnose --paper --data nowhere", "`reverie data get cifar100 --data nowhere` downloads it"),
    ],
)
def test_a_mistake_is_told_in_a_line_or_two_and_leaves_nothing(reverie, words, message):
    assert_mistake(reverie, words, message)


# --- heads


@pytest.fixture(scope="module")
def with_features(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features") / "run"
    quick_run(tiny_config("r-dfcil", "train.epochs=1", "stream.take=2", "keep=[features]"), folder)
    return str(folder)


def test_heads_are_compared_in_a_table_and_as_json(reverie, with_features):
    code, said, _ = reverie("heads", with_features, "--sources", "images,both", "--heads", "linear,prototype")
    assert code == 0
    assert "new images and dreams" in said and "prototype" in said and "gaussian" not in said
    code, said, _ = reverie("heads", with_features, "--heads", "prototype", "--no-residual", "--ridge", "0.1", "--json")
    facts = json.loads(said)
    assert code == 0 and facts["method"] == "r-dfcil"
    assert (facts["residual"], facts["ridge"]) == (False, 0.1)
    assert [one["source"] for one in facts["results"]] == ["trained", "none", "images", "dreams", "both", "true"]
    assert all(len(one["accuracies"]) == 2 for one in facts["results"])


def test_mistakes_about_heads_are_told_in_flags(reverie, with_features, tmp_path):
    assert_mistake(reverie, ["heads", with_features, "--heads", "svm"], "--heads are among linear, gaussian, prototype")
    assert_mistake(reverie, ["heads", with_features, "--pooled", "2"], "--pooled must be a number of at least 0 and at")
    assert_mistake(reverie, ["heads", str(tmp_path)], "is not a run folder: it has no config.yaml.")
