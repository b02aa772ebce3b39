"""Certified radii of a data set's test points, streamed into records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from relucert.attacks.problem import MINIMAL
from relucert.core.methods import parse, spec
from relucert.evaluation._stream import Points, Task
from relucert.evaluation.config import RadiusConfig
from relucert.records.question import Facts
from relucert.records.record import Record, Verdict, ball_fields
from relucert.verification.radius import intervals
from relucert.verification.recorded import AS_EXECUTED
from relucert.verification.registry import find


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

    @classmethod
    def of(cls, records: list[Record], dtype: torch.dtype) -> Radii:
        """The summary of records of a network in `dtype`, on which the tolerance of `exact` depends."""
        records = sorted(records, key=lambda record: record.index)
        tolerance = 1e-4 if dtype == torch.float32 else 1e-6
        ends = [(record.lower or 0.0, math.inf if record.upper is None else record.upper) for record in records]
        right = [i for i, record in enumerate(records) if record.verdict != Verdict.MISCLASSIFIED]
        # A wrong decision has no distance to be exact about.
        exact = [i in set(right) and upper <= lower * (1 + tolerance) for i, (lower, upper) in enumerate(ends)]
        lowers = [ends[i][0] for i in right if math.isfinite(ends[i][0])]
        uppers = [ends[i][1] for i in right if math.isfinite(ends[i][1])]
        return cls(
            records=records,
            exact=exact,
            mean_lower=_mean(lowers),
            mean_upper=_mean(uppers),
            share_exact=_mean([float(exact[i]) for i in right]),
            misclassified=len(records) - len(right),
            without_witness=sum(math.isinf(ends[i][1]) for i in right),
            seconds=sum(record.seconds or 0.0 for record in records),
        )

    def summary(self) -> dict[str, Any]:
        """The summary without the records, as JSON."""
        return {name: value for name, value in asdict(self).items() if name not in ("records", "exact")}


class RadiusTask(Task[RadiusConfig]):
    """Radii of the test points of a data set."""

    def __init__(self, config: RadiusConfig, points: Points | None = None):
        self.method, _ = find(config.method)
        super().__init__(config, points)
        self.box = self.box if config.box else None
        self.attack = None if config.attack in (None, "none") else parse(config.attack, MINIMAL)
        beside = "" if self.attack is None else f" and {spec(self.attack)}"
        if self.method.name in ("bab", "auto"):
            beside += f" to {config.tol:g}" + ("" if config.timeout is None else f" in {config.timeout:g} s")
        elif self.method.name == "region" and config.timeout is not None:
            beside += f" in {config.timeout:g} s"
        beside += AS_EXECUTED if config.arithmetic == "executed" else ""
        labelled = "" if config.labels else ", about the predicted class"
        ball = ball_fields(config.norm, math.inf, self.box)
        name = f"radius by {spec(self.method)}{beside}{labelled}"
        self.question = self._ask(ball, name)

    def _solve(self, x: Tensor, y: Tensor, piece: int) -> Iterator[tuple[int, Facts]]:
        config = self.config
        predicted = self.net.predict(x)
        for i, found in intervals(
            self.net, x, y if config.labels else None, config.norm, self.box, self.method, self.attack, config.tol,
            config.timeout, config.arithmetic,
        ):  # fmt: skip
            wrong = config.labels and int(predicted[i]) != int(y[i])
            facts: dict[str, Any] = {
                "label": int(y[i]),
                "prediction": int(predicted[i]),
                "lower": float(found.lower),
                "upper": float(found.upper),
                "arithmetic": None if wrong else found.arithmetic[0],
                "seconds": float(found.seconds),
                "verdict": Verdict.MISCLASSIFIED if wrong else None,
            }
            if found.witness is not None and not wrong and bool(found.upper.isfinite()):
                facts["arrays"] = {"witness": found.witness[0].cpu().numpy()}
            yield i, facts


def radii(config: RadiusConfig, points: Points | None = None) -> Radii:
    """Find the radii of test points as the configuration says."""
    task = RadiusTask(config, points)
    with closing(task.records()) as records:
        return Radii.of(list(records), task.net.dtype)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
