"""Certified radii of a data set's test points, point by point into records."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from relucert.attacks.problem import MINIMAL
from relucert.core.methods import parse, spec
from relucert.core.versions import versions
from relucert.data import dataset
from relucert.evaluation.config import RadiusConfig
from relucert.evaluation.fit import check_fit
from relucert.evaluation.stream import Keep, Question, stream
from relucert.interop.loading import load
from relucert.networks.checkpoints import digest
from relucert.records.record import Record, Verdict, ball_fields
from relucert.records.store import RecordStore
from relucert.verification.radius import RADIUS, radius


@dataclass(frozen=True)
class Radii:
    """The intervals of all points, and their summary; means are over the correctly classified points with finite ends."""

    records: list[Record]
    exact: list[bool]
    mean_lower: float
    mean_upper: float
    share_exact: float
    misclassified: int
    without_witness: int
    seconds: float

    def summary(self) -> dict[str, Any]:
        """The numbers but the points, as JSON."""
        return {name: value for name, value in asdict(self).items() if name not in ("records", "exact")}


def radii(
    config: RadiusConfig, callback: Callable[[Record, int, int], None] = lambda record, done, total: None
) -> Radii:
    """Find the radius of test points as the configuration says; `callback(record, done, total)` hears of each."""
    method = parse(config.method, RADIUS)
    data = dataset(config.data)
    net = load(config.model)
    check_fit(net, data)
    x, y = data.x_test[: config.points].to(net.dtype), data.y_test[: config.points]
    box = (0.0, 1.0) if config.box else None
    prop = ball_fields(config.p, math.inf, box)
    attack = None if config.attack in (None, "none") else parse(config.attack, MINIMAL)
    beside = "" if attack is None else f" and {spec(attack)}"
    if method.name in ("bab", "auto"):
        beside += f" to {config.tol:g}" + ("" if config.timeout is None else f" in {config.timeout:g} s")
    labelled = "" if config.labels else ", about the predicted class"
    question = Question(digest(net), data.name, "test", prop, f"radius by {spec(method)}{beside}{labelled}")

    def solve(x: Tensor, y: Tensor, indices: Tensor, piece: int, keep: Keep) -> None:
        found = radius(net, x, y if config.labels else None, config.p, box, method, attack, config.tol, config.timeout)
        predicted = net.predict(x)
        for i in range(len(x)):
            wrong = config.labels and int(predicted[i]) != int(y[i])
            one: dict[str, Any] = {
                "label": int(y[i]),
                "prediction": int(predicted[i]),
                "lower": float(found.lower[i]),
                "upper": float(found.upper[i]),
                "seconds": float(found.seconds[i]),
                "verdict": Verdict.MISCLASSIFIED if wrong else None,
            }
            if found.witness is not None and not wrong and bool(found.upper[i].isfinite()):
                one["arrays"] = {"witness": found.witness[i].numpy()}
            keep(i, one)

    records: list[Record] = []
    with RecordStore(config.records, writable=True) as store, torch.no_grad():
        for record in stream(question, x, y, store, solve, config.batch, versions()):
            records.append(record)
            callback(record, len(records), len(x))
    return _summarised(records, 1e-4 if net.dtype == torch.float32 else 1e-6)


def _summarised(records: list[Record], tolerance: float) -> Radii:
    ends = [(record.lower or 0.0, math.inf if record.upper is None else record.upper) for record in records]
    exact = [upper <= lower * (1 + tolerance) for lower, upper in ends]
    right = [i for i, record in enumerate(records) if record.verdict != Verdict.MISCLASSIFIED]
    lowers = [ends[i][0] for i in right if math.isfinite(ends[i][0])]
    uppers = [ends[i][1] for i in right if math.isfinite(ends[i][1])]
    return Radii(
        records=records,
        exact=exact,
        mean_lower=_mean(lowers),
        mean_upper=_mean(uppers),
        share_exact=_mean([float(exact[i]) for i in right]),
        misclassified=len(records) - len(right),
        without_witness=sum(math.isinf(ends[i][1]) for i in right),
        seconds=sum(record.seconds or 0.0 for record in records),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
