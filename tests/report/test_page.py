"""What is shown of a run, and of which runs."""

from dataclasses import replace

import pytest

from reverie.errors import UserError
from reverie.report.blocks import Picture, TableBlock, TextBlock
from reverie.report.page import MOST_POINTS, make_page, run_chapter, write_report
from reverie.report.run_reader import RunView
from tests.support.pages import blocks, charts
from tests.support.paths import ROOT


def test_a_run_is_shown_from_its_accuracy_to_its_configuration(small_table):
    run = RunView.of(small_table / "abd-seed0")
    (chapter,) = make_page([run.path]).chapters
    assert [part.heading for part in chapter.parts] == [
        "Accuracy",
        "Losses by phase",
        "Dreams",
        "Cost",
        "What was kept",
        "Where this comes from",
    ]
    shown = charts(chapter)
    matrix = shown["Accuracy matrix"].drawing["values"]
    assert matrix[2][1] == pytest.approx(100 * run.matrix[2][1], abs=0.01)
    assert matrix[0][1] is None
    curves = {series["name"]: series for series in shown["Accuracy and Omega by task"].drawing["series"]}
    assert [y for _, y in curves["Omega"]["points"]] == pytest.approx(
        [100 * value for value in run.result.metrics.omega_up_to], abs=0.01
    )
    lost = shown["Forgetting by task"].drawing["series"][0]["values"]
    assert sum(lost) / 2 == pytest.approx(100 * run.result.metrics.forgetting, abs=0.01)
    assert [series["name"] for series in shown["Phase “dream”"].drawing["series"]] == [
        "content",
        "diversity",
        "statistics",
        "prior",
    ]
    seconds = shown["Seconds by task and part"].drawing
    assert sum(sum(s["values"]) for s in seconds["series"]) == pytest.approx(run.result.seconds.total, rel=0.01)
    assert [picture.title for picture in blocks(chapter, Picture)] == [f"While task {n} was learned" for n in (2, 3)]
    ledger = next(table for table in blocks(chapter, TableBlock) if "images seen" in table.header)
    assert [row[3] for row in ledger.rows] == ["nothing (0 bytes)"] * 3
    assert "name: abd" in blocks(chapter, TextBlock)[0].content
    assert dict(chapter.tiles)["A_N"] == f"{100 * run.result.metrics.final_accuracy:.1f}"


def test_a_task_that_is_known_better_than_ever_has_forgotten_less_than_nothing(small_table):
    run = replace(RunView.of(small_table / "abd-seed0"), matrix=[[0.8, None, None], [0.7, 0.6, None], [0.75, 0.7, 0.5]])
    assert charts(run_chapter(run))["Forgetting by task"].drawing["series"][0]["values"] == [5, -10]
    run.matrix[2][0] = None  # a task without test images, or a damaged file
    bars = charts(run_chapter(run))["Forgetting by task"].drawing
    assert (bars["categories"], bars["series"][0]["values"]) == (["task 2"], [-10])


def test_where_logits_are_corrected_the_accuracy_before_is_shown_beside(small_table):
    run = RunView.of(small_table / "abd-seed0")
    shown = run_chapter(replace(run, result=run.result.replace(uncorrected_accuracy_after=[0.9, 0.6, 0.5])))
    curves = {s["name"]: s["points"] for s in charts(shown)["Accuracy and Omega by task"].drawing["series"]}
    assert [y for _, y in curves["accuracy before correction"]] == [90, 60, 50]
    assert "accuracy before correction" not in str(run_chapter(run))


def test_the_upper_bound_forgets_nothing(small_table):
    (chapter,) = make_page([small_table / "joint-seed0"]).chapters
    assert "Accuracy matrix" in charts(chapter)
    assert "Forgetting by task" not in charts(chapter)


def test_runs_named_one_by_one_are_compared_and_each_has_its_chapter(small_table):
    made = make_page([small_table / "abd-seed0", small_table / "base-seed0"])
    assert [chapter.title for chapter in made.chapters] == [
        "Side by side: digits-5",
        "ABD on digits-5, seed 0",
        "Base on digits-5, seed 0",
    ]


def test_long_curves_are_thinned_but_keep_their_ends(tmp_path):
    (tmp_path / "run").mkdir()
    losses = "".join(
        f'{{"event": "epoch", "task": 1, "phase": "learn", "epoch": {n}, "losses": {{"a": {n}}}}}\n'
        for n in range(1, 5001)
    )
    (tmp_path / "run" / "events.jsonl").write_text(losses)
    (chapter,) = make_page([tmp_path / "run"]).chapters
    points = charts(chapter)["Phase “learn”"].drawing["series"][0]["points"]
    assert len(points) <= MOST_POINTS + 20
    assert (points[0], points[-1]) == ([1, 1], [5000, 5000])
    assert charts(chapter)["Phase “learn”"].drawing["y"]["log"]


def test_a_model_is_no_run(small_table, tmp_path):
    with pytest.raises(UserError, match=r"model is a model, whose report is its README.md"):
        write_report([small_table / "abd-seed0" / "model"], tmp_path / "page.html")


@pytest.mark.parametrize("name", ["nowhere", "empty", "note.txt"])
def test_where_there_is_no_run_that_is_said_and_nothing_is_written(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.txt").write_text("nothing")
    with pytest.raises(UserError, match="Name the folder of a run or of a table"):
        write_report([tmp_path / name], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_report_of_result_files_puts_them_side_by_side_and_each_has_its_chapter(tmp_path):
    files = [ROOT / "results" / "cifar100-10" / f"{method}-seed0.json" for method in ("lwf", "abd")]
    page = write_report([str(files[0]), files[1]], tmp_path / "deep" / "page.html")
    assert page == tmp_path / "deep" / "page.html"
    text = page.read_text("utf-8")
    for words in (
        "Side by side: cifar100-10",
        "LwF on cifar100-10, seed 0",
        "ABD on cifar100-10, seed 0",
        "33.7 ± 1.2",
    ):
        assert words in text
    assert text.count("Only the result file is here, so there are no losses and no dreams.") == 2


def test_a_page_that_cannot_be_written_is_a_mistake_in_the_words_of_python(small_table):
    with pytest.raises(UserError, match=r"cannot be written: Not a directory\. Choose another `out`\."):
        write_report(small_table / "abd-seed0", "/dev/null/page.html")


def test_a_page_takes_the_place_of_an_earlier_page_and_of_nothing_else(small_table, tmp_path):
    run, notes = small_table / "abd-seed0", tmp_path / "notes.html"
    page = write_report(run, tmp_path / "page.html")
    assert write_report([run, run], page) == page
    notes.write_text("<p>My own words.</p>")
    with pytest.raises(UserError, match=r"notes.html exists already"):
        write_report(run, notes)
    assert notes.read_text() == "<p>My own words.</p>"
    write_report(run, notes, overwrite=True)
    assert "ABD on digits-5" in notes.read_text("utf-8")
