"""Attacks on a data set's test points, within a radius or for the smallest perturbation, point by point into records."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from relucert.attacks.problem import FIXED, MINIMAL, attack, minimal_attack
from relucert.core.ball import Ball
from relucert.core.methods import parse, spec
from relucert.core.results import Adversarial
from relucert.core.versions import versions
from relucert.data import dataset
from relucert.evaluation.config import AttackConfig
from relucert.evaluation.fit import check_fit
from relucert.evaluation.stream import Keep, Question, stream
from relucert.interop.loading import load
from relucert.networks.checkpoints import digest
from relucert.records.record import Record, Verdict, ball_fields
from relucert.records.store import RecordStore


@dataclass(frozen=True)
class Attacked:
    """The records of all points, and their summary; distances are those of the correctly classified points that were broken.

    `robust_error` is the share of points that are misclassified or broken.
    """

    records: list[Record]
    points: int
    misclassified: int
    falsified: int
    robust_error: float
    mean_distance: float
    median_distance: float
    seconds: float

    def summary(self) -> dict[str, Any]:
        """The numbers but the points, as JSON."""
        return {name: value for name, value in asdict(self).items() if name != "records"}


def attacked(
    config: AttackConfig, callback: Callable[[Record, int, int], None] = lambda record, done, total: None
) -> Attacked:
    """Attack test points as the configuration says; `callback(record, done, total)` hears of each."""
    fixed = config.eps is not None
    method = parse(config.attack, FIXED) if fixed else parse(config.attack, MINIMAL)
    data = dataset(config.data)
    net = load(config.model)
    check_fit(net, data)
    x, y = data.x_test[: config.points].to(net.dtype), data.y_test[: config.points]
    box = (0.0, 1.0) if config.box else None
    eps = math.inf if config.eps is None else config.eps
    labelled = "" if config.labels else ", about the predicted class"
    # Within a radius the question is that of `relucert evaluate`, and so are its records.
    prop = f"{'' if fixed else 'smallest by '}{spec(method)}{labelled}"
    question = Question(digest(net), data.name, "test", ball_fields(config.p, eps, box), prop)

    def run(x: Tensor, y: Tensor | None, piece: int) -> Adversarial:
        generator = torch.Generator().manual_seed(getattr(method, "seed", 0) + piece)
        if fixed:
            return attack(net, x, y, Ball(config.p, eps, box), method, generator)
        return minimal_attack(net, x, y, config.p, box, method, generator)

    def solve(x: Tensor, y: Tensor, indices: Tensor, piece: int, keep: Keep) -> None:
        started = time.perf_counter()
        found = run(x, y if config.labels else None, piece)
        predicted = net.predict(x)
        seconds = (time.perf_counter() - started) / len(x)
        for i in range(len(x)):
            verdict = Verdict.VULNERABLE if bool(found.success[i]) else Verdict.UNKNOWN
            one: dict[str, Any] = {"label": int(y[i]), "prediction": int(predicted[i]), "seconds": seconds}
            if config.labels and int(predicted[i]) != int(y[i]):
                verdict = Verdict.MISCLASSIFIED
            elif bool(found.success[i]):
                one |= {"upper": float(found.distance[i]), "arrays": {"witness": found.x[i].numpy()}}
            keep(i, one | {"verdict": verdict})

    records: list[Record] = []
    with RecordStore(config.records, writable=True) as store, torch.no_grad():
        for record in stream(question, x, y, store, solve, config.batch, versions()):
            records.append(record)
            callback(record, len(records), len(x))
    return _summarised(records)


def _summarised(records: list[Record]) -> Attacked:
    wrong = sum(record.verdict == Verdict.MISCLASSIFIED for record in records)
    distances = [
        record.upper for record in records if record.verdict == Verdict.VULNERABLE and record.upper is not None
    ]
    return Attacked(
        records=records,
        points=len(records),
        misclassified=wrong,
        falsified=len(distances),
        robust_error=(wrong + len(distances)) / len(records),
        mean_distance=statistics.fmean(distances) if distances else math.nan,
        median_distance=statistics.median(distances) if distances else math.nan,
        seconds=sum(record.seconds or 0.0 for record in records),
    )
