"""Methods by name: reverie's own, and those of other packages that register an entry point `reverie.methods`."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from reverie.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from reverie.methods.base import Method

GROUP = "reverie.methods"
BUILT_IN = {
    "joint": "reverie.methods.plain:Joint",
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


def find_method(name: str) -> type[Method]:
    """The class behind a name. Only then is its file loaded, and torch with it."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: type[Method] = getattr(import_module(module), attribute)
        return found
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            other: type[Method] = entry.load()
            return other
    raise UserError(f"There is no method {name!r}.{did_you_mean(name, method_names())} `reverie methods` lists them.")
