"""Progress of a run: bars in a terminal, lines in a pipe."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from reverie.engine.observer import Observer
from reverie.errors import Interrupted
from reverie.learner import progress as progress_module
from reverie.learner.checkpoint import Checkpoint
from reverie.learner.progress import (
    ConsoleProgress,
    console_for,
    counting,
    following,
    showing_progress,
    where_it_goes_on,
)
from tests.support.experiments import CtrlC, quick_run, tiny_config

ONE = ("stream.take=1", "train.epochs=1")


def shown(terminal, config, folder, **how):
    text = io.StringIO()
    with following(Console(file=text, force_terminal=terminal, width=220), "digits abd") as progress:
        quick_run(config, folder, observer=progress, **how)
    return text.getvalue()


def test_in_a_pipe_there_is_a_line_for_each_task(tmp_path):
    said = shown(False, tiny_config("abd", "stream.take=2", "train.epochs=1"), tmp_path / "run")
    lines = [line for line in said.splitlines() if "learned" in line]
    assert [re.sub(r"[\d.]+ (%|s)", r"N \1", line) for line in lines] == [
        f"digits abd task {number}/2 learned: N % right over all classes seen (N s)" for number in (1, 2)
    ]
    assert re.search(r"digits abd task 2/2 dreams show \d of 2 old classes, confidence \d", said)
    assert "\x1b" not in said


def test_in_a_terminal_task_phase_epoch_losses_accuracy_and_time_left_are_seen(tmp_path):
    said = shown(True, tiny_config("abd", "stream.take=3", "train.epochs=3"), tmp_path / "run")
    assert "task 3/3" in said
    assert re.search(r"task 3/3 learn epoch [23]/3", said)
    assert "fine_tuning" in said
    assert "% right so far" in said
    assert re.search(r"about \d+ s left", said)
    assert "\x1b" in said


@pytest.mark.parametrize(("width", "losses"), [(66, ""), (120, "cross_entro"), (220, "fine_tuning")])
def test_in_a_narrow_terminal_bar_and_times_are_seen_and_losses_as_there_is_room(width, losses):
    text = io.StringIO()
    with following(Console(file=text, force_terminal=True, width=width, color_system=None), "flowers-2") as progress:
        feed = SimpleNamespace(steps_per_epoch=10)
        progress.phase_begins(SimpleNamespace(name="learn", feed=feed, total_steps=2500), 0)
        text.truncate(0)
        progress.epoch_ends(99, 0.1, {"cross_entropy": 0.192, "distillation": 1.25, "fine_tuning": 0.707})
        said = text.getvalue()
    assert re.search(r"flowers-2 learn epoch 101/250 +[━╸╺ ]+ +0/2500 +0:00:0\d +-?[-:0-9]+", said.replace("\r", ""))
    assert losses in said
    assert ("cross" in said) == bool(losses)


def test_what_was_taken_from_another_run_is_said_to_be(tmp_path):
    one = tiny_config("base", *ONE)
    quick_run(one, tmp_path / "first", share_first_task=True)
    assert "task 1/1 learn is taken from another run" in shown(False, one, tmp_path / "second", share_first_task=True)
    with pytest.raises(Interrupted):
        quick_run(one, tmp_path / "alone", observer=CtrlC(1, "learn", 5))
    assert "task 1/1 learn goes on at step 5 of" in shown(False, one, tmp_path / "alone", share_first_task=True)


@pytest.mark.parametrize("terminal", [True, False])
def test_names_are_shown_as_they_are(tmp_path, terminal):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=150, color_system=None)
    with following(console, "[red]x[/b] :cat:") as progress:
        quick_run(tiny_config("base", *ONE), tmp_path / "run", observer=progress)
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


def test_a_pipe_that_has_heard_nothing_for_long_is_told_how_long_it_will_take(monkeypatch):
    text, now = io.StringIO(), iter(range(0, 100_000, 30))
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with following(Console(file=text, width=220), "digits") as progress:
        progress.task_begins(0, 2)
        progress.phase_begins(
            SimpleNamespace(name="learn", feed=SimpleNamespace(steps_per_epoch=10), total_steps=20), 0
        )
        for done in range(1, 4):
            progress.step_ends(done, dict)
    assert re.search(r"digits task 1/2 learn: step \d of 20, about \d+ min left", text.getvalue())


def test_what_was_decided_is_a_line_of_its_own():
    text = io.StringIO()
    with following(Console(file=text, width=40), "flowers") as progress:
        progress.decided("a line that is longer than the console is wide, and is not broken")
    assert text.getvalue() == "a line that is longer than the console is wide, and is not broken\n"


def test_progress_is_shown_where_it_is_wanted(capsys):
    assert console_for(False) is None
    mine = Console(file=io.StringIO())
    assert console_for(mine) is mine
    assert console_for(True).stderr
    with showing_progress(False, "x") as display:
        assert type(display) is Observer
    with showing_progress(mine, "x") as display:
        assert type(display) is ConsoleProgress
    with counting(False, "x") as count:
        count(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_run_that_goes_on_says_where():
    whole = {"done": 7}
    assert where_it_goes_on(Checkpoint(2, 1, None, whole), 5) == (
        "goes on from the last checkpoint: task 3 of 5, phase 2, step 7"
    )
    assert where_it_goes_on(Checkpoint(0, 0, None)) == "goes on from the last checkpoint: phase 1, step 0"
    assert where_it_goes_on(Checkpoint(1, None, None), 3) == "goes on from the last checkpoint: task 2 of 3"
    assert where_it_goes_on(Checkpoint(3, None, None), 3) == "goes on from the last checkpoint: all tasks are learned"
