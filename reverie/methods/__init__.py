"""Methods by name: reverie's own, those of other packages, and those that a script has registered for this process."""

from __future__ import annotations

import dataclasses
import logging
import re
from importlib import import_module
from typing import TYPE_CHECKING

from reverie.config.choices import UPPER_BOUND
from reverie.errors import UserError
from reverie.methods.keeps import Keeps
from reverie.system.plugins import METHODS, load_plugin, plugin_names
from reverie.text import did_you_mean, shortened

if TYPE_CHECKING:
    from reverie.methods.base import Method

log = logging.getLogger("reverie")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")  # of a folder, and of a flag's value
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
    "acil": "reverie.methods.acil:ACIL",
    "ranpac": "reverie.methods.acil:RanPAC",
    "ldc": "reverie.methods.ldc:LDC",
    "lucid": "reverie.methods.lucid:Lucid",
}


_registered: dict[str, type[Method]] = {}  # in this process


def register_method(name: str, method: type[Method]) -> None:
    """Let `name` be a method in this process, as for `configure` and `run`.

        reverie.register_method("mine", MyMethod)

    A package does the same for all processes with an entry point `reverie.methods` (CONTRIBUTING.md); a table, whose
    runs are processes of their own, needs that. Raises UserError for a name that is taken or cannot be one, or a class
    that is no method. The same class may be registered again, as by a cell of a notebook that is run twice.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name) or name == "all":
        raise UserError(
            f"`name` is up to 64 letters, digits, - and _, does not begin with -, and is not 'all'; "
            f"{shortened(name)} is not."
        )
    if name in method_names() and not _same_class(_registered.get(name), method):
        raise UserError(f"There is a method {name!r} already. Choose another `name`.")
    try:
        _check_method(method)
    except TypeError as error:
        raise UserError(f"{name!r} cannot be a method: {error}.") from None
    _registered[name] = method


def _same_class(one: object, other: object) -> bool:
    """Also where its definition was run again."""
    return one is not None and _place(one) == _place(other)


def _place(cls: object) -> tuple[str | None, str | None]:
    return getattr(cls, "__module__", None), getattr(cls, "__qualname__", None)


def method_names() -> list[str]:
    """Of all methods: reverie's own first, then those of others."""
    return [*BUILT_IN, *sorted({*plugin_names(METHODS), *_registered} - {*BUILT_IN})]


def is_of_this_process(name: str) -> bool:
    """Is it a method by `register_method` alone, of which other processes know nothing?"""
    return name in _registered and name not in plugin_names(METHODS)


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


def _check_method(method: object) -> None:
    """`--methods all` sets no option, so each needs a default; and `method.name` is which method it is."""
    from reverie.methods.base import Method

    if not (isinstance(method, type) and issubclass(method, Method)):
        raise TypeError(f"{method!r} is no subclass of reverie.Method")
    if not isinstance(method.keeps, Keeps):
        kinds = ", ".join(f"reverie.Keeps.{name}" for name in Keeps.__members__)
        raise TypeError(f"its `keeps` must be of {kinds}, or several joined by |, not {shortened(method.keeps)}")
    for field in dataclasses.fields(method.Options):
        if field.name == "name":
            raise TypeError("an option cannot be called 'name'")
        if field.default is field.default_factory is dataclasses.MISSING:
            raise TypeError(f"the option {field.name!r} has no default")


def find_method(name: str) -> type[Method]:
    """The class behind a name. Only then is its file loaded, and torch with it."""
    if not isinstance(name, str):
        raise UserError(f"A method is named by text such as 'abd', not {shortened(name)}.")
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: type[Method] = getattr(import_module(module), attribute)
        return found
    if name in _registered:
        return _registered[name]
    other: type[Method] | None = load_plugin(METHODS, name, _check_method)
    if other is not None:
        return other
    hint = did_you_mean(name[:100], method_names())
    raise UserError(f"There is no method {shortened(name)}.{hint} `list_methods()` names them.")
