"""The one evaluation loop: points go through a method piece by piece, and every answer is a record at once.

Points are worked on in pieces that depend on their numbers alone, so that a run which was stopped anywhere and started
again asks the same questions as one that was not; what the store has already is not done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relucert.core.records import Record
from relucert.core.store import RecordStore

Facts = Sequence[Mapping[str, Any]]
Solve = Callable[[Tensor, Tensor, Tensor, int], Facts]


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

    `solve(x, y, indices, piece)` answers one piece with the facts of every point; a fact named "arrays" is a dictionary
    of arrays for the sidecar.
    """
    for piece, indices in enumerate(torch.arange(len(x)).split(batch)):
        keys = [question.record(int(index)).key for index in indices]
        missing = [key not in store for key in keys]
        if any(missing):
            answers = solve(x[indices], y[indices], indices, piece)
            for index, facts, wanted in zip(indices.tolist(), answers, missing, strict=True):
                if wanted:
                    plain = {name: value for name, value in facts.items() if name != "arrays"}
                    store.append(question.record(index, versions=versions, **plain), facts.get("arrays"))
        for key in keys:
            yield store.record(key)
