"""`reverie table` as a person uses it: killed and started again; with a method from somebody's own package."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reverie.cli.app import main
from tests.support.experiments import TINY
from tests.support.tables import child_processes

METHOD = '''
from dataclasses import dataclass

from reverie import Method, losses


class Smooth(Method):
    """Cross-entropy with smoothed labels."""

    title = "Smooth"

    @dataclass(frozen=True)
    class Options:
        share: float = 0.1

    def losses(self, batch):
        logits = self.classifier(batch.images)
        even = -logits.log_softmax(dim=1).mean()
        return {"cross_entropy": (1 - self.options.share) * losses.cross_entropy(logits, batch.labels),
                "even": self.options.share * even}
'''


def sets(*settings: str) -> list[str]:
    return [word for setting in (*TINY, "stream.take=2", *settings) for word in ("--set", setting)]


@pytest.fixture
def own_package(tmp_path, monkeypatch) -> None:
    """An installed distribution `smoothing` with a method in it."""
    folder = tmp_path / "site"
    facts = folder / "smoothing-1.0.dist-info"
    facts.mkdir(parents=True)
    (folder / "smoothing.py").write_text(METHOD)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: smoothing\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[reverie.methods]\nsmooth = smoothing:Smooth\n")
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *([before] if before else [])]))
    monkeypatch.syspath_prepend(folder)


@pytest.fixture
def reverie(monkeypatch):
    """The command in this process; its workers are processes of their own."""

    def call(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["reverie", *words])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 0

    return call


def test_a_method_from_somebodys_own_package_runs_by_name_and_stands_in_the_table(
    own_package, reverie, tmp_path, monkeypatch
):
    quick = sets("train.epochs=1")
    monkeypatch.chdir(tmp_path)
    reverie("table", "digits-5", "--methods", "smooth", "--seeds", "0", "--parallel", "2", "--out", "table", *quick)
    with Path("table/table.csv").open() as file:
        upper, smooth = csv.DictReader(file)
    assert (upper["method"], smooth["title"]) == ("joint", "Smooth")
    assert upper["omega"] == "100.0"
    assert 0 < float(smooth["omega"]) <= 150
    assert float(smooth["seconds_a_step"]) > 0
    written = json.loads(Path("table/table.json").read_text())
    assert written["command"].startswith("reverie table digits-5 --methods smooth")
    assert len(written["runs"]) == 2
    for kind in ("md", "tex"):
        assert "Smooth" in Path(f"table/table.{kind}").read_text()
    (folder,) = Path("table").glob("digits-5-smooth-*")
    ours = json.loads((folder / "result.json").read_text())
    assert ours["sessions"][0]["command"].startswith("reverie run digits-5 --method smooth")
    reverie("run", "digits-5", "--method", "smooth", "--out", "run", *quick)
    assert ours["accuracy_matrix"] == json.loads(Path("run/result.json").read_text())["accuracy_matrix"]


def test_a_table_killed_in_the_middle_repeats_no_finished_run(reverie, tmp_path, capsys):
    words = ["table", "digits-5", "--methods", "base,lwf", "--seeds", "0", "--no-upper-bound", "--out", str(tmp_path)]
    words += ["--checkpoint-every", "0.1", *sets("train.epochs=6")]
    table = subprocess.Popen([sys.executable, "-m", "reverie", *words], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not list(tmp_path.glob("digits-5-lwf-*/checkpoint/moving.pt")):
        assert table.poll() is None
        time.sleep(0.02)
    workers = child_processes(table.pid)
    assert len(workers) == 1
    for process in (table.pid, *workers):
        os.kill(process, signal.SIGKILL)
    table.wait()
    (base,) = tmp_path.glob("digits-5-base-*")
    (lwf,) = tmp_path.glob("digits-5-lwf-*")
    assert not (lwf / "result.json").exists()
    before = {file: file.stat().st_mtime_ns for file in base.rglob("*") if file.is_file() and file.name != ".lock"}
    reverie(*words)
    assert "2 runs: 1 finished before, 1 to train" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in before} == before
    result = json.loads((lwf / "result.json").read_text())
    assert len(result["sessions"]) == 2
    assert result["first_task"]["trained_by"]["method"] == "base"
    assert "LwF" in Path(tmp_path / "table.md").read_text()
