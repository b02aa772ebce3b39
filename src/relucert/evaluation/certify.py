"""Verdicts on a data set's test points at one radius, point by point into records, by one process or several."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.methods import parse, spec
from relucert.core.versions import versions
from relucert.data import dataset
from relucert.evaluation.config import CertifyConfig
from relucert.evaluation.fit import check_fit
from relucert.evaluation.stream import Facts, Question, save
from relucert.evaluation.workers import spread
from relucert.interop.loading import load
from relucert.networks.checkpoints import digest
from relucert.records.record import Record, Verdict, ball_fields
from relucert.records.store import RecordStore
from relucert.verification.cascade import CLOCK, Decision
from relucert.verification.certify import CERTIFY, decide


@dataclass(frozen=True)
class Verdicts:
    """The records of all points that were reached, and how many have which verdict.

    `points` are all that were asked about; `by` counts the records that each method decided.
    """

    records: list[Record]
    points: int
    counts: dict[str, int]
    by: dict[str, int]
    seconds: float

    @property
    def robust_error(self) -> float:
        """The share of points that are misclassified or not certified, an upper bound of the robust error."""
        return 1 - self.counts["robust"] / self.points

    @property
    def broken_error(self) -> float:
        """The share of points that are misclassified or have a witness, a lower bound of the robust error."""
        return (self.counts["misclassified"] + self.counts["vulnerable"]) / self.points

    def summary(self) -> dict[str, Any]:
        """The numbers but the points, as JSON."""
        ends = {"robust_error": self.robust_error, "broken_error": self.broken_error}
        reached = {"points": self.points, "reached": len(self.records)}
        return {**self.counts, **ends, **reached, "by": self.by, "seconds": self.seconds}


class CertifyTask:
    """The question of a configuration, with the network and the points it is about."""

    def __init__(self, config: CertifyConfig):
        self.config, self.method = config, parse(config.method, CERTIFY)
        data = dataset(config.data)
        self.net = load(config.model)
        check_fit(self.net, data)
        self.x, self.y = data.x_test[: config.points].to(self.net.dtype), data.y_test[: config.points]
        box = (0.0, 1.0) if config.box else None
        self.ball = Ball(config.p, config.radius, box)
        self.question = Question(
            digest(self.net),
            data.name,
            "test",
            ball_fields(config.p, config.radius, box),
            f"certify by {spec(self.method)}" + ("" if config.timeout is None else f" in {config.timeout:g} s"),
        )

    def solve(self, indices: Tensor, deadline: float, keep: Callable[[int, Facts], None]) -> None:
        """Decide some points; `keep(index, facts)` hears of each as soon as it is decided."""
        x, y = self.x[indices], self.y[indices]
        self.net.check(x, y)
        self.net.require_eval("a certificate")
        self.ball.check(x)
        predicted = self.net.predict(x).tolist()

        def callback(found: Decision) -> None:
            facts: dict[str, Any] = {
                "label": int(y[found.index]),
                "prediction": predicted[found.index],
                "verdict": found.verdict,
                "margin": found.margin,
                "by": found.method,
                "reason": found.reason or None,
                "claim": found.claim or None,
                "seconds": found.seconds,
            }
            if found.witness is not None:
                facts["arrays"] = {"witness": found.witness.numpy()}
            keep(int(indices[found.index]), facts)

        limit = float("inf") if self.config.timeout is None else self.config.timeout
        decide(self.net, x, y, self.ball, self.method, limit, batch=len(x), deadline=deadline, callback=callback)


def verdicts(
    config: CertifyConfig, callback: Callable[[Record, int, int], None] = lambda record, done, total: None
) -> Verdicts:
    """Certify test points as the configuration says; `callback(record, done, total)` hears of each when it is decided.

    Verdicts do not depend on who shares a batch, so a run that was stopped anywhere goes on with the points that are missing,
    whatever the batches and the number of workers were.
    """
    deadline = float("inf") if config.run_timeout is None else time.monotonic() + config.run_timeout
    prop = CertifyTask(config)
    known = versions()
    keys = [prop.question.record(index).key for index in range(len(prop.x))]
    with RecordStore(config.records, writable=True) as store, torch.no_grad():
        missing = torch.tensor([index for index, key in enumerate(keys) if key not in store], dtype=torch.long)
        done = len(keys) - len(missing)
        for key in keys:
            if key in store:
                callback(store.record(key), done, len(keys))

        def keep(index: int, facts: Facts) -> None:
            nonlocal done
            done += 1
            callback(save(prop.question, store, index, facts, known), done, len(keys))

        if config.workers == 1:
            for indices in missing.split(config.batch) if len(missing) else ():
                if time.monotonic() < deadline:
                    prop.solve(indices, deadline, keep)
        else:
            spread(CertifyTask, config, missing, config.batch, config.workers, deadline, keep)
        records = [store.record(key) for key in keys if key in store]
    counts = {str(verdict): sum(record.verdict == verdict for record in records) for verdict in Verdict}
    by = Counter(decider(record) for record in records)
    seconds = sum(record.seconds or 0.0 for record in records)
    return Verdicts(records, len(keys), counts, dict(by.most_common()), seconds)


def decider(record: Record) -> str:
    """Who decided, in a word: a method's name, or why nobody did."""
    by = record.by or record.method.removeprefix("certify by ")
    name = by.removeprefix(CLOCK).partition("(")[0].partition(" in ")[0]
    if record.verdict != Verdict.UNKNOWN:
        return name
    if record.claim:
        return f"robust on the word of {record.claim}"
    return f"undecided ({'time' if by.startswith(CLOCK) else name})"
