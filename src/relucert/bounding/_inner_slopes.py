"""Inner slopes: pre-activation bounds of deep networks, with optimised slopes for each end of every unstable unit.

An end of a unit's interval is the minimum of a linear functional over the ball, as a margin is, and has lower slopes of its own
for all ReLUs before it (alpha-CROWN with all bounds optimised, Xu et al. 2021). Layers are optimised one after the other, each
over the improved bounds of those before it. With separate slopes for each end this is no weaker than optimising everything for
the last margin at once: the relaxation of a ReLU on a smaller interval lies within that on a larger one, so the best bounds of
a layer serve every functional behind it. One layer's slopes are in memory at a time.

Every step proves bounds that hold for real arithmetic and for the executed network, and an interval never grows.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.bounding._dual_ascent import Functionals, Schedule
from relucert.bounding.backward_bounds import BackwardBounds, tightened
from relucert.bounding.interval import Interval
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.rounding import Margins
from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.networks.affine_map import one_hot
from relucert.networks.network import Network


@dataclass(frozen=True, kw_only=True)
class InnerAscent:
    """`steps` at a `rate` on the slopes of every unit, until `deadline` (of `time.monotonic`); `budget`: bytes of memory.

    Examples with more than `most` unstable units behind the first switching nodes are left as they are.
    """

    steps: int
    rate: float
    budget: int
    deadline: float = math.inf
    most: float = math.inf

    @torch.no_grad()
    def refined(
        self,
        net: Network,
        bounds: UnitBounds,
        x: Float[Tensor, " batch *input"],
        ball: Ball,
        since: Int[Tensor, " batch"] | None = None,
    ) -> UnitBounds:
        """Pre-activation bounds within the given ones; at the deadline units that are left keep theirs.

        `since` has for each example the node behind which bounds can be tighter; None: everywhere.
        """
        backward = BackwardBounds(net.graph, x, ball, self.budget)
        inputs = dict(bounds.inputs)
        schedule = Schedule(steps=self.steps, final=False, deadline=self.deadline)
        behind = [node for node in net.switches if backward.switched(node.inputs[0])]
        counts = sum((inputs[node.index].unstable.flatten(1).sum(1) for node in behind), start=x.new_zeros(len(x)))
        few = (counts <= self.most)[:, None]
        for before, node in enumerate(behind, 1):
            source, within = node.inputs[0], inputs[node.index]
            shape = within.lower.shape[1:]
            low, high = within.lower.flatten(1), within.upper.flatten(1)
            needed = within.unstable.flatten(1) | (not node.op.decided_by_sign)
            needed = needed & few if since is None else needed & few & (since < node.index)[:, None]
            # A unit has two ends; slopes, their gradients and averages are kept for every ReLU on the way.
            for batch, units, chosen in backward.chosen(needed, 2 * before):
                if time.monotonic() >= self.deadline:
                    return bounds.improved(inputs)
                known = bounds.improved(inputs).restrict(batch)
                picked = one_hot(units, shape, x.dtype)
                functionals = Functionals(
                    net, source, torch.cat([picked, -picked], 1), known, x[batch], ball.restrict(batch),
                    known.charge(node.index),
                )  # fmt: skip
                below, above = functionals.ascend(self.rate, schedule)[..., 2].split(units.shape[1], 1)
                low, high = tightened((low, high), (batch, units, chosen), (below, -above), keep=True)
                inputs[node.index] = Interval(low.reshape(-1, *shape), high.reshape(-1, *shape))
        return bounds.improved(inputs)


def optimised(
    net: Network, bounds: UnitBounds, x: Float[Tensor, " batch *input"], ball: Ball, prop: Property, ascent: InnerAscent
) -> Margins:
    """The margins of a property after the steps of an ascent on the slopes of all ReLUs, from known pre-activation bounds."""
    functionals = Functionals(net, len(net.graph) - 1, prop.rows, bounds, x, ball, bounds.charge())
    schedule = Schedule(steps=ascent.steps, final=False, deadline=ascent.deadline)
    return Margins.unstacked(functionals.ascend(ascent.rate, schedule)).plus(prop.offsets)
