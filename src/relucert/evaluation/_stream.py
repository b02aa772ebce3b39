"""The evaluation loop: points go through a method piece by piece, and every answer becomes a record at once.

Pieces depend on the numbers of points alone, so that a run which was stopped anywhere and started again evaluates the same
pieces as one that was not. What the store has already is not evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relucert.core.versions import versions
from relucert.records.record import Record
from relucert.records.store import RecordStore

#: The fields of a record; one named "arrays" is a dictionary of arrays for the sidecar.
Facts = Mapping[str, Any]
#: `solve(x, y, piece)` yields the position in x and the facts of every point, each as soon as it is known.
Solve = Callable[[Tensor, Tensor, int], Iterator[tuple[int, Facts]]]


@dataclass(frozen=True)
class Question:
    """What is evaluated at every point: the key fields of its records but the index."""

    model: str
    data: str
    split: str
    ball: dict[str, Any]
    method: str

    def record(self, index: int, **facts: Any) -> Record:
        """The record of one point."""
        return Record(
            model=self.model, data=self.data, split=self.split, index=index, ball=self.ball, method=self.method, **facts
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
    plain = {name: value for name, value in facts.items() if name != "arrays"}
    record = question.record(index, versions=versions, **plain)
    if record.key not in store:
        store.append(record, facts.get("arrays"))
    return store.record(record.key)
