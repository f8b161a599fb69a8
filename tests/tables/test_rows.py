"""Rows and cells of a table."""

import csv
import json
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from reverie import methods
from reverie.errors import UserError
from reverie.methods.lwf import LwF
from reverie.runs import configure as experiment
from reverie.tables import plan as grid
from reverie.tables import rows as tables
from reverie.tables.rows import Cost, Row, Section, paper

ROOT = Path(tables.__file__).parents[2]


def result(method, accuracy, omega=None, seconds=10.0, seed=0, recipe="paper", settings=()):
    metrics = {
        "final_accuracy": accuracy,
        "average_incremental_accuracy": accuracy,
        "omega": omega,
        "forgetting": None if method == "joint" else 0.25,
    }
    config = experiment.configure("digits-5", method, seed=seed, recipe=recipe, settings=settings)
    return {
        "preset": "digits-5",
        "method": method,
        "recipe": recipe,
        "seed": seed,
        "config": config.as_dict(),
        "metrics": metrics,
        "seconds": {
            "total": seconds,
            "by_task": [{"learn": 90.0, "evaluate": 1.0}, {"learn": 5.0, "dream": 3.0, "bias": 1.0, "evaluate": 1.0}],
        },
        "phases": [
            {"learn": {"steps": 1, "setup_seconds": 0.0}},
            {"learn": {"steps": 100, "setup_seconds": 1.0}, "dream": {"steps": 10, "setup_seconds": 0.0}},
        ],
        "peak_memory_bytes": 2_400_000_000 + seed,
        "ledger": [{"kept_bytes": 0}, {"kept_bytes": 6_144_000}],
    }


def test_a_row_is_the_mean_and_the_sample_deviation_over_seeds():
    rows = tables.rows_of([result("abd", 0.5), result("lwf", 0.2), result("abd", 0.7)])
    assert [row.title for row in rows] == ["ABD", "LwF"]
    assert rows[0].cells() == ["ABD", "60.0 ± 14.1", "60.0 ± 14.1", "–", "25.0 ± 0.0", "10"]
    assert rows[1].cells()[1] == "20.0"


def test_a_figure_of_nought_counts():
    steady = result("abd", 0.5)
    steady["metrics"]["forgetting"] = 0.0
    (row,) = tables.rows_of([steady, result("abd", 0.7, seed=1)])
    assert row.values("forgetting") == [0.0, 0.25]


def test_what_is_not_known_for_all_seeds_is_no_mean_over_some():
    (row,) = tables.rows_of([result("abd", 0.5, omega=0.8), result("abd", 0.7, seed=1)])
    assert row.cells()[3] == "–"
    assert row.values("final_accuracy") == [0.5, 0.7]


def test_what_is_not_known_is_a_dash():
    assert tables.rows_of([result("joint", 0.9, omega=1.0)])[0].cells() == [
        "Upper Bound",
        "90.0",
        "90.0",
        "100.0",
        "–",
        "10",
    ]


def test_markdown_has_a_line_a_row():
    text = tables.markdown(tables.rows_of([result("abd", 0.5), result("lwf", 0.2)]))
    assert text.splitlines()[0].startswith("| Method | A_N |")
    assert text.splitlines()[2] == "| ABD | 50.0 | 50.0 | – | 25.0 | 10 |"
    assert len(text.splitlines()) == 4


def test_runs_that_differ_in_more_than_the_seed_are_rows_of_their_own():
    changed = result("abd", 0.4, settings=["dream.life=carried", "engine.precision=bf16"])
    released = result("abd", 0.3, recipe="released")
    rows = tables.rows_of([result("abd", 0.5), result("abd", 0.6, seed=1), changed, released])
    assert [row.title for row in rows] == ["ABD", "ABD, dream.life=carried", "ABD, released recipe"]
    assert rows[0].cells()[1].startswith("55.0 ±")


def own(accuracy, *settings, preset="mine", method="abd", **facts):
    """Of a preset that does not come with reverie, so that nobody knows its usual values."""
    made = result(method, accuracy, settings=settings)
    return made | {"preset": preset, "config": made["config"] | {"preset": preset}} | facts


def test_how_dreams_are_computed_is_named_only_where_it_decides_something():
    mixed = [result("abd", 0.5, settings=["dream.mixed=true"]) for _ in range(2)]
    for one, precision in zip(mixed, ("fp32", "bf16"), strict=True):
        one["engine"] = {"precision": precision}
    assert [row.title for row in tables.rows_of(mixed)] == ["ABD", "ABD, dream.mixed=True"]


def test_runs_of_ones_own_preset_that_differ_are_rows_of_their_own_and_say_in_what():
    rows = tables.rows_of([own(0.5), own(0.7) | {"seed": 1}, own(0.3, "train.epochs=2", "dream.steps=7")])
    usual = experiment.configure("digits-5", "abd")
    assert [row.title for row in rows] == [
        f"ABD, train.epochs={usual.train.epochs}, dream.steps={usual.dream.steps}",
        "ABD, train.epochs=2, dream.steps=7",
    ]
    assert rows[0].cells()[1].startswith("60.0 ±")
    assert [row.title for row in tables.rows_of([own(0.5), own(0.4, method="lwf", data_fingerprint="0123456789")])] == [
        "ABD",
        "LwF",
    ]
    apart = tables.rows_of([own(0.5, "data.source=folder", data_fingerprint=letter * 32) for letter in "ab"])
    assert [row.title for row in apart] == ["ABD, data=aaaaaaaa", "ABD, data=bbbbbbbb"]


class Mine(LwF):
    """Somebody's own, which has its title from LwF."""


@pytest.fixture
def packages(monkeypatch):
    """Methods of other packages; one of them is broken."""
    own = {"mine": f"{__name__}:Mine", "another": f"{__name__}:Mine", "a-broken": "nowhere.to_be:Found"}
    points = [EntryPoint(name, value, "reverie.methods") for name, value in own.items()]
    monkeypatch.setattr(methods, "entry_points", lambda group: points)


@pytest.mark.usefixtures("packages")
def test_methods_with_the_same_title_are_told_apart_by_their_names(tmp_path):
    for number, name in enumerate(("lwf", "mine", "another")):
        (tmp_path / f"{name}.json").write_text(json.dumps(result(name, 0.2 + 0.1 * number)))
    rows = tables.rows_of(tables.read_results(tmp_path))
    assert [row.title for row in rows] == ["LwF", "LwF (another)", "LwF (mine)"]
    assert [row.cells()[1] for row in rows] == ["20.0", "40.0", "30.0"]
    assert [entry.name for entry in grid.entries_for("digits-5", ["mine", "lwf"], False)] == ["LwF", "LwF (mine)"]


def test_presets_are_never_mixed_in_one_row():
    cifar = experiment.configure("cifar100-5", "abd").as_dict()
    other = result("abd", 0.3) | {"preset": "cifar100-5", "config": cifar}
    rows = tables.rows_of([result("abd", 0.5), other, own(0.4)])
    assert [len(row.results) for row in rows] == [1, 1, 1]


def test_a_method_that_is_not_installed_has_rows_too():
    strange = [own(0.5, method="abd") | {"method": "theirs"}, own(0.6, "train.epochs=2") | {"method": "theirs"}]
    for made in strange:
        made["config"]["method"] = {"name": "theirs", "power": 3}
    assert [row.title.partition(",")[0] for row in tables.rows_of(strange)] == ["theirs", "theirs"]
    for made in strange:
        made["preset"] = made["config"]["preset"] = "digits-5"
    assert len(tables.rows_of(strange)) == 2


def test_results_of_methods_that_are_not_installed_are_shown_and_other_files_refused(tmp_path):
    theirs = own(0.5) | {"method": "theirs"}
    theirs["config"] = theirs["config"] | {"method": {"name": "theirs", "power": 3}}
    (tmp_path / "a.json").write_text(json.dumps(theirs))
    (tmp_path / "b.json").write_text(json.dumps(result("abd", 0.4)))
    lines = tables.results_table(tmp_path).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| ABD", "| theirs"]
    for content in ("[]", "{}", "not JSON"):
        (tmp_path / "c.json").write_text(content)
        with pytest.raises(UserError, match=r"c\.json is not the result of a run"):
            tables.results_table(tmp_path)


def test_a_bar_in_a_title_is_no_end_of_a_cell():
    (line,) = tables.markdown([Row("a|b", [result("abd", 0.5)])]).splitlines()[2:]
    assert line == r"| a\|b | 50.0 | 50.0 | – | 25.0 | 10 |"


def test_seconds_are_written_without_powers_of_ten():
    assert [tables._three_digits(value) for value in (0.01234, 4.181, 99.96, 1089.2)] == [
        "0.0123",
        "4.18",
        "100",
        "1089",
    ]


def test_tables_in_a_text_are_made_of_result_files_alone(tmp_path):
    folder = tmp_path / "digits-5"
    folder.mkdir()
    for name, made in {"b": result("abd", 0.5, seed=1), "c": result("abd", 0.7), "a": result("joint", 0.9)}.items():
        (folder / f"{name}.json").write_text(json.dumps(made))
    text = "before\n<!-- results: digits-5 -->\nold\n<!-- /results -->\nafter <!-- a comment -->\n"
    once = tables.rewritten(text, tmp_path)
    assert once == tables.rewritten(once, tmp_path)
    lines = once.splitlines()
    assert (lines[0], lines[-1]) == ("before", "after <!-- a comment -->")
    assert "old" not in lines
    assert lines[4] == "| Upper Bound | 90.0 | 90.0 | – | – | 10 | 0 |"
    assert lines[5] == "| ABD | 60.0 ± 14.1 | 60.0 ± 14.1 | – | 25.0 ± 0.0 | 10 | 0, 1 |"


def test_a_text_without_a_table_is_not_said_to_be_renewed(tmp_path):
    with pytest.raises(UserError, match="no table in it to renew"):
        tables.rewritten("<!-- result: digits-5 -->\n<!-- /results -->", tmp_path)


def test_the_papers_figure_stands_beside_ours_where_the_experiment_is_the_papers(tmp_path):
    for name, settings in {"a": (), "b": ("train.epochs=2",)}.items():
        config = experiment.configure("cifar100-10", "abd", settings=settings)
        made = result("abd", 0.325) | {"preset": "cifar100-10", "config": config.as_dict()}
        (tmp_path / f"{name}.json").write_text(json.dumps(made))
    header, _, usual, changed = tables.results_table(tmp_path).splitlines()
    assert header.startswith("| Method | A_N | paper's | average A |")
    assert usual.startswith("| ABD | 32.5 | 33.7 ± 1.2 | 32.5 |")
    assert changed.startswith("| ABD, train.epochs=2 | 32.5 | – | 32.5 |")
    assert [record.get("final_accuracy_verdict") for record in tables.results_records(tmp_path)] == ["agrees", None]


def test_a_folder_without_results_and_a_file_that_is_none_are_named(tmp_path):
    with pytest.raises(UserError, match="no result files"):
        tables.results_table(tmp_path)
    (tmp_path / "x.json").write_text('{"method": "magic"}')
    with pytest.raises(UserError, match=r"x\.json"):
        tables.results_table(tmp_path)


def test_the_readmes_tables_are_those_of_the_result_files():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert tables.rewritten(readme, ROOT / "results") == readme
    assert "<!-- results: digits-5 -->" in readme


# --- beside the paper's figures


@pytest.fixture
def section():
    published = tables.paper_row(experiment.configure("cifar100-10", "abd"))
    ours = [result("abd", 0.30, 0.68), result("abd", 0.32, 0.70, seed=1)]
    return Section("a caption", [Row("ABD", ours, published), Row("LwF_1", [result("lwf", 0.5)])])


def test_the_papers_figure_is_only_for_the_papers_experiment():
    def paper_row(preset, method, *settings):
        return tables.paper_row(experiment.configure(preset, method, seed=3, settings=settings))

    assert paper_row("cifar100-10", "abd").final_accuracy.mean == 33.7
    assert paper_row("cifar100-10", "abd", "engine.precision=bf16").final_accuracy.mean == 33.7
    assert paper_row("cifar100-10", "abd", "train.epochs=2") is None
    both = experiment.configure("cifar100-10", "abd")
    assert [tables.paper_row(both, name).table for name in ("ablation", "data-free")] == ["ablation", "data-free"]
    assert paper_row("digits-5", "abd") is None
    ablated = next(row for row in paper.find_table("ablation").rows if row.settings)
    assert paper_row(ablated.preset, ablated.method, *ablated.settings) == ablated


def test_a_row_of_results_goes_by_the_papers_name_for_it():
    ablated = next(row for row in paper.find_table("ablation").rows if row.title)
    rows = []
    for recipe in ("paper", "released"):
        config = experiment.configure(ablated.preset, ablated.method, recipe=recipe, settings=ablated.settings)
        made = {**result(ablated.method, 0.3), "preset": ablated.preset, "recipe": recipe, "config": config.as_dict()}
        rows += tables.rows_beside_paper([made])
    assert [row.paper for row in rows] == [ablated, ablated]
    assert rows[0].title == ablated.title
    assert "released recipe" in rows[1].title


def test_a_row_stands_beside_the_papers_figure_with_difference_and_verdict(section):
    header, (abd, lwf) = section.accuracy()
    shown = dict(zip(header[:6], abd, strict=False))
    assert shown == {
        "Method": "ABD",
        "seeds": "2",
        "A_N": "31.0 ± 1.4",
        "A_N: paper": "33.7 ± 1.2",
        "A_N: difference": "-2.7",
        "A_N: verdict": "below",  # the tolerance is 2 sqrt(2 / 2 + 1.44 / 3) = 2.4
    }
    assert abd[6:10] == ["69.0 ± 1.4", "69.6 ± 1.6", "-0.6", "agrees"]
    assert tables.record(section.rows[0])["final_accuracy_difference"] == pytest.approx(-2.7)
    assert lwf[2:7] == ["50.0", "–", "–", "–", "–"]
    assert len({*header}) == len(header)


def test_a_difference_that_rounds_to_nought_has_no_minus():
    published = tables.paper_row(experiment.configure("cifar100-10", "abd"))
    row = Row("ABD", [result("abd", 0.3368)], published)
    assert Section("", [row]).accuracy()[1][0][4] == "+0.0"


def test_signs_that_are_others_in_latex_are_shown_as_they_are():
    (row,) = tables.rows_of([result("abd", 0.5)])
    assert "a $<$ b $|$ c $>$ d 50\\% &" in tables.as_latex([Section("", [replace(row, title="a < b | c > d 50%")])])


def test_without_figures_of_the_paper_there_are_no_columns_for_them():
    alone = Section("", [Row("ABD", [result("abd", 0.3)])])
    assert alone.accuracy()[0] == ["Method", "seeds", "A_N", "Omega", "average A", "forgetting"]
    assert alone.notes() == []


def test_cost_counts_from_the_second_task_on(section):
    assert Cost.of(section.rows[0].results) == Cost(
        seconds_a_step=0.04,  # five seconds less one to set up, a hundred steps
        learn_seconds_a_task=6.0,  # with the phase `bias`
        dream_seconds_a_task=3.0,
        peak_memory_bytes=2_400_000_001,
        kept_bytes=6_144_000,
    )
    assert Cost.of(section.rows[0].results[::-1]) == Cost.of(section.rows[0].results)
    assert section.cost()[1][0] == ["ABD", "40", "6", "3", "2.4 GB", "6.14 MB"]


def test_a_step_of_any_phase_but_the_dreamers_counts():
    made = result("r-dfcil", 0.3)
    made["seconds"]["by_task"][1] = {"dream": 3.0, "represent": 5.0, "refine": 2.0, "evaluate": 1.0}
    steps = {"dream": 10, "represent": 80, "refine": 20}
    made["phases"][1] = {name: {"steps": count, "setup_seconds": 1.0} for name, count in steps.items()}
    assert Cost.of([made]).seconds_a_step == pytest.approx((4.0 + 1.0) / 100)


def test_a_result_from_before_steps_were_counted_has_no_cost_of_a_step():
    old = result("abd", 0.3)
    del old["phases"]
    assert Cost.of([old]).seconds_a_step is None


def test_sizes_are_for_people():
    assert [tables.size(n) for n in (0, 12, 1234, 5_600_000, 7e10)] == ["0", "12 B", "1.23 kB", "5.6 MB", "70 GB"]
    assert [tables.size(n) for n in (999_400, 999_600, 999_900_000)] == ["999 kB", "1 MB", "1 GB"]


def test_the_table_as_markdown_csv_and_latex(section):
    lines = tables.as_markdown([section]).splitlines()
    assert lines[0] == "a caption"
    assert lines[4].startswith("| ABD | 2 | 31.0 ± 1.4 | 33.7 ± 1.2 | -2.7 | below |")
    abd, lwf = csv.DictReader(tables.as_csv([section]).splitlines())
    assert float(abd["final_accuracy"]) == pytest.approx(31.0)
    assert float(abd["final_accuracy_tolerance"]) == pytest.approx(2 * (1 + 0.48) ** 0.5)
    assert (abd["omega_verdict"], abd["seeds"], lwf["omega_verdict"], lwf["omega"]) == ("agrees", "0 1", "", "")
    assert section.notes() == [f"paper: {paper.find_table('data-free').source}", f"verdict: {paper.RULE}"]
    assert [line for line in lines if line.startswith("* ")] == [f"* {note}" for note in section.notes()]
    latex = tables.as_latex([section])
    assert all(f"% {note}\n" in latex for note in section.notes())
    assert r"ABD & 2 & 31.0 $\pm$ 1.4 & 33.7 $\pm$ 1.2 & -2.7 & below &" in latex
    assert r"LwF\_1" in latex
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 2
    for block in latex.split(r"\begin{tabular}")[1:]:
        rows = [line for line in block.splitlines() if line.endswith(r"\\")]
        assert len({line.count(" & ") for line in rows}) == 1
