"""Plain values, as in YAML and JSON, into instances of dataclasses, each checked against its type; and back."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, get_args, get_origin

from reverie.errors import UserError, did_you_mean


def build(cls: type, values: Mapping[str, Any], where: str = "") -> Any:
    """An instance of a dataclass from plain values, each checked against its type."""
    hints = hints_of(cls)
    unknown = [key for key in values if key not in hints]
    if unknown:
        raise UserError(f"Unknown key '{where}{unknown[0]}'.{did_you_mean(unknown[0], hints)}")
    return cls(**{key: _convert(value, hints[key], f"{where}{key}") for key, value in values.items()})


@functools.cache
def hints_of(cls: type) -> Mapping[str, Any]:
    """The types of a dataclass's fields. To find them takes longer than to use them, so they are found once."""
    return typing.get_type_hints(cls)


def _convert(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type that `hint` asks for, or an error that names the key."""
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise UserError(f"{where} must hold keys and values, not {value!r}.")
        return build(hint, value, f"{where}.")
    if origin in (types.UnionType, typing.Union):
        for choice in get_args(hint):
            try:
                return _convert(value, choice, where)
            except UserError:
                continue
        raise UserError(f"{where} must be {_name(hint)}, not {value!r}.")
    if origin is Literal:
        if value in get_args(hint) and type(value) in {type(choice) for choice in get_args(hint)}:
            return value
        choices = ", ".join(map(str, get_args(hint)))
        raise UserError(
            f"{where} must be one of {choices}, not {value!r}.{did_you_mean(str(value), map(str, get_args(hint)))}"
        )
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{where} must be a list, not {value!r}.")
        kinds = get_args(hint)
        if kinds[-1] is ...:
            kinds = kinds[:1] * len(value)
        if len(kinds) != len(value):
            raise UserError(f"{where} must be a list of {len(kinds)}, not {value!r}.")
        return tuple(_convert(item, kind, where) for item, kind in zip(value, kinds, strict=True))
    if origin is not None or hint is Any:  # Mapping[str, Any]: the method's options, checked by the method's own type
        return value
    if hint is float and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            value = float(value)  # YAML reads 1e-3 as text
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{where} must be a finite number, not {value!r}.")
    right = value is None if hint is types.NoneType else isinstance(value, hint)
    if not right or (hint is int and isinstance(value, bool)):
        raise UserError(f"{where} must be {_name(hint)}, not {value!r}.")
    return value


def _name(hint: Any) -> str:
    if get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(_name(choice) for choice in get_args(hint))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", types.NoneType: "null"}
    return words.get(hint, "a list" if get_origin(hint) is tuple else str(hint))


def as_plain(instance: Any) -> dict[str, Any]:
    """The values of a dataclass's instance; `build` reads them back."""
    return _lists(dataclasses.asdict(instance))


def _lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value
