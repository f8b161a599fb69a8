"""Names of classes: what may be one, and which a person would take for one another."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reverie.errors import UserError
from reverie.text import shortened


def names_by_label(names: Iterable[object]) -> list[Any]:
    """From a list, or from a mapping of labels to names, as configurations of networks have it."""
    if isinstance(names, str):
        raise UserError(f"Class names are a list, not one text: {shortened(names)}.")
    if not isinstance(names, Mapping):
        return [*names]
    by_label = {str(label): name for label, name in names.items()}
    if {*by_label} != {str(label) for label in range(len(names))}:
        raise UserError("A mapping of class names leads from each label, 0, 1, 2 and so on, to its name.")
    return [by_label[str(label)] for label in range(len(names))]


def checked_names(names: Iterable[object]) -> list[str]:
    """As text. Empty names, spaces at an end, and names given twice are refused."""
    texts = [str(name) for name in names_by_label(names)]
    for place, name in enumerate(texts):
        if not name.strip() or name != name.strip():
            raise UserError(f"The class name {name!r} is empty, or begins or ends with a space. Rename it.")
        if name in texts[:place]:
            raise UserError(f"Class names must differ, but {name!r} is there {texts.count(name)} times.")
    return texts


def refuse_lookalikes(names: Sequence[str], known: Sequence[str] = ()) -> None:
    """Names that look like one another, among `names`, and between them and those `known`, which may be as they are:
    to a network of ImageNet, a Cardigan is a dog and a cardigan a garment.
    """
    seen = {folded(name): name for name in known}
    for name in (name for name in names if name not in known):
        other = seen.setdefault(folded(name), name)
        if other != name:
            where = "which the model knows" if other in known else "which is there, too"
            raise UserError(
                f"The class {name!r} differs from {other!r}, {where}, only in case or in the encoding of its letters. "
                "Rename it."
            )


def folded(name: str) -> str:
    """The same for names that a person would take for one another."""
    return unicodedata.normalize("NFC", name).casefold()


def sort_names(names: Sequence[str], known: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those that are new, and those that are known. Names that a person would take for one another are refused."""
    refuse_lookalikes(checked_names(names), known)
    return [name for name in names if name not in known], [name for name in names if name in known]
