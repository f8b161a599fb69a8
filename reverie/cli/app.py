"""The command `reverie`: its verbs, and what becomes of their errors. Help loads no torch."""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import Annotated

import typer

from reverie.cli import bench, data, demo, diagnose, model, pages, run, settings, table  # noqa: F401  (verbs)
from reverie.cli.output import console, leave, log_to
from reverie.cli.verbs import app
from reverie.errors import Diverged, Interrupted, UserError
from reverie.version import __version__

ORDER = (
    *("demo", "run", "table", "tune", "results", "presets", "methods", "settings", "bench", "diagnose", "heads"),
    *("learn", "adopt", "predict", "evaluate", "dream", "classes", "export", "report", "watch"),
)  # of the verbs in the help
app.registered_commands.sort(key=lambda command: ORDER.index(command.callback.__name__ if command.callback else ""))


@app.callback(invoke_without_command=True)
def _start(
    version: Annotated[bool, typer.Option("--version", help="Say which version this is.", is_eager=True)] = False,
) -> None:
    if version:
        console.print(f"reverie {__version__}")
        raise typer.Exit
    log_to(console)


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
