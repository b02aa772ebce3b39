"""Verdicts on a data set's test points at one radius, point by point into records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.methods import parse, spec
from relucert.core.records import Record, Verdict, ball_fields
from relucert.core.store import RecordStore
from relucert.core.versions import versions
from relucert.data import dataset
from relucert.evaluation.config import CertifyConfig
from relucert.evaluation.fit import check_fit
from relucert.evaluation.stream import Question, stream
from relucert.interop.loading import load
from relucert.networks.checkpoints import digest
from relucert.verification.certify import CERTIFY, certify


@dataclass(frozen=True)
class Verdicts:
    """The records of all points, and how many have which verdict."""

    records: list[Record]
    counts: dict[str, int]
    seconds: float

    @property
    def robust_error(self) -> float:
        """The share of points that are misclassified or not certified, an upper bound of the robust error."""
        return 1 - self.counts["robust"] / len(self.records)

    @property
    def broken_error(self) -> float:
        """The share of points that are misclassified or have a witness, a lower bound of the robust error."""
        return (self.counts["misclassified"] + self.counts["vulnerable"]) / len(self.records)

    def summary(self) -> dict[str, Any]:
        """The numbers but the points, as JSON."""
        ends = {"robust_error": self.robust_error, "broken_error": self.broken_error}
        return {**self.counts, **ends, "points": len(self.records), "seconds": self.seconds}


def verdicts(
    config: CertifyConfig, tell: Callable[[Record, int, int], None] = lambda record, done, total: None
) -> Verdicts:
    """Certify test points as the configuration says; `tell(record, done, total)` hears of each."""
    method = parse(config.method, CERTIFY)
    data = dataset(config.data)
    net = load(config.model)
    check_fit(net, data)
    x, y = data.x_test[: config.points].to(net.dtype), data.y_test[: config.points]
    box = (0.0, 1.0) if config.box else None
    ball = Ball(config.p, config.radius, box)
    question = Question(
        digest(net),
        data.name,
        "test",
        ball_fields(config.p, config.radius, box),
        f"certify by {spec(method)}" + ("" if config.timeout is None else f" in {config.timeout:g} s"),
    )

    def solve(x: Tensor, y: Tensor, indices: Tensor, piece: int) -> list[dict[str, Any]]:
        found = certify(net, x, y, ball, method, config.timeout, batch=config.batch)
        predicted = net.predict(x)
        facts: list[dict[str, Any]] = []
        for i in range(len(x)):
            one: dict[str, Any] = {
                "label": int(y[i]),
                "prediction": int(predicted[i]),
                "verdict": found.verdict[i],
                "margin": float(found.margin[i]),
                "seconds": float(found.seconds[i]),
            }
            if found.witness is not None and found.verdict[i] is Verdict.VULNERABLE:
                one["arrays"] = {"witness": found.witness[i].numpy()}
            facts.append(one)
        return facts

    records: list[Record] = []
    with RecordStore(config.records, writable=True) as store, torch.no_grad():
        for record in stream(question, x, y, store, solve, config.batch, versions()):
            records.append(record)
            tell(record, len(records), len(x))
    counts = {str(verdict): sum(record.verdict == verdict for record in records) for verdict in Verdict}
    return Verdicts(records, counts, sum(record.seconds or 0.0 for record in records))
