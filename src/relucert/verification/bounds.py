"""`bounds`: intervals of every unit and every logit over a ball, rounded outwards, for users who build on them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from relucert.bounding.interval import Interval
from relucert.bounding.preactivations import UnitBounds
from relucert.core.ball import Ball, as_ball
from relucert.core.methods import Method, parse
from relucert.core.properties import Property
from relucert.core.rounding import cast_up
from relucert.networks.network import Network, as_network, outside_inference
from relucert.networks.scaled import scaled
from relucert.verification.registry import BOUNDING


@outside_inference
@torch.no_grad()
def bounds(net: nn.Module, x: Float[Tensor, " batch *input"], ball: Ball, method: str | Method = "crown") -> UnitBounds:
    """Intervals of the inputs of every switching node, by the node's index in the graph, and of the logits, over the ball.

    They are computed in the network's dtype and rounded outwards: they hold for the network in real arithmetic with the stored
    weights, and for the network as it runs in its dtype. Where nothing is known, as over an unbounded set, they are infinite.
    A ball may have a scale; then they are computed in float64 and hold in real arithmetic alone.
    They have no gradient: methods whose bounds have one give it in `units` and `solve`, where rounding is not charged.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> found = bounds(net, data.x_test[:3], rc.Ball(2, 0.1), "crown")
    >>> [(index, tuple(within.lower.shape)) for index, within in found.inputs.items()]
    [(3, (3, 1024))]
    >>> found.unstable()[3].sum(1).shape, bool((found.logits.lower <= net(data.x_test[:3])).all())
    (torch.Size([3]), True)
    """
    chosen = parse(method, BOUNDING)
    net = as_network(net, x)
    ball = as_ball(ball, net.box)
    net.check(x)
    net.require_eval("bounds")
    if ball.scale is not None:
        question = scaled(net, x, ball)
        return _of_original(net, bounds(question.net, question.x, question.ball, chosen), question.net)
    ball.check(x)
    eye = torch.eye(net.classes, dtype=x.dtype, device=x.device)
    rows = torch.cat([eye, -eye]).expand(len(x), -1, -1)
    prop = Property(rows.contiguous(), rows.new_zeros(len(x), 2 * net.classes))
    # With the dtype that the network runs in, rounding is charged as it is for verdicts.
    found, margins = chosen.prove(net, chosen.start(net, x, ball, net.dtype), x, ball, prop)
    low, high = margins.executed.split(net.classes, 1)
    logits = found.logits.known().meet(Interval(low, -high).known())
    return UnitBounds({index: within.known() for index, within in found.inputs.items()}, logits)


def _of_original(net: Network, found: UnitBounds, inner: Network) -> UnitBounds:
    """The bounds of the units of a network from those of the network of scaled inputs, rounded outwards to its dtype."""

    def rounded(within: Interval) -> Interval:
        return Interval(-cast_up(-within.lower, net.dtype), cast_up(within.upper, net.dtype))

    pairs = zip(net.switches, inner.switches, strict=True)
    return UnitBounds({own.index: rounded(found.inputs[node.index]) for own, node in pairs}, rounded(found.logits))
