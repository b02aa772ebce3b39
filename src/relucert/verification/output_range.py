"""`output_range`: proved ends of every output over a ball, for regression and for networks of one output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from relucert.bounding.preactivations import Bounding, UnitBounds
from relucert.core.ball import Ball, as_ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method, parse
from relucert.core.properties import Property
from relucert.core.rounding import cast_up
from relucert.networks.network import Network, as_network, in_double, outside_inference
from relucert.networks.scaled import scaled
from relucert.verification._scaled import refuse_executed
from relucert.verification.registry import BOUNDING


@dataclass(frozen=True, eq=False)
class OutputRange:
    """For every input and output an interval that holds the output all over the ball, rounding included.

    An end that is not known is infinite.
    """

    lower: Float[Tensor, " batch outputs"]
    upper: Float[Tensor, " batch outputs"]

    def __len__(self) -> int:
        return len(self.lower)


@outside_inference
@torch.no_grad()
def output_range(
    net: nn.Module,
    x: Float[Tensor, " batch *input"],
    ball: Ball,
    method: str | Method = "crown",
    batch: int = 100,
    arithmetic: Literal["real", "executed"] = "real",
) -> OutputRange:
    """Proved ends of every output over the ball, by a bounding method.

    The ends hold for the stored weights in real arithmetic, rounding of the proof included; with `arithmetic="executed"` also
    for the network as executed in its dtype. `batch` inputs are worked on together. The ball may have a scale.

    >>> import relucert as rc
    >>> net = rc.Network(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)), (2,))
    >>> x = torch.tensor([[20.0, 35.0]])
    >>> found = output_range(net, x, rc.Ball(2, 0.5, box=None), "alpha")
    >>> bool((found.lower < net(x)).all()), bool((found.upper > net(x)).all())
    (True, True)
    """
    chosen = parse(method, BOUNDING)
    net = as_network(net, x)
    ball = as_ball(ball, net.box)
    net.check(x)
    net.require_eval("an output range")
    if ball.scale is not None:
        refuse_executed(arithmetic)
        question = scaled(net, x, ball)
        found = output_range(question.net, question.x, question.ball, method, batch)
        return OutputRange(-cast_up(-found.lower, x.dtype), cast_up(found.upper, x.dtype))
    ball.check(x)
    if batch < 1:
        raise InvalidInput(f"batch must be at least 1, got {batch}")
    if arithmetic not in ("real", "executed"):
        raise InvalidInput(f"arithmetic must be 'real' or 'executed', got {arithmetic!r}")
    double, ends = in_double(net), [x.new_zeros(0, 2 * net.classes, dtype=torch.float64)]
    for part in torch.arange(len(x), device=x.device).split(batch):
        margins = _margins(double, x[part].double(), ball.restrict(part), chosen, net)
        ends.append(margins[..., 1 if arithmetic == "real" else 2])
    low, high = torch.cat(ends).split(net.classes, 1)
    return OutputRange(-cast_up(-low, x.dtype), cast_up(-high, x.dtype))


def _margins(double: Network, x: Tensor, ball: Ball, method: Bounding, net: Network) -> Tensor:
    """Lower bounds of all outputs and of their negatives: computed, in real arithmetic and as executed."""
    eye = torch.eye(net.classes, dtype=torch.float64, device=x.device)
    rows = torch.cat([eye, -eye]).expand(len(x), -1, -1).contiguous()
    prop = Property(rows, rows.new_zeros(len(x), 2 * net.classes))
    best = x.new_full((len(x), 2 * net.classes, 3), -torch.inf)
    known: UnitBounds | None = None
    for stage in (*method.contains, method):  # each from the pre-activation bounds of the one before it
        known = stage.start(double, x, ball, net.dtype) if known is None else known
        known, margins = stage.prove(double, known, x, ball, prop)
        best = torch.fmax(best, margins.stacked())
    return best
