"""Attacks on a data set's test points, within a radius or for the smallest perturbation, streamed into records."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from relucert.attacks.problem import FIXED, MINIMAL, attack, minimal_attack
from relucert.core.ball import Ball
from relucert.core.methods import parse, spec
from relucert.core.results import Adversarial
from relucert.data import dataset
from relucert.evaluation._fit import check_fit
from relucert.evaluation._stream import Facts, Question, stream
from relucert.evaluation.config import AttackConfig
from relucert.interop.loading import load
from relucert.networks.checkpoints import digest
from relucert.records.record import Record, Verdict, ball_fields
from relucert.records.store import RecordStore


@dataclass(frozen=True)
class Attacked:
    """The records of all points, and their summary; distances are those of correctly classified points with a counterexample.

    `falsified` counts these points ("broken" in JSON); `robust_error` is the share of misclassified and falsified points.
    """

    records: list[Record]
    points: int
    misclassified: int
    falsified: int
    robust_error: float
    mean_distance: float
    median_distance: float
    seconds: float

    @classmethod
    def of(cls, records: list[Record]) -> Attacked:
        """The summary of records."""
        wrong = sum(record.verdict == Verdict.MISCLASSIFIED for record in records)
        distances = [
            record.upper for record in records if record.verdict == Verdict.VULNERABLE and record.upper is not None
        ]
        return cls(
            records=records,
            points=len(records),
            misclassified=wrong,
            falsified=len(distances),
            robust_error=(wrong + len(distances)) / len(records),
            mean_distance=statistics.fmean(distances) if distances else math.nan,
            median_distance=statistics.median(distances) if distances else math.nan,
            seconds=sum(record.seconds or 0.0 for record in records),
        )

    def summary(self) -> dict[str, Any]:
        """The summary without the records, as JSON."""
        names = {field.name: field.name for field in fields(self) if field.name != "records"} | {"falsified": "broken"}
        return {shown: getattr(self, name) for name, shown in names.items()}


class AttackTask:
    """The question of a configuration, with the network and the points it is about; its length is the number of points."""

    def __init__(self, config: AttackConfig):
        self.config, self.fixed = config, config.eps is not None
        self.method = parse(config.attack, FIXED) if self.fixed else parse(config.attack, MINIMAL)
        data = dataset(config.data)
        self.net = load(config.model)
        check_fit(self.net, data)
        self.x, self.y = data.x_test[: config.points].to(self.net.dtype), data.y_test[: config.points]
        self.box = (0.0, 1.0) if config.box else None
        self.eps = math.inf if config.eps is None else config.eps
        labelled = "" if config.labels else ", about the predicted class"
        # Within a radius the question is that of `relucert evaluate`, and so are its records.
        name = f"{'' if self.fixed else 'smallest by '}{spec(self.method)}{labelled}"
        self.question = Question(digest(self.net), data.name, "test", ball_fields(config.p, self.eps, self.box), name)

    def __len__(self) -> int:
        return len(self.x)

    @torch.no_grad()
    def records(self) -> Generator[Record, None, None]:
        """The records of all points in order; new ones are stored as they come."""
        with RecordStore(self.config.records, writable=True) as store:
            yield from stream(self.question, self.x, self.y, store, self._solve, self.config.batch)

    def _solve(self, x: Tensor, y: Tensor, piece: int) -> Iterator[tuple[int, Facts]]:
        started = time.perf_counter()
        found = self._attack(x, y if self.config.labels else None, piece)
        predicted = self.net.predict(x)
        seconds = (time.perf_counter() - started) / len(x)
        for i in range(len(x)):
            yield i, facts_of(found, i, int(y[i]), int(predicted[i]), seconds, labels=self.config.labels)

    def _attack(self, x: Tensor, y: Tensor | None, piece: int) -> Adversarial:
        generator = torch.Generator().manual_seed(getattr(self.method, "seed", 0) + piece)
        if self.fixed:
            return attack(self.net, x, y, Ball(self.config.p, self.eps, self.box), self.method, generator)
        return minimal_attack(self.net, x, y, self.config.p, self.box, self.method, generator)


def attacked(config: AttackConfig) -> Attacked:
    """Attack test points as the configuration says."""
    with closing(AttackTask(config).records()) as records:
        return Attacked.of(list(records))


def facts_of(
    found: Adversarial, i: int, label: int, prediction: int, seconds: float, *, labels: bool = True
) -> dict[str, Any]:
    """The facts of one attacked point; with `labels` a prediction other than the label is MISCLASSIFIED."""
    success = bool(found.success[i])
    facts: dict[str, Any] = {"label": label, "prediction": prediction, "seconds": seconds}
    if labels and prediction != label:
        return facts | {"verdict": Verdict.MISCLASSIFIED}
    if success:
        facts |= {"upper": float(found.distance[i]), "arrays": {"witness": found.x[i].numpy()}}
    return facts | {"verdict": Verdict.VULNERABLE if success else Verdict.UNKNOWN}
