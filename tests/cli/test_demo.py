"""`reverie demo` as a person types it, cut down."""

import json
from pathlib import Path

import pytest

from reverie.report import demo
from tests.support.mistakes import assert_mistake


def test_the_demo_prints_a_table_and_where_everything_is(reverie, tmp_path, monkeypatch):
    Path("quick.yaml").write_text(
        "extends: digits-5\ndata: {size: 8}\nstream: {take: 2}\ntrain: {epochs: 1, batch_size: 32}\n"
        "dream: {steps: 2, width: 8}\n"
    )
    monkeypatch.setattr(demo, "PRESET", "quick.yaml")
    code, out, err = reverie("demo", "--device", "cpu", "--json")
    assert code == 0
    told = json.loads(out)
    assert "task 2/2 learned" in err
    assert [row["method"] for row in told["rows"]] == ["joint", "base", "lwf", "deepinversion", "abd"]
    assert told["files"][-1] == "runs/demo/page.html"
    assert "quick" in (tmp_path / "runs" / "demo" / "page.html").read_text("utf-8")
    result = json.loads((tmp_path / "runs" / "demo" / "abd-seed0" / "result.json").read_text())
    assert result["sessions"][0]["command"].startswith("reverie demo")
    code, out, _ = reverie("demo", "--device", "cpu")
    assert code == 0
    assert "DeepInversion" in out
    assert out.splitlines()[-4:] == [f"  {file}" for file in told["files"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("demo --seeds a,b", "--seeds wants numbers such as 0,1,2, not 'a,b'."),
        ("demo --out /dev/null", "/dev/null/joint-seed0 cannot be written: Not a directory. Choose another --out."),
        ("demo --device abacus", "The device 'abacus' is unknown"),
    ],
)
def test_a_mistake_is_told_in_a_line_or_two_and_leaves_nothing(reverie, words, message):
    assert_mistake(reverie, words, message)
