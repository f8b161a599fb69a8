"""How numbers, names and lists are written for people."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

DASH = "–"  # where there is nothing to name, or to tell


def plural(number: int, noun: str) -> str:
    """1 epoch, 2 epochs, 3 classes."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def listing(names: Sequence[str], most: int = 8, write: Callable[[str], str] = repr) -> str:
    """The first few names, for a sentence: 'a', 'b' and 3 more."""
    shown = ", ".join(write(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def or_dash(value: Any) -> str:
    """What is not known is a dash."""
    return DASH if value is None else str(value)


def percent(share: float | None) -> str:
    """A share between 0 and 1: 86.4 %."""
    return DASH if share is None else f"{100 * share:.1f} %"


def byte_size(count: float) -> str:
    """2.4 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}" if count else "0"
        count /= 1000
    return f"{count:.3g} GB"


def duration(seconds: float) -> str:
    """45 s, 12 min, 1.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def shortened(value: object, most: int = 60) -> str:
    """A value as it would be written in Python, cut where it is too long for a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of too many digits, for one
        return f"a very large {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def first_line(error: BaseException) -> str:
    """What an error says, in short."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.55) -> str:
    """A suggestion to put behind a message, with a leading space, or nothing."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=cutoff)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = True) -> str:
    """With the first column to the left and, where the others are numbers, those to the right."""
    other = "---:|" if numbers else "---|"
    lines = [f"| {' | '.join(header)} |", "|---|" + other * (len(header) - 1)]
    lines += ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
