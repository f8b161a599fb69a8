"""Names of classes: what may be one, and which a person would take for one another."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from reverie.errors import UserError

DASH = "–"  # where there is nothing to name, or to tell


def in_order(names: Iterable[object]) -> list[Any]:
    """By label: from a list, or from a mapping of labels to names, as configurations of networks have it."""
    if isinstance(names, str):
        raise UserError(f"Class names are a list, not one text: {names!r}.")
    if not isinstance(names, Mapping):
        return [*names]
    by_label = {str(label): name for label, name in names.items()}
    if {*by_label} != {str(label) for label in range(len(names))}:
        raise UserError("A mapping of class names leads from each label, 0, 1, 2 and so on, to its name.")
    return [by_label[str(label)] for label in range(len(names))]


def brief(names: Sequence[str], most: int = 8, written: Callable[[str], str] = repr) -> str:
    """For a sentence, the first few of them."""
    shown = ", ".join(written(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def checked(names: Iterable[object]) -> list[str]:
    """As text. Empty names, spaces at an end, and names given twice are refused."""
    texts = [str(name) for name in in_order(names)]
    for place, name in enumerate(texts):
        if not name.strip() or name != name.strip():
            raise UserError(f"The class name {name!r} is empty, or begins or ends with a space. Rename it.")
        if name in texts[:place]:
            raise UserError(f"Class names must differ, but {name!r} is there {texts.count(name)} times.")
    return texts


def refuse_twins(names: Sequence[str], known: Sequence[str] = ()) -> None:
    """Names that look like one another, among `names`, and between them and those `known`, which may be as they are:
    to a network of ImageNet, a Cardigan is a dog and a cardigan a garment.
    """
    seen = {alike(name): name for name in known}
    for name in (name for name in names if name not in known):
        other = seen.setdefault(alike(name), name)
        if other != name:
            where = "which the model knows" if other in known else "which is there, too"
            raise UserError(
                f"The class {name!r} differs from {other!r}, {where}, only in case or in the encoding of its letters. "
                "Rename it."
            )


def alike(name: str) -> str:
    """The same for names that a person would take for one another."""
    return unicodedata.normalize("NFC", name).casefold()
