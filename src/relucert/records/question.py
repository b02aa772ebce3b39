"""`Question`: what is evaluated at every point of a data set, and `save`, which makes an answer a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relucert.core.errors import RunError
from relucert.records.record import Record
from relucert.records.store import RecordStore

#: The fields of a record; one named "arrays" is a dictionary of arrays for the sidecar.
Facts = Mapping[str, Any]


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


def save(question: Question, store: RecordStore, index: int, facts: Facts, versions: dict[str, str]) -> Record:
    """The record of a point with these facts, stored unless it was there."""
    plain = {name: value for name, value in facts.items() if name not in ("arrays", "content")}
    if facts.get("content", question.contents[index]) != question.contents[index]:
        raise RunError(f"data {question.data!r} must not change while it is evaluated, got another point {index}")
    record = question.record(index, versions=versions, **plain)
    if record.key not in store:
        store.append(record, facts.get("arrays"))
    return store.record(record.key)
