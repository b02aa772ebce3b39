"""`ibp`: interval bound propagation (Gowal et al. 2018; Mirman et al. 2018), with the last layer taken as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from relucert.bounding.base import Bounding
from relucert.bounding.interval import Interval, IntervalPropagation
from relucert.bounding.preactivations import UnitBounds, unit_bounds
from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.networks.affine import Affine
from relucert.networks.network import Network
from relucert.networks.traversal import propagate


@dataclass(frozen=True, kw_only=True)
class IBP(Bounding):
    """Intervals from node to node; exact up to the first switch. Margins grow as ball and box shrink."""

    name = "ibp"

    def units(self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball) -> UnitBounds:
        """Bounds of all units."""
        return unit_bounds(net, x, ball, None)

    def proceed(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Tensor]:
        """The margins; differentiable in the weights."""
        return known, interval_margins(net, known, x, ball, prop)


def interval_margins(
    net: Network, bounds: UnitBounds, x: Tensor, ball: Ball, prop: Property
) -> Float[Tensor, " batch specs"]:
    """The margins from the intervals of the node before the logits: the property's rows go through the last matrix."""
    last = net.graph[-1]
    if not isinstance(last.op, Affine) or len(last.inputs) != 1:
        return _over(bounds.logits, prop.rows) + prop.offsets
    source = last.inputs[0]
    if source in bounds.inputs:
        known = {net.graph[source].inputs[0]: bounds.inputs[source]}
        within = propagate(net.graph, IntervalPropagation(), known, [source])[source]
    elif source == 0:
        within = Interval(*ball.hull(x))
    else:  # something else stands between the last switch and the logits
        return _over(bounds.logits, prop.rows) + prop.offsets
    batch, specs = prop.rows.shape[:2]
    rows = last.op.transpose(prop.rows.flatten(0, 1))[0].reshape(batch, specs, *net.graph[source].shape)
    offset = last.op.apply(x.new_zeros(1, *net.graph[source].shape))[0]
    return _over(within, rows) + prop.rows @ offset + prop.offsets


def _over(within: Interval, rows: Tensor) -> Tensor:
    """The smallest value of linear functionals over an interval."""
    centre, reach = (within.lower + within.upper) / 2, (within.upper - within.lower) / 2
    flat = rows.flatten(2)
    ends = (flat @ centre.flatten(1).unsqueeze(2)) - (flat.abs() @ reach.flatten(1).unsqueeze(2))
    return ends.squeeze(2)
