"""A person's mistake on the command line, and what must become of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

# `out`, `reject=0.7`, `list_presets()`: what Python has, and a person who types commands has not.
PYTHON = re.compile(r"`(?!reverie )\w+(?:=[^`]*|\([^`]*\))?`")

Call = Callable[..., tuple[int, str, str]]


def assert_mistake(reverie: Call, words: str | list[str], message: str) -> str:
    """It ends with exit code 2 and a message of a line or two in the words of the command line, and leaves nothing.

    Gives all that was said, in one line.
    """
    before = sorted(Path.cwd().iterdir())
    code, out, err = reverie(*(words.split() if isinstance(words, str) else words))
    said = " ".join(err.replace("│", " ").split())  # without the frame that help has
    assert code == 2, (out, err)
    assert message in said, said
    assert "Traceback" not in out + err
    assert not PYTHON.findall(said), said
    if err.startswith("reverie: "):
        assert len(err.strip().splitlines()) <= 2, err
    else:
        assert err.startswith("Usage: "), err
    assert sorted(Path.cwd().iterdir()) == before
    return said
