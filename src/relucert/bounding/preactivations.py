"""Bounds on the inputs of every switching node over a ball, and on the logits: what relaxations are made from.

Node after node: first what intervals say, then, for the units that may still switch, one backward walk through the
relaxations of the nodes below. A node with no switch below it is linear, and its bounds are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from relucert.bounding.interval import Interval, IntervalPropagation
from relucert.bounding.propagation import Functional, Relaxations, pull_back
from relucert.bounding.relaxation import MaxPoolRelaxation, ReLURelaxation, Rule, relax
from relucert.core.ball import Ball
from relucert.core.linear_minimum import linear_minimum, linear_range
from relucert.core.norms import dual, norm
from relucert.networks.chains import chain
from relucert.networks.graph import Graph, Node
from relucert.networks.linear_map import one_hot
from relucert.networks.network import Network
from relucert.networks.patches import Filters, patches
from relucert.networks.switching import Switching
from relucert.networks.traversal import affine_ancestors, propagate

BUDGET = 2**29  # bytes of temporaries
PIECE = 2**26  # bytes of temporaries of one walk


@dataclass(frozen=True, eq=False)
class UnitBounds:
    """Intervals of the inputs of every switching node (by the node's index), and of all logits."""

    inputs: dict[int, Interval]
    logits: Interval

    def unstable(self) -> dict[int, Bool[Tensor, " batch *shape"]]:
        """Which units of each node may be on or off."""
        return {index: within.unstable for index, within in self.inputs.items()}

    def restrict(self, batch: Int[Tensor, " n"]) -> UnitBounds:
        """Those of some examples."""
        return UnitBounds(
            {index: within.restrict(batch) for index, within in self.inputs.items()},
            self.logits.restrict(batch),
        )

    def detach(self) -> UnitBounds:
        """The same as constants."""
        inputs = {index: within.detach() for index, within in self.inputs.items()}
        return UnitBounds(inputs, self.logits.detach())

    def relaxed(self, net: Network, rule: Rule) -> dict[int, ReLURelaxation | MaxPoolRelaxation]:
        """The relaxations of every switching node between these ends."""
        return {node.index: relax(node.op, self.inputs[node.index], rule) for node in net.switches}


def unit_bounds(
    net: Network, x: Tensor, ball: Ball, rule: Rule | None, *, intervals: bool = True, budget: int = BUDGET
) -> UnitBounds:
    """Bound every unit over the ball; without a rule by intervals alone.

    `intervals=False` leaves out what intervals say behind the first switch: the relaxation as published, which is sometimes
    weaker and never reads better than it is.
    """
    bounds = _PreactivationBounds(Walks(net.graph, x, ball, budget), rule, intervals)
    logits = propagate(net.graph, bounds, {0: Interval(*ball.hull(x))})[len(net.graph) - 1]
    return UnitBounds(bounds.found, logits)


class _PreactivationBounds(IntervalPropagation):
    """Intervals through the network, tightened before every switching node by backward propagation.

    Later nodes read the tightened ones. `found` has the bounds of the inputs of all switching nodes, by the node's index.
    """

    def __init__(self, work: Walks, rule: Rule | None, intervals: bool):
        self.work, self.intervals = work, intervals
        self.rule: Rule | None = rule
        self.found: dict[int, Interval] = {}
        self.lines: dict[int, ReLURelaxation | MaxPoolRelaxation] = {}

    def preactivation(self, node: Node[Switching], value: Interval) -> Interval:
        within = self.found[node.index] = self._tightened(node, value)
        if self.rule is not None:
            self.lines[node.index] = relax(node.op, within, self.rule)
        return within

    def _tightened(self, node: Node[Switching], known: Interval) -> Interval:
        source = node.inputs[0]
        inside, roots = affine_ancestors(self.work.graph, source)
        if not inside:  # the input itself, or the output of another switching node
            return known
        if roots == [0]:
            return self.work.linear(source, known)
        if self.rule is None:
            return known
        if self.work.patched(source):
            within = self.work.local(self.lines)
            return within.meet(known) if self.intervals else within
        everything = not (self.intervals and node.op.decided_by_sign)
        return self.work.refined(source, known, self.lines, everything=everything, intervals=self.intervals)


class Walks:
    """The walks of one question about one batch."""

    def __init__(self, graph: Graph, x: Tensor, ball: Ball, budget: int):
        self.graph, self.x, self.ball, self.budget = graph, x, ball, budget
        steps = chain(graph)
        # Two convolutions with nothing between them but a ReLU: the rows of the second are patches.
        two = steps is not None and len(steps) > 2 and steps[0].conv is not None and steps[1].conv is not None
        self.pair = (steps[0], steps[1]) if steps is not None and two and not steps[1].before else None

    def switched(self, node: int) -> bool:
        """Whether a switching node lies between the input and this node."""
        return affine_ancestors(self.graph, node)[1] != [0]

    def linear(self, node: int, known: Interval) -> Interval:
        """The exact bounds of a node with no switch below it, whose rows are the same for all examples."""
        if math.isinf(self.ball.p) and self._mixes_once(node):
            return known  # the ball is a box, and of a box one layer's intervals are exact
        shape, size = self.graph[node].shape, math.prod(self.graph[node].shape)
        rows: list[Tensor] = []
        offsets: list[Tensor] = []
        for units in torch.arange(size, device=self.x.device).split(self._rows_at_once()):
            one = pull_back(self.graph, node, one_hot(units[None], shape, self.x.dtype), {})
            rows.append(one.rows[0].flatten(1))
            offsets.append(one.low[0])
        every, offset = torch.cat(rows), torch.cat(offsets)
        value = self.x.flatten(1) @ every.T + offset
        length, eps = norm(every, dual(self.ball.p)), self.ball.reach(self.x)[:, None]
        # Zero weights do not move at any eps: inf * 0 would be NaN.
        reach = length * torch.where(length == 0, torch.zeros_like(eps), eps)
        free = Interval((value - reach).reshape(-1, *shape), (value + reach).reshape(-1, *shape)).meet(known)
        if self.ball.box is None:
            return free
        low, high = free.lower.flatten(1), free.upper.flatten(1)
        for batch, units, mine in self.chosen(free.unstable.flatten(1)):
            part = Functional(
                every[units].reshape(*units.shape, *self.x.shape[1:]), offset[units], offset[units]
            )  # fmt: skip
            ball, x = self.ball.restrict(batch), self.x[batch]
            low, high = tightened(low, high, batch, units, mine, *part.ends(x, ball), True)
        return Interval(low.reshape(-1, *shape), high.reshape(-1, *shape))

    def patched(self, node: int) -> bool:
        """Whether the rows of a node are patches: it is a convolution behind a convolution."""
        return self.pair is not None and node == self.pair[1].last

    def taps(self) -> int:
        """The numbers that all positions of such a node see, in one example."""
        assert self.pair is not None
        return math.prod(self.pair[1].shape[1:]) * self.pair[1].weight()[0].numel()

    def local(self, lines: Relaxations) -> Interval:
        """The bounds of all units of the node whose rows are patches."""
        assert self.pair is not None
        first, second = self.pair
        relaxed = lines[second.core.inputs[0]]
        assert not isinstance(relaxed, MaxPoolRelaxation)
        value = self.graph.values(self.x, [first.last])[first.last]
        here, offset = relaxed.convolved(value, Filters.of(second)), second.offset(self.x)
        low, high = here.lower + offset, here.upper + offset
        slacks = (None, None) if self.ball.box is None else self.ball.slacks(self.x)
        eps = self.ball.reach(self.x)
        size = (self.x.shape[2], self.x.shape[3])

        def rows(rising: Tensor, falling: Tensor | None) -> Iterator[tuple[Tensor, tuple[Tensor | None, ...]]]:
            """The rows of every position, and the rooms of the pixels they belong to."""
            for patch in patches(first, second, size, rising, falling):
                yield patch.rows, tuple(None if room is None else patch.cut(room) for room in slacks)

        p, budget = self.ball.p, self.budget
        if relaxed.parallel:
            ends = [linear_range(own, p, eps, *room, budget=budget) for own, room in rows(relaxed.above, None)]
            least, most = ([pair[side] for pair in ends] for side in (0, 1))
        else:
            falling, rising = rows(relaxed.below, relaxed.above), rows(relaxed.above, relaxed.below)
            least = [linear_minimum(own, p, eps, *room, budget=budget)[0] for own, room in falling]
            most = [-linear_minimum(-own, p, eps, *room, budget=budget)[0] for own, room in rising]

        def placed(found: list[Tensor]) -> Tensor:
            return torch.stack(found, 2).unflatten(2, second.shape[1:])

        return Interval(low + placed(least), high + placed(most))

    def refined(
        self,
        node: int,
        known: Interval,
        lines: dict[int, ReLURelaxation | MaxPoolRelaxation],
        *,
        everything: bool,
        intervals: bool,
    ) -> Interval:
        """The bounds of a node by a backward walk for the units that need it."""
        shape = self.graph[node].shape
        low, high = known.lower.flatten(1), known.upper.flatten(1)
        needed = torch.ones_like(low, dtype=torch.bool) if everything else known.unstable.flatten(1)
        both = all(part.parallel for part in lines.values())
        for batch, units, mine in self.chosen(needed, 1 if both else 2):
            here = {index: _restricted(part, batch) for index, part in lines.items()}
            picked = one_hot(units, shape, self.x.dtype)
            ball, x = self.ball.restrict(batch), self.x[batch]
            if both:
                below, above = pull_back(self.graph, node, picked, here).ends(x, ball)
            else:
                ends = pull_back(self.graph, node, torch.cat([picked, -picked], 1), here).minimum(x, ball)
                below, above = ends.split(units.shape[1], 1)
                above = -above
            low, high = tightened(low, high, batch, units, mine, below, above, intervals)
        return Interval(low.reshape(-1, *shape), high.reshape(-1, *shape))

    def _rows_at_once(self) -> int:
        widest = max(math.prod(node.shape) for node in self.graph)
        size = 6 * widest * (torch.finfo(self.x.dtype).bits // 8)
        # Beyond the cache a walk is bound by memory: pieces of some megabytes are faster than all at once.
        return max(1, min(self.budget, PIECE) // size)

    def chosen(self, needed: Bool[Tensor, " batch units"], walks: int = 1) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Pieces of the batch, units (batch, rows) of each of its examples, and which of them are needed."""
        at_once = max(1, self._rows_at_once() // walks)
        counts = needed.sum(1)
        order = counts.argsort(descending=True)
        start = 0
        while start < len(order):
            wide = int(counts[order[start]])
            if wide == 0:
                return
            batch = order[start : start + max(1, at_once // wide)]
            start += len(batch)
            # The needed ones of each example first. What fills up the rows is not used: answers must not depend on batches.
            units = needed[batch].to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :wide]
            for part in units.split(at_once, 1):
                yield batch, part, needed[batch].gather(1, part)

    def _mixes_once(self, node: int) -> bool:
        """Whether one operation at most mixes pixels on the way to a node, on a plain path."""
        nodes = affine_ancestors(self.graph, node)[0]
        return all(len(one.inputs) == 1 for one in nodes) and sum(not one.op.elementwise for one in nodes) <= 1


def tightened(
    low: Tensor, high: Tensor, batch: Int[Tensor, " n"], units: Int[Tensor, " n rows"], mine: Bool[Tensor, " n rows"],
    below: Tensor, above: Tensor, keep: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Bounds with those of some units replaced; where `keep`, the tighter ones of old and new."""
    place = (batch[:, None].expand_as(units), units)
    before = low[place], high[place]
    if keep:
        below, above = torch.maximum(below, before[0]), torch.minimum(above, before[1])
    return (
        low.index_put(place, torch.where(mine, below, before[0])),
        high.index_put(place, torch.where(mine, above, before[1])),
    )


def _restricted(part: ReLURelaxation | MaxPoolRelaxation, batch: Tensor) -> ReLURelaxation | MaxPoolRelaxation:
    """The lines of some examples."""
    if isinstance(part, ReLURelaxation):
        above = part.above[batch]
        return ReLURelaxation(above if part.parallel else part.below[batch], above, part.offset[batch], part.by_row)
    return MaxPoolRelaxation(part.op, part.first[batch], part.second[batch], part.slope[batch], part.offset[batch])
