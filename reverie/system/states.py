"""Nested states: dictionaries and lists of tensors and plain values, as checkpoints hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def first_difference(one: Any, other: Any, where: str = "") -> str:
    """Where two states differ, in a few words; empty where they do not. Numbers are compared to the last bit."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in [*one, *(key for key in other if key not in one)]:
            inside = f"{where}.{key}" if where else str(key)
            if key not in one or key not in other:
                return f"{inside} is {'gone' if key in one else 'new'}"
            if found := first_difference(one[key], other[key], inside):
                return found
        return ""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return f"{where} has {len(other)} parts, and had {len(one)}"
        each = (first_difference(a, b, f"{where}.{n}") for n, (a, b) in enumerate(zip(one, other, strict=True)))
        return next((found for found in each if found), "")
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return "" if _same(one, other) else f"{where} is another tensor"
    return "" if type(one) is type(other) and one == other else f"{where} is another value"


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(value: Tensor) -> Tensor:
    """By which what is no number equals itself."""
    return value.detach().cpu().reshape(-1).view(torch.uint8)
