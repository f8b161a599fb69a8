"""Tables as Markdown, CSV and LaTeX; and tables that are made of result files and of nothing else."""

import csv
import json
import shutil
from dataclasses import replace

import pytest

from reverie.errors import UserError
from reverie.runs.configure import configure
from reverie.tables import paper
from reverie.tables.formats import (
    Section,
    as_csv,
    as_latex,
    as_markdown,
    load_results,
    records_of_results,
    renew_tables,
    renewed,
    results_by_name,
    results_table,
    rows_as_markdown,
)
from reverie.tables.rows import Row, paper_row, rows_of
from reverie.text import byte_size
from tests.support.paths import ROOT
from tests.support.results import by_foreign_method, made_up_result, of_own_preset


@pytest.fixture
def section():
    """ABD with two seeds beside the paper's figure, and LwF, for which it has none."""
    published = paper_row(configure("cifar100-10", "abd"))
    ours = [made_up_result("abd", 0.30, 0.68), made_up_result("abd", 0.32, 0.70, seed=1)]
    return Section("a caption", [Row("ABD", ours, published), Row("LwF_1", [made_up_result("lwf", 0.5)])])


def write_results(folder, **results):
    folder.mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        (folder / f"{name}.json").write_text(json.dumps(result.as_dict()))


# --- cells


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
    assert lwf[2:7] == ["50.0", "–", "–", "–", "–"]
    assert len({*header}) == len(header)


def test_a_difference_that_rounds_to_nought_has_no_minus():
    published = paper_row(configure("cifar100-10", "abd"))
    row = Row("ABD", [made_up_result("abd", 0.3368)], published)
    assert Section("", [row]).accuracy()[1][0][4] == "+0.0"


def test_without_figures_of_the_paper_there_are_no_columns_for_them():
    alone = Section("", [Row("ABD", [made_up_result("abd", 0.3)])])
    assert alone.accuracy()[0] == ["Method", "seeds", "A_N", "Omega", "average A", "forgetting"]
    assert alone.notes() == []


def test_costs_are_for_people(section):
    assert section.cost()[1][0] == ["ABD", "40", "6", "3", "2.4 GB", "6.14 MB"]


def test_sizes_are_for_people():
    assert [byte_size(n) for n in (0, 12, 1234, 5_600_000, 7e10)] == ["0", "12 B", "1.23 kB", "5.6 MB", "70 GB"]
    assert [byte_size(n) for n in (999_400, 999_600, 999_900_000)] == ["999 kB", "1 MB", "1 GB"]


@pytest.mark.parametrize(("seconds", "shown"), [(0.01234, "0.0123"), (4.181, "4.18"), (99.96, "100"), (1089.2, "1089")])
def test_seconds_are_written_without_powers_of_ten(seconds, shown):
    made = made_up_result("abd", 0.5)
    slow = made.replace(seconds=made.seconds.replace(by_task=[{"learn": 1.0}, {"learn": seconds}]))
    assert Section("", rows_of([slow])).cost()[1][0][2] == shown


# --- formats


def test_markdown_has_a_line_a_row():
    text = rows_as_markdown(rows_of([made_up_result("abd", 0.5), made_up_result("lwf", 0.2)]))
    assert text.splitlines()[0].startswith("| Method | A_N |")
    assert text.splitlines()[2] == "| ABD | 50.0 | 50.0 | – | 25.0 | 10 |"
    assert len(text.splitlines()) == 4


def test_a_bar_in_a_title_is_no_end_of_a_cell():
    (line,) = rows_as_markdown([Row("a|b", [made_up_result("abd", 0.5)])]).splitlines()[2:]
    assert line == r"| a\|b | 50.0 | 50.0 | – | 25.0 | 10 |"


def test_signs_that_are_others_in_latex_are_shown_as_they_are():
    (row,) = rows_of([made_up_result("abd", 0.5)])
    assert "a $<$ b $|$ c $>$ d 50\\% &" in as_latex([Section("", [replace(row, title="a < b | c > d 50%")])])


def test_the_table_as_markdown_csv_and_latex(section):
    lines = as_markdown([section]).splitlines()
    assert lines[0] == "a caption"
    assert lines[4].startswith("| ABD | 2 | 31.0 ± 1.4 | 33.7 ± 1.2 | -2.7 | below |")
    abd, lwf = csv.DictReader(as_csv([section]).splitlines())
    assert float(abd["final_accuracy"]) == pytest.approx(31.0)
    assert float(abd["final_accuracy_tolerance"]) == pytest.approx(2 * (1 + 0.48) ** 0.5)
    assert (abd["omega_verdict"], abd["seeds"], lwf["omega_verdict"], lwf["omega"]) == ("agrees", "0 1", "", "")
    assert section.notes() == [f"paper: {paper.find_table('data-free').source}", f"verdict: {paper.RULE}"]
    assert [line for line in lines if line.startswith("* ")] == [f"* {note}" for note in section.notes()]
    latex = as_latex([section])
    assert all(f"% {note}\n" in latex for note in section.notes())
    assert r"ABD & 2 & 31.0 $\pm$ 1.4 & 33.7 $\pm$ 1.2 & -2.7 & below &" in latex
    assert r"LwF\_1" in latex
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 2
    for block in latex.split(r"\begin{tabular}")[1:]:
        rows = [line for line in block.splitlines() if line.endswith(r"\\")]
        assert len({line.count(" & ") for line in rows}) == 1


# --- made of result files


def test_results_are_loaded_by_method_and_seed(tmp_path):
    write_results(
        tmp_path,
        c=made_up_result("abd", 0.5, seed=1),
        b=made_up_result("abd", 0.7),
        a=by_foreign_method(of_own_preset(0.1)),
        d=made_up_result("joint", 0.9),
    )
    assert [(result.method, result.seed) for result in load_results(tmp_path)] == [
        ("joint", 0),
        ("abd", 0),
        ("abd", 1),
        ("theirs", 0),
    ]


@pytest.mark.parametrize("folder", sorted(results_by_name(ROOT / "results")), ids=str)
def test_the_results_of_earlier_versions_in_this_project_are_read_and_lose_nothing(folder):
    folder = ROOT / "results" / folder
    results = load_results(str(folder))
    assert len(results) == len([*folder.glob("*.json")])
    assert {result.preset for result in results} == {folder.name}
    by_run = {(result.method, result.seed, str(result.config)): result.as_dict() for result in results}
    for file in folder.glob("*.json"):
        stored = json.loads(file.read_text())
        read = by_run[stored["method"], stored["seed"], str(stored["config"])]
        assert {key: read[key] for key in stored} == stored
        assert all(read[key] is None for key in read.keys() - stored.keys())


def test_tables_in_a_text_are_made_of_result_files_alone(tmp_path):
    write_results(
        tmp_path / "digits-5",
        b=made_up_result("abd", 0.5, seed=1),
        c=made_up_result("abd", 0.7),
        a=made_up_result("joint", 0.9),
    )
    text = "before\n<!-- results: digits-5 -->\nold\n<!-- /results -->\nafter <!-- a comment -->\n"
    once = renewed(text, tmp_path)
    assert once == renewed(once, tmp_path)
    lines = once.splitlines()
    assert (lines[0], lines[-1]) == ("before", "after <!-- a comment -->")
    assert "old" not in lines
    assert lines[4] == "| Upper Bound | 90.0 | 90.0 | – | – | 10 | 0 |"
    assert lines[5] == "| ABD | 60.0 ± 14.1 | 60.0 ± 14.1 | – | 25.0 ± 0.0 | 10 | 0, 1 |"
    (tmp_path / "page.md").write_text(text)
    renew_tables(tmp_path / "page.md", tmp_path)
    assert (tmp_path / "page.md").read_text() == once


def test_a_text_without_a_table_is_not_said_to_be_renewed(tmp_path):
    with pytest.raises(UserError, match="no table in it to renew"):
        renewed("<!-- result: digits-5 -->\n<!-- /results -->", tmp_path)


def test_results_of_methods_that_are_not_installed_are_shown_and_other_files_refused(tmp_path):
    write_results(tmp_path, a=by_foreign_method(of_own_preset(0.5)), b=made_up_result("abd", 0.4))
    lines = results_table(tmp_path).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| ABD", "| theirs"]
    for content in ("[]", "{}", "not JSON", '{"method": "magic"}'):
        (tmp_path / "c.json").write_text(content)
        with pytest.raises(UserError, match=r"c\.json is not the result of a run"):
            results_table(tmp_path)


def test_the_papers_figure_stands_beside_ours_where_the_experiment_is_the_papers(tmp_path):
    write_results(
        tmp_path,
        a=made_up_result("abd", 0.325, preset="cifar100-10"),
        b=made_up_result("abd", 0.325, preset="cifar100-10", settings=["train.epochs=2"]),
    )
    header, _, usual, changed = results_table(tmp_path).splitlines()
    assert header.startswith("| Method | A_N | paper's | average A |")
    assert usual.startswith("| ABD | 32.5 | 33.7 ± 1.2 | 32.5 |")
    assert changed.startswith("| ABD, train.epochs=2 | 32.5 | – | 32.5 |")
    assert [record.get("final_accuracy_verdict") for record in records_of_results(load_results(tmp_path))] == [
        "agrees",
        None,
    ]


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(UserError, match=f"no result files .* in {tmp_path}"):
        results_table(tmp_path)
    with pytest.raises(UserError, match=r"There is no folder .*nowhere"):
        results_by_name(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no finished runs\. Name .*, or put a run's result\.json under .*/PRESET/"):
        results_by_name(tmp_path)


def test_results_are_read_from_what_run_and_table_write(small_table, tmp_path):
    alone = load_results(small_table / "abd-seed0")
    assert [(result.method, result.seed) for result in alone] == [("abd", 0)]
    runs = tmp_path / "runs"
    shutil.copytree(small_table, runs / "table")
    for name in ("table.json", "tune.json"):
        (runs / "table" / name).write_text("{}")
    (runs / "mine").mkdir()
    other = made_up_result("abd", 0.4, preset="cifar100-10")
    (runs / "mine" / "result.json").write_text(json.dumps(other.as_dict()))
    (runs / "not-finished").mkdir()
    expected = [("joint", 0), ("base", 0), ("base", 1), ("abd", 0)]
    assert [(result.method, result.seed) for result in load_results(runs / "table")] == expected
    assert {name: len(found) for name, found in results_by_name(runs).items()} == {"digits-5": 4, "cifar100-10": 1}
    assert results_by_name(small_table / "abd-seed0") == {"digits-5": alone}
    both = results_table(runs)
    assert both.startswith("digits-5\n\n| Method |")
    assert "\n\ncifar100-10\n\n| Method |" in both
    assert results_table(runs / "table") in both


def test_the_tables_of_this_projects_pages_are_those_of_the_result_files():
    pages = [
        page for page in (ROOT / "README.md", ROOT / "results" / "README.md") if "<!-- results:" in page.read_text()
    ]
    assert pages
    for page in pages:
        assert renewed(page.read_text("utf-8"), ROOT / "results") == page.read_text("utf-8")
    assert any("<!-- results: digits-5 -->" in page.read_text("utf-8") for page in pages)


def test_what_a_corrected_method_has_without_its_correction_is_noted(section):
    raw = [made_up_result("bic", 0.5, seed=seed, uncorrected_accuracy_after=[0.6, 0.40 + seed / 50]) for seed in (0, 1)]
    row = Row("BiC", raw)
    assert Section("", [row]).notes() == ["BiC, before correction: A_N 41.0 ± 1.4"]
    assert Section("", [*section.rows, row]).notes()[0] == "BiC, before correction: A_N 41.0 ± 1.4"
    assert row.as_dict()["final_accuracy_uncorrected"] == pytest.approx(41)
    half = Row("BiC", [raw[0], made_up_result("bic", 0.5, seed=1)])
    assert half.uncorrected() == [] and "final_accuracy_uncorrected" not in half.as_dict()


def test_rows_of_our_own_table_have_no_column_of_the_papers():
    rows = [Row("Lucid", [made_up_result("lucid", 0.5)], paper.find_table("lucid").rows[2])]
    assert rows[0].paper.method == "lucid" and not rows[0].beside_paper
    assert Section("", rows).accuracy()[0] == ["Method", "seeds", "A_N", "Omega", "average A", "forgetting"]
    assert Section("", rows).notes() == []
