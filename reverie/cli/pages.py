"""The verbs that show what runs have come to. Parse, call, print; help loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reverie.cli.app import PAGES, app, console

Shown = Annotated[
    list[Path],
    typer.Argument(metavar="RUN… | TABLE", help="Folders of runs, or of a table; result files.", show_default=False),
]


@app.command(rich_help_panel=PAGES, epilog="Example: reverie report runs/demo --out page.html")
def report(
    what: Shown,
    out: Annotated[Path, typer.Option(help="The page.")] = Path("page.html"),
) -> None:
    """Gather runs, or a whole table, in one page that needs nothing else.

    It opens from disk in any browser, on a phone and in print, and loads nothing from anywhere. A run that is broken or
    not finished is shown as far as it goes, and the page says what is missing.
    """
    from reverie.report import page as reporting

    reporting.write(what, out)
    console.print(f"{out}", soft_wrap=True)


@app.command(rich_help_panel=PAGES, epilog="Example: reverie watch runs/demo")
def watch(
    what: Shown,
    port: Annotated[int, typer.Option(help="Where to listen; 0: any that is free.")] = 8765,
) -> None:
    """Serve the same page to this machine, renewed while runs go on. Ctrl-C ends it; the runs do not notice."""
    from reverie.report.page import check
    from reverie.report.server import Server

    check(what)
    with Server(what, port) as server:
        console.print(f"{server.address} (Ctrl-C ends it)", soft_wrap=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("Watched no longer.")
