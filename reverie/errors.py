"""What reverie says to a person: mistakes that they can mend, and work that ended early.

A message names an argument in backquotes, as in "Choose another `out`." The command line writes the flag in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
