"""The verb `settings`. Parse, call, print; help loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reverie.cli.output import print_json, print_line, print_table
from reverie.cli.verbs import EXPERIMENTS, verb


@verb(EXPERIMENTS, example="reverie settings --json-schema > reverie.schema.json")
def settings(
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="Print a JSON schema of preset files, for editors.")
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option(help="Renew the tables in this file: `<!-- settings: keys -->` … `<!-- /settings -->`"),
    ] = None,
) -> None:
    """List every value that --set and a file of your own can change: what it is, and what it is usually."""
    from reverie.runs.settings import list_settings, renew_settings_page, settings_schema

    if json_schema:
        print_json(settings_schema())
    elif write is not None:
        renew_settings_page(write)
        print_line(write)
    else:
        rows = [[info.key, info.method, info.default_text, info.allowed, info.about] for info in list_settings()]
        print_table(["key", "method", "default", "it is", "what it does"], rows)
