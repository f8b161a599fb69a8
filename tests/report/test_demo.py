"""The demo, cut down: five methods, a table, two pictures and a page, whose paths it returns."""

import io

import pytest
from PIL import Image
from rich.console import Console

from reverie import run_demo
from reverie.engine.observer import Observer
from reverie.errors import UserError
from reverie.report import demo

TITLES = ["Upper Bound", "Base", "LwF", "DeepInversion", "ABD"]


@pytest.fixture
def short(tmp_path, monkeypatch):
    """Two tasks, and few steps."""
    preset = tmp_path / "tiny.yaml"
    preset.write_text(
        "extends: digits-5\ndata: {size: 8}\nstream: {take: 2}\ntrain: {epochs: 1, batch_size: 32}\n"
        "dream: {steps: 3, width: 8}\n"
    )
    monkeypatch.setattr(demo, "PRESET", str(preset))


@pytest.mark.usefixtures("short")
def test_the_demo_ends_with_a_table_and_pictures_and_is_not_run_twice(tmp_path):
    class Counting(Observer):
        tasks = 0

        def task_ends(self, index, accuracy):
            self.tasks += 1

    said, counting = io.StringIO(), Counting()
    out = tmp_path / "demo"
    made = run_demo([0, 1], out, device="cpu", progress=Console(file=said, width=120), observer=counting)
    assert [file.name for file in made.files] == ["table.md", "accuracy.png", "dreams.png", "page.html"]
    assert [row.title for row in made.rows] == TITLES
    table = made.files[0].read_text()
    assert all(title in table for title in TITLES)
    assert "±" in table
    assert "| – |" not in table.splitlines()[3]  # Omega is known: the upper bound came first
    assert str(made).startswith(made.caption)
    assert "seeds 0, 1: mean ± deviation, percent" in made.caption
    assert str(made).endswith(table)
    assert made.as_dict()["files"] == [str(file) for file in made.files]
    for file in made.files[1:3]:
        assert Image.open(file).size[0] > 100
    assert counting.tasks == 2 * 5 * 2  # seeds, methods, tasks
    assert said.getvalue().count("learned:") == 20
    run_demo([0, 1], out, device="cpu", observer=counting)
    assert counting.tasks == 20


def test_seeds_are_a_list(tmp_path):
    for seeds in (0, []):
        with pytest.raises(UserError, match="`seeds` is a list of whole numbers"):
            run_demo(seeds, tmp_path / "demo")
