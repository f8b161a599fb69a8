"""Who runs a process, and what it hears."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def as_nobody() -> Iterator[None]:
    """As a user to whom something can be denied, which root is not."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def hear_ctrl_c() -> None:
    """In a new process: a shell that runs these tests in the background would have it ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
