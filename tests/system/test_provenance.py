"""Where a figure comes from."""

import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import torch

from reverie.system import provenance
from reverie.system.provenance import Environment, command_line, commit, digest, environment, now, peak_memory
from reverie.system.records import as_record
from reverie.version import __version__


def test_the_environment_names_versions_and_hardware_but_no_place():
    facts = environment(torch.device("cpu"))
    assert facts.torch == torch.__version__
    assert facts.reverie == __version__
    assert facts.cores >= 1
    assert not any("/" in str(value) for key, value in facts.as_dict().items() if key != "cpu")
    assert "gpu" not in facts.as_dict()  # there is none
    assert as_record(Environment, facts.as_dict()) == facts


def test_the_commit_is_that_of_reveries_own_checkout():
    found = commit()
    checkout = Path(provenance.__file__).parents[2]
    asked = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True)
    at_home = (checkout / ".git").exists() and asked.returncode == 0
    assert (found or "").rstrip("+") == (asked.stdout.strip() if at_home else "")


def test_reverie_installed_inside_another_repository_has_no_commit(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    inside = tmp_path / "venv" / "site-packages" / "reverie"
    inside.mkdir(parents=True)
    monkeypatch.setattr(provenance, "__file__", str(inside / "system" / "provenance.py"))
    assert commit() is None


def test_equal_networks_have_equal_digests_whatever_else_they_share():
    state = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2)}
    assert digest(state) == digest({name: value.clone() for name, value in state.items()})
    others = [
        {"a": state["a"].view(3, 2), "b": state["b"]},
        {"a": state["a"].double(), "b": state["b"]},
        {"c": state["a"], "b": state["b"]},
        {"a": state["a"] + 1e-6, "b": state["b"]},
    ]
    assert digest(state) not in [digest(other) for other in others]


def test_dates_are_to_the_second_in_universal_time():
    assert datetime.fromisoformat(now()).utcoffset() == timedelta(0)
    assert len(now()) == len("2026-01-01T00:00:00+00:00")


def test_peak_memory_is_measured():
    assert peak_memory(torch.device("cpu")) > 10**7


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process is not told apart from what started it")
def test_peak_memory_is_of_the_process_itself_and_not_of_the_one_that_started_it():
    ask = "from types import SimpleNamespace as N; from reverie.system.provenance import peak_memory; "
    ask += "print(peak_memory(N(type='cpu')))"
    start = "import subprocess, sys; held = bytearray(600_000_000); held[::4096] = b'1' * len(held[::4096]); "
    start += f"print(subprocess.run([sys.executable, '-c', {ask!r}], capture_output=True, text=True).stdout)"
    said = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=True).stdout
    assert 10**6 < int(said) < 300_000_000


def test_the_command_is_kept_without_a_persons_folders(monkeypatch):
    words = [
        "/home/ann/venv/bin/reverie",
        "run",
        "digits-5",
        "--out",
        "/home/ann/runs/one",
        "--data",
        "data",
        "--seed",
        "1",
    ]
    monkeypatch.setattr("sys.argv", words)
    assert command_line() == "reverie run digits-5 --out one --data data --seed 1"
    elsewhere = ["--data=/home/ann/photos", "--out", "../../ann/runs/two", "--from=~/m", "--set", "net.name=timm/x"]
    monkeypatch.setattr("sys.argv", ["reverie", "run", "mine/own.yaml", *elsewhere])
    short = "reverie run mine/own.yaml --data=photos --out two --from=m --set net.name=timm/x"
    assert command_line() == short
    monkeypatch.setattr("sys.argv", ["/x/reverie/__main__.py", "demo"])
    assert command_line() == "reverie demo"
