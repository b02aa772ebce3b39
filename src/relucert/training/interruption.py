"""Ctrl-C between two steps: the first one asks the run to stop where it can go on, the second one insists."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def gentle_interrupts() -> Iterator[Callable[[], bool]]:
    """A function that says whether SIGINT or SIGTERM has come; outside the main thread signals are left alone."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    prop: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if prop:
            raise KeyboardInterrupt
        prop.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(prop)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
