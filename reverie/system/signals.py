"""What ends a process gently: Ctrl-C, a request to end, a terminal that is closed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def stop_signals() -> list[signal.Signals]:
    """Those that ask a process to end; a hang-up is left out where somebody said that it must not matter (nohup)."""
    asked = [signal.SIGINT, signal.SIGTERM]
    hang_up = getattr(signal, "SIGHUP", None)  # not on Windows
    return asked if hang_up is None or signal.getsignal(hang_up) == signal.SIG_IGN else [*asked, hang_up]


@contextmanager
def on_stop_signal(act: Callable[[], None]) -> Iterator[None]:
    """Inside, a signal to stop calls `act` instead of ending the process. Only the main thread can be asked."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        act()

    before = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
