"""Decisions as records: what `rc.certify(..., records=FILE)` and `relucert certify` store, and how they go on from there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method, spec
from relucert.core.verdict import CLOCK
from relucert.core.versions import versions
from relucert.networks.checkpoints import digest
from relucert.networks.network import Network
from relucert.records.question import Facts, Question, save
from relucert.records.record import Record, Verdict, ball_fields, content_digest
from relucert.records.store import RecordStore
from relucert.verification.inspection import inspect
from relucert.verification.verifier import Decision

#: Part of the method's name in records of runs whose proofs must cover the executed network; other runs have other records.
AS_EXECUTED = " as executed"
#: The data of records of a call, whose inputs have no name; the digests of inputs and labels tell them apart.
ARRAYS = "arrays"


def certify_text(method: Method, arithmetic: str, timeout: float | None) -> str:
    """The method of a record: how verdicts are found, what proofs cover and how long they may take."""
    executed = AS_EXECUTED if arithmetic == "executed" else ""
    return f"certify by {spec(method)}{executed}" + ("" if timeout is None else f" in {timeout:g} s")


def facts_of(found: Decision, label: int, prediction: int) -> dict[str, Any]:
    """The fields of the record of a decision."""
    facts: dict[str, Any] = {
        "label": label,
        "prediction": prediction,
        "verdict": found.verdict,
        "margin": found.margin,
        "executed": found.executed,
        "rounding": None if math.isnan(found.rounding) else found.rounding,
        "arithmetic": found.arithmetic or None,
        "by": found.by,
        "reason": str(found.reason) or None,
        "claim": found.claim or None,
        "seconds": found.seconds,
    }
    if found.witness is not None:
        facts["arrays"] = {"witness": found.witness.cpu().numpy()}
    return facts


def decision_of(record: Record, store: RecordStore) -> Decision:
    """The decision that a record keeps."""
    assert record.verdict is not None
    by = record.by or ""
    margin = -math.inf if record.margin is None else record.margin
    witness = None
    if record.verdict is Verdict.VULNERABLE:
        witness = torch.from_numpy(store.array(record.key, "witness").copy())
    return Decision(
        record.index, Verdict(record.verdict), margin, by.removeprefix(CLOCK), record.seconds or 0.0,
        executed=-math.inf if record.executed is None else record.executed,
        computed=-math.inf if record.rounding is None else margin + record.rounding,
        witness=witness, reason=record.reason or "", claim=record.claim or "", timed=by.startswith(CLOCK),
    )  # fmt: skip


def question_of(net: Network, x: Tensor, y: Tensor, ball: Any, method: str) -> Question:
    """The question of a call about one ball of one radius, without a scale."""
    if not isinstance(ball, Ball) or ball.scale is not None or isinstance(ball.eps, Tensor):
        raise InvalidInput(f"ball must be one ball of one radius without a scale for records, got {ball!r}")
    contents = [content_digest(*pair) for pair in zip(x.cpu().numpy(), y.tolist(), strict=True)]
    return Question(
        digest(net), ARRAYS, "test", ball_fields(float(ball.p), float(ball.eps), ball.box), method, contents
    )


def recorded(
    path: str | Path,
    question: Question,
    net: Network,
    x: Tensor,
    y: Tensor,
    decide: Callable[[Tensor], Iterator[Decision]],
) -> Iterator[Decision]:
    """The decisions that a store has, then new ones, stored before they are yielded: `decide(missing)` makes these."""
    keys, known = [question.record(index).key for index in range(len(x))], versions()
    with RecordStore(Path(path), writable=True) as store:
        inspect(store, question, net, x, 100)
        for key in (key for key in keys if key in store):
            yield decision_of(store.record(key), store)
        missing = torch.tensor([index for index, key in enumerate(keys) if key not in store], dtype=torch.long)
        if len(missing) == 0:
            return
        with torch.no_grad():
            predicted = net.predict(x[missing.to(x.device)]).tolist()
        for found in decide(missing):
            index = int(missing[found.index])
            facts: Facts = facts_of(found, int(y[index]), predicted[found.index])
            save(question, store, index, facts, known)
            yield Decision(**{**vars(found), "index": index})
