"""`ibp`: interval bound propagation (Gowal et al. 2018; Mirman et al. 2018), its last matrix multiplied into the property."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.base import Bounding
from relucert.bounding.interval import Interval
from relucert.bounding.preactivations import Tightening, UnitBounds, unit_bounds
from relucert.bounding.rounding import Accuracy, ChargedIntervals, Margins, State, absolute
from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.core.rounding import gamma
from relucert.networks.affine_map import transpose_rows
from relucert.networks.network import Network
from relucert.networks.nodes import Affine
from relucert.networks.traversal import Node, affine_ancestors, propagate


@dataclass(frozen=True, kw_only=True)
class IBP(Bounding):
    """Intervals from node to node; exact up to the first switching node. Margins grow as ball and box shrink."""

    name = "ibp"
    single = True

    def start(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, executed: torch.dtype | None = None
    ) -> UnitBounds:
        """Bounds of all units."""
        return unit_bounds(net, x, ball, Tightening(rule=None), executed)

    def prove(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Margins]:
        """The margins; differentiable in the weights."""
        return known, interval_margins(net, known, x, ball, prop)


def interval_margins(net: Network, bounds: UnitBounds, x: Tensor, ball: Ball, prop: Property) -> Margins:
    """The margins from the intervals of the node before the logits: the property's rows go through the last matrix."""
    inside, _ = affine_ancestors(net.graph, len(net.graph) - 1)
    within = _last_input(net, bounds, x, ball, inside)
    if within is None:  # several affine nodes stand between the last switch and the logits
        cost = None
        if bounds.rounding is not None:
            cost = _rounded(prop.rows, absolute(bounds.logits), prop.classes)
        return Margins.charged(_over(bounds.logits, prop.rows), cost).plus(prop.offsets)
    (last,) = inside
    (rows,) = transpose_rows(last.op, prop.rows)
    margins, cost = _over(within, rows) + prop.rows @ last.op.offset(x)[0], None
    if bounds.rounding is not None:
        with torch.no_grad():
            # Products with the matrix, and sums over its columns.
            size = last.op.magnitude(absolute(within))
            cost = _rounded(prop.rows, size, math.prod(within.lower.shape[1:]) + last.op.adjoint_terms)
            drift = bounds.rounding.at_logits().drift
            cost = cost + prop.rows.abs() @ drift.mT
    return Margins.charged(margins, cost).plus(prop.offsets)


def _last_input(net: Network, bounds: UnitBounds, x: Tensor, ball: Ball, inside: list[Node[Affine]]) -> Interval | None:
    """The interval of the last affine node's input, if the node has one and nothing else is between it and its root."""
    if len(inside) != 1 or len(inside[0].inputs) != 1:
        return None
    source = inside[0].inputs[0]
    if source == 0:
        return Interval(*ball.hull(x))
    if source not in bounds.inputs:
        return None
    rule = ChargedIntervals(None if bounds.rounding is None else Accuracy(net.graph, bounds.rounding.fresh()))
    known = {net.graph[source].inputs[0]: State(bounds.inputs[source])}
    return propagate(net.graph, rule, known, [source])[source].within


@torch.no_grad()
def _rounded(rows: Tensor, size: Tensor, count: int) -> Float[Tensor, " batch specs 2"]:
    """What rounding costs a sum of `count` products whose absolute values add up to rows times size."""
    cost = gamma(count + 16, rows.dtype) * (rows.abs() @ size.flatten(1).unsqueeze(2))
    return torch.cat([cost + torch.finfo(rows.dtype).tiny * count, torch.zeros_like(cost)], 2)


def _over(within: Interval, rows: Tensor) -> Tensor:
    """The smallest value of linear functionals over an interval."""
    centre, reach = (within.lower + within.upper) / 2, (within.upper - within.lower) / 2
    flat = rows.flatten(2)
    ends = (flat @ centre.flatten(1).unsqueeze(2)) - (flat.abs() @ reach.flatten(1).unsqueeze(2))
    return ends.squeeze(2)
