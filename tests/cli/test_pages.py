"""`reverie report` and `reverie watch` as a person types them."""

from pathlib import Path

import pytest

from tests.support.mistakes import assert_mistake


def test_a_report_is_one_file_whose_name_is_printed(reverie, small_table, tmp_path):
    code, out, err = reverie("report", str(small_table), "--out", "pages/table.html")
    assert (code, out, err) == (0, "pages/table.html\n", "")
    assert "small-table: digits-5" in (tmp_path / "pages" / "table.html").read_text("utf-8")
    assert [file.name for file in (tmp_path / "pages").iterdir()] == ["table.html"]


def test_several_runs_make_one_page(reverie, small_table, tmp_path):
    code, out, _ = reverie("report", str(small_table / "abd-seed0"), str(small_table / "base-seed1"))
    assert (code, out) == (0, "page.html\n")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "ABD on digits-5, seed 0" in page
    assert "Base on digits-5, seed 1" in page


MISTAKES = {
    "report": "Missing argument",
    "report nowhere": "There is no nowhere. Name the folder of a run or of a table.",
    "report .": "There is no run in .",
    "watch": "Missing argument",
    "watch nowhere": "There is no nowhere. Name the folder of a run or of a table.",
    "watch . --port x": "Invalid value for '--port'",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_told_in_a_line_and_leaves_nothing(reverie, words):
    assert_mistake(reverie, words, MISTAKES[words])


def test_what_is_no_run_is_named(reverie, small_table):
    Path("notes.txt").write_text("something else")
    model = str(small_table / "abd-seed0" / "model")
    assert_mistake(reverie, "report notes.txt", "notes.txt is no result file.")
    assert_mistake(reverie, ["report", model], "model is a model, whose report is its README.md.")


def test_a_report_replaces_an_earlier_page_and_no_other_file_unless_told_to(reverie, small_table, tmp_path):
    run = str(small_table / "abd-seed0")
    result = tmp_path / "result.json"
    result.write_text("{}")
    assert_mistake(
        reverie,
        ["report", run, "--out", "result.json"],
        "result.json exists already. Choose another --out, or say --overwrite.",
    )
    assert result.read_text() == "{}"
    assert reverie("report", run, "--out", "result.json", "--overwrite")[0] == 0
    assert reverie("report", run)[0] == reverie("report", run)[0] == 0


def test_a_page_that_cannot_be_written_and_a_port_that_cannot_be_used_are_mistakes(reverie, small_table):
    run = str(small_table / "abd-seed0")
    assert_mistake(reverie, ["report", run, "--out", "/dev/null/page.html"], "Choose another --out.")
    assert_mistake(reverie, ["report", run, "--out", "."], ". is a folder. Name a file: --out.")
    said = "Port 99999999 cannot be used. Choose another --port; 0 takes any that is free."
    assert_mistake(reverie, ["watch", run, "--port", "99999999"], said)
