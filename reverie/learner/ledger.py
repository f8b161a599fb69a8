"""The ledger: an entry for each step of a model's life, with what it was made from and what was kept of that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from reverie.errors import UserError
from reverie.system.records import Record, as_record
from reverie.text import shortened

Bytes = Annotated[int, Field(ge=0)]
Images = Annotated[int, Field(ge=0)]


class LedgerEntry(Record):
    """One step: classes learned, adopted, renamed or removed. What does not belong to a step is none."""

    sparse: ClassVar[bool] = True

    task: int | None = None  # counted from 1
    action: str | None = None  # "adopted", "renamed", "removed"; none where classes were learned
    classes: list[str] | None = None  # learned, or adopted
    images_seen: Images | None = None
    method: str | None = None
    keeps: str | None = None  # what the method says it keeps besides the classifier
    kept_bytes: Bytes | None = None  # and how much that is
    classifier_bytes: Bytes | None = None
    kept: dict[str, Bytes] | None = None  # by kind: weights, statistics, and what the method keeps
    images_kept: Images | None = None
    not_kept: list[str] | None = None
    date: str | None = None
    source: str | None = None  # where the images came from, by name
    images: dict[str, Images] | None = None  # by class, learned from
    held_out: dict[str, Images] | None = None  # by class, judged on
    refined: list[str] | None = None  # known classes of which further images were learned
    fingerprint: str | None = None  # of the images, or of the file of weights
    weights: str | None = None  # the file that the network began with
    weights_sha256: str | None = None
    renamed: dict[str, str] | None = None  # old names to new ones
    removed: list[str] | None = None
    preflight: dict[str, Any] | None = None  # what a short inversion of an adopted model found


Ledger = list[LedgerEntry]


def read_ledger(entries: Iterable[Mapping[str, Any]]) -> Ledger:
    """From plain values. Raises UserError, which says what is wrong with them."""
    if not isinstance(entries, list | tuple):  # going through text or keys would find no entries, or strange ones
        raise UserError(f"it must be a list of steps, not {shortened(entries)}.")
    return [as_record(LedgerEntry, entry) for entry in entries]


def plain_ledger(ledger: Iterable[LedgerEntry]) -> list[dict[str, Any]]:
    """For JSON and checkpoints."""
    return [entry.as_dict() for entry in ledger]
