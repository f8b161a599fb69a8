"""`make_table` as a person calls it in Python: what is trained, what is told on the way, and the table in the end."""

import json
import shutil

import pytest

from reverie import make_table
from reverie.engine.observer import Observer
from reverie.errors import UserError
from reverie.methods import register_method
from reverie.methods.plain import Base
from reverie.runs.configure import folder_name
from reverie.runs.result import read_result
from reverie.tables import paper
from reverie.tables.plan import Plan, entries_for
from reverie.tables.table import make_sections
from tests.support.experiments import TINY, tiny_config
from tests.support.tables import end_by_hand, plan_of

# What the runs of the fixture `small_table` were made with, by key.
SETTINGS = {key: int(value) for key, value in (text.split("=") for text in TINY)}
SETTINGS |= {"stream.take": 3, "train.epochs": 1}


class Telling(Observer):
    """What a table tells of itself, in order."""

    def __init__(self):
        self.told = []

    def table_begins(self, table):
        self.told.append(("table begins", table.total, table.finished, table.waiting))

    def run_begins(self, name, table):
        self.told.append(("run begins", name))

    def run_ends(self, name, accuracy, seconds, table):
        self.told.append(("run ends", name, accuracy, table.finished))
        assert seconds > 0

    def run_fails(self, name, why, log, table):
        self.told.append(("run fails", name, why, log[-1], table.failed))


class GivingAway(Telling):
    """Puts another run into the folder of one of the table's, after everything was looked at."""

    def __init__(self, folder, config):
        super().__init__()
        self.folder, self.config = folder, config

    def table_begins(self, table):
        super().table_begins(table)
        self.folder.path.mkdir(parents=True)
        self.folder.claim(self.config, "0")


def test_runs_are_trained_one_after_the_other_and_one_that_fails_is_named_while_the_others_go_on(tmp_path):
    settings = {**SETTINGS, "stream.take": 1}
    planned = Plan.make(entries_for("digits-5", ["base", "abd"], False), [3], "paper", settings, tmp_path / "table")
    base, abd = planned.runs
    observer = GivingAway(abd.folder, tiny_config("lwf"))
    table = make_table(
        "digits-5",
        ["abd", "base"],
        seeds=[3],
        settings=settings,
        upper_bound=False,
        out=tmp_path / "table",
        device="cpu",
        observer=observer,
        command="a command",
    )
    result = read_result(base.folder.result)
    log = table.folder / "logs" / f"{abd.name}.log"
    assert observer.told[:4] == [
        ("table begins", 2, 0, 2),
        ("run begins", base.name),
        ("run ends", base.name, result.metrics.final_accuracy, 1),
        ("run begins", abd.name),
    ]
    failed, name, why, last_words, count = observer.told[4]
    assert (failed, name, count) == ("run fails", abd.name, 1)
    assert why == f"failed with exit code 2; its log is {log}"
    assert "Choose another --out" in last_words
    assert log.is_file()
    assert (table.runs, table.failed, table.left_out) == ([base.name], [abd.name], [])
    assert [(row.title, row.results) for row in table.rows] == [("Base", [result])]
    assert str(table).endswith(f"Without runs that failed:\n\n* {abd.name} (its log is {log})\n")
    assert (table.folder / "table.md").read_text() == str(table)
    written = json.loads((table.folder / "table.json").read_text())
    assert written == table.as_dict()
    assert (written["command"], written["failed"]) == ("a command", [abd.name])


@pytest.fixture
def finished(small_table, tmp_path):
    """The runs of a table that was made before."""
    out = tmp_path / "table"
    for method, seed in (("joint", 0), ("base", 0), ("base", 1), ("abd", 0)):
        name = folder_name(tiny_config(method, seed=seed), SETTINGS)
        shutil.copytree(small_table / f"{method}-seed{seed}", out / name)
    return out


def test_a_table_of_finished_runs_is_made_at_once_and_prints_itself(finished, small_table):
    observer = Telling()
    table = make_table(
        "digits-5", ["base"], seeds=[1, 0], settings=SETTINGS, upper_bound=False, out=str(finished), observer=observer
    )
    assert observer.told == [("table begins", 2, 2, 0)]
    results = [read_result(small_table / f"base-seed{seed}" / "result.json") for seed in (0, 1)]
    (row,) = table.rows
    assert [result.seed for result in row.results] == [0, 1]
    accuracies = [result.metrics.final_accuracy for result in results]
    assert row.values("final_accuracy") == accuracies
    lines = str(table).splitlines()
    assert lines[0].startswith("digits-5, paper recipe; changed: data.size=8, ")
    assert lines[0].endswith("; percent, seeds 1, 0: mean ± sample standard deviation")
    assert f"| Base | 2 | {50 * sum(accuracies):.1f} ± " in lines[4]
    assert (table.failed, [file.name for file in table.files]) == (
        [],
        ["table.md", "table.csv", "table.tex", "table.json"],
    )
    assert all(file.is_file() for file in table.files)


def test_one_method_may_be_named_alone_and_the_upper_bound_comes_with_it(finished):
    table = make_table("digits-5", "abd", seeds=[0], settings=SETTINGS, out=finished)
    assert [row.title for row in table.rows] == ["Upper Bound", "ABD"]
    assert "; percent, seed 0" in str(table).splitlines()[0]
    assert table.rows[0].values("omega") == [1.0]


def test_rows_of_the_paper_that_cannot_be_run_here_are_told_first_and_named_in_the_end(finished, monkeypatch):
    class Hearing(Telling):
        def decided(self, line):
            self.told.append(line)

    figure = paper.Figure(1.0, None, 1)
    rows = [paper.PaperRow("made-up", "digits-5", method, (), "", figure, None) for method in ("magic", "base")]
    made_up = paper.PaperTable("made-up", "", "", 1, ("digits-5",), tuple(rows))
    monkeypatch.setattr(paper, "find_table", {"made-up": made_up}.__getitem__)
    observer = Hearing()
    table = make_table(paper="made-up", upper_bound=False, settings=SETTINGS, out=finished, observer=observer)
    (line,) = table.left_out
    assert line.startswith("magic is left out: There is no method 'magic'.")
    assert observer.told == [line, ("table begins", 1, 1, 0)]
    assert [row.title for row in table.rows] == ["Base"]


def test_the_seeds_of_a_row_are_in_order_however_its_runs_ended(tmp_path):
    wanted = plan_of(tmp_path, ["base"], seeds=(0, 1, 2), upper_bound=False)
    for run in wanted.runs:
        end_by_hand(run, accuracy=run.config.seed / 10)
    (section,) = make_sections(wanted, [wanted.runs[number] for number in (2, 0, 1)])
    (row,) = section.rows
    assert row.as_dict()["seeds"] == [0, 1, 2]
    assert row.values("final_accuracy") == [0.0, 0.1, 0.2]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, r"Say which `preset` \(`list_presets\(\)` names them\), or which table of the paper with `paper`"),
        ({"paper": "everything"}, "there are data-free, replay"),
        ({"preset": "digits-5", "paper": "data-free"}, "has no preset 'digits-5'"),
        ({"preset": "digits-5", "methods": ["abdd"]}, "Did you mean 'abd'"),
        ({"preset": "digits-5", "settings": {"train.epoch": 1}}, "Did you mean 'train.epochs'"),
        ({"preset": "digits-5", "device": "abacus"}, "abacus"),
        ({"preset": "digits-5", "parallel": 0}, "`parallel` must be a whole number from 1 to 1,000, not 0"),
        (
            {"preset": "digits-5", "checkpoint_seconds": -1},
            "`checkpoint_seconds` must be a number of at least 0",
        ),
        ({"preset": "digits-5", "seeds": 0}, r"`seeds` is a list of whole numbers, such as \[0, 1, 2\], not 0"),
        ({"preset": "digits-5", "seeds": []}, "`seeds` is a list of whole numbers"),
        ({"preset": "digits-5", "methods": "base,abdd"}, "no method 'abdd'"),
        ({"preset": "digits-5", "methods": []}, "`methods` wants one or several names"),
        ({"preset": "digits-5", "observer": Observer}, r"`observer` is a class; make one of it: Observer\(\)"),
        ({"preset": "digits-5", "out": "/dev/null/x"}, "cannot be written: Not a directory. Choose another `out`"),
    ],
)
def test_mistakes_are_told_in_the_words_of_python_before_the_first_run(tmp_path, monkeypatch, how, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        make_table(**how)
    assert list(tmp_path.iterdir()) == []


def test_a_table_of_the_paper_is_named_after_it_and_says_that_data_are_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "table-data-free").mkdir(parents=True)
    (tmp_path / "runs" / "table-data-free" / "cifar100-5-joint-paper-seed0").write_text("in the way")
    with pytest.raises(UserError, match="runs/table-data-free/cifar100-5-joint-paper-seed0 is a file"):
        make_table(paper="data-free")
    with pytest.raises(UserError, match=r"CIFAR-100 is not under nowhere"):
        make_table(paper="data-free", out="elsewhere", data="nowhere")
    assert not (tmp_path / "elsewhere").exists()


def test_a_method_that_only_this_process_knows_is_refused_before_the_first_run(tmp_path, monkeypatch):
    monkeypatch.setattr("reverie.methods._registered", {})
    register_method("mine", Base)
    for methods in (["mine"], "all"):
        with pytest.raises(UserError, match=r"'mine' is known in this process alone, .* Give it an entry point"):
            make_table("digits-5", methods, out=tmp_path / "table")
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_the_way_of_a_table_is_told_by_the_name_of_its_argument(finished):
    stored = finished / folder_name(tiny_config("base"), SETTINGS) / "config.yaml"
    stored.write_text(stored.read_text().replace(" lr:", " lr: 9 #"))
    with pytest.raises(UserError, match=r"holds a run of another configuration(?s:.*)Choose another `out`"):
        make_table("digits-5", ["base"], seeds=[0], settings=SETTINGS, out=finished, upper_bound=False)
