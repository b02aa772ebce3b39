"""Ctrl-C is held back in a block and not lost there, not even in a callback after a fork."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from relucert.core.interrupts import uninterrupted

armed: list[bool] = []


def _interrupt() -> None:
    if armed:
        armed.clear()
        signal.raise_signal(signal.SIGINT)


os.register_at_fork(after_in_parent=_interrupt)  # for good: Python cannot take it back


@pytest.fixture(autouse=True)
def handler():
    """The handler of a program; the processes of pytest-xdist ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    armed.clear()
    signal.signal(signal.SIGINT, before)


def fork() -> None:
    """Interrupt this process in a callback after a fork."""
    armed.append(True)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning")
def test_an_interruption_after_a_fork_is_not_lost():
    fork()  # Python drops it
    done = []

    def held_back() -> None:
        with uninterrupted():
            fork()
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        held_back()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_error_of_a_block_is_the_context_of_its_interruption():
    def failing() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            raise ZeroDivisionError

    with pytest.raises(KeyboardInterrupt) as raised:
        failing()
    assert isinstance(raised.value.__context__, ZeroDivisionError)
    with uninterrupted():
        pass  # nothing came


def test_an_ignored_signal_stays_ignored_and_other_threads_do_nothing():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN

    def inside() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    seen: list[object] = []
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_IGN]
