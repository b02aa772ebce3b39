"""Test error, robust error under an attack, and the figures of the region theorem, streamed into records."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relucert.attacks.problem import FIXED
from relucert.attacks.problem import attack as attack_points
from relucert.core.ball import Ball, as_ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import parse, spec
from relucert.core.progress import followed, wanted
from relucert.evaluation._stream import Points, Task
from relucert.evaluation.attack import facts_of
from relucert.evaluation.config import EvaluateConfig, RadiusConfig
from relucert.evaluation.radius import radii
from relucert.geometry.distances import distances
from relucert.networks.network import as_network
from relucert.networks.prediction import error
from relucert.records.question import Facts
from relucert.records.record import Record, Verdict, ball_fields
from relucert.verification.recorded import ARRAYS, question_of

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
    """Shares in [0, 1]: `test_error` of the whole test set, and both ends of the `robust_error` of the first points.

    The lower end is the share of points that are misclassified or falsified by the attack, the upper end that of points which
    the region theorem does not prove, 1 without it.
    """

    test_error: float
    robust_error: tuple[float, float]
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

    def __init__(self, config: EvaluateConfig, points: Points | None = None):
        self.method = parse(config.attack, FIXED)
        super().__init__(config, points)
        ball = ball_fields(config.norm, config.radius, self.box)
        self.question = self._ask(ball, spec(self.method))

    def _solve(self, x: Tensor, y: Tensor, piece: int) -> Iterator[tuple[int, Facts]]:
        started = time.perf_counter()
        generator = torch.Generator().manual_seed(self.method.seed + piece)
        found = attack_points(
            self.net, x, y, Ball(self.config.norm, self.config.radius, self.box), self.method, generator
        )
        predicted = self.net.predict(x)
        seconds = (time.perf_counter() - started) / len(x)
        for i in range(len(x)):
            yield i, facts_of(found, i, int(y[i]), int(predicted[i]), seconds)

    def evaluation(self, records: list[Record]) -> Evaluation:
        """The evaluation from the records of all points, with the test error and what the region theorem says."""
        config, every = self.config, self.points
        falsified = sum(record.verdict in (Verdict.VULNERABLE, Verdict.MISCLASSIFIED) for record in records)
        test_error = error(self.net, every.x.to(self.net.device, self.net.dtype), every.y.to(self.net.device))
        regions = _regions(self, config) if config.regions else None
        ends = falsified / len(self), 1.0 if regions is None else 1 - regions.certified
        return Evaluation(
            test_error, ends, len(self), config.norm, config.radius, spec(self.method),
            sum(record.seconds or 0.0 for record in records), regions,
        )  # fmt: skip


def evaluate(
    net: nn.Module | EvaluateConfig,
    x: Float[Tensor, " batch *input"] | None = None,
    y: Int[Tensor, " batch"] | None = None,
    ball: Ball | None = None,
    attack: str = "pgd",
    records: str | Path | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Test error, robust error within a ball, and what the region theorem proves, of a network at inputs x of classes y.

    With `records`, a .jsonl file, every point is a record as soon as it is attacked, and what is there already is not done
    again: a call that was interrupted goes on. `progress`: whether a bar is shown on standard error; by default after two
    seconds, if that is a terminal. Instead of a network an `EvaluateConfig` says what a command line would.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> found = evaluate(net, data.x_test[:20], data.y_test[:20], rc.Ball(2, 0.1), "pgd(steps=5)")
    >>> found.points, found.test_error <= found.robust_error[0] <= found.robust_error[1] <= 1
    (20, True)
    """
    if isinstance(net, EvaluateConfig):
        return _evaluated(EvaluateTask(net), progress)
    if x is None or y is None or ball is None:
        raise InvalidInput("x, y and ball must be given with a network, got None")
    net = as_network(net, x)
    net.check(x, y)
    net.require_eval("an evaluation")
    ball = as_ball(ball, net.box)
    question_of(net, x[:0], y[:0], ball, attack)  # raises for balls that records cannot say
    if ball.box is not None and any(isinstance(side, Tensor) for side in ball.box):
        raise InvalidInput("box must be None or two numbers for an evaluation, got tensors")
    points = Points(net, x.cpu(), y.cpu(), ARRAYS, cast("tuple[float, float] | None", ball.box))
    with TemporaryDirectory() as folder:
        config = EvaluateConfig(
            model=Path(ARRAYS), data=ARRAYS, p=float(ball.p), eps=float(ball.eps), points=None, attack=attack,
            out=Path(folder, "records.jsonl") if records is None else Path(records),
        )  # fmt: skip
        return _evaluated(EvaluateTask(config, points), progress)


def _evaluated(task: EvaluateTask, progress: bool | None) -> Evaluation:
    with closing(task.records()) as records:
        shown = followed(records, len(task), "attacking") if wanted(progress) else records
        found = list(shown)
    return task.evaluation(found)


def _regions(task: EvaluateTask, config: EvaluateConfig) -> Regions:
    """What the region theorem says of the points; the intervals go to the same records as those of `relucert radius`."""
    with torch.no_grad():
        seen = distances(task.net, task.x, task.y, config.norm)
    right = (seen.decision > 0) & seen.decision.isfinite() & seen.region.isfinite()
    proved = radii(
        RadiusConfig(
            model=config.model, data=config.data, p=config.norm, points=len(task), method=THEOREM, attack=None,
            batch=config.batch, out=config.records, workers=config.workers, scheduler=config.scheduler,
        ),
        task.points,
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
