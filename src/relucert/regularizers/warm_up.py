"""The regulariser of Shi et al. (NeurIPS 2021) for the first part of training against intervals: tight, balanced intervals.

Let w_0 be the mean width of the input's intervals and w_i that of the inputs of ReLU node i, over units and batch. The first
term is the mean over the nodes of max(0, t - w_0 / w_i) / t: intervals should not grow beyond 1 / t times the input's. The
second one compares the units that are active on the whole ball with those that are inactive there: with a and b the sums of the
centres of their intervals (or of the squared distances of the centres from their mean), it is the mean of
max(0, t - min(a / b, b / a)) / t for both.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.preactivations import UnitBounds
from relucert.core.ball import Ball
from relucert.networks.network import Network

TOLERANCE = 0.5


class WarmUpTerms(NamedTuple):
    """The two terms of the regulariser, for a whole batch."""

    tightness: Float[Tensor, ""]
    balance: Float[Tensor, ""]


def warm_up_terms(
    net: Network, units: UnitBounds, x: Float[Tensor, " batch *input"], ball: Ball, tolerance: float = TOLERANCE
) -> WarmUpTerms:
    """Both terms from interval bounds of a network's units over the balls around x, differentiable in the weights.

    >>> import relucert as rc
    >>> from relucert.bounding.methods.ibp import IBP
    >>> net, x, ball = rc.build("cnn", (1, 8, 8), 10), torch.full((2, 1, 8, 8), 0.5), Ball(2, 0.1)
    >>> bool(warm_up_terms(net, IBP().units(net, x, ball), x, ball).tightness > 0)
    True
    """
    lower, upper = ball.hull(x)
    width = (upper - lower).mean()
    tightness = balance = x.new_zeros(())
    nodes = net.relus
    for node in nodes:
        within = units.inputs[node.index]
        spread = (within.upper - within.lower).mean()
        tightness = tightness + torch.relu(tolerance - width / spread.clamp_min(1e-12)) / tolerance
        balance = balance + _imbalance(within.lower, within.upper, tolerance)
    count = max(1, len(nodes))
    return WarmUpTerms(tightness / count, balance / count)


def _imbalance(lower: Tensor, upper: Tensor, tolerance: float) -> Tensor:
    """How far active and inactive units of a node are from equal sums; 0 where one of the kinds has no unit."""
    active, inactive = (lower >= 0).to(lower.dtype), (upper <= 0).to(lower.dtype)
    if not bool(active.any()) or not bool(inactive.any()):
        return lower.new_zeros(())
    centre = (lower + upper) / 2
    squares = (centre - centre.mean()).square()
    total = lower.new_zeros(())
    for kind in (centre.abs(), squares):
        a, b = (kind * active).sum().clamp_min(1e-12), (kind * inactive).sum().clamp_min(1e-12)
        total = total + torch.relu(tolerance - torch.minimum(a / b, b / a)) / tolerance
    return total
