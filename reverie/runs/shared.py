"""Upper bounds, trained once and found again: a network for each (data, seed, class prefix), the reference of Omega."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reverie.runs.predictions import Predictions
from reverie.system import files as disk

FOLDER = "upper-bounds"  # beside the run folders that share it
log = logging.getLogger("reverie")


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

    def find(self, key: str) -> tuple[dict[str, Any], Predictions] | None:
        """What is known of a prefix: its accuracy and what it took to train, and its predictions.

        A damaged entry is told of, and as good as none: it is trained anew, and no run is lost for it.
        """
        folder = self.folder / key
        if not folder.exists():
            return None
        try:
            entry = dict(disk.read_json(folder / "entry.json"))
            entry["seconds"] = dict(entry["seconds"])
            return entry, Predictions.from_bytes((folder / "predictions.npz").read_bytes())
        except Exception:  # a damaged file can fail in any way
            log.warning(
                "The upper bound in %s is damaged and not used; a new run of the method joint mends it.", folder
            )
            return None

    def add(self, key: str, entry: dict[str, Any], predictions: Predictions) -> None:
        def fill(scratch: Path) -> None:
            disk.write_bytes(scratch / "predictions.npz", predictions.to_bytes())
            disk.write_json(scratch / "entry.json", entry)

        disk.write_folder(self.folder / key, fill)
