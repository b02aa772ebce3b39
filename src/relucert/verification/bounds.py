"""`bounds`: intervals of every unit and every logit over a ball, rounded outwards, for users who build on them."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from relucert.bounding.interval import Interval
from relucert.bounding.preactivations import Bounding, UnitBounds
from relucert.core.ball import Ball, as_ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method, parse
from relucert.core.properties import Property
from relucert.core.rounding import cast_up
from relucert.networks.network import Network, as_network, outside_inference
from relucert.networks.scaled import scaled
from relucert.verification.registry import BOUNDING

#: Methods whose intervals have a gradient.
DIFFERENTIABLE = ("ibp", "kw", "crown")


@outside_inference
def bounds(
    net: nn.Module,
    x: Float[Tensor, " batch *input"],
    ball: Ball,
    method: str | Method = "crown",
    differentiable: bool = False,
) -> UnitBounds:
    """Intervals of the inputs of every switching node, by the node's index in the graph, and of the logits, over the ball.

    They are computed in the network's dtype and rounded outwards: they hold for the network in real arithmetic with the stored
    weights, and for the network as it runs in its dtype. Where nothing is known, as over an unbounded set, they are infinite.
    A ball may have a scale; then they are computed in float64 and hold in real arithmetic alone.
    With `differentiable` they hold as well and have a gradient in the weights: that of the method, without what is charged for
    rounding. Methods are then ibp, kw and crown.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> found = bounds(net, data.x_test[:3], rc.Ball(2, 0.1), "crown")
    >>> [(index, tuple(within.lower.shape)) for index, within in found.inputs.items()]
    [(3, (3, 1024))]
    >>> found.unstable()[3].sum(1).shape, bool((found.logits.lower <= net(data.x_test[:3])).all())
    (torch.Size([3]), True)
    >>> bounds(net, data.x_test[:3], rc.Ball(2, 0.1), "ibp", differentiable=True).logits.lower.requires_grad
    True
    """
    chosen = parse(method, BOUNDING)
    if differentiable and chosen.name not in DIFFERENTIABLE:
        raise InvalidInput(
            f"method must be one of {', '.join(DIFFERENTIABLE)} where differentiable is True, got {chosen.name}"
        )
    net = as_network(net, x)
    ball = as_ball(ball, net.box)
    net.check(x)
    net.require_eval("bounds")
    if ball.scale is not None:
        if differentiable:
            raise InvalidInput("differentiable must be False for a ball with a scale, got True")
        question = scaled(net, x, ball)
        return _of_original(net, bounds(question.net, question.x, question.ball, chosen), question.net)
    ball.check(x)
    with torch.set_grad_enabled(differentiable):  # with gradients, methods take no short cuts that have none
        # With the dtype that the network runs in, rounding is charged as it is for verdicts.
        found = _intervals(chosen, net, x, ball, net.dtype)
    if not differentiable:
        return found
    slopes = _intervals(chosen, net, x, ball, None)
    inputs = {index: _with_gradient(within, slopes.inputs[index]) for index, within in found.inputs.items()}
    return UnitBounds(inputs, _with_gradient(found.logits, slopes.logits))


def _intervals(chosen: Bounding, net: Network, x: Tensor, ball: Ball, executed: torch.dtype | None) -> UnitBounds:
    """The intervals by a method; rounding is charged for a network that runs in the dtype `executed`."""
    eye = torch.eye(net.classes, dtype=x.dtype, device=x.device)
    rows = torch.cat([eye, -eye]).expand(len(x), -1, -1)
    prop = Property(rows.contiguous(), rows.new_zeros(len(x), 2 * net.classes))
    found, margins = chosen.prove(net, chosen.start(net, x, ball, executed), x, ball, prop)
    low, high = (margins.computed if executed is None else margins.executed).split(net.classes, 1)
    logits = found.logits.known().meet(Interval(low, -high).known())
    return UnitBounds({index: within.known() for index, within in found.inputs.items()}, logits)


def _with_gradient(value: Interval, slope: Interval) -> Interval:
    """The ends of one interval with the gradient of another's."""
    return Interval(
        _Replaced.apply(slope.lower, value.lower.detach()), _Replaced.apply(slope.upper, value.upper.detach())
    )  # pyright: ignore[reportArgumentType]


class _Replaced(torch.autograd.Function):
    """The second number with the gradient of the first; none where the second is infinite."""

    @staticmethod
    def forward(ctx: Any, slope: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(value.isfinite())
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (known,) = ctx.saved_tensors
        return torch.where(known, gradients[0], torch.zeros_like(gradients[0])), None


def _of_original(net: Network, found: UnitBounds, inner: Network) -> UnitBounds:
    """The bounds of the units of a network from those of the network of scaled inputs, rounded outwards to its dtype."""

    def rounded(within: Interval) -> Interval:
        return Interval(-cast_up(-within.lower, net.dtype), cast_up(within.upper, net.dtype))

    pairs = zip(net.switches, inner.switches, strict=True)
    return UnitBounds({own.index: rounded(found.inputs[node.index]) for own, node in pairs}, rounded(found.logits))
