"""The verb `demo`. Parse, call, print; help loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reverie.cli.output import print_json, print_line, print_lines, print_table, progress_console
from reverie.cli.verbs import AsJson, DeviceName, parse_whole_numbers, verb


@verb(example="reverie demo --seeds 0,1,2")
def demo(
    seeds: Annotated[str, typer.Option(help="One or several, such as 0,1,2.")] = "0",
    out: Annotated[Path, typer.Option(help="Folder for runs, table and pictures.")] = Path("runs/demo"),
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Five methods learn handwritten digits, two classes at a time; needs no data and no GPU.

    Ends with a table, a plot of accuracy by task, a sheet of the digits that ABD dreamed, and a page that shows all of
    it and more: open page.html in a browser. Two to four minutes on two cores for one seed.
    """
    from reverie.report.demo import run_demo
    from reverie.system.provenance import command_line
    from reverie.tables.rows import COLUMNS

    made = run_demo(
        parse_whole_numbers(seeds, "--seeds"),
        out,
        device=device,
        progress=progress_console(as_json),
        command=command_line(),
    )
    if as_json:
        print_json(made.as_dict())
        return
    print_line(made.caption)
    print_table(COLUMNS, [row.cells() for row in made.rows])
    print_lines(f"  {file}" for file in made.files)
