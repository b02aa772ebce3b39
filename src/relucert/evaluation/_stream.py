"""The evaluation loop: points go through a method piece by piece, and every answer becomes a record at once.

A `Task` is the question of a configuration, with the network and the points it is about.

Pieces depend on the numbers of points alone, so that a run which was stopped anywhere and started again evaluates the same
pieces as one that was not, wherever they are evaluated (`executors`). What the store has already is not evaluated again.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from relucert.core.device import require_device
from relucert.core.errors import InvalidInput
from relucert.core.versions import versions
from relucert.data import Dataset, dataset
from relucert.evaluation.config import PointsConfig
from relucert.evaluation.executors.choice import executor_of
from relucert.evaluation.executors.executor import Executor
from relucert.interop.loading import load
from relucert.networks.checkpoints import digest
from relucert.networks.network import Network
from relucert.records.question import Facts, Question, save
from relucert.records.record import Record, content_digest
from relucert.records.store import RecordStore
from relucert.verification.certify import workers_beside
from relucert.verification.inspection import inspect

#: The index of a point, and what was found out about it.
Found = tuple[int, Facts]
Config = TypeVar("Config", bound=PointsConfig)


class Points(NamedTuple):
    """A network and all points that it is evaluated at, with the name of the data and the range of inputs.

    Points are on the CPU; the network is where it computes.
    """

    net: Network
    x: Tensor
    y: Tensor
    data: str
    box: tuple[float, float] | None

    @classmethod
    def of(cls, config: PointsConfig) -> Points:
        """The network and the test points of a configuration."""
        device = require_device(config.device)
        data, net = dataset(config.data, input_shape=config.input_shape), load(config.model)
        _check_fit(net, data)
        if config.mean is not None or config.std is not None:
            net = _normalised(net, config)
        return cls(net.to(device), data.x_test, data.y_test, data.name, data.box)


def _normalised(net: Network, config: PointsConfig) -> Network:
    """The network behind a normalisation of its inputs; one that has a normalisation of its own is refused."""
    if net.mean is not None or net.std is not None:
        raise InvalidInput(
            f"mean and std must be left out for {config.model}, whose network normalises its inputs itself"
        )
    mean, std = (
        None if values is None else values[0] if len(values) == 1 else values for values in (config.mean, config.std)
    )
    return Network(net.module, net.input_shape, mean, std).eval()


class Task(Generic[Config]):
    """The question of a configuration, with the network and the points it is about; its length is the number of points.

    Subclasses set `question`, and say in `_solve` what a method finds out about some points. `part` is a task about some of the
    points, to be sent to another process: `numbers` has the indices of its points.
    """

    question: Question

    def __init__(self, config: Config, points: Points | None = None):
        self.config = config
        self.points = Points.of(config) if points is None else points
        self.net, x, self.box = self.points.net, self.points.x, self.points.box
        x, y = x[: config.points], self.points.y[: config.points]
        self.contents = [content_digest(*pair) for pair in zip(x.numpy(), y.tolist(), strict=True)]
        self.x, self.y = x.to(self.net.device, self.net.dtype), y.to(self.net.device)
        self.numbers = list(range(len(x)))
        workers_beside(self.net.device, config.workers)
        if config.scheduler is not None and self.net.device.type != "cpu":
            raise InvalidInput(
                f"scheduler must be left out for a network on {self.net.device.type}, got {config.scheduler!r}"
            )

    def __len__(self) -> int:
        return len(self.x)

    def part(self, places: Tensor) -> Self:
        """The task about the points in some places alone: it has no other points."""
        task, chosen = copy(self), places.tolist()
        task.points = self.points._replace(x=self.points.x[:0], y=self.points.y[:0])
        task.question = replace(self.question, contents=[])
        task.x, task.y = self.x[places], self.y[places]
        task.contents, task.numbers = ([values[i] for i in chosen] for values in (self.contents, self.numbers))
        return task

    @torch.no_grad()
    def records(self, only: Collection[int] | None = None, *, in_order: bool = True) -> Generator[Record, None, None]:
        """The records of all points, or `only` of these; new ones are stored as they come.

        They come in the order of the points; without `in_order` those that are there already come first, and then every other
        one as soon as it is known.
        """
        with self.executor() as executor, RecordStore(self.config.records, writable=True) as store:
            self._inspect(store)
            yield from self._stream(store, executor, only, in_order)

    def executor(self) -> Executor:
        """Where the configuration wants points to be worked on."""
        if self.config.scheduler is not None:
            return executor_of(scheduler=self.config.scheduler)
        return executor_of(workers_beside(self.net.device, self.config.workers))

    def _stream(
        self, store: RecordStore, executor: Executor, only: Collection[int] | None, in_order: bool
    ) -> Generator[Record, None, None]:
        """The records of the points; a batch with a point that has none is evaluated, and stored as answers come.

        Batches are evaluated as a whole, whichever of their points have records: an answer may depend on the others.
        """
        chosen = frozenset(self.numbers if only is None else only)
        keys = {index: self.question.record(index).key for index in self.numbers if index in chosen}
        before = [key for key in keys.values() if key in store]
        known, waiting, left = versions(), [], deque(keys.values() if in_order else before)
        for places in torch.arange(len(self)).split(self.config.batch):
            wanted = [keys[index] for index in (self.numbers[i] for i in places.tolist()) if index in keys]
            if not all(key in store for key in wanted):
                waiting.append(places)
        while left and left[0] in store:
            yield store.record(left.popleft())
        if waiting:
            share, stored = Share(self), set(before)
            with closing(executor.answers(share, torch.cat(waiting), self.config.batch, fixed=True)) as answers:
                for index, facts in answers:
                    if index in keys:
                        save(self.question, store, index, facts, known)
                        if not in_order and keys[index] not in stored:
                            left.append(keys[index])
                    while left and left[0] in store:
                        yield store.record(left.popleft())
        yield from map(store.record, left)

    def _inspect(self, store: RecordStore) -> None:
        """Check the counterexamples of what is there already, and say which records cannot be used."""
        inspect(store, self.question, self.net, self.x, self.config.batch)

    def _ask(self, ball: dict[str, Any], method: str) -> Question:
        """The question about all points, in a ball by a method."""
        return Question(digest(self.net), self.points.data, "test", ball, method, self.contents)

    @torch.no_grad()
    def solve(self, places: Tensor, deadline: float) -> Iterator[Found]:
        """The index and the facts of the points in some places, which are a batch, each as soon as it is known."""
        batch = self.numbers[int(places[0])] // self.config.batch
        for place, facts in self._solve(self.x[places], self.y[places], batch):
            yield self.numbers[int(places[place])], facts

    def _solve(self, x: Tensor, y: Tensor, piece: int) -> Iterator[Found]:
        """The position in x and the facts of every point of batch number `piece`, each as soon as it is known."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Share:
    """The work of a task on some of its points, here or elsewhere; none after the deadline, a time of this machine's clock."""

    task: Task[Any]
    deadline: float = math.inf

    def __call__(self, places: Tensor) -> Iterator[Found]:
        return self.task.solve(places, self.deadline)

    def part(self, places: Tensor) -> Callable[[], Iterator[Found]]:
        """The work on these points, in another process; the deadline is one of the time of day there."""
        return partial(_elsewhere, self.task.part(places), self.deadline - time.monotonic() + time.time())


def _elsewhere(task: Task[Any], deadline: float) -> Iterator[Found]:
    """The work on all points of a task that has come from another process."""
    return task.solve(torch.arange(len(task)), deadline - time.time() + time.monotonic())


def _check_fit(net: Network, data: Dataset) -> None:
    """Raise unless the network takes the data's inputs and knows its classes; own data may lack some of the classes."""
    known = data.classes <= net.classes if data.spec.own else data.classes == net.classes
    if net.input_shape != data.input_shape or not known:
        raise InvalidInput(
            f"model takes inputs {net.input_shape} and has {net.classes} classes, but data {data.name!r} has inputs "
            f"{data.input_shape} and {data.classes} classes"
        )
