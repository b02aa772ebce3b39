"""The evaluation loop: points go through a method piece by piece, and every answer becomes a record at once.

A `Task` is the question of a configuration, with the network and the points it is about.

Pieces depend on the numbers of points alone, so that a run which was stopped anywhere and started again evaluates the same
pieces as one that was not. What the store has already is not evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from relucert.core.errors import InvalidInput, RunError
from relucert.core.versions import versions
from relucert.data import Dataset, dataset
from relucert.evaluation._inspection import inspect
from relucert.evaluation.config import PointsConfig
from relucert.interop.loading import load
from relucert.networks.checkpoints import digest
from relucert.networks.network import Network
from relucert.records.record import Record, content_digest
from relucert.records.store import RecordStore

#: Part of the method's name in records of runs whose proofs must cover the executed network; other runs have other records.
AS_EXECUTED = " as executed"
#: The fields of a record; one named "arrays" is a dictionary of arrays for the sidecar.
Facts = Mapping[str, Any]
#: `solve(x, y, piece)` yields the position in x and the facts of every point, each as soon as it is known.
Solve = Callable[[Tensor, Tensor, int], Iterator[tuple[int, Facts]]]
Config = TypeVar("Config", bound=PointsConfig)


@dataclass(frozen=True)
class Question:
    """What is evaluated at every point: the key fields of its records but the index.

    `contents` has the digest of input and label of every point: the name of a data set does not say what is in it.
    """

    model: str
    data: str
    split: str
    ball: dict[str, Any]
    method: str
    contents: Sequence[str]

    def record(self, index: int, **facts: Any) -> Record:
        """The record of one point."""
        return Record(
            model=self.model, data=self.data, split=self.split, index=index, ball=self.ball, method=self.method,
            content=self.contents[index], **facts,
        )  # fmt: skip


class Task(Generic[Config]):
    """The question of a configuration, with the network and the points it is about; its length is the number of points.

    Subclasses set `question`, and say in `_solve` what a method finds out about some points.
    """

    question: Question

    def __init__(self, config: Config):
        self.config = config
        self.data = dataset(config.data, input_shape=config.input_shape)
        self.net = load(config.model)
        _check_fit(self.net, self.data)
        x, self.y = self.data.x_test[: config.points], self.data.y_test[: config.points]
        self.x = x.to(self.net.dtype)
        self.contents = [content_digest(*pair) for pair in zip(x.numpy(), self.y.tolist(), strict=True)]

    def __len__(self) -> int:
        return len(self.x)

    @torch.no_grad()
    def records(self) -> Generator[Record, None, None]:
        """The records of all points in order; new ones are stored as they come."""
        with RecordStore(self.config.records, writable=True) as store:
            self._inspect(store)
            yield from stream(self.question, self.x, self.y, store, self._solve, self.config.batch)

    def _inspect(self, store: RecordStore) -> None:
        """Check the counterexamples of what is there already, and say which records cannot be used."""
        inspect(store, self.question, self.net, self.x, self.config.batch)

    def _ask(self, ball: dict[str, Any], method: str) -> Question:
        """The question about all points, in a ball by a method."""
        return Question(digest(self.net), self.data.name, "test", ball, method, self.contents)

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
    question: Question, x: Tensor, y: Tensor, store: RecordStore, solve: Solve, batch: int
) -> Iterator[Record]:  # fmt: skip
    """The records of all points `(points, *input)` in order; new answers are stored as they come."""
    known = versions()
    for piece, indices in enumerate(torch.arange(len(x)).split(batch)):
        numbers = indices.tolist()
        keys = [question.record(index).key for index in numbers]
        if not all(key in store for key in keys):
            for place, facts in solve(x[indices], y[indices], piece):
                save(question, store, numbers[place], facts, known)
        for key in keys:
            yield store.record(key)


def save(question: Question, store: RecordStore, index: int, facts: Facts, versions: dict[str, str]) -> Record:
    """The record of a point with these facts, stored unless it was there."""
    plain = {name: value for name, value in facts.items() if name not in ("arrays", "content")}
    if facts.get("content", question.contents[index]) != question.contents[index]:
        raise RunError(f"data {question.data!r} must not change while it is evaluated, got another point {index}")
    record = question.record(index, versions=versions, **plain)
    if record.key not in store:
        store.append(record, facts.get("arrays"))
    return store.record(record.key)
