"""The evaluation loop: points go through a method piece by piece, and every answer becomes a record at once.

A `Task` is the question of a configuration, with the network and the points it is about.

Pieces depend on the numbers of points alone, so that a run which was stopped anywhere and started again evaluates the same
pieces as one that was not. What the store has already is not evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from relucert.core.device import require_device
from relucert.core.errors import InvalidInput
from relucert.core.versions import versions
from relucert.data import Dataset, dataset
from relucert.evaluation.config import PointsConfig
from relucert.interop.loading import load
from relucert.networks.checkpoints import digest
from relucert.networks.network import Network
from relucert.records.question import Facts, Question, save
from relucert.records.record import Record, content_digest
from relucert.records.store import RecordStore
from relucert.verification.inspection import inspect

#: `solve(x, y, piece)` yields the position in x and the facts of every point, each as soon as it is known.
Solve = Callable[[Tensor, Tensor, int], Iterator[tuple[int, Facts]]]
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

    Subclasses set `question`, and say in `_solve` what a method finds out about some points.
    """

    question: Question

    def __init__(self, config: Config, points: Points | None = None):
        self.config = config
        self.points = Points.of(config) if points is None else points
        self.net, x, self.box = self.points.net, self.points.x, self.points.box
        x, y = x[: config.points], self.points.y[: config.points]
        self.contents = [content_digest(*pair) for pair in zip(x.numpy(), y.tolist(), strict=True)]
        self.x, self.y = x.to(self.net.device, self.net.dtype), y.to(self.net.device)

    def __len__(self) -> int:
        return len(self.x)

    @torch.no_grad()
    def records(self, only: Collection[int] | None = None) -> Generator[Record, None, None]:
        """The records of all points in order, or `only` of these; new ones are stored as they come."""
        with RecordStore(self.config.records, writable=True) as store:
            self._inspect(store)
            yield from stream(self.question, self.x, self.y, store, self._solve, self.config.batch, only)

    def _inspect(self, store: RecordStore) -> None:
        """Check the counterexamples of what is there already, and say which records cannot be used."""
        inspect(store, self.question, self.net, self.x, self.config.batch)

    def _ask(self, ball: dict[str, Any], method: str) -> Question:
        """The question about all points, in a ball by a method."""
        return Question(digest(self.net), self.points.data, "test", ball, method, self.contents)

    def _solve(self, x: Tensor, y: Tensor, piece: int) -> Iterator[tuple[int, Facts]]:
        """The position and the facts of every point of a piece, each as soon as it is known."""
        raise NotImplementedError


def _check_fit(net: Network, data: Dataset) -> None:
    """Raise unless the network takes the data's inputs and knows its classes; own data may lack some of the classes."""
    known = data.classes <= net.classes if data.spec.own else data.classes == net.classes
    if net.input_shape != data.input_shape or not known:
        raise InvalidInput(
            f"model takes inputs {net.input_shape} and has {net.classes} classes, but data {data.name!r} has inputs "
            f"{data.input_shape} and {data.classes} classes"
        )


def stream(
    question: Question, x: Tensor, y: Tensor, store: RecordStore, solve: Solve, batch: int,
    only: Collection[int] | None = None,
) -> Iterator[Record]:  # fmt: skip
    """The records of all points `(points, *input)` in order, or `only` of these; new answers are stored as they come.

    Pieces are evaluated as a whole, whichever of their points have records: an answer may depend on the others.
    """
    known, chosen = versions(), range(len(x)) if only is None else frozenset(only)
    for piece, indices in enumerate(torch.arange(len(x)).split(batch)):
        numbers = indices.tolist()
        keys = {index: question.record(index).key for index in numbers if index in chosen}
        if not all(key in store for key in keys.values()):
            for place, facts in solve(x[indices], y[indices], piece):
                if numbers[place] in keys:
                    save(question, store, numbers[place], facts, known)
        for key in keys.values():
            yield store.record(key)
