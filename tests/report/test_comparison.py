"""What is shown of runs side by side."""

import json
import shutil
from importlib.metadata import EntryPoint

import pytest

from reverie.report.blocks import TableBlock
from reverie.report.page import make_page, write_report
from reverie.report.run_reader import RunView
from reverie.system import plugins
from tests.support.pages import blocks, charts
from tests.support.paths import ROOT


def test_a_table_puts_methods_side_by_side_the_upper_bound_first(small_table):
    (chapter,) = make_page([small_table]).chapters
    assert chapter.title == "small-table: digits-5"
    assert chapter.missing == ["base-seed1: Omega needs the upper bound, which has not been trained beside this run."]
    table = blocks(chapter, TableBlock)[0]
    methods = [row[0] for row in table.rows]
    assert [name.partition(",")[0] for name in methods] == ["Upper Bound", "Base", "ABD"]
    assert [row[1] for row in table.rows] == ["1", "2", "1"]
    shown = charts(chapter)
    base = shown["Accuracy by task"].drawing["series"][1]
    runs = [RunView.of(small_table / f"base-seed{seed}").accuracy_after for seed in (0, 1)]
    for task, (x, middle, low, high) in enumerate(base["points"]):
        its = [100 * accuracy[task] for accuracy in runs]
        assert (x, low, high) == (task + 1, pytest.approx(min(its), rel=1e-4), pytest.approx(max(its), rel=1e-4))
        assert middle == pytest.approx(sum(its) / 2, rel=1e-4)
    assert len(shown["Omega by task"].drawing["series"]) == 2  # not of Base, one of whose seeds has no upper bound
    assert len(shown["Accuracy against cost"].drawing["series"]) == 3
    assert len(shown["Time a batch"].drawing["categories"]) == 3
    styles = {series["name"]: series["style"] for series in shown["Accuracy by task"].drawing["series"]}
    assert len(set(styles.values())) == 3
    assert all(styles[series["name"]] == series["style"] for series in shown["Omega by task"].drawing["series"])
    assert {methods[n] for n in range(3)} <= set(shown)  # a matrix of each


def test_the_papers_figures_stand_beside_ours(tmp_path):
    shutil.copy(ROOT / "results" / "cifar100-10" / "abd-seed0.json", tmp_path)
    (chapter,) = make_page([tmp_path]).chapters
    drawing = charts(chapter)["A_N by method"].drawing
    abd = drawing["categories"].index("ABD")
    ours, theirs = (series["values"] for series in drawing["series"])
    assert theirs[abd] == [33.7, 32.5, 34.9]
    assert len(ours[abd]) == 1  # one seed has no spread
    assert drawing["series"][1]["hollow"]
    assert "agrees: |ours - paper|" in chapter.parts[0].about


def test_a_broken_method_of_another_package_keeps_no_page_from_being_made(monkeypatch, caplog, tmp_path):
    gone = EntryPoint("gone", "nowhere.to_be:Found", "reverie.methods")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [gone])
    for method in ("abd", "lwf"):
        shutil.copy(ROOT / "results" / "cifar100-10" / f"{method}-seed0.json", tmp_path)
    write_report(tmp_path, tmp_path / "page.html")
    assert not caplog.text  # no run uses it
    abd = json.loads((tmp_path / "abd-seed0.json").read_text())
    (tmp_path / "a-gone-seed0.json").write_text(json.dumps({**abd, "method": "gone"}))
    (chapter,) = make_page([tmp_path]).chapters
    assert [row[0] for row in blocks(chapter, TableBlock)[0].rows] == ["LwF", "ABD", "gone"]


def test_presets_are_not_mixed(small_table):
    made = make_page([small_table / "abd-seed0", ROOT / "results" / "cifar100-10" / "abd-seed0.json"])
    assert made.chapters[-1].missing[0] == "Only the result file is here, so there are no losses and no dreams."
    assert [chapter.title for chapter in made.chapters][:2] == ["Side by side: digits-5", "Side by side: cifar100-10"]


def test_a_table_with_an_unfinished_run_says_so_and_shows_its_curve(small_table, tmp_path):
    table = tmp_path / "table"
    shutil.copytree(small_table, table)
    (table / "abd-seed0" / "result.json").unlink()
    (chapter,) = make_page([table]).chapters
    assert any(line.startswith("abd-seed0: The run is not finished") for line in chapter.missing)
    assert chapter.about == "3 of 4 runs finished; seeds 0, 1"
    curves = [series["name"] for series in charts(chapter)["Accuracy by task"].drawing["series"]]
    assert curves[-1] == "abd-seed0 (unfinished)"
    assert chapter.parts[0].heading == "Runs"  # what is at work comes first
    states = {row[0]: row[2] for row in chapter.parts[0].blocks[0].rows}
    assert states["abd-seed0"].startswith("3 of 3 tasks learned")


def test_a_table_of_which_nothing_is_finished_still_lists_its_runs(small_table, tmp_path):
    shutil.copytree(small_table / "abd-seed0", tmp_path / "table" / "abd-seed0")
    (tmp_path / "table" / "abd-seed0" / "result.json").unlink()
    (chapter,) = make_page([tmp_path / "table"]).chapters
    assert [part.heading for part in chapter.parts] == ["Runs", "Accuracy so far"]
    shutil.rmtree(tmp_path / "table" / "abd-seed0" / "tasks")
    (tmp_path / "table" / "abd-seed0" / "events.jsonl").unlink()
    (chapter,) = make_page([tmp_path / "table"]).chapters
    assert [part.heading for part in chapter.parts] == ["Runs"]
