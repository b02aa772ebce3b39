"""Test error, robust error under an attack, and the figures of the region theorem, streamed into records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from relucert.attacks.problem import FIXED, attack
from relucert.core.ball import Ball
from relucert.core.methods import parse, spec
from relucert.evaluation._stream import Facts, Task
from relucert.evaluation.attack import facts_of
from relucert.evaluation.config import EvaluateConfig, RadiusConfig
from relucert.evaluation.radius import radii
from relucert.geometry.distances import distances
from relucert.networks.network import Network
from relucert.networks.prediction import error
from relucert.records.record import Record, Verdict, ball_fields

#: The theorem alone: the region of the point itself, with the box.
THEOREM = "region(regions=0)"


@dataclass(frozen=True)
class Regions:
    """The paper's distances and its theorem, over the first points.

    `mean_d_b` and `mean_d_d` are means of the free distances d_B and d_D over the correctly classified points;
    `certified` is the share of points that are classified correctly and proved to be so within eps (in the box) by their own
    region alone, `exact` the share of correctly classified ones with an exact distance to the nearest change of decision.
    """

    mean_d_b: float
    mean_d_d: float
    certified: float
    exact: float


@dataclass(frozen=True)
class Evaluation:
    """Shares in [0, 1]: `test_error` of the whole test set, `robust_error` (misclassified or falsified) of the first points."""

    test_error: float
    robust_error: float
    points: int
    p: float
    eps: float
    attack: str
    seconds: float
    regions: Regions | None = None

    def to_json(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return asdict(self) | {"p": "inf" if self.p == float("inf") else self.p}


class EvaluateTask(Task[EvaluateConfig]):
    """An attack on the test points of a data set, and what is measured beside it."""

    def __init__(self, config: EvaluateConfig):
        self.method = parse(config.attack, FIXED)
        super().__init__(config)
        ball = ball_fields(config.norm, config.radius, self.data.box)
        self.question = self._ask(ball, spec(self.method))

    def _solve(self, x: Tensor, y: Tensor, piece: int) -> Iterator[tuple[int, Facts]]:
        started = time.perf_counter()
        generator = torch.Generator().manual_seed(self.method.seed + piece)
        found = attack(
            self.net, x, y, Ball(self.config.norm, self.config.radius, self.data.box), self.method, generator
        )
        predicted = self.net.predict(x)
        seconds = (time.perf_counter() - started) / len(x)
        for i in range(len(x)):
            yield i, facts_of(found, i, int(y[i]), int(predicted[i]), seconds)

    def evaluation(self, records: list[Record]) -> Evaluation:
        """The evaluation from the records of all points, with the test error and what the region theorem says."""
        config, data = self.config, self.data
        falsified = sum(record.verdict in (Verdict.VULNERABLE, Verdict.MISCLASSIFIED) for record in records)
        test_error = error(self.net, data.x_test.to(self.net.dtype), data.y_test)
        regions = _regions(self.net, self.x, self.y, config) if config.regions else None
        return Evaluation(
            test_error, falsified / len(self), len(self), config.norm, config.radius, spec(self.method),
            sum(record.seconds or 0.0 for record in records), regions,
        )  # fmt: skip


def evaluate(config: EvaluateConfig, callback: Callable[[int, int], None] | None = None) -> Evaluation:
    """Evaluate a network as the configuration says; records are streamed to `config.records` and re-used from there.

    `callback(done, total)` is called as points are done.
    """
    task, found = EvaluateTask(config), []
    with closing(task.records()) as records:
        for record in records:
            found.append(record)
            if callback is not None:
                callback(len(found), len(task))
    return task.evaluation(found)


def _regions(net: Network, x: Tensor, y: Tensor, config: EvaluateConfig) -> Regions:
    """What the region theorem says of the points; the intervals go to the same records as those of `relucert radius`."""
    with torch.no_grad():
        seen = distances(net, x, y, config.norm)
    right = (seen.decision > 0) & seen.decision.isfinite() & seen.region.isfinite()
    proved = radii(
        RadiusConfig(
            model=config.model, data=config.data, input_shape=config.input_shape, p=config.norm, points=len(x), method=THEOREM,
            attack=None, batch=config.batch, out=config.records,
        )
    )  # fmt: skip
    certified = [
        record.verdict != Verdict.MISCLASSIFIED and (record.lower or 0.0) >= config.radius for record in proved.records
    ]
    return Regions(
        mean_d_b=float(seen.region[right].mean()),
        mean_d_d=float(seen.decision[right].mean()),
        certified=sum(certified) / len(certified),
        exact=proved.share_exact,
    )
