"""The whole demo as a newcomer runs it (minutes; `make check-long`)."""

import json
import subprocess
import sys

import pytest
from PIL import Image


@pytest.mark.long
def test_the_demo_shows_what_the_readme_says(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "reverie", "demo"], cwd=tmp_path, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "demo"
    for picture in ("accuracy.png", "dreams.png"):
        assert str(picture) in done.stdout
        Image.open(folder / picture).verify()
    assert "5 of 5 runs finished" in (folder / "page.html").read_text("utf-8")
    names = ("joint", "base", "lwf", "deepinversion", "abd")
    results = {name: json.loads((folder / f"{name}-seed0" / "result.json").read_text()) for name in names}
    accuracy = {name: result["metrics"]["final_accuracy"] for name, result in results.items()}
    assert accuracy["joint"] > 0.95
    assert accuracy["joint"] > accuracy["abd"] > accuracy["deepinversion"] > accuracy["lwf"]
    assert accuracy["abd"] > 0.7
    assert accuracy["base"] < 0.25
