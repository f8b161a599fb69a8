"""What public functions look at before anything else: arguments that a person can easily give in another form."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

from reverie.errors import UserError
from reverie.text import shortened


def check_whole_number(name: str, value: Any, least: int, most: int) -> int:
    """An argument that counts something; `name` is what Python calls it. Raises UserError for any other value."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise UserError(f"`{name}` must be a whole number from {least:,} to {most:,}, not {shortened(value)}.")
    return number


def check_number(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> float:
    """An argument that is a number, of numpy or torch as well. Raises UserError for any other value."""
    is_number = hasattr(value, "__float__") and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan
    except (TypeError, ValueError, OverflowError):  # several numbers, or one that is too large
        number = math.nan
    if math.isnan(number) or not least <= number <= most:
        bound = "" if least == -math.inf else f" of at least {least:g}"
        bound += "" if most == math.inf else f" and at most {most:g}"
        raise UserError(f"`{name}` must be a number{bound}, not {shortened(value)}.")
    return number


def as_names(names: Iterable[str] | str, argument: str) -> list[str]:
    """One or several: a text may have commas between them, as on the command line."""
    if isinstance(names, str):
        names = [part.strip() for part in names.split(",") if part.strip()]
    found = list(names) if isinstance(names, Iterable) else [names]
    if not found or not all(isinstance(name, str) for name in found):
        raise UserError(f"`{argument}` wants one or several names, not {shortened(names)}.")
    return found


def as_seeds(seeds: Iterable[int], argument: str = "seeds") -> list[int]:
    """Several whole numbers, each of them once."""
    found: list[Any] = list(seeds) if isinstance(seeds, Iterable) and not isinstance(seeds, str) else []
    if not found or not all(isinstance(seed, Integral) for seed in found):
        raise UserError(f"`{argument}` is a list of whole numbers, such as [0, 1, 2], not {shortened(seeds)}.")
    return list(dict.fromkeys(int(seed) for seed in found))


@contextmanager
def renaming_argument(theirs: str, ours: str) -> Iterator[None]:
    """Inside, what another function calls `theirs` goes by the name that it has for the caller."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace(f"`{theirs}`", f"`{ours}`")) from None
