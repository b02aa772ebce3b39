"""The workers of a Dask cluster (extra `dask`), which other machines may have.

A worker that dies loses no call: the scheduler gives it to another one, and gives up after a few deaths. When the scheduler is
gone, all calls are `Lost`; this process waits until one answers at the same address, and what is lost can be submitted again.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from relucert.core.errors import ClusterError, Lost, MissingExtra, RelucertError
from relucert.core.versions import versions
from relucert.evaluation.executors.executor import Executor, alone

Result = TypeVar("Result")

REACH = 5.0  # seconds in which a scheduler must answer at the beginning
RETURN = 120.0  # seconds that a scheduler or all workers may be away
_CALM = "what is done is kept, and the same command goes on there"


class Cluster(Executor):
    """The workers of the Dask scheduler at an address such as tcp://HOST:8786."""

    def __init__(self, address: str, reach: float = REACH, patience: float = RETURN):
        self._address, self._patience = address, patience
        self._done: queue.Queue[tuple[Future[Any], Any]] = queue.Queue()
        self._theirs: dict[Future[Any], Any] = {}
        self._client = _connected(address, reach)
        self._seen = time.monotonic()  # when there was a scheduler with a worker

    @property
    def workers(self) -> int:
        return max(1, self._threads())

    def submit(self, function: Callable[..., Result], /, *arguments: Any) -> Future[Result]:
        self._await_scheduler()
        ours: Future[Result] = Future()
        theirs = self._client.submit(_called, versions(), function, arguments, pure=False)
        self._theirs[ours] = theirs
        theirs.add_done_callback(lambda theirs: self._done.put((ours, theirs)))
        return ours

    def as_completed(self, futures: Iterable[Future[Result]]) -> Iterator[Future[Result]]:
        open_ = list(futures)
        while open_:
            for future in [future for future in open_ if future.done()]:
                open_.remove(future)
                yield future
            if open_ and not any(future.done() for future in open_):
                self._settle_next()

    def close(self) -> None:
        """Give up all calls that are not done, and leave the cluster."""
        if self._client.status == "running":
            self._client.cancel(list(self._theirs.values()))
        self._theirs.clear()
        self._client.close(timeout=REACH)

    def _settle_next(self) -> None:
        """Wait for a call that is done, and settle its future."""
        try:
            ours, theirs = self._done.get(timeout=0.5)
        except queue.Empty:
            self._check_workers()
            return
        self._seen = time.monotonic()
        if self._theirs.pop(ours, None) is None:
            return
        try:
            ours.set_result(theirs.result(timeout=self._patience))
        except CancelledError:
            ours.set_exception(Lost(f"the scheduler at {self._address} has lost a call"))
        except RelucertError as error:
            ours.set_exception(error)
        except Exception as error:
            ours.set_exception(_translated(error))

    def _threads(self) -> int:
        """How many calls the workers that are there make at the same time; 0 without workers or scheduler."""
        if self._client.status != "running":
            return 0
        try:
            return sum(self._client.nthreads().values())
        except (OSError, ValueError, RuntimeError, AttributeError):
            return 0  # it has just gone

    def _check_workers(self) -> None:
        """Raise where there has been no worker for too long."""
        if self._threads() > 0:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > self._patience:
            what = "no scheduler" if self._client.status != "running" else "no worker"
            raise ClusterError(f"{what} at {self._address} for {self._patience:g} seconds; {_CALM}")

    def _await_scheduler(self) -> None:
        """Wait until the scheduler answers, if it is away."""
        while self._client.status != "running":
            if time.monotonic() - self._seen > self._patience:
                raise ClusterError(f"no scheduler at {self._address} for {self._patience:g} seconds; {_CALM}")
            if self._client.status == "closed":  # it has given up
                with suppress(ClusterError):
                    self._client = _connected(self._address, REACH)
            time.sleep(0.2)


def _connected(address: str, seconds: float) -> Any:
    """A client of the scheduler at an address."""
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingExtra("scheduler needs the extra dask: pip install 'relucert[dask]'") from error
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what happens is said by errors of relucert
    try:
        if address.startswith("tcp://"):  # the client of Dask goes on trying where nobody listens
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
        made = _within(2 * seconds, lambda: Client(address, timeout=seconds, set_as_default=False, name="relucert"))
    except (OSError, ValueError, OverflowError) as error:
        raise ClusterError(
            f"scheduler must be the address of a Dask scheduler that can be reached, got {address!r}: "
            f"{' '.join(str(error).split()) or type(error).__name__}"
        ) from error
    return made


def _within(seconds: float, make: Callable[[], Result]) -> Result:
    """What a function returns, or a TimeoutError: Dask waits for ever for a server that listens and is no scheduler."""
    future: Future[Result] = Future()

    def call() -> None:
        try:
            future.set_result(make())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    try:
        return future.result(timeout=seconds)
    except TimeoutError:
        raise TimeoutError(f"no answer of a scheduler in {seconds:g} seconds") from None


def _called(expected: dict[str, str], function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Make a call in a worker of the cluster, which must have the versions of the process that submitted it."""
    own = versions()
    for name in ("relucert", "torch"):
        if own[name] != expected[name]:
            raise ClusterError(f"workers must have {name} {expected[name]}, as this process has, got {own[name]}")
    return alone(function, arguments)


def _translated(error: Exception) -> Exception:
    """An error that is none of relucert's, in words."""
    text = " ".join(str(error).split())[:500]
    if type(error).__name__ == "KilledWorker":
        return ClusterError(f"workers of the cluster have died of one call again and again: {text}; {_CALM}")
    if type(error).__name__ == "FutureCancelledError":
        return Lost("the scheduler has lost a call")
    return ClusterError(f"a worker of the cluster has failed: {type(error).__name__}: {text}")
