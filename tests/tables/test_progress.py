"""A whole table on a console: bars in a terminal, a line for each end in a pipe."""

import io

import pytest
from rich.console import Console

from reverie.engine.observer import Observer, RunProgress, TableProgress
from reverie.tables.progress import ConsoleTableProgress, showing_table_progress


def console(**how):
    return Console(file=io.StringIO(), width=300, **how)


def table(running=(), **counts):
    known = {"total": 2, "finished": 0, "failed": 0, "waiting": 2, "parallel": 1, "seconds_left": None}
    return TableProgress(running=tuple(running), **known | counts)


def test_in_a_pipe_there_is_a_line_for_each_run():
    said = console()
    with showing_table_progress(said) as progress:
        progress.table_begins(table(parallel=2))
        progress.run_begins("base-seed0", table(waiting=1))
        progress.run_ends("base-seed0", 0.5, 12.0, table(finished=1, waiting=1, seconds_left=6.0))
        progress.run_ends("base-seed1", 0.6, 13.0, table(finished=2, waiting=0, seconds_left=0.0))
    assert said.file.getvalue().splitlines() == [
        "2 runs: 0 finished before, 2 to train, 2 at a time",
        "base-seed0 begins",
        "[1/2] base-seed0: 50.0 % in the end (12 s); about 6 s left",
        "[2/2] base-seed1: 60.0 % in the end (13 s)",
    ]


def test_one_run_is_no_runs():
    said = console()
    ConsoleTableProgress(said, None).table_begins(table(total=1, waiting=1))
    assert said.file.getvalue() == "1 run: 0 finished before, 1 to train\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_that_fails_or_is_waited_for_is_told_wherever_the_table_is_shown(terminal):
    said = console(force_terminal=terminal, color_system=None)
    with showing_table_progress(said) as progress:
        progress.table_begins(table())
        for name in ("[red]x[/b] :cat:", "abd-seed0"):
            progress.run_begins(name, table())
        progress.run_fails("[red]x[/b] :cat:", "failed with exit code 2", ["[i]no data[/i]"], table(failed=1))
        progress.run_waits("abd-seed0", table())
    shown = said.file.getvalue()
    assert "[red]x[/b] :cat: failed with exit code 2. The others go on. Its last words:" in shown
    assert "    [i]no data[/i]" in shown
    assert "abd-seed0: another process is at work on it; this table waits for it." in shown


def test_in_a_terminal_each_run_at_work_shows_its_task_and_phase():
    said = console(force_terminal=True)
    with showing_table_progress(said) as progress:
        progress.table_begins(table())
        progress.run_begins("base-seed0", table(waiting=1))
        at_work = RunProgress("base-seed0", 1, 5, "task 2/5 dream")
        progress.table_waits(table(running=[at_work], waiting=0, seconds_left=60.0))
        progress.bars.refresh()
        progress.run_ends("base-seed0", 0.5, 61.0, table(finished=1))
        assert [bar.description for bar in progress.bars.tasks] == ["all runs"]
    assert "task 2/5 dream" in said.file.getvalue()
    assert "about 60 s left" in said.file.getvalue()


def test_whoever_does_not_look_is_shown_nothing(capsys):
    with showing_table_progress(False) as progress:
        assert type(progress) is Observer
    with showing_table_progress(True) as progress:
        progress.table_begins(table())
    out, err = capsys.readouterr()
    assert (out, err) == ("", "2 runs: 0 finished before, 2 to train\n")
