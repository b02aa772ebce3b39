"""Inspection of a store before an evaluation goes on: counterexamples are run again, records about other data are recognised.

The network and the points are at hand, so a stored counterexample need not be believed: it must lie in the ball around its
point and change the class. A stored proof cannot be checked this way; its facts must not contradict each other
(`records/record.py`).
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Protocol

import torch
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.errors import DamagedData
from relucert.networks.network import Network
from relucert.records.record import Record, Verdict
from relucert.records.store import RecordStore

_ROUNDED = 1e-6  # of a distance, which is a number of the network's dtype
_REMEDY = "delete the line of that record and run the evaluation again, which computes what is missing"


class Asked(Protocol):
    """A question about every point of a data set."""

    @property
    def data(self) -> str:
        """The name of the data set."""
        ...

    def record(self, index: int, **facts: Any) -> Record:
        """The record of one point."""
        ...


def inspect(store: RecordStore, question: Asked, net: Network, x: Tensor, batch: int) -> None:
    """Check the counterexamples of the records of a question, and warn of records that cannot be used.

    A counterexample that is none is `DamagedData`. Records of the same question whose input or label was another one, or
    unknown, stay where they are; their points are evaluated again.
    """
    known: list[Record] = []
    changed = unnamed = 0
    lacks = ""
    for index in range(len(x)):
        record = question.record(index)
        if record.key in store:
            known.append(store.record(record.key))
            continue
        others = store.others(record)
        changed += any(other.content is not None for other in others)
        if others and all(other.lacks for other in others):
            unnamed, lacks = unnamed + 1, " and ".join(others[0].lacks)
    if changed:
        warnings.warn(
            f"{store.path}: the records of {changed} points are about other contents of data {question.data!r}, which has "
            "changed since: they are kept, and the points are evaluated again",
            stacklevel=2,
        )
    if unnamed:
        warnings.warn(
            f"{store.path}: the records of {unnamed} points lack {lacks}, as an older relucert wrote them: they are kept, and "
            "the points are evaluated again",
            stacklevel=2,
        )
    found = [record for record in known if record.verdict is Verdict.VULNERABLE or math.isfinite(_upper(record))]
    found = [record for record in found if record.verdict is not Verdict.MISCLASSIFIED]
    for start in range(0, len(found), batch):
        _check(store, found[start : start + batch], net, x)


def _upper(record: Record) -> float:
    return math.inf if record.upper is None else record.upper


@torch.no_grad()
def _check(store: RecordStore, records: list[Record], net: Network, x: Tensor) -> None:
    """Raise unless every record has a counterexample: within eps and the distance it states, of another class."""
    centres = x[torch.tensor([record.index for record in records], device=x.device)]
    witness = torch.stack([_witness(store, record, centres[0]) for record in records])
    common = records[0].ball  # all records are of one question
    eps = [min(float(common["eps"]), _upper(record) * (1 + _ROUNDED)) for record in records]
    box = None if common["box"] is None else (float(common["box"][0]), float(common["box"][1]))
    inside = Ball(float(common["p"]), torch.tensor(eps, dtype=torch.float64, device=x.device), box).contains(
        centres, witness
    )
    for record, radius, within in zip(records, eps, inside.tolist(), strict=True):
        if not within:
            raise _damaged(store, record, f"its witness must lie in the ball of radius {radius} around the point")
    classes = net.predict(witness).tolist()
    for record, new in zip(records, classes, strict=True):
        if new == record.prediction:
            raise _damaged(store, record, f"its witness must change the class {record.prediction}, got the same class")


def _witness(store: RecordStore, record: Record, like: Tensor) -> Tensor:
    if "witness" not in record.arrays:
        raise _damaged(store, record, "it must have a witness, got none")
    array = store.array(record.key, "witness")
    dtype = like.cpu().numpy().dtype
    if array.shape != tuple(like.shape) or array.dtype != dtype:
        wanted = f"{dtype} of shape {tuple(like.shape)}"
        raise _damaged(store, record, f"its witness must be {wanted}, got {array.dtype} of shape {array.shape}")
    return torch.from_numpy(array).to(like.device)


def _damaged(store: RecordStore, record: Record, reason: str) -> DamagedData:
    return DamagedData(reason, path=store.path, entry=f"record {record.key} of point {record.index}", remedy=_REMEDY)
