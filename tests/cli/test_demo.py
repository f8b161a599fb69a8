"""The demo, cut down: five methods, a table, and two pictures whose paths it returns."""

import io

from PIL import Image
from rich.console import Console

from reverie.cli import demo


def test_the_demo_ends_with_a_table_and_pictures_and_is_not_run_twice(tmp_path, monkeypatch):
    preset = tmp_path / "tiny.yaml"
    preset.write_text(
        "extends: digits-5\ndata: {size: 8}\nstream: {take: 2}\ntrain: {epochs: 1, batch_size: 32}\n"
        "dream: {steps: 3, width: 8}\n"
    )
    monkeypatch.setattr(demo, "PRESET", str(preset))
    said = io.StringIO()
    rows, files = demo.run_demo([0, 1], tmp_path / "demo", "cpu", Console(file=said, width=120), "reverie demo")
    assert [file.name for file in files] == ["table.md", "accuracy.png", "dreams.png", "page.html"]
    assert [row.title for row in rows] == ["Upper Bound", "Base", "LwF", "DeepInversion", "ABD"]
    table = files[0].read_text()
    for title in ("Upper Bound", "Base", "LwF", "DeepInversion", "ABD"):
        assert title in table
        assert title in said.getvalue()
    assert "±" in table
    assert "| – |" not in table.splitlines()[3]  # Omega is known: the upper bound came first
    for file in files[1:3]:
        assert Image.open(file).size[0] > 100
    again = io.StringIO()
    demo.run_demo([0, 1], tmp_path / "demo", "cpu", Console(file=again, width=120), "reverie demo")
    assert "learned" not in again.getvalue()
