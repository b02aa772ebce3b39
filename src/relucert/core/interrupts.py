"""Ctrl-C that waits until something that must not be torn apart is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold SIGINT back until the end of the block, where it is raised again.

    Python loses a KeyboardInterrupt that is raised in a callback, such as those that run after a fork. The handler is replaced,
    rather than the signal blocked, since a signal of the process goes to any thread that does not block it. A fork inside the
    block starts with this handler. Outside the main thread, where no handler runs, there is nothing to hold back.

    >>> try:
    ...     with uninterrupted():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("done")
    ... except KeyboardInterrupt:
    ...     print("then interrupted")
    done
    then interrupted
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received:
            signal.raise_signal(signal.SIGINT)
