"""Parts worth compiling are marked where they stand; an engine that compiles switches them over while it runs.

A marked function is compiled once for each kind of input, and found again by later tasks: the head grows, but nothing
that is marked depends on it. torch keeps what it compiled on disk between processes (TORCHINDUCTOR_CACHE_DIR).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ParamSpec, TypeVar

import torch

from reverie.text import first_line

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("reverie")
_compiling = False
_broken = False  # the compiler was tried, and failed
_share: Share | None = None  # what is compiled; none: everything


class Share:
    """One in so many of what is marked, counted as it is first called. With and without gradients it counts twice."""

    def __init__(self, number: int, shares: int) -> None:
        self.number, self.shares = number, shares
        self.met: dict[tuple[Callable[..., object], bool], int] = {}

    def holds(self, function: Callable[..., object]) -> bool:
        place = self.met.setdefault((function, torch.is_grad_enabled()), len(self.met))
        return place % self.shares == self.number


def compilable(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function of modules and tensors as worth compiling, where the engine compiles."""
    compiled: Callable[P, R] | None = None

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal compiled
        if not _compiling or torch.compiler.is_compiling():  # inside another one, it is compiled with that
            return function(*args, **kwargs)
        if _share is not None and not _share.holds(function):
            with compiling(False):  # with all that it calls
                return function(*args, **kwargs)
        if compiled is None:
            compiled = _compile(function)
        try:
            return compiled(*args, **kwargs)
        except _compiler_errors() as error:
            _give_up(error)
            return function(*args, **kwargs)

    return call


@contextmanager
def compiling(on: bool) -> Iterator[None]:
    """Inside, marked functions are compiled, or all run as they are written."""
    global _compiling
    before, _compiling = _compiling, on and not _broken
    try:
        yield
    finally:
        _compiling = before


@contextmanager
def sharing(number: int, shares: int) -> Iterator[None]:
    """Inside, a share of what is marked is compiled, and the rest runs plainly."""
    global _share
    before, _share = _share, Share(number, shares)
    try:
        yield
    finally:
        _share = before


def warm_up_compiler(device: torch.device) -> None:
    """The compiler takes seconds to start. Somebody who has to wait for something else can start it meanwhile."""
    with suppress(_compiler_errors()):
        _compile(torch.neg)(torch.ones(2, device=device))


def _compile(function: Callable[P, R]) -> Callable[P, R]:
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = 64  # kinds of input: by size of batch, precision, training or not
    return torch.compile(function, dynamic=False, options={"combo_kernels": True})  # many small sums, in one go


def _compiler_errors() -> type[Exception]:
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException


def _give_up(error: Exception) -> None:
    global _broken, _compiling
    _broken, _compiling = True, False
    cause = getattr(error, "inner_exception", error)
    log.warning("torch.compile does not work here, so nothing is compiled: %s", first_line(cause))
