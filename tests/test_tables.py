"""Rows and cells of a table."""

import json
from pathlib import Path

import pytest

from reverie import runs, tables
from reverie.errors import UserError

ROOT = Path(tables.__file__).parents[1]


def result(method, accuracy, omega=None, seconds=10.0, seed=0, recipe="paper", settings=()):
    metrics = {
        "final_accuracy": accuracy,
        "average_incremental_accuracy": accuracy,
        "omega": omega,
        "forgetting": None if method == "joint" else 0.25,
    }
    config = runs.configure("digits-5", method, seed=seed, recipe=recipe, settings=settings)
    return {
        "preset": "digits-5",
        "method": method,
        "recipe": recipe,
        "seed": seed,
        "config": config.as_dict(),
        "metrics": metrics,
        "seconds": {"total": seconds},
    }


def test_a_row_is_the_mean_and_the_sample_deviation_over_seeds():
    rows = tables.rows_of([result("abd", 0.5), result("lwf", 0.2), result("abd", 0.7)])
    assert [row.title for row in rows] == ["ABD", "LwF"]
    assert rows[0].cells() == ["ABD", "60.0 ± 14.1", "60.0 ± 14.1", "–", "25.0 ± 0.0", "10"]
    assert rows[1].cells()[1] == "20.0"


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
