"""Single-threaded processes on this machine.

Work on points goes to the pool of `verification/workers.py`. A call has a process of its own, a copy of this one where the
system can copy processes: when it dies, its call alone is lost.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from relucert.core.errors import Lost, RelucertError, RunError
from relucert.core.interrupts import uninterrupted
from relucert.evaluation.executors.executor import Executor, Share, alone
from relucert.verification.workers import answers, forks, spread

Answer = TypeVar("Answer")
Result = TypeVar("Result")


class _Running(NamedTuple):
    future: Future[Any]
    process: Any


class Processes(Executor):
    """So many processes at a time."""

    def __init__(self, workers: int):
        self._count = workers
        self._waiting: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()
        self._running: dict[Connection, _Running] = {}

    @property
    def workers(self) -> int:
        return self._count

    def submit(self, function: Callable[..., Result], /, *arguments: Any) -> Future[Result]:
        future: Future[Result] = Future()
        self._waiting.append((future, function, arguments))
        self._fill()
        return future

    def as_completed(self, futures: Iterable[Future[Result]]) -> Iterator[Future[Result]]:
        open_ = list(futures)
        while open_:
            for future in [future for future in open_ if future.done()]:
                open_.remove(future)
                yield future
            if open_ and not any(future.done() for future in open_):
                self._receive()

    def answers(
        self, share: Share[Answer], points: Tensor, batch: int, batches: int = 1, *, fixed: bool = False
    ) -> Generator[Answer, None, None]:
        if not fixed:
            yield from answers(share, points, batch, self._count, batches)
        elif len(points):
            yield from spread(share, points.split(batch), self._count)

    def close(self) -> None:
        """End all processes."""
        self._waiting.clear()
        for running in self._running.values():
            running.process.terminate()
        for end, running in self._running.items():
            running.process.join()
            end.close()
        self._running.clear()

    def _fill(self) -> None:
        """Start processes for calls that wait."""
        context = multiprocessing.get_context("fork") if forks() else multiprocessing.get_context("spawn")
        while self._waiting and len(self._running) < self._count:
            future, function, arguments = self._waiting.popleft()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(theirs, function, arguments), daemon=True)
            with warnings.catch_warnings(), uninterrupted():
                warnings.simplefilter(
                    "ignore", DeprecationWarning
                )  # of forks beside threads, which a fork does not use
                process.start()
                self._running[ours] = _Running(future, process)
            theirs.close()

    def _receive(self) -> None:
        """Wait until a process is done, and settle its future."""
        for end in wait(list(self._running)):
            assert isinstance(end, Connection)
            future, process = self._running.pop(end)
            try:
                kind, what = pickle.loads(end.recv_bytes())
            except (EOFError, ConnectionResetError):
                process.join()
                kind, what = "error", Lost(f"the process of a worker has died (exit code {process.exitcode})")
            end.close()
            process.join()
            if kind == "error":
                future.set_exception(what)
            else:
                future.set_result(what)
        self._fill()


def _work(end: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """A process: make one call. An interruption is left to the process that started it, which ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        message = "result", alone(function, arguments)
    except RelucertError as error:
        error.add_note(f"in a worker:\n{traceback.format_exc()}")
        message = "error", error
    except KeyboardInterrupt:  # a run that has saved its state
        return
    except Exception:
        message = "error", RunError(f"a worker has failed:\n{traceback.format_exc()}")
    end.send_bytes(pickle.dumps(message))
