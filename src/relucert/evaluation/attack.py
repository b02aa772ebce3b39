"""Attacks on a data set's test points, within a radius or for the smallest perturbation, streamed into records."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from relucert.attacks.problem import FIXED, MINIMAL, attack, minimal_attack
from relucert.core.ball import Ball
from relucert.core.methods import parse, spec
from relucert.core.results import Adversarial
from relucert.evaluation._stream import Task
from relucert.evaluation.config import AttackConfig
from relucert.records.question import Facts
from relucert.records.record import Record, Verdict, ball_fields


@dataclass(frozen=True)
class Attacked:
    """The records of all points, and their summary; distances are those of correctly classified points with a counterexample.

    `falsified` counts these points. `robust_error` has both ends of the robust error at the radius of the attack: the share of
    misclassified and falsified points, and 1, since an attack proves nothing; None for the smallest perturbations, which have
    no radius.
    """

    records: list[Record]
    points: int
    misclassified: int
    falsified: int
    robust_error: tuple[float, float] | None
    mean_distance: float
    median_distance: float
    seconds: float

    @classmethod
    def of(cls, records: list[Record]) -> Attacked:
        """The summary of records."""
        wrong = sum(record.verdict == Verdict.MISCLASSIFIED for record in records)
        fixed = all(math.isfinite(float(record.ball["eps"])) for record in records)
        distances = [
            record.upper for record in records if record.verdict == Verdict.VULNERABLE and record.upper is not None
        ]
        return cls(
            records=records,
            points=len(records),
            misclassified=wrong,
            falsified=len(distances),
            robust_error=((wrong + len(distances)) / len(records), 1.0) if fixed else None,
            mean_distance=statistics.fmean(distances) if distances else math.nan,
            median_distance=statistics.median(distances) if distances else math.nan,
            seconds=sum(record.seconds or 0.0 for record in records),
        )

    def summary(self) -> dict[str, Any]:
        """The summary without the records, as JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "records"}


class AttackTask(Task[AttackConfig]):
    """Attacks on the test points of a data set."""

    def __init__(self, config: AttackConfig):
        self.fixed = config.eps is not None
        self.method = parse(config.attack, FIXED) if self.fixed else parse(config.attack, MINIMAL)
        super().__init__(config)
        self.box = self.box if config.box else None
        self.eps = math.inf if config.eps is None else config.eps
        labelled = "" if config.labels else ", about the predicted class"
        # Within a radius the question is that of `relucert evaluate`, and so are its records.
        name = f"{'' if self.fixed else 'smallest by '}{spec(self.method)}{labelled}"
        self.question = self._ask(ball_fields(config.norm, self.eps, self.box), name)

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
            return attack(self.net, x, y, Ball(self.config.norm, self.eps, self.box), self.method, generator)
        return minimal_attack(self.net, x, y, self.config.norm, self.box, self.method, generator)


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
        facts |= {"upper": float(found.distance[i]), "arrays": {"witness": found.x[i].cpu().numpy()}}
    return facts | {"verdict": Verdict.VULNERABLE if success else Verdict.UNKNOWN}
