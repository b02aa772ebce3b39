"""Shallow bounds: the units that the nearest layers alone show to be stable, and that need no bounds from the input.

Functionals of a node go back through the nearest switching nodes, and are bounded over the intervals of the values of the
switching nodes before these. That costs one or two products instead of one for every layer down to the input, and shows most
units to be stable that intervals alone do not.

The first try has lines whose slopes are the same for all examples, so that one row of a unit serves the whole batch. With s the
slope of a unit at a reference input, and k z <= phi(z) <= k z + o the parallel lines of an example on [l, u],

    phi(z) = s z + r,      r in (k - s) [l, u] + [0, o],

and r is zero wherever the unit is stable as it is at the reference. Most units of a network with large linear regions are. The
reference is the middle of the box: it must not depend on the batch, as answers are independent of batch composition.

Shallow bounds decide signs, nothing else: of a unit that is shown to be on the interval is cut at zero. Lines of stable units
do not depend on their intervals, so shallow bounds need no gradient, and bounds are the same with gradients and without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.bounding.backward_bounds import BackwardBounds
from relucert.bounding.interval import Interval
from relucert.bounding.propagation import LinearBound, Relaxations
from relucert.bounding.relaxation import ReLURelaxation
from relucert.bounding.rounding import Charge, absolute, lowered
from relucert.core.ball import Ball
from relucert.core.linear_minimum import blocks
from relucert.core.rounding import gamma, gamma_above
from relucert.networks.affine_map import matrix_rows
from relucert.networks.nodes import Switching
from relucert.networks.traversal import Graph, Node, affine_ancestors, propagate_back

_BUDGET = 2**29  # bytes of temporaries on other devices than a CPU, whose blocks fit its cache
LARGEST = 2**23  # entries of the rows of all units of a node, beyond which there are no common lines

Ends = tuple[Float[Tensor, " batch units"], Float[Tensor, " batch units"]]


class Before(NamedTuple):
    """What is known of the switching nodes before a node, by index: lines, intervals of their inputs and of their values."""

    relaxations: Relaxations
    inputs: Mapping[int, Interval]
    outputs: Mapping[int, Interval]


def decided(backward: BackwardBounds, node: int, known: Interval, before: Before, charge: Charge | None) -> Interval:
    """The bounds of a node, cut at zero where shallow bounds show a unit to be on or off.

    Known bounds are returned where no switching node lies before the nearest ones, or one of these is a max pool.
    """
    on, off = _signs(backward, node, known.detach(), before, charge)
    zero = torch.zeros_like(known.lower)
    return Interval(torch.where(on, zero, known.lower), torch.where(off, zero, known.upper))


@torch.no_grad()
def _signs(
    backward: BackwardBounds, node: int, known: Interval, before: Before, charge: Charge | None
) -> tuple[Bool[Tensor, " batch *shape"], Bool[Tensor, " batch *shape"]]:
    """Which units of a node, unstable by known bounds, are on, and which are off; what is not a number decides nothing."""
    needed = known.unstable.flatten(1)
    on, off = torch.zeros_like(needed), torch.zeros_like(needed)
    near, shape = nearest(backward.graph, node), known.lower.shape
    lines = {index: before.relaxations[index] for index in near or ()}
    parallel = {i: line.parallel_lines() for i, line in lines.items() if isinstance(line, ReLURelaxation)}
    if not lines or len(parallel) < len(lines):
        return on.view(shape), off.view(shape)
    common = _CommonLines.of(backward, node, parallel, before, charge)
    if common is not None:
        low, high = common.ends(backward, node, charge)
        on, off = needed & (low >= 0), needed & (high <= 0)
    for batch, units, wanted in backward.chosen(needed & ~on & ~off):
        some = {index: line.restrict(batch) for index, line in parallel.items()}
        bound = ShallowBound(some, backward.x.new_zeros(units.shape))
        part = None if charge is None else charge.restrict(batch)
        about = backward.x[batch], backward.ball.restrict(batch), part
        there = {index: within.restrict(batch) for index, within in before.outputs.items() if index not in lines}
        low, high = shallow_range(backward.graph, node, units, bound, there, about)
        place = (batch[:, None].expand_as(units), units)
        on[place] |= wanted & (low >= 0)
        off[place] |= wanted & (high <= 0)
    return on.view(shape), (off & ~on).view(shape)


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
                self.cost[..., 0] += _rounded_sum(flat.shape[2], flat.dtype, sizes[..., 1])
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
    return _charged_ends(bound, charge)


class _CommonLines(LinearBound):
    """Functionals of all units of a node through lines with the same slopes for all examples; offsets are by example.

    `slopes` (1, *shape) are those of the nearest switching nodes. `within` has the intervals (batch, *shape) that functionals
    are bounded over: of what lies between function and line there, and of the values of the switching nodes before.
    `charges` (batch, 2, units) is what rounding costs at the nearest nodes, empty where it is not charged.
    """

    def __init__(self, slopes: Mapping[int, Tensor], within: Mapping[int, Interval], charges: Mapping[int, Tensor]):
        super().__init__({}, next(iter(slopes.values())).new_zeros(()))
        self.slopes, self.within, self.charges = slopes, within, charges

    @staticmethod
    def of(
        backward: BackwardBounds, node: int, lines: Mapping[int, ReLURelaxation], before: Before, charge: Charge | None
    ) -> _CommonLines | None:
        """Those for parallel lines of all examples; None for nodes that are not one matrix, and for very large ones."""
        graph, widest = backward.graph, max(math.prod(other.shape) for other in backward.graph)
        large = math.prod(graph[node].shape) * widest > LARGEST
        if large or matrix_rows(graph, node, torch.zeros(1, 1, dtype=torch.long)) is None:
            return None
        reference = backward.x.new_full((1, *graph[0].shape), _middle(backward.ball))
        values = graph.values(reference, [graph[index].inputs[0] for index in lines])
        slopes, charges, within = {}, {}, dict(before.outputs)
        for index, line in lines.items():
            value, leak = values[graph[index].inputs[0]], graph[index].op.slope  # type: ignore[attr-defined]
            slope = slopes[index] = torch.where(value > 0, torch.ones_like(value), leak)
            within[index] = _between(line, before.inputs[index], slope)
            if charge is not None and backward.rounding is not None and line.charge is not None:
                drift = slope.flatten(1).unsqueeze(1) * backward.rounding.before[index]
                charges[index] = torch.maximum(line.charge, drift)
        return _CommonLines(slopes, within, charges)

    def ends(self, backward: BackwardBounds, node: int, charge: Charge | None) -> Ends:
        """The lower and the upper bounds of all units; they hold for the executed network as well."""
        graph, units = backward.graph, torch.arange(math.prod(backward.graph[node].shape), device=backward.x.device)
        found = matrix_rows(graph, node, units[None])
        assert found is not None
        self.cost = None if charge is None else charge.drift.mT.clone()
        self.low = self.high = backward.x.new_zeros(len(backward.x), len(units))
        self.shift(found[1], found[1], 0)
        direct = propagate_back(graph, self, graph[node].inputs[0], found[0])
        if direct is not None:  # some path leads from the input past the switching nodes
            self._bound_over(direct, Interval(*backward.ball.hull(backward.x)))
        return _charged_ends(self, charge)

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor | None:
        self._bound_over(value, self.within[node.index])
        slope = self.slopes.get(node.index)
        if slope is None:
            return None
        if self.cost is not None:
            # 0 times an infinite charge is not a number, and decides nothing.
            self.cost = self.cost + (self.charges[node.index] @ value.flatten(2)[0].abs().T).mT
        return value * slope.unsqueeze(1)

    def _bound_over(self, rows: Float[Tensor, " 1 rows *shape"], within: Interval) -> None:
        """Add the smallest and the largest values of functionals over intervals of all examples."""
        flat, size = rows.flatten(2)[0].T, absolute(within).flatten(1)
        middle = ((within.lower + within.upper) / 2).flatten(1) @ flat
        flat = flat.abs()
        reach = ((within.upper - within.lower) / 2).flatten(1) @ flat
        if self.cost is not None:
            self.cost[..., 0] += _rounded_sum(len(flat), flat.dtype, size @ flat)
        self.shift(middle - reach, middle + reach, 0)


def _between(line: ReLURelaxation, within: Interval, slope: Float[Tensor, " 1 *shape"]) -> Interval:
    """What lies between a ReLU on an interval and a line through zero: the slope's difference times z, and the offset.

    The intervals hold all that parallel lines allow, so that they prove no more than the parallel lines do.
    """
    turned = line.above - slope
    ends = turned * within.lower, turned * within.upper
    wider = gamma_above(4, turned.dtype) * (torch.maximum(ends[0].abs(), ends[1].abs()) + line.offset)
    low, high = torch.minimum(*ends) - wider, torch.maximum(*ends) + line.offset + wider
    same = (turned == 0) & (line.offset == 0)  # also where the interval is infinite
    return Interval(low.masked_fill(same, 0.0), high.masked_fill(same, 0.0))


def _middle(ball: Ball) -> float:
    """The middle of the box if its sides are finite numbers, else zero."""
    sides = () if ball.box is None else ball.box
    numbers = [side for side in sides if not isinstance(side, Tensor) and math.isfinite(side)]
    return sum(numbers) / 2 if len(numbers) == 2 else 0.0


def _rounded_sum(count: int, dtype: torch.dtype, size: Tensor) -> Tensor:
    """What rounding costs the bounds of sums of so many terms over intervals, whose absolute values add up to `size`."""
    return gamma(2 * count + 16, dtype) * size + count * torch.finfo(dtype).tiny


def _charged_ends(bound: LinearBound, charge: Charge | None) -> Ends:
    """The ends of functionals that have become numbers, less what rounding costs."""
    assert bound.high is not None
    if bound.cost is None or charge is None:
        return bound.low, bound.high
    most = torch.maximum(bound.low.abs(), bound.high.abs())
    cost = bound.cost.sum(2) + gamma(8, most.dtype) * most + charge.lost[:, None]
    return lowered(bound.low, cost), -lowered(-bound.high, cost)
