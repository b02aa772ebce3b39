"""The one evaluation loop: points go through a method piece by piece, and every answer is a record at once.

Points are worked on in pieces that depend on their numbers alone, so that a run which was stopped anywhere and started
again asks the same questions as one that was not; what the store has already is not done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relucert.records.record import Record
from relucert.records.store import RecordStore

Facts = Mapping[str, Any]
Keep = Callable[[int, Facts], None]
Solve = Callable[[Tensor, Tensor, Tensor, int, Keep], None]


@dataclass(frozen=True)
class Question:
    """What is asked about every point: the key fields of its records but the index."""

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
    question: Question, x: Tensor, y: Tensor, store: RecordStore, solve: Solve, batch: int, versions: dict[str, str]
) -> Iterator[Record]:
    """The records of all points `(points, *input)` in order, new ones stored as they come.

    `solve(x, y, indices, piece, keep)` answers one piece: `keep(place, facts)` for every point of it, as soon as it is known;
    a fact named "arrays" is a dictionary of arrays for the sidecar.
    """
    for piece, indices in enumerate(torch.arange(len(x)).split(batch)):
        numbers = indices.tolist()
        keys = [question.record(index).key for index in numbers]
        if not all(key in store for key in keys):

            def keep(place: int, facts: Facts, numbers: list[int] = numbers) -> None:
                save(question, store, numbers[place], facts, versions)

            solve(x[indices], y[indices], indices, piece, keep)
        for key in keys:
            yield store.record(key)


def save(question: Question, store: RecordStore, index: int, facts: Facts, versions: dict[str, str]) -> Record:
    """The record of a point with these facts, stored unless it was there."""
    plain = {name: value for name, value in facts.items() if name != "arrays"}
    record = question.record(index, versions=versions, **plain)
    if record.key not in store:
        store.append(record, facts.get("arrays"))
    return store.record(record.key)
