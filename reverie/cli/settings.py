"""The verb `settings`. Parse, call, print; help loads no torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from reverie.cli.output import print_json, print_line, print_table
from reverie.cli.verbs import EXPERIMENTS, verb
from reverie.errors import UserError
from reverie.text import did_you_mean


@verb(EXPERIMENTS, example="reverie settings --json-schema > reverie.schema.json")
def settings(
    section: Annotated[
        str | None, typer.Argument(help="Only this section: train, dream, method, …", show_default="all of them")
    ] = None,
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
        found = list_settings()
        sections = dict.fromkeys(info.key.partition(".")[0] for info in found)
        if section is not None and section not in sections:
            hint = did_you_mean(section, sections)
            raise UserError(f"There is no section {section!r}.{hint} The sections are {', '.join(sections)}.")
        rows = [
            [info.key, info.method, info.default_text, *map(_without_links, (info.allowed, info.about))]
            for info in found
            if section in (None, info.key.partition(".")[0])
        ]
        print_table(["key", "method", "default", "it is", "what it does"], rows)


def _without_links(text: str) -> str:
    """[words](page) in Markdown leads nowhere in a terminal."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
