"""Upper bounds, trained once and found again: a network for each (data, seed, class prefix), the reference of Omega."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reverie import disk
from reverie.predictions import Predictions

FOLDER = "upper-bounds"  # beside the run folders that share it


class UpperBounds:
    """A folder of entries, each with the predictions of one network and where they come from."""

    def __init__(self, beside: Path) -> None:
        self.folder = beside.resolve().parent / FOLDER

    @staticmethod
    def key(
        reference: str,
        fingerprint: str,
        seed: int,
        classes: Sequence[int],
        normalisation: Sequence[Sequence[float]] | None,
    ) -> str:
        """`reference` stands for the upper bound's own configuration (`Config.reference`).

        `normalisation` is the mean and deviation of a first task, which depend on the split; none where published.
        """
        facts = [reference, fingerprint, seed, list(classes), *([normalisation] if normalisation else [])]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=12).hexdigest()

    def find(self, key: str) -> dict[str, Any] | None:
        """What is known of a prefix: its accuracy, and what it took to train."""
        entry = self.folder / key / "entry.json"
        return disk.read_json(entry) if entry.is_file() else None

    def predictions(self, key: str) -> Predictions:
        return Predictions.from_bytes((self.folder / key / "predictions.npz").read_bytes())

    def add(self, key: str, entry: dict[str, Any], predictions: Predictions) -> None:
        def fill(scratch: Path) -> None:
            disk.write_bytes(scratch / "predictions.npz", predictions.to_bytes())
            disk.write_json(scratch / "entry.json", entry)

        disk.write_folder(self.folder / key, fill)
