"""Test error, robust error under an attack, and what the region theorem says: what anybody asks of a classifier first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from relucert.attacks.problem import FIXED, attack
from relucert.core.ball import Ball
from relucert.core.methods import parse, spec
from relucert.core.versions import versions
from relucert.data import dataset
from relucert.evaluation.config import EvaluateConfig, RadiusConfig
from relucert.evaluation.fit import check_fit
from relucert.evaluation.radius import radii
from relucert.evaluation.stream import Keep, Question, stream
from relucert.geometry.distances import distances
from relucert.interop.loading import load
from relucert.networks.checkpoints import digest
from relucert.networks.network import Network
from relucert.networks.prediction import error
from relucert.records.record import Verdict, ball_fields
from relucert.records.store import RecordStore

#: The theorem alone: the region of the point itself, with the box.
THEOREM = "region(regions=1)"


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
    """Shares in [0, 1]: `test_error` of the whole test set, `robust_error` (misclassified or broken) of the first points."""

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


def evaluate(config: EvaluateConfig, callback: Callable[[int, int], None] = lambda done, total: None) -> Evaluation:
    """Evaluate a network as the configuration says; records are streamed to `config.records` and re-used from there.

    `callback(done, total)` is called as points are done.
    """
    method = parse(config.attack, FIXED)
    data = dataset(config.data)
    net = load(config.model)
    check_fit(net, data)
    x, y = data.x_test[: config.points].to(net.dtype), data.y_test[: config.points]
    ball = Ball(config.p, config.radius)
    question = Question(digest(net), data.name, "test", ball_fields(config.p, config.radius, (0.0, 1.0)), spec(method))

    def solve(x: Tensor, y: Tensor, indices: Tensor, piece: int, keep: Keep) -> None:
        started = time.perf_counter()
        generator = torch.Generator().manual_seed(method.seed + piece)
        found = attack(net, x, y, ball, method, generator)
        predicted = net.predict(x)
        seconds = (time.perf_counter() - started) / len(x)
        for i in range(len(x)):
            verdict = Verdict.VULNERABLE if bool(found.success[i]) else Verdict.UNKNOWN
            one: dict[str, Any] = {"label": int(y[i]), "prediction": int(predicted[i]), "seconds": seconds}
            if int(predicted[i]) != int(y[i]):
                verdict = Verdict.MISCLASSIFIED
            elif bool(found.success[i]):
                one |= {"upper": float(found.distance[i]), "arrays": {"witness": found.x[i].numpy()}}
            keep(i, one | {"verdict": verdict})

    falsified = done = 0
    seconds = 0.0
    with RecordStore(config.records, writable=True) as store, torch.no_grad():
        for record in stream(question, x, y, store, solve, config.batch, versions()):
            falsified += record.verdict in (Verdict.VULNERABLE, Verdict.MISCLASSIFIED)
            seconds += record.seconds or 0.0
            done += 1
            callback(done, len(x))
    test_error = error(net, data.x_test.to(net.dtype), data.y_test)
    found = _regions(net, x, y, config) if config.regions else None
    return Evaluation(test_error, falsified / len(x), len(x), config.p, config.radius, spec(method), seconds, found)


def _regions(net: Network, x: Tensor, y: Tensor, config: EvaluateConfig) -> Regions:
    """What the region theorem says of the points; the intervals go to the same records as those of `relucert radius`."""
    with torch.no_grad():
        seen = distances(net, x, y, config.p)
    right = (seen.decision > 0) & seen.decision.isfinite() & seen.region.isfinite()
    proved = radii(
        RadiusConfig(
            model=config.model, data=config.data, p=config.p, points=len(x), method=THEOREM, attack=None, batch=config.batch,
            out=config.records,
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
