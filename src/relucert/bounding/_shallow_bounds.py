"""Shallow bounds: backward propagation through the nearest switching nodes alone, concretized on the intervals behind it.

From a node's units functionals go through the linear relaxations of the switching nodes that the node reads; at the switching
nodes before these they end, and are bounded over the intervals of the values there. That costs one or two products instead of
one for every layer down to the input, and shows most units to be stable that intervals alone do not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.propagation import LinearBound, Relaxations
from relucert.bounding.rounding import Charge, absolute, lowered
from relucert.core.ball import Ball
from relucert.core.linear_minimum import blocks
from relucert.core.rounding import gamma
from relucert.networks.nodes import Switching
from relucert.networks.traversal import Graph, Node, affine_ancestors, propagate_back

_BUDGET = 2**29  # bytes of temporaries on other devices than a CPU, whose blocks fit its cache


def nearest(graph: Graph, node: int) -> set[int] | None:
    """The switching nodes that a node reads through affine nodes alone; None if no other lies before them."""
    near = set(affine_ancestors(graph, node)[1]) - {0}
    before = {root for index in near for root in affine_ancestors(graph, graph[index].inputs[0])[1]}
    return near if before - near - {0} else None


class ShallowBound(LinearBound):
    """Functionals that end at switching nodes without a relaxation; `ended` has those, by the node's index."""

    def __init__(self, relaxations: Relaxations, zero: Tensor):
        super().__init__(relaxations, zero)
        self.ended: dict[int, Tensor] = {}

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor | None:
        if node.index in self.relaxations:
            return super().switching(node, value)
        self.ended[node.index] = value
        return None

    @torch.no_grad()
    def concretize(self, outputs: Mapping[int, Interval]) -> None:
        """Bound all functionals that have ended over the intervals of the values of their nodes."""
        for index, rows in self.ended.items():
            flat, within = rows.flatten(2), outputs[index]
            centre, reach = (within.lower + within.upper) / 2, (within.upper - within.lower) / 2
            sides = torch.stack([reach.flatten(1), absolute(within).flatten(1)], 2)
            middle, sizes = flat.new_empty(flat.shape[:2]), flat.new_empty(*flat.shape[:2], 2)
            for place in blocks(flat, _BUDGET, flat.dtype):
                c = flat[place]
                middle[place] = (c @ centre[place[0]].flatten(1).unsqueeze(2)).squeeze(2)
                sizes[place] = c.abs() @ sides[place[0]]
            if self.cost is not None:
                count = flat.shape[2]
                self.cost[..., 0] += gamma(2 * count + 16, flat.dtype) * sizes[..., 1] + (
                    count * torch.finfo(flat.dtype).tiny
                )
            self.shift(middle - sizes[..., 0], middle + sizes[..., 0], 0)


def shallow_range(
    graph: Graph,
    node: int,
    units: Tensor,
    bound: ShallowBound,
    outputs: Mapping[int, Interval],
    about: tuple[Tensor, Ball, Charge | None],
) -> tuple[Float[Tensor, " batch rows"], Float[Tensor, " batch rows"]]:
    """The lower and the upper bound of single units; they hold for the executed network as well.

    `about` are the inputs, their ball, and what is charged for rounding at the node.
    """
    x, ball, charge = about
    start, rows = bound.start_at_units(graph, node, units, charge)
    direct = propagate_back(graph, bound, start, rows)
    bound.concretize(outputs)
    if direct is not None:  # some path leads from the input past the switching nodes
        return bound.functional(graph, direct, charge).range(x, ball)
    assert bound.high is not None
    if bound.cost is None or charge is None:
        return bound.low, bound.high
    most = torch.maximum(bound.low.abs(), bound.high.abs())
    cost = bound.cost.sum(2) + gamma(8, most.dtype) * most + charge.lost[:, None]
    return lowered(bound.low, cost), -lowered(-bound.high, cost)
