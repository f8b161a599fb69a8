"""Following a whole table on a console: bars in a terminal, a line for each end in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from reverie.engine.observer import Observer, TableProgress
from reverie.learner.progress import console_for
from reverie.text import duration, percent, plural


class ConsoleTableProgress(Observer):
    """In a terminal a bar for the table and a line for each run at work, else a line for each end."""

    def __init__(self, console: Console, bars: Progress | None) -> None:
        self.console, self.bars = console, bars
        self._whole: TaskID | None = None
        self._bars: dict[str, TaskID] = {}

    def decided(self, line: str) -> None:
        self._print(line)

    def table_begins(self, table: TableProgress) -> None:
        at_once = f", {table.parallel} at a time" if table.parallel > 1 else ""
        self._print(
            f"{plural(table.total, 'run')}: {table.finished} finished before, {table.waiting} to train{at_once}"
        )
        if self.bars is not None:
            self._whole = self.bars.add_task("all runs", total=table.total, completed=table.finished, status="")

    def run_begins(self, name: str, table: TableProgress) -> None:
        if self.bars is None:
            self._print(f"{name} begins")
        else:
            self._bars[name] = self.bars.add_task(name, total=1, status="begins")

    def run_ends(self, name: str, accuracy: float, seconds: float, table: TableProgress) -> None:
        left = f"; {_left(table)}" if table.waiting or table.running else ""
        done = table.finished + table.failed
        self._print(f"[{done}/{table.total}] {name}: {percent(accuracy)} in the end ({seconds:.0f} s){left}")
        self._remove(name)

    def run_fails(self, name: str, why: str, log: list[str], table: TableProgress) -> None:
        self._print(f"{name} {why}. The others go on." + (" Its last words:" if log else ""))
        for line in log:
            self._print(f"    {line}")
        self._remove(name)

    def run_waits(self, name: str, table: TableProgress) -> None:
        self._print(f"{name}: another process is at work on it; this table waits for it.")
        self._remove(name)

    def table_waits(self, table: TableProgress) -> None:
        if self.bars is None or self._whole is None:
            return
        self.bars.update(self._whole, completed=table.finished + table.failed, status=_left(table))
        for run in table.running:
            if run.name in self._bars:
                self.bars.update(self._bars[run.name], completed=run.tasks_learned, total=run.tasks, status=run.doing)

    def _remove(self, name: str) -> None:
        if self.bars is not None and name in self._bars:
            self.bars.remove_task(self._bars.pop(name))

    def _print(self, what: str) -> None:
        self.console.print(Text(what), soft_wrap=True)


def _left(table: TableProgress) -> str:
    return "" if table.seconds_left is None else f"about {duration(table.seconds_left)} left"


@contextmanager
def showing_table_progress(wanted: bool | Console) -> Iterator[Observer]:
    """A display for the block: on a console of the caller's, on stderr where it is just wanted, or none."""
    console = console_for(wanted)
    if console is None:
        yield Observer()
    elif not console.is_terminal:
        yield ConsoleTableProgress(console, None)
    else:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            TimeElapsedColumn(),
            TextColumn("{task.fields[status]}", markup=False),
        )
        with Progress(*columns, console=console, transient=True, refresh_per_second=4) as bars:
            yield ConsoleTableProgress(console, bars)
