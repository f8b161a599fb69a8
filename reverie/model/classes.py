"""The classes of a model: since when it knows each; rename one, or remove it.

`rename` and `remove` leave the model they are given as it is, and return a new one; `change` changes a folder. What
removing a class means, and what it does not, stands in docs/serving.md.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reverie.data.class_names import alike
from reverie.errors import UserError, did_you_mean
from reverie.learner.checkpoint import changing
from reverie.model import folder as model_io
from reverie.model.folder import SavedModel
from reverie.nets.classifier import Classifier
from reverie.system import provenance


@dataclass(frozen=True)
class Known:
    """A class, and what the ledger tells of it."""

    name: str
    step: int  # in which it was learned, counted from 1; 0 where no entry tells
    since: str | None  # the date of that step
    images: int | None  # that it was learned from, where they were counted


def known(class_names: Sequence[str], ledger: Iterable[Mapping[str, Any]]) -> list[Known]:
    """All classes in learned order, each followed through the ledger under all its names."""
    found: dict[str, Known] = {}
    for step, entry in enumerate(ledger, start=1):
        for name in entry.get("removed", ()):
            found.pop(name, None)
        before = {old: found.pop(old) for old in entry.get("renamed", {}) if old in found}
        found |= {entry["renamed"][old]: item for old, item in before.items()}
        for name in entry.get("classes", ()):
            found.setdefault(name, Known(name, step, entry.get("date"), None))
        for name, count in entry.get("images", {}).items():
            if name in found:
                found[name] = replace(found[name], images=(found[name].images or 0) + count)
    return [replace(found.get(name, Known(name, 0, None, None)), name=name) for name in class_names]


def newest(class_names: Sequence[str], ledger: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The classes of the last step in which any were learned, where there are older ones beside them."""
    classes = known(class_names, ledger)
    steps = {item.step for item in classes}
    return tuple(item.name for item in classes if item.step == max(steps)) if len(steps) > 1 else ()


def rename(model: SavedModel, names: Mapping[str, str]) -> SavedModel:
    """New names for some classes, all at once, so that two may change places. The same model where none is new."""
    before = model.classifier.class_names
    _check_known(names, before)
    names = {old: new for old, new in names.items() if old != new}
    if not names:
        return model
    after = tuple(names.get(name, name) for name in before)
    for old, new in names.items():
        if not new.strip() or new != new.strip():
            raise UserError(
                f"Class {old!r} cannot be named {new!r}: a name is not empty and has no spaces at its ends."
            )
        like = [name for name in after if alike(name) == alike(new)]
        if len(like) > 1:
            raise UserError(f"Class {old!r} cannot be named {new!r}: there would be {' and '.join(map(repr, like))}.")
    classifier = copy.deepcopy(model.classifier)
    classifier.class_names = after
    return _changed(model, classifier, action="renamed", renamed=names)


def parse_renames(texts: Iterable[str], class_names: Sequence[str]) -> dict[str, str]:
    """`old=new` for each, as a person types it. Names may hold = themselves: what is known decides."""
    names: dict[str, str] = {}
    for text in texts:
        parts = text.split("=")
        pairs = [("=".join(parts[:cut]), "=".join(parts[cut:])) for cut in range(1, len(parts))]
        if not pairs:
            raise UserError(f"--rename wants OLD=NEW, not {text!r}.")
        old, new = next((pair for pair in pairs if pair[0] in class_names), pairs[0])
        if old in names:
            raise UserError(f"Class {old!r} is given two new names, {names[old]!r} and {new!r}.")
        names[old] = new
    return names


def remove(model: SavedModel, names: Collection[str]) -> SavedModel:
    """Without these classes: their rows of the head are gone, all other weights are what they were."""
    before = model.classifier.class_names
    _check_known(names, before)
    if set(names) == set(before):
        raise UserError("A model must keep at least one class. To be rid of all of them, delete its folder.")
    kept = [row for row, name in enumerate(before) if name not in names]
    classifier = copy.deepcopy(model.classifier)
    head = classifier.head
    unseen = range(classifier.seen, head.rows)  # of a head that had all rows from the start
    rows = torch.tensor([*kept, *unseen], device=head.weight.device)
    head.weight, head.bias = nn.Parameter(head.weight[rows].detach()), nn.Parameter(head.bias[rows].detach())
    if classifier.factor is not None and classifier.shift is not None:
        classifier.factor, classifier.shift = classifier.factor[rows[: len(kept)]], classifier.shift[rows[: len(kept)]]
    classifier.class_names = tuple(before[row] for row in kept)
    return _changed(model, classifier, action="removed", removed=[name for name in before if name in names])


def change(folder: Path, make: Callable[[SavedModel], SavedModel], to: Path | None = None) -> tuple[SavedModel, bool]:
    """What `make` makes of the model in a folder, written in its place, or `to` another; and whether it is another."""
    with changing(folder) if to is None else nullcontext():
        saved, digest = model_io.read(folder)
        made = make(saved)
        if made is saved:
            return saved, False
        made = replace(made, lineage=(*saved.lineage, digest))
        if to is None and model_io.digest(folder) != digest:  # by one that asks for no lock
            raise UserError(f"{folder} was changed by another process, and stays as it is now. Repeat the command.")
        model_io.save(to or folder, made, overwrite=to is None)
    return made, True


def _check_known(names: Iterable[str], class_names: Sequence[str]) -> None:
    for name in names:
        if name not in class_names:
            hint = did_you_mean(name, class_names) or " `reverie classes MODEL` lists what it knows."
            raise UserError(f"The model knows no class {name!r}.{hint}")


def _changed(model: SavedModel, classifier: Classifier, **deed: Any) -> SavedModel:
    """With the deed in the ledger. The report of the last step spoke of another model, and does not come along."""
    entry = {"date": provenance.now(), **deed}
    return replace(model, classifier=classifier, ledger=[*model.ledger, entry], acceptance=None)
