"""`reverie report` and `reverie watch` as a person types them."""

import pytest


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report"], "Missing argument"),
        (["report", "nowhere"], "There is no nowhere. Name the folder of a run or of a table."),
        (["report", "."], "There is no run in ."),
        (["watch", "nowhere"], "There is no nowhere. Name the folder of a run or of a table."),
    ],
)
def test_a_mistake_is_told_in_a_line_and_leaves_nothing(reverie, tmp_path, words, message):
    code, _, err = reverie(*words)
    assert code == 2
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_is_a_mistake(reverie, small_table):
    code, _, err = reverie("report", str(small_table), "--out", "/dev/null/page.html")
    assert (code, "Choose another --out" in err) == (2, True)
