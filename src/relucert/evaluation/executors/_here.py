"""This process, which may start others for work on points where that is faster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from torch import Tensor

from relucert.evaluation.executors.executor import Executor, Share
from relucert.networks.network import single_threaded
from relucert.verification.workers import answers

Answer = TypeVar("Answer")
Result = TypeVar("Result")


class Here(Executor):
    """Calls are made when they are submitted, in this process.

    With `workers` 1 work on points is done with one thread. With None other processes share it where that is faster, and fixed
    pieces are worked on with as many threads as torch has.
    """

    def __init__(self, workers: int | None = None):
        self._given = workers

    @property
    def workers(self) -> int:
        return 1

    def submit(self, function: Callable[..., Result], /, *arguments: Any) -> Future[Result]:
        future: Future[Result] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def as_completed(self, futures: Iterable[Future[Result]]) -> Iterator[Future[Result]]:
        return iter(list(futures))

    def answers(
        self, share: Share[Answer], points: Tensor, batch: int, batches: int = 1, *, fixed: bool = False
    ) -> Generator[Answer, None, None]:
        if not fixed:
            yield from answers(share, points, batch, self._given, batches)
            return
        for piece in points.split(batch):
            if len(piece):
                yield from share(piece) if self._given is None else single_threaded(share(piece))
