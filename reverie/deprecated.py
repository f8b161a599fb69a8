"""Names of version 0.1 that have moved: they work for one more version, with a warning that says where they are."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Modules that documents named: where each is now, and what its functions are called there.
MOVED: dict[str, tuple[str, Mapping[str, str]]] = {
    "reverie.losses": ("reverie.methods.losses", {}),
    "reverie.phase": ("reverie.engine.phase", {"Steps": "StepSchedule"}),
    "reverie.model_io": (
        "reverie.model.folder",
        {"load": "load_model", "read": "read_model", "digest": "model_digest", "write": "write_model"},
    ),
    "reverie.export": ("reverie.model.export", {}),
    "reverie.preflight": ("reverie.model.preflight", {"check": "run_preflight"}),
}


def _save(folder: Any, model: Any, overwrite: bool = False) -> str:
    """As `reverie.model_io.save` was, with the folder first."""
    saved: str = importlib.import_module("reverie.model.folder").save_model(model, folder, overwrite=overwrite)
    return saved


def _export(model: Any, to: Any, file: Any) -> Any:
    """As `reverie.export.export` was: a file that is there is overwritten."""
    return importlib.import_module("reverie.model.export").export_model(model, to, file, overwrite=True)


# Functions that take other arguments now, or mean something else by them.
KEPT: dict[str, Mapping[str, Callable[..., Any]]] = {
    "reverie.model_io": {"save": _save},
    "reverie.export": {"export": _export},
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module under its old name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name in MOVED else None

    def exec_module(self, module: types.ModuleType) -> None:
        place, renamed = MOVED[module.__name__]
        warnings.warn(f"{module.__name__} is now {place}", DeprecationWarning, stacklevel=2)
        found = vars(importlib.import_module(place))
        for name, value in found.items():
            if not name.startswith("__"):
                setattr(module, name, value)
        for old, new in renamed.items():
            setattr(module, old, found[new])
        for old, function in KEPT.get(module.__name__, {}).items():
            setattr(module, old, function)


def find_moved_modules() -> None:
    """Let `import` find modules under their old names."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def keywords_only(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Arguments after the first that used to be given by their place; now they are given by name."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*placed: Any, **given: Any) -> R:
            first, rest = placed[:1], placed[1:]
            if rest:
                called = ", ".join(f"{name}=…" for name in names[: len(rest)])
                warnings.warn(
                    f"{function.__name__} takes {called} by name from the next version on",
                    DeprecationWarning,
                    stacklevel=2,
                )
            named = dict(zip(names, rest, strict=False))
            return function(*first, *rest[len(names) :], **named, **given)

        return call

    return decorate
