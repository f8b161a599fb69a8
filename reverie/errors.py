"""What reverie says to a person: mistakes that they can mend, and work that ended early.

A message names an argument in backquotes, as in "Choose another `out`." The command line writes the flag in its place.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from reverie.text import shortened


class UserError(Exception):
    """Something the person can put right. The message says what was wrong and what to do, in one or two lines."""


class Interrupted(Exception):
    """The person stopped the work. Everything up to the last step is on disk."""


class Diverged(Exception):
    """A loss, a weight or a logit is no longer a finite number, so going on would only waste time."""


@contextmanager
def explaining(deed: str, advice: str, what: object = None) -> Iterator[None]:
    """Inside, a path that cannot be read or written is the person's to mend: OSError becomes a UserError.

    `deed` is "read" or "written", `advice` is what to do, and `what` is the path that the person gave, where the file
    at fault has a name that would tell them nothing.
    """
    try:
        yield
    except OSError as error:
        named = what or error.filename or "The disk"  # one that is full is not said to be
        raise UserError(f"{named} cannot be {deed}: {error.strerror or error}. {advice}") from None


def check_whole_number(name: str, value: Any, least: int, most: int) -> int:
    """An argument that counts something; `name` is what Python calls it. Raises UserError for any other value."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise UserError(f"`{name}` must be a whole number from {least:,} to {most:,}, not {shortened(value)}.")
    return number


def check_number(name: str, value: Any, least: float = -math.inf) -> float:
    """An argument that is a number, of numpy or torch as well. Raises UserError for any other value."""
    is_number = hasattr(value, "__float__") and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan
    except (TypeError, ValueError, OverflowError):  # several numbers, or one that is too large
        number = math.nan
    if math.isnan(number) or number < least:
        bound = "" if least == -math.inf else f" of at least {least:g}"
        raise UserError(f"`{name}` must be a number{bound}, not {shortened(value)}.")
    return number
