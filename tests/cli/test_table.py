"""The verbs of many runs as a person types them: `table`, `tune`, `results`, `presets`, `methods`."""

import json
import shutil
from pathlib import Path

import pytest

from reverie.runs.configure import folder_name
from reverie.tables import table as tables
from tests.support.experiments import TINY, tiny_config
from tests.support.mistakes import assert_mistake

SETTINGS = [*TINY, "stream.take=3", "train.epochs=1"]  # of the runs of `small_table`
WORDS = [word for setting in SETTINGS for word in ("--set", setting)]
QUICK = [word for setting in [*TINY, "train.epochs=1", "stream.take=4"] for word in ("--set", setting)]


def test_presets_and_methods_are_listed(reverie):
    assert "cifar100-10" in reverie("presets")[1]
    methods = reverie("methods")[1]
    assert all(name in methods for name in ("abd", "joint", "lwf-synthetic"))
    assert "everything" in methods


# --- table


@pytest.fixture
def finished(small_table, tmp_path):
    """The runs of a table that was made before."""
    for method in ("joint", "base"):
        name = folder_name(tiny_config(method), SETTINGS)
        shutil.copytree(small_table / f"{method}-seed0", tmp_path / "many" / name)


@pytest.mark.usefixtures("finished")
def test_a_table_is_printed_and_written(reverie, tmp_path):
    words = ["table", "digits-5", "--methods", "base", "--seeds", "0", "--device", "cpu", "--out", "many", *WORDS]
    code, out, _ = reverie(*words)
    assert code == 0
    assert out.startswith("2 runs: 2 finished before, 0 to train\ndigits-5, paper recipe; changed: data.size=8")
    assert "Upper Bound" in out
    assert out.splitlines()[-4:] == [f"many/table.{kind}" for kind in ("md", "csv", "tex", "json")]
    code, out, err = reverie(*words, "--json")
    assert code == 0
    table = json.loads(out)
    assert err == "2 runs: 2 finished before, 0 to train\n"
    assert [row["method"] for row in table["rows"]] == ["joint", "base"]
    assert table["failed"] == []
    assert table["files"] == [f"many/table.{kind}" for kind in ("md", "csv", "tex", "json")]
    assert table["command"].startswith("reverie table digits-5 --methods base")
    written = json.loads((tmp_path / "many" / "table.json").read_text())
    assert {**written, "files": table["files"]} == table


@pytest.mark.usefixtures("finished")
def test_runs_that_failed_are_counted_and_the_exit_code_is_1(reverie, monkeypatch):
    """As `make_table` tells them, which has tests of its own."""
    real = tables.make_table
    monkeypatch.setattr(tables, "make_table", lambda *args, **how: failing(real(*args, **how)))

    def failing(table):
        return tables.Table(**vars(table) | {"failed": ["abd-seed0"]})

    code, out, err = reverie("table", "digits-5", "--methods", "base", "--seeds", "0", "--out", "many", *WORDS)
    assert code == 1
    assert "Upper Bound" in out
    assert err == "reverie: 1 of 3 runs failed. The same command tries them again.\n"


TABLE_MISTAKES = {
    "table": "Say which PRESET (`reverie presets` names them), or which table of the paper with --paper.",
    "table digit-5": "Did you mean 'digits-5'?",
    "table digits-5 --methods ,": "--methods wants one or several names, with commas between them, not ','.",
    "table digits-5 --methods abdd": "There is no method 'abdd'. Did you mean 'abd'? `reverie methods` names them.",
    "table digits-5 --seeds x": "--seeds wants numbers such as 0,1,2, not 'x'.",
    "table digits-5 --recipe secret": "Invalid value for '--recipe'",
    "table digits-5 --set train.epoch=1": "Did you mean 'train.epochs'?",
    "table digits-5 --device abacus": "The device 'abacus' is unknown",
    "table digits-5 --parallel 0": "Invalid value for '--parallel'",
    "table digits-5 --checkpoint-every -1": "Invalid value for '--checkpoint-every'",
    "table digits-5 --out /dev/null/x": "/dev/null/x/logs cannot be written: Not a directory. Choose another --out.",
    "table cifar100-5 --data nowhere": "`reverie data get cifar100 --data nowhere` downloads it",
    "table --paper everything": "there are data-free, replay",
    "table digits-5 --paper data-free": "The table 'data-free' has no preset 'digits-5'.",
    "table --paper data-free --methods bic": "The table 'data-free' has no method 'bic'.",
    "table --paper ablation --set method.fine_tuning=1": "The setting method.fine_tuning cannot be for all rows",
}


def test_an_empty_list_of_seeds_or_methods_is_not_the_usual_one(reverie):
    for flag, told in (
        ("--seeds", "--seeds wants numbers such as 0,1,2, not ''."),
        ("--methods", "--methods wants one"),
    ):
        assert_mistake(reverie, ["table", "digits-5", flag, ""], told)


@pytest.mark.parametrize("words", TABLE_MISTAKES)
def test_a_mistake_in_a_table_is_told_before_anything_is_begun(reverie, words):
    assert_mistake(reverie, words, TABLE_MISTAKES[words])


# --- tune


def test_tuning_says_what_it_chose_and_by_how_much(reverie, tmp_path):
    words = ["tune", "digits-5", "--method", "base", "--grid", "train.lr=0.001,0.1", "--folds", "2", *QUICK]
    code, out, _ = reverie(*words)
    assert code == 0
    assert "chosen: train.lr=0.1 with" in out
    assert "points ahead of train.lr=0.001" in out
    assert (tmp_path / "runs" / "tune-digits-5-base" / "tune.json").is_file()
    code, out, _ = reverie(*words, "--json")
    assert (code, json.loads(out)["chosen"]) == (0, ["train.lr=0.1"])
    said = "tune.json holds another search (seed). Choose another --out."
    assert_mistake(reverie, [*words, "--seed", "1"], said)
    Path("runs/tune-digits-5-base/tune.json").write_text("[]")
    assert_mistake(reverie, words, "Choose another --out.")


def test_a_search_that_chose_nothing_ends_as_a_run_that_diverged(reverie):
    words = ["--method", "base", "--grid", "train.lr=1000", "--folds", "2", *QUICK]
    code, out, _ = reverie("tune", "digits-5", *words)
    assert code == 1
    assert "Every point diverged; nothing is chosen." in out


TUNE_MISTAKES = {
    "tune digits-5": "Missing option '--grid'",
    "tune digit-5 --grid train.lr=1": "Did you mean 'digits-5'?",
    "tune digits-5 --grid train.lr": "--grid wants section.key=value,value, for example train.lr=0.1,0.05, not 'tra",
    "tune digits-5 --grid train.lr=0.1 --grid train.lr=0.2": "train.lr is given twice in --grid; give all its values",
    "tune digits-5 --grid train.lr=0.1,0.10": "or the values are equal. Leave it out of --grid.",
    "tune digits-5 --grid train.lr=0.1 --set train.lr=0.3": "both set and tried: leave it out of --set or of --grid.",
    "tune digits-5 --grid train.lr=0.1 --folds 1": "--folds must be a whole number from 2 to 1,000, not 1.",
    "tune digits-5 --grid train.lr=0.1 --folds 100000000": "--folds must be a whole number from 2 to 1,000, not 1000",
    "tune digits-5 --grid train.lr=0.1 --method abdd": "Did you mean 'abd'?",
    "tune digits-5 --grid train.lr=0.1 --seed x": "Invalid value for '--seed'",
    "tune digits-5 --grid train.lr=0.1 --recipe secret": "Invalid value for '--recipe'",
    "tune digits-5 --grid train.lr=0.1 --device abacus": "The device 'abacus' is unknown",
    "tune digits-5 --grid train.lr=0.1 --out /dev/null/x": "cannot be written: Not a directory. Choose another --out.",
    "tune cifar100-10 --grid train.lr=0.1 --data nowhere": "or let --data be its folder.",
}


@pytest.mark.parametrize("words", TUNE_MISTAKES)
def test_a_mistake_in_a_search_is_told_before_anything_is_begun(reverie, words):
    assert_mistake(reverie, words, TUNE_MISTAKES[words])


# --- results


@pytest.fixture
def results(small_table, tmp_path):
    """A folder of result files, and one that holds none."""
    folder = tmp_path / "results" / "digits-5"
    folder.mkdir(parents=True)
    shutil.copy(small_table / "base-seed0" / "result.json", folder / "base.json")
    (tmp_path / "results" / "figures" / "of-something").mkdir(parents=True)
    return folder


def test_results_are_shown_as_tables_and_written_into_a_text(reverie, tmp_path, results):
    code, out, _ = reverie("results")
    assert code == 0
    assert out.startswith("digits-5\n\n| Method |")
    assert "| Base, " in out  # the settings that were changed stand behind it
    (tmp_path / "page.md").write_text("<!-- results: digits-5 -->\n<!-- /results -->\n")
    assert reverie("results", "--write", "page.md") == (0, "page.md\n", "")
    assert "| Base" in (tmp_path / "page.md").read_text()
    code, out, _ = reverie("results", "--json")
    (row,) = json.loads(out)["digits-5"]
    stored = json.loads((results / "base.json").read_text())
    assert row["final_accuracy"] == pytest.approx(100 * stored["metrics"]["final_accuracy"])


def test_help_shows_the_markers_that_a_file_must_hold(reverie):
    assert "<!-- results: NAME -->" in " ".join(reverie("results", "--help")[1].replace("│", " ").split())


def test_a_mistake_in_results_is_told(reverie, results):
    Path("page.md").write_text("no table")
    assert_mistake(reverie, "results nowhere", "There is no folder nowhere.")
    assert_mistake(reverie, "results results/figures", "put a run's result.json under results/figures/PRESET/.")
    assert_mistake(reverie, "results --write nothing.md", "nothing.md cannot be read: No such file or directory.")
    assert_mistake(reverie, "results --write page.md", "There is no table in it to renew")
    Path("page.md").write_bytes(b"\xff<!-- results: digits-5 --><!-- /results -->")
    assert_mistake(reverie, "results --write page.md", "page.md is no text in UTF-8. Name the file that holds the")
    (results / "other.json").write_text("{}")
    assert_mistake(reverie, "results", "other.json is not the result of a run.")
