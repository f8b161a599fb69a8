"""What reverie says to a person: mistakes they can mend (exit code 2) and runs that ended early."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Something the person can put right. The message says what was wrong and what to do, in one or two lines."""


class Interrupted(Exception):
    """The person stopped the run. Everything up to the last step is on disk."""


class Diverged(Exception):
    """A loss, a weight or an answer is no longer a finite number, so going on would only waste time."""


@contextmanager
def explaining(deed: str, advice: str, what: object = None) -> Iterator[None]:
    """For work on a path that a person gave: that it cannot be read, or written, is theirs to mend.

    `what` they gave, where the file at fault has a name that would tell them nothing.
    """
    try:
        yield
    except OSError as error:
        named = what or error.filename or "The disk"  # one that is full is not said to be
        raise UserError(f"{named} cannot be {deed}: {error.strerror or error}. {advice}") from None


def first_line(error: BaseException) -> str:
    """What an error says, in short."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def counted(number: int, what: str) -> str:
    """1 epoch, 2 epochs, 3 classes."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('s') else 's'}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion to put behind a message, with a leading space, or nothing."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.55)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""
