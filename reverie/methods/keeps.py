"""What a method takes from one task to the next. Loads no torch."""

from __future__ import annotations

import enum


class Keeps(enum.Flag):
    """What a method takes from one task to the next, besides the classifier; several kinds are joined by `|`."""

    NOTHING = 0
    STATISTICS = enum.auto()  # means and covariances of features by class
    NETWORKS = enum.auto()
    CORESET = enum.auto()
    EVERYTHING = enum.auto()

    def __str__(self) -> str:
        """As in the ledger."""
        return ", ".join(_WORDS[kind] for kind in self) or "nothing"


_WORDS = {
    Keeps.STATISTICS: "class statistics",
    Keeps.NETWORKS: "networks",
    Keeps.CORESET: "a coreset",
    Keeps.EVERYTHING: "everything",
}
