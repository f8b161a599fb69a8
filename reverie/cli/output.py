"""What the command line prints, and where: answers on stdout, everything else on stderr where the answer is JSON."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

console = Console(highlight=False, markup=False, emoji=False)  # names are shown as they are
errors = Console(stderr=True, highlight=False, markup=False, emoji=False)  # for what is not the answer itself
endless = Console(highlight=False, markup=False, emoji=False, width=100_000)  # for tables in a pipe


def log_to(where: Console) -> None:
    logger = logging.getLogger("reverie")
    logger.setLevel(logging.INFO)
    logger.handlers = [RichHandler(console=where, show_time=False, show_path=False, markup=False)]


def progress_console(as_json: bool) -> Console:
    """Where progress is shown: not where the answer is, which JSON must have for itself."""
    if not as_json:
        return console
    log_to(errors)
    return errors


def print_line(text: object) -> None:
    console.print(f"{text}", soft_wrap=True)


def print_lines(lines: Iterable[object]) -> None:
    for line in lines:
        print_line(line)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Nothing is cut off: in a terminal what is too long goes on in the next line, in a pipe lines are long.

    Columns of numbers stand to the right, but for the first.
    """
    shown, lines = Table(box=None), list(rows)
    for number, title in enumerate(header):
        figures = number and all(re.match(r"[\d–-]|$", line[number]) for line in lines)
        shown.add_column(title, justify="right" if figures else "left", overflow="fold")
    for line in lines:
        shown.add_row(*line)
    (console if console.is_terminal else endless).print(shown)


def print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False))


def leave(message: str, code: int) -> NoReturn:
    errors.print(message, soft_wrap=True)
    sys.exit(code)
