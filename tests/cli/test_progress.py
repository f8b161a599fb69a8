"""Progress: bars in a terminal, lines in a pipe."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from reverie.cli.progress import counting, following
from reverie.errors import Interrupted
from reverie.runs.run import execute
from tests.runs.test_run import StopAt


def shown(terminal: bool, config, folder, **how) -> str:
    text = io.StringIO()
    with following(Console(file=text, force_terminal=terminal, width=220), "digits abd") as progress:
        execute(config, folder, observer=progress, **how)
    return text.getvalue()


def test_in_a_pipe_there_is_a_line_for_each_task(tiny, tmp_path):
    said = shown(False, tiny("abd", "stream.take=2"), tmp_path / "run")
    assert [line for line in said.splitlines() if "learned" in line]
    assert "dreams show" in said
    assert "\x1b" not in said


def test_in_a_terminal_task_phase_epoch_losses_accuracy_and_time_left_are_seen(tiny, tmp_path):
    said = shown(True, tiny("abd", "stream.take=3", "train.epochs=3"), tmp_path / "run")
    assert "task 3/3" in said
    assert re.search(r"task 3/3 learn epoch [23]/3", said)
    assert "fine_tuning" in said
    assert "% right so far" in said
    assert re.search(r"about \d+ s left", said)
    assert "\x1b" in said


@pytest.mark.parametrize(("width", "losses"), [(80, ""), (120, "cross_entro"), (220, "fine_tuning")])
def test_in_a_narrow_terminal_bar_and_times_are_seen_and_losses_as_there_is_room(width, losses):
    text = io.StringIO()
    with following(Console(file=text, force_terminal=True, width=width, color_system=None), "flowers-2") as progress:
        feed = SimpleNamespace(steps_per_epoch=10)
        progress.phase_begins(SimpleNamespace(name="learn", feed=feed, total_steps=2500), 0)
        text.truncate(0)
        progress.epoch_ends(99, 0.1, {"cross_entropy": 0.192, "distillation": 1.25, "fine_tuning": 0.707})
        said = text.getvalue()
    assert re.search(r"flowers-2  learn epoch 101/250 +[━╸╺ ]+ +0/2500 +0:00:0\d +-?[-:0-9]+", said.replace("\r", ""))
    assert losses in said
    assert ("cross" in said) == bool(losses)


def test_what_was_taken_from_another_run_is_said_to_be(tiny, tmp_path):
    one = tiny("base", "stream.take=1", "train.epochs=1")
    execute(one, tmp_path / "first", share_first_task=True)
    assert "task 1/1 learn is taken from another run" in shown(False, one, tmp_path / "second", share_first_task=True)
    with pytest.raises(Interrupted):
        execute(one, tmp_path / "alone", observer=StopAt(1, "learn", 5), checkpoint_seconds=0)
    assert "task 1/1 learn goes on at step 5 of" in shown(False, one, tmp_path / "alone", share_first_task=True)


@pytest.mark.parametrize("terminal", [True, False])
def test_names_are_shown_as_they_are(tiny, tmp_path, terminal):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=150, color_system=None)
    with following(console, "[red]x[/b] :cat:") as progress:
        execute(tiny("base", "stream.take=1"), tmp_path / "run", observer=progress)
    assert "[red]x[/b] :cat: task 1/1 learned" in text.getvalue()
    with counting(console, "reading [red]x[/b] :cat:") as progress:
        progress(5, 10)
    assert ("reading [red]x[/b] :cat:" in text.getvalue()) == terminal


def test_counting_takes_totals_known_and_unknown():
    text = io.StringIO()
    with counting(Console(file=text, force_terminal=True), "downloading") as progress:
        progress(1, 0)
        progress(5, 10)
    assert "downloading" in text.getvalue()
