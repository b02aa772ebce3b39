"""The boundary to where work runs: `submit` and `as_completed`, as in `concurrent.futures`.

A call is a function with arguments that can be pickled. Where its worker, or the scheduler that knows of it, is gone, its
future has the error `Lost`, and `completed` makes the call again: it gives every result once.

Work on points has many answers, which arrive before the piece of points is done: `answers`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol, Self, TypeVar

from torch import Tensor

from relucert.core.errors import Lost
from relucert.networks.network import one_thread
from relucert.verification.workers import pieces_of

Answer = TypeVar("Answer", covariant=True)
Result = TypeVar("Result")
Key = TypeVar("Key")
#: A key, a function and its arguments.
Call = tuple[Key, Callable[..., Result], tuple[Any, ...]]

TRIES = 4  # times that a call is made whose worker dies: it may be the call that kills it
AHEAD = 2  # calls that are submitted for each worker: one that runs, and one that waits on the spot

_alone = threading.Lock()


class Share(Protocol[Answer]):
    """Work on points: called with the numbers of some points, it yields answers about them, each as soon as it is known."""

    def __call__(self, points: Tensor, /) -> Iterator[Answer]: ...

    def part(self, points: Tensor, /) -> Callable[[], Iterator[Answer]]:
        """The work on these points alone, which holds no others and can be sent to another machine."""
        ...


class Executor(ABC):
    """Where work runs; a context manager, which waits for nothing when it is left."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many calls run at the same time."""

    @abstractmethod
    def submit(self, function: Callable[..., Result], /, *arguments: Any) -> Future[Result]:
        """Call a function, now or as soon as a worker is free."""

    @abstractmethod
    def as_completed(self, futures: Iterable[Future[Result]]) -> Iterator[Future[Result]]:
        """The futures in the order in which they are done."""

    def answers(
        self, share: Share[Answer], points: Tensor, batch: int, batches: int = 1, *, fixed: bool = False
    ) -> Generator[Answer, None, None]:
        """The answers about the points with these numbers, in no particular order.

        They are worked on in pieces of at most `batch` points, or `batches` batches; `fixed` pieces are batches exactly, as
        methods need that draw random numbers piece by piece.
        """
        pieces = points.split(batch) if fixed else pieces_of(points, batch * batches, self.workers)
        calls = ((None, listed, (share.part(piece),)) for piece in pieces if len(piece))
        found: tuple[None, list[Any]]
        for found in completed(self, calls):
            yield from found[1]

    def close(self) -> None:  # noqa: B027, there may be nothing to give up
        """Give up what is not done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def completed(executor: Executor, calls: Iterable[Call[Key, Result]]) -> Iterator[tuple[Key, Result]]:
    """The key and the result of every call, each once; an error of a call is raised.

    Only so many calls are submitted as keep the workers busy. Calls that are lost are made again, up to `TRIES` times.
    """
    waiting, tries = iter(calls), {}
    while True:
        while len(tries) < AHEAD * executor.workers and (call := next(waiting, None)) is not None:
            tries[executor.submit(call[1], *call[2])] = (call, 1)
        if not tries:
            return
        future = next(iter(executor.as_completed(tries)))
        call, made = tries.pop(future)
        try:
            result = future.result()
        except Lost:
            if made == TRIES:
                raise
            tries[executor.submit(call[1], *call[2])] = (call, made + 1)
            continue
        yield call[0], result


def listed(work: Callable[[], Iterator[Result]]) -> list[Result]:
    """All answers of some work."""
    return list(work())


def alone(function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    """The result of a call in a worker: with one thread of torch, and one call at a time in a process.

    Calls seed the global generators of torch and set its threads, so they exclude each other in a process. One thread, because
    workers share the cores: threads of several processes on the same core wait for each other.
    """
    with _alone, one_thread():
        return function(*arguments)
