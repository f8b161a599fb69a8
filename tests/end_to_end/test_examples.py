"""The scripts in examples/ run as they are, and take nothing but public names."""

import ast
import subprocess
import sys

import pytest

import reverie
from tests.support.paths import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run_example(name, folder, *words):
    command = [sys.executable, str(ROOT / "examples" / name), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_takes_public_names_alone(file):
    tree = ast.parse(file.read_text("utf-8"))
    modules = {
        node.module if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert not {name for name in modules if name and name.startswith("reverie.")}
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "reverie"
    }
    assert used
    assert used <= set(reverie.__all__)


def test_a_researcher_loops_over_tasks_with_a_method_and_an_observer_of_their_own(tmp_path):
    said = run_example("loop_over_tasks.py", tmp_path, "--epochs", "1", "--dream-steps", "4")
    lines = said.splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        f"{method}, task {task}" for method in ("base", "dream-rehearsal") for task in range(1, 6)
    ]
    assert all("cross_entropy" in line for line in lines[:5])
    assert all("'real'" in line and "'dreamed'" in line for line in lines[6:])


def test_a_researcher_compares_runs_and_gets_a_page(tmp_path):
    said = run_example("compare_methods.py", tmp_path, "--epochs", "1", "--out", "here")
    assert said.splitlines()[-1] == "here/page.html"
    assert "with lr 0.05" in said
    assert (tmp_path / "here" / "page.html").stat().st_size > 10_000
    assert (tmp_path / "here" / "abd-gentler" / "result.json").is_file()


def test_a_practitioner_learns_predicts_scores_and_exports(tmp_path):
    said = run_example("extend_a_classifier.py", tmp_path, "--epochs", "2", "--work", "here")
    assert said.count("verdict: ") == 2
    assert "all six digits: " in said
    assert not (tmp_path / "here" / "images" / "first").exists()
    assert (tmp_path / "here" / "model-2" / "ledger.json").is_file()
    assert (tmp_path / "here" / "model-2.pt2").is_file()
