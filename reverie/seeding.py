"""Random numbers as a function of names: (seed, task, phase, epoch) in, the same numbers out, on every machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed that depends on every name, and on nothing else."""
    text = json.dumps([seed, *names]).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator for `names`: what is drawn from it does not depend on the device that uses it."""
    import torch

    return torch.Generator().manual_seed(derive(seed, *names))


@contextmanager
def initialising(seed: int, *names: str | int) -> Iterator[None]:
    """Modules built inside get the initial weights of `names`; the global generator is left as it was."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, *names))
        yield
