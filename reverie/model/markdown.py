"""Text of people in Markdown, written such that no renderer takes it for anything but text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

# What a renderer may take for more than text.
SPECIAL = re.compile(r"(?<=www)\.|:(?! )|_|[^\w .:,;%()/'-]", re.IGNORECASE)
JOINER = "\u200d"  # of several emoji to one


def plain(text: Any) -> str:
    """Any text as text: it cannot end a table's cell, break a line, turn it around, or be taken for markup or HTML."""
    return SPECIAL.sub(lambda found: _escaped(found[0]), str(text))


def _escaped(character: str) -> str:
    if character.isascii() and character.isprintable():
        return f"&#{ord(character)};"
    if character.isspace():
        return " "
    if character == JOINER or unicodedata.category(character)[0] != "C":
        return character
    return f"(U+{ord(character):04X})"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table, and an empty one behind them. Cells are Markdown already."""
    lines = [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
    return [*lines, ""]
