"""The command: help that teaches, and what becomes of errors. A mistake ends in a message, never in a traceback."""

import ast
import errno
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from importlib import import_module

import pytest

import reverie as package
from reverie import load
from reverie.cli.app import ORDER
from reverie.cli.data import data_app
from reverie.cli.verbs import app
from reverie.errors import Interrupted
from reverie.tables import table as tables
from tests.support.experiments import TINY
from tests.support.mistakes import assert_mistake

VERBS = {command.callback.__name__: command.callback for command in app.registered_commands}
DATA_VERBS = {f"data {command.name}": command.callback for command in data_app.registered_commands}
QUICK = [word for setting in [*TINY, "train.epochs=1", "stream.take=2"] for word in ("--set", setting)]


# --- help


@pytest.mark.parametrize("verb", ["", "data", *VERBS, *DATA_VERBS])
def test_help_teaches_with_an_example(reverie, verb):
    code, out, _ = reverie(*verb.split(), "--help")
    assert code == 0
    assert "Usage" in out
    if verb in ("", "data"):
        assert "Example" not in out
    else:
        assert "Example: reverie" in out


def test_help_lists_the_verbs_in_the_order_in_which_they_are_met(reverie):
    _, out, _ = reverie("--help")
    listed = re.findall(r"^│ ([a-z]+) ", out, re.MULTILINE)
    assert [verb for verb in listed if verb != "data"] == list(ORDER)
    panels = re.findall(r"─ ([A-Z][A-Za-z ]+) ─", out)
    assert panels == ["Options", "Commands", "Experiments", "Your own classifier", "Looking at runs"]


def test_every_verb_is_listed():
    assert sorted(VERBS) == sorted(ORDER)


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["data", "get", "--help"], ["--version"]], ids=" ".join
)
def test_help_loads_nothing_that_takes_long(words):
    """Not pydantic either; but typer loads that for itself where it parses options."""
    program = (
        "import sys\n"
        "from reverie.cli.app import main\n"
        "sys.argv = ['reverie', *sys.argv[1:]]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'torchvision', 'sklearn', 'matplotlib', 'numpy', 'jinja2', 'yaml', 'PIL'}\n"
        "heavy.add('reverie.system.records')\n"
        "if sys.argv[1:] == ['--help']: heavy.add('pydantic')\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True, timeout=60)


def test_the_list_of_presets_loads_no_torch():
    program = (
        "import sys\n"
        "from reverie.cli.app import main\n"
        "sys.argv = ['reverie', 'presets']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert "cifar100-10" in done.stdout


def test_python_m_reverie_is_the_command():
    done = subprocess.run([sys.executable, "-m", "reverie", "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"reverie {package.__version__}\n"


# --- a verb is a call

# What verbs import besides functions that anybody can call: to check, to write and to print.
HELPERS = {
    "command_line",
    "check_target",
    "write_json",
    "default_folder",
    "COLUMNS",
    "ROWS",
    "asdict",
    "showing_progress",
    "unreadable_lines",
}
HELPERS |= {"results_by_name", "records_of_results", "renew_tables", "renew_settings_page"}


def imported(verb):
    """What a verb imports when it is called, by name: the module and the name there."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(verb)))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [(node.module, alias.name) for node in found for alias in node.names]


@pytest.mark.parametrize("verb", [*VERBS.values(), *DATA_VERBS.values()], ids=lambda verb: verb.__name__)
def test_a_verb_calls_a_function_that_python_has_too(verb):
    assert inspect.getdoc(verb)
    public = []
    for module, name in imported(verb):
        if name in HELPERS:
            continue
        function = getattr(import_module(module), name)
        assert name in package.__all__, name
        assert getattr(package, name) is function
        assert inspect.getdoc(function), name
        public.append(name)
    assert public
    assert len(public) <= 3


# --- mistakes that belong to no verb


def test_an_unknown_verb_is_a_mistake(reverie):
    assert_mistake(reverie, "dance", "No such command 'dance'")
    assert_mistake(reverie, "data dance", "No such command 'dance'")
    assert_mistake(reverie, "--loud", "No such option")


# --- what becomes of errors


def test_training_that_diverges_says_what_to_lower(reverie):
    code, _, err = reverie("run", "digits-5", "--method", "base", *QUICK, "--set", "train.lr=1000")
    assert code == 1
    assert "train.lr" in err
    assert "Traceback" not in err


def test_a_full_disk_is_told_without_a_traceback(reverie, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = reverie("run", "digits-5", "--method", "base", *QUICK)
    assert code == 1
    assert "No space left on device" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (Interrupted(), "reverie: stopped; everything so far is saved. The same command goes on from here.\n"),
        (
            KeyboardInterrupt(),
            "reverie: stopped at once. What keeps checkpoints (learn, run, table, tune) goes on from",
        ),
    ],
)
def test_whoever_stops_it_is_told_what_is_left(reverie, monkeypatch, raised, said):
    def stop(*args, **how):
        raise raised

    monkeypatch.setattr(tables, "make_table", stop)
    code, _, err = reverie("table", "digits-5")
    assert code == 130
    assert err.startswith(said)


@pytest.mark.parametrize("name", ["o[/b]x", "[red]", ":cat:"])
def test_names_are_shown_as_they_are(reverie, photos, name):
    code, out, _ = reverie("run", "digits-5", "--method", "base", "--out", name, *QUICK)
    assert code == 0
    assert out.endswith(f"\n{name}/result.json\n")
    fruit = name.replace("/", "")
    (photos / "apple").rename(photos / fruit)
    (photos / fruit / "[i].txt").write_text("no image")
    code, out, _ = reverie("data", "check", str(photos))
    assert code == 0
    assert f"\n {fruit} " in out
    assert f"{fruit}/[i].txt is not an image" in out


def test_names_need_not_be_text(reverie, tmp_path, photos):
    odd = os.fsdecode(b"\xff")
    for file in (photos / "apple" / "0.jpg", photos / "apple", photos):
        file.rename(file.parent / f"{odd}{file.suffix}")
    photos = tmp_path / odd
    code, out, _ = reverie("data", "check", str(photos))
    assert code == 0
    assert r"\udcff " in out
    settings = ["--set", "data.source=folder", "--set", "stream.split=3", "--set", "stream.order=[2, 0, 1]"]
    code, _, _ = reverie("run", "digits-5", "--data", str(photos), "--out", "run", *QUICK, *settings)
    assert code == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert odd in result["class_names"]
    assert odd in result["sessions"][0]["command"]
    assert load(tmp_path / "run" / "model").classes == tuple(result["class_names"])
