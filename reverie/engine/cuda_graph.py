"""A phase's step as a CUDA graph: recorded once, then replayed without a word from Python.

The graph holds two strands. One learns from the batch at hand; the other, meanwhile, draws and prepares the next:
that takes only what rests, so the order makes no difference to the result.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from reverie.text import first_line

WARM_UP = 3  # steps before recording, in which libraries choose algorithms and compilers compile


class Work(Protocol):
    """What is to be captured: the two halves of a step, and the way back to where it began."""

    rng: torch.Generator

    def next_batch(self) -> Any:
        """Draw and prepare a batch."""

    def learn(self, batch: Any) -> None:
        """One step of the optimizer."""

    def rewind(self) -> Callable[[], None]:
        """A function that puts everything that `learn` and `next_batch` change back to what it is now, in place."""


class CaptureFailed(Exception):
    """The step cannot be captured. It can still be run."""


class CapturedStep:
    """Recorded when made. Afterwards everything is as it was before."""

    def __init__(self, work: Work, device: torch.device) -> None:
        self.work, self.device = work, device
        self._main, self._second = _strands(device)
        self._first, self._both = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        self._rng_state = work.rng.get_state()
        self._record()

    def _record(self) -> None:
        put_back = self.work.rewind()
        self._main.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._main):
            self._now = _copy_of(self.work.next_batch())
            for _ in range(WARM_UP):
                self._forked()
        torch.cuda.synchronize(self.device)
        try:
            with torch.cuda.stream(self._main), _no_waiting():
                self._forked()
            pool = torch.cuda.graph_pool_handle()
            for graph in (self._first, self._both):
                graph.register_generator_state(self.work.rng)
            with torch.cuda.graph(self._first, pool, self._main, "thread_local"):
                _fill(self._now, self.work.next_batch())
            with torch.cuda.graph(self._both, pool, self._main, "thread_local"):
                self._forked()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CaptureFailed(first_line(error)) from error
        finally:
            torch.cuda.synchronize(self.device)
            put_back()

    def _forked(self) -> None:
        here = torch.cuda.current_stream(self.device)
        self._second.wait_stream(here)
        with torch.cuda.stream(self._second):
            following = self.work.next_batch()
        self.work.learn(self._now)
        here.wait_stream(self._second)
        _fill(self._now, following)

    def begin(self) -> None:
        """Prepare the batch of the epoch's first step."""
        self._rng_state = self.work.rng.get_state()
        self._first.replay()

    def __call__(self) -> None:
        """Learn from the batch at hand, and prepare the next."""
        self._rng_state = self.work.rng.get_state()
        self._both.replay()

    def rng_state(self) -> Tensor:
        """The generator as it was before it made what has not been learned from yet."""
        return self._rng_state

    def release(self) -> None:
        """Give the memory back."""
        self._first.reset()
        self._both.reset()
        del self._now


@functools.cache
def _strands(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """The same for every step: libraries keep memory of their own for each stream that they have met."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Inside, a step that waits for the device is refused, with a clearer message than capture would give."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")  # is a prototype, says torch
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _parts(batch: Any) -> dict[str, Any]:
    """Tensors, and dataclasses of them."""
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: value for name, value in fields.items() if isinstance(value, Tensor) or _is_batch(value)}


def _is_batch(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _copy_of(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.clone()
    return dataclasses.replace(batch, **{name: _copy_of(value) for name, value in _parts(batch).items()})


def _fill(into: Any, batch: Any) -> None:
    if isinstance(batch, Tensor):
        into.copy_(batch)
        return
    for name, value in _parts(batch).items():
        _fill(getattr(into, name), value)
