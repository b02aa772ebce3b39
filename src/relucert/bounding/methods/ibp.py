"""`ibp`: interval bound propagation (Gowal et al. 2018; Mirman et al. 2018), its last matrix multiplied into the property."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from relucert.bounding.base import Bounding
from relucert.bounding.interval import Interval, IntervalPropagation
from relucert.bounding.preactivations import UnitBounds, unit_bounds
from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.networks.affine_map import transpose_rows
from relucert.networks.network import Network
from relucert.networks.traversal import affine_ancestors, propagate


@dataclass(frozen=True, kw_only=True)
class IBP(Bounding):
    """Intervals from node to node; exact up to the first switching node. Margins grow as ball and box shrink."""

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
    inside, _ = affine_ancestors(net.graph, len(net.graph) - 1)
    if (
        len(inside) != 1 or len(inside[0].inputs) != 1
    ):  # several affine nodes stand between the last switch and the logits
        return _over(bounds.logits, prop.rows) + prop.offsets
    last = inside[0]
    source = last.inputs[0]
    if source in bounds.inputs:
        known = {net.graph[source].inputs[0]: bounds.inputs[source]}
        within = propagate(net.graph, IntervalPropagation(), known, [source])[source]
    elif source == 0:
        within = Interval(*ball.hull(x))
    else:
        return _over(bounds.logits, prop.rows) + prop.offsets
    (rows,) = transpose_rows(last.op, prop.rows)
    return _over(within, rows) + prop.rows @ last.op.offset(x)[0] + prop.offsets


def _over(within: Interval, rows: Tensor) -> Tensor:
    """The smallest value of linear functionals over an interval."""
    centre, reach = (within.lower + within.upper) / 2, (within.upper - within.lower) / 2
    flat = rows.flatten(2)
    ends = (flat @ centre.flatten(1).unsqueeze(2)) - (flat.abs() @ reach.flatten(1).unsqueeze(2))
    return ends.squeeze(2)
