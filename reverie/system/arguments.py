"""What public functions look at before anything else: arguments that a person can easily give in another form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

from reverie.errors import UserError
from reverie.text import shortened


def check_least(least: int, **numbers: float | None) -> None:
    """Each number, by the name of its argument, is `least` or more; one that is left out will do."""
    for name, value in numbers.items():
        if value is None:
            continue
        if not isinstance(value, Real) or math.isnan(value):
            raise UserError(f"`{name}` is a number, not {shortened(value)}.")
        if value < least:
            raise UserError(f"`{name}` is at least {least}, not {value}.")


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
