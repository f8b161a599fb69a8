"""What other packages add by name, through entry points: methods, heads, backbones. Loads none of it unasked."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from reverie.errors import UserError

METHODS, HEADS, BACKBONES = "reverie.methods", "reverie.heads", "reverie.backbones"  # groups of entry points
KINDS = {METHODS: "method", HEADS: "head", BACKBONES: "backbone"}


def plugin_names(group: str) -> list[str]:
    return sorted({entry.name for entry in entry_points(group=group)})


def load_plugin(group: str, name: str, check: Callable[[Any], None]) -> Any:
    """What a package offers under this name, or none. UserError where it cannot be loaded, or `check` refuses it."""
    entry = _entry(group, name)
    if entry is None:
        return None
    try:
        found = entry.load()
        check(found)
    except Exception as error:  # somebody else's code
        why = f"{type(error).__name__}: {error}"
        raise UserError(
            f"The {KINDS[group]} {name!r} of {_package(entry)} ({entry.value}) cannot be loaded: {why}"
        ) from error
    return found


def plugin_packages() -> dict[str, str]:
    """Every package that adds something to reverie, with its version."""
    found = [entry.dist for group in KINDS for entry in entry_points(group=group)]
    return {package.name: package.version for package in found if package is not None}


def plugin_package(group: str, name: str) -> str | None:
    """The package behind a name, with its version, such as `prototypes 1.2`; none where no package offers it."""
    entry = _entry(group, name)
    if entry is None or entry.dist is None:
        return None
    return f"{entry.dist.name} {entry.dist.version}"


def _entry(group: str, name: str) -> EntryPoint | None:
    return next((entry for entry in entry_points(group=group) if entry.name == name), None)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "another package"
