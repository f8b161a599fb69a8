"""Methods by name: reverie's own, and those of other packages that register an entry point `reverie.methods`."""

from __future__ import annotations

import dataclasses
import logging
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from reverie.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from reverie.methods.base import Method

log = logging.getLogger("reverie")
GROUP = "reverie.methods"
UPPER_BOUND = "joint"
BUILT_IN = {
    UPPER_BOUND: "reverie.methods.plain:Joint",
    "base": "reverie.methods.plain:Base",
    "lwf": "reverie.methods.lwf:LwF",
    "lwf-mc": "reverie.methods.lwf:LwFMC",
    "dgr": "reverie.methods.dgr:DGR",
    "lwf-synthetic": "reverie.methods.deepinversion:LwFSynthetic",
    "deepinversion": "reverie.methods.deepinversion:DeepInversion",
    "abd": "reverie.methods.abd:ABD",
    "r-dfcil": "reverie.methods.rdfcil:RDFCIL",
    "rehearsal": "reverie.methods.rehearsal:Rehearsal",
    "lwf-coreset": "reverie.methods.rehearsal:LwFCoreset",
    "e2e": "reverie.methods.e2e:E2E",
    "bic": "reverie.methods.bic:BiC",
}


def method_names() -> list[str]:
    return [*BUILT_IN, *sorted(entry.name for entry in entry_points(group=GROUP) if entry.name not in BUILT_IN)]


def methods_that_load() -> list[str]:
    """All of them, but for those of other packages that are broken: these are warned of."""
    found = []
    for name in method_names():
        try:
            find_method(name)
        except UserError as error:
            log.warning("%s", error)
        else:
            found.append(name)
    return found


def _check_options(options: type) -> None:
    """A method of its own accord: `--methods all` sets nothing. And `method.name` is which method it is."""
    for field in dataclasses.fields(options):
        if field.name == "name":
            raise TypeError("an option cannot be called 'name'")
        if field.default is field.default_factory is dataclasses.MISSING:
            raise TypeError(f"the option {field.name!r} has no default")


def find_method(name: str) -> type[Method]:
    """The class behind a name. Only then is its file loaded, and torch with it."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: type[Method] = getattr(import_module(module), attribute)
        return found
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            from reverie.methods.base import Method

            try:
                other: type[Method] = entry.load()
                if not (isinstance(other, type) and issubclass(other, Method)):
                    raise TypeError(f"{other!r} is no subclass of reverie.methods.base.Method")
                _check_options(other.Options)
            except Exception as error:  # somebody else's code
                package = entry.dist.name if entry.dist else "another package"
                why = f"{type(error).__name__}: {error}"
                raise UserError(f"The method {name!r} of {package} ({entry.value}) cannot be loaded: {why}") from error
            return other
    raise UserError(f"There is no method {name!r}.{did_you_mean(name, method_names())} `reverie methods` lists them.")
