"""What a method takes from one task to the next. Loads no torch."""

from __future__ import annotations

import enum


class Keeps(enum.StrEnum):
    """What a method takes from one task to the next, besides the classifier itself."""

    NOTHING = "nothing"
    NETWORKS = "networks"
    CORESET = "a coreset"
    EVERYTHING = "everything"
