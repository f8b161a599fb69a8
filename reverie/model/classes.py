"""The classes of a model: since when it knows each; rename one, or remove it.

`rename_classes` and `remove_classes` leave the model they are given as it is, and return a new one; `change_classes`
changes a folder. What removing a class means, and what it does not, stands in docs/serving.md.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from reverie.data.class_names import folded
from reverie.errors import UserError
from reverie.learner.ledger import Ledger, LedgerEntry
from reverie.methods import find_method
from reverie.model.folder import load_model, model_digest, read_model, save_model
from reverie.model.opening import AnyModel, model_folder, open_model
from reverie.model.saved import SavedModel
from reverie.nets.classifier import Classifier
from reverie.system import provenance
from reverie.system.locks import replacing
from reverie.text import did_you_mean


@dataclass(frozen=True)
class ClassHistory:
    """A class, and what the ledger tells of it."""

    name: str
    step: int  # in which it was learned, counted from 1; 0 where no entry tells
    since: str | None  # the date of that step
    images: int | None  # that it was learned from, where they were counted


def class_histories(class_names: Sequence[str], ledger: Iterable[LedgerEntry]) -> list[ClassHistory]:
    """All classes in learned order, each followed through the ledger under all its names."""
    found: dict[str, ClassHistory] = {}
    for step, entry in enumerate(ledger, start=1):
        for name in entry.removed or ():
            found.pop(name, None)
        renamed = entry.renamed or {}
        before = {old: found.pop(old) for old in renamed if old in found}
        found |= {renamed[old]: item for old, item in before.items()}
        for name in entry.classes or ():
            found.setdefault(name, ClassHistory(name, step, entry.date, None))
        for name, count in (entry.images or {}).items():
            if name in found:
                found[name] = replace(found[name], images=(found[name].images or 0) + count)
    return [replace(found.get(name, ClassHistory(name, 0, None, None)), name=name) for name in class_names]


def newest_classes(class_names: Sequence[str], ledger: Ledger) -> tuple[str, ...]:
    """The classes of the last step in which any were learned, where there are older ones beside them."""
    classes = class_histories(class_names, ledger)
    steps = {item.step for item in classes}
    return tuple(item.name for item in classes if item.step == max(steps)) if len(steps) > 1 else ()


def trained_classes(model: SavedModel) -> tuple[str, ...]:
    """Those that the network itself was trained on: all, unless its method trains it in the first step alone."""
    names = model.classifier.class_names
    with suppress(UserError):  # of a package that is not here
        method = find_method(model.config.method)
        if not method.trains_network:
            return ()
        if not method.trains_head:
            classes = class_histories(names, model.ledger)
            return tuple(item.name for item in classes if item.step <= 1)
    return names


def rename_classes(model: SavedModel, names: Mapping[str, str]) -> SavedModel:
    """New names for some classes, all at once, so that two may change places. The same model where none is new."""
    before = model.classifier.class_names
    _refuse_unknown(names, before)
    names = {old: new for old, new in names.items() if old != new}
    if not names:
        return model
    after = tuple(names.get(name, name) for name in before)
    for old, new in names.items():
        if not isinstance(new, str) or not new.strip() or new != new.strip():
            raise UserError(
                f"Class {old!r} cannot be named {new!r}: a name is text, not empty, and has no spaces at its ends."
            )
        like = [name for name in after if folded(name) == folded(new)]
        if len(like) > 1:
            raise UserError(f"Class {old!r} cannot be named {new!r}: there would be {' and '.join(map(repr, like))}.")
    classifier = copy.deepcopy(model.classifier)
    classifier.class_names = after
    return _changed(model, classifier, LedgerEntry(date=provenance.now(), action="renamed", renamed=dict(names)))


def remove_classes(model: SavedModel, names: Collection[str]) -> SavedModel:
    """Without these classes: their rows of the head are gone, all other weights are what they were."""
    before = model.classifier.class_names
    _refuse_unknown(names, before)
    if set(names) == set(before):
        raise UserError("A model must keep at least one class. To be rid of all of them, delete its folder.")
    classifier = copy.deepcopy(model.classifier)
    classifier.drop(names)
    removed = [name for name in before if name in names]
    made = _changed(model, classifier, LedgerEntry(date=provenance.now(), action="removed", removed=removed))
    if made.statistics is None:
        return made
    kept = torch.tensor([row for row, name in enumerate(before) if name not in names])
    return replace(made, statistics=made.statistics.select(kept))


def parse_renames(texts: Iterable[str], class_names: Sequence[str]) -> dict[str, str]:
    """`old=new` for each, as a person types it. Names may hold = themselves: what is known decides."""
    names: dict[str, str] = {}
    for text in texts:
        parts = text.split("=")
        pairs = [("=".join(parts[:cut]), "=".join(parts[cut:])) for cut in range(1, len(parts))]
        if not pairs:
            raise UserError(f"`rename` wants OLD=NEW, not {text!r}.")
        old, new = next((pair for pair in pairs if pair[0] in class_names), pairs[0])
        if old in names:
            raise UserError(f"Class {old!r} is given two new names, {names[old]!r} and {new!r}.")
        names[old] = new
    return names


def list_classes(model: AnyModel) -> list[ClassHistory]:
    """What a model knows, and since when: one in a folder, or one that is loaded."""
    saved = open_model(model)
    return class_histories(saved.classifier.class_names, saved.ledger)


def change_classes(
    model: Path | str,
    *,
    rename: Mapping[str, str] | Sequence[str] = (),
    remove: Collection[str] = (),
    to: Path | str | None = None,
) -> list[ClassHistory]:
    """Rename and remove classes of the model in a folder, in its place or in a new folder `to`.

        reverie.change_classes("flowers", rename={"tulp": "tulip"}, remove=["weeds"], to="flowers-3")

    Renames may also be texts, as on the command line: `["tulp=tulip"]`. Gives what the model knows then. A removed
    class is never predicted again; docs/serving.md says what that means. Where nothing changes, the folder stays as it
    is. Raises UserError where a class is not known, or nothing would be written into `to`.
    """
    removed = [remove] if isinstance(remove, str) else list(remove)

    def make(saved: SavedModel) -> SavedModel:
        made = remove_classes(saved, removed) if removed else saved
        if not rename:
            return made
        names = rename if isinstance(rename, Mapping) else parse_renames(rename, made.classifier.class_names)
        return rename_classes(made, names)

    folder = model_folder(model, "A Learner has rename(...) and remove(...).")
    saved, is_changed = change_model(folder, make, Path(to) if to is not None else None)
    if to is not None and not is_changed:
        raise UserError("There is nothing to write into `to`: no class gets another name, and none is removed.")
    return class_histories(saved.classifier.class_names, saved.ledger)


def change_model(
    folder: Path, make: Callable[[SavedModel], SavedModel], to: Path | None = None
) -> tuple[SavedModel, bool]:
    """What `make` makes of the model in a folder, written in its place, or `to` another; and whether it is another."""
    if not folder.is_dir():
        load_model(folder)  # which says what is wrong
    with replacing(folder) if to is None else nullcontext():
        saved, digest = read_model(folder)
        made = make(saved)
        if made is saved:
            return saved, False
        made = replace(made, lineage=(*saved.lineage, digest))
        if to is None and model_digest(folder) != digest:  # by one that asks for no lock
            raise UserError(f"{folder} was changed by another process, and stays as it is now. Repeat the command.")
        if to is not None and to.exists():
            raise UserError(f"{to} exists already, and stays as it is. Choose another `to`.")
        save_model(made, to or folder, overwrite=to is None)
    return made, True


def _refuse_unknown(names: Iterable[str], class_names: Sequence[str]) -> None:
    for name in names:
        if name not in class_names:
            hint = did_you_mean(str(name), class_names) or " `list_classes(model)` names what it knows."
            raise UserError(f"The model knows no class {name!r}.{hint}")


def _changed(model: SavedModel, classifier: Classifier, entry: LedgerEntry) -> SavedModel:
    """With the deed in the ledger. The report of the last step spoke of another model, and does not come along."""
    return replace(model, classifier=classifier, ledger=[*model.ledger, entry], acceptance=None)
