"""The command `reverie`: what its verbs share, and what becomes of their errors. Help loads no torch."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from reverie.errors import Diverged, Interrupted, UserError, explaining
from reverie.system import files as disk
from reverie.version import __version__

app = typer.Typer(
    name="reverie",
    help="Teach an image classifier new classes without keeping one old image.",
    epilog="Begin with: reverie demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
EXPERIMENTS, MODELS, PAGES = "Experiments", "Your own classifier", "Looking at runs"  # groups of verbs

console = Console(highlight=False, markup=False, emoji=False)  # names are shown as they are
aside = Console(stderr=True, highlight=False, markup=False, emoji=False)  # for what is not the answer itself
endless = Console(highlight=False, markup=False, emoji=False, width=100_000)  # for tables in a pipe

DataFolder = Annotated[
    Path, typer.Option("--data", envvar="REVERIE_DATA", help="Where data sets lie, or your own folder of images.")
]
DeviceName = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:1.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change a value: section.key=value. May be given several times.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Write over a file that is there.")]
CheckpointEvery = Annotated[float, typer.Option(min=0, help="Seconds between checkpoints inside a phase.")]


@app.callback(invoke_without_command=True)
def _start(
    version: Annotated[bool, typer.Option("--version", help="Say which version this is.", is_eager=True)] = False,
) -> None:
    if version:
        console.print(f"reverie {__version__}")
        raise typer.Exit
    log_to(console)


def log_to(where: Console) -> None:
    logger = logging.getLogger("reverie")
    logger.setLevel(logging.INFO)
    logger.handlers = [RichHandler(console=where, show_time=False, show_path=False, markup=False)]


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


def beside(as_json: bool) -> Console:
    """Where progress is shown: beside the answer, which JSON must have for itself."""
    if not as_json:
        return console
    log_to(aside)
    return aside


def check_target(file: Path, overwrite: bool, model: Path | None = None) -> None:
    """Before the work, not after it. No file of the `model` that is read is ever a target, nor one beside them."""
    with explaining("written", "Choose another --out."):
        if file.is_dir():
            raise UserError(f"{file} is a folder. Name a file with --out.")
        if model is not None and file.resolve().is_relative_to(model.resolve()):
            raise UserError(f"{file} is inside the model folder {model}, which is left as it is. Choose another --out.")
        if file.exists() and not overwrite:
            raise UserError(f"{file} exists already. Choose another --out, or say --overwrite.")
        disk.check_writable(file.parent)


def leave(message: str, code: int) -> NoReturn:
    aside.print(message, soft_wrap=True)
    sys.exit(code)


def main() -> None:
    """Run the command; a person's mistake ends in a message and exit code 2, never in a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may hold bytes that are no text
    logging.raiseExceptions = False  # where nothing can be written, no traceback can
    try:
        app()
    except UserError as error:
        leave(f"reverie: {error}", 2)
    except Interrupted:
        leave("reverie: stopped; everything so far is saved. The same command goes on from here.", 130)
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != 130:  # which is what typer makes of Ctrl-C, without a word
            raise
        checkpoints = "What keeps checkpoints (learn, run, table, tune) goes on from the last with the same command."
        leave(f"reverie: stopped at once. {checkpoints}", 130)
    except Diverged as error:
        leave(f"reverie: {error}", 1)
    except OSError as error:
        if error.errno is None:
            raise
        leave(f"reverie: {error.filename or 'the disk'}: {os.strerror(error.errno)}.", 1)


from reverie.cli import run as cli_run  # noqa: E402, F401, I001  (in the order of the help)
from reverie.cli import model as cli_model  # noqa: E402, F401  (in the order of the help)
from reverie.cli import pages as cli_page  # noqa: E402, F401  (in the order of the help)
from reverie.cli import data as cli_data  # noqa: E402, F401  (in the order of the help)
