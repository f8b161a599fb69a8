"""What runs beside each other share on disk: one cache, and the upper bounds in it, which Omega refers to."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from reverie.errors import UserError
from reverie.learner.session import Seconds, Session
from reverie.runs.predictions import Predictions
from reverie.system.files import write_bytes, write_folder, write_json
from reverie.system.locks import Lock, try_lock
from reverie.system.records import Record, RecordType, read_record

ENTRY = "entry.json"
log = logging.getLogger("reverie")


class Cache:
    """A folder of entries beside the run folders that share them, each with a record of where it comes from."""

    def __init__(self, beside: Path, name: str) -> None:
        self.folder = beside.resolve().parent / name

    def has(self, key: str) -> bool:
        return (self.folder / key).exists()

    def entry(self, key: str, cls: type[RecordType]) -> RecordType:
        """Raises UserError where it is damaged."""
        return read_record(cls, self.folder / key / ENTRY, "It is not used.")

    def file(self, key: str, name: str) -> Path:
        return self.folder / key / name

    def add(self, key: str, entry: Record, name: str, content: bytes) -> None:
        """Whole or not at all. If another run has just put the same there, that one stays."""

        def fill(scratch: Path) -> None:
            write_bytes(scratch / name, content)
            write_json(scratch / ENTRY, entry.as_dict())

        try:
            write_folder(self.folder / key, fill)
        except OSError:
            if not self.file(key, ENTRY).is_file():
                raise

    def lock(self, key: str) -> Lock | None:
        """For whoever makes the entry; none while another process does."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return try_lock(self.folder / f"{key}.lock")


class UpperBoundEntry(Record):
    """One network of the upper bound: what it learned, and what that took."""

    schema_version: Annotated[int, Field(alias="schema", ge=1)]
    preset: str
    seed: int
    classes: list[int]
    accuracy: float
    seconds: Seconds
    sessions: list[Session]


class UpperBounds:
    """Trained once and found again: a network for each (data, seed, class prefix)."""

    FOLDER = "upper-bounds"
    PREDICTIONS = "predictions.npz"

    def __init__(self, beside: Path) -> None:
        self.cache = Cache(beside, self.FOLDER)

    @staticmethod
    def key(
        digest: str,
        fingerprint: str,
        seed: int,
        classes: Sequence[int],
        normalisation: Sequence[Sequence[float]] | None,
    ) -> str:
        """`digest` is that of the upper bound's own configuration (`Config.upper_bound_digest`).

        `normalisation` is the mean and deviation of a first task, which depend on the split; none where published.
        """
        facts = [digest, fingerprint, seed, list(classes), *([normalisation] if normalisation else [])]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=12).hexdigest()

    def find(self, key: str) -> tuple[UpperBoundEntry, Predictions] | None:
        """What is known of a prefix: what it took to train, and its predictions.

        A damaged entry is warned of, and as good as none: it is trained anew, and no run is lost for it.
        """
        if not self.cache.has(key):
            return None
        try:
            raw = self.cache.file(key, self.PREDICTIONS).read_bytes()
            return self.cache.entry(key, UpperBoundEntry), Predictions.from_bytes(raw)
        except (UserError, OSError, ValueError, LookupError, EOFError, SyntaxError, NotImplementedError):
            folder = self.cache.folder / key
            log.warning(
                "The upper bound in %s is damaged and not used; a new run of the method joint mends it.", folder
            )
            return None

    def add(self, key: str, entry: UpperBoundEntry, predictions: Predictions) -> None:
        self.cache.add(key, entry, self.PREDICTIONS, predictions.to_bytes())
