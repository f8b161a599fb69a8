"""The verbs that show what runs have come to. Parse, call, print; help loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reverie.cli.output import print_line
from reverie.cli.verbs import PAGES, Overwrite, verb

Shown = Annotated[
    list[Path],
    typer.Argument(metavar="RUN… | TABLE", help="Folders of runs, or of a table; result files.", show_default=False),
]


@verb(PAGES, example="reverie report runs/demo --out page.html")
def report(
    runs: Shown,
    out: Annotated[Path, typer.Option(help="The page. An earlier one is replaced.")] = Path("page.html"),
    overwrite: Overwrite = False,
) -> None:
    """Gather runs, or a whole table, in one page that needs nothing else.

    It opens from disk in any browser, on a phone and in print, and loads nothing from anywhere. A run that is broken or
    not finished is shown as far as it goes, and the page says what is missing.
    """
    from reverie.report.page import write_report

    print_line(write_report(runs, out, overwrite=overwrite))


@verb(PAGES, example="reverie watch runs/demo")
def watch(
    runs: Shown,
    port: Annotated[int, typer.Option(help="Where to listen; 0: any that is free.")] = 8765,
) -> None:
    """Serve the same page to this machine, renewed while runs go on. Ctrl-C ends it; the runs do not notice."""
    from reverie.report.server import watch as serve

    serve(runs, port, ready=lambda address: print_line(f"{address} (Ctrl-C ends it)"))
    print_line("Watched no longer.")
