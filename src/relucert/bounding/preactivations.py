"""Pre-activation bounds: intervals of the inputs of every switching node over a ball, and of the logits.

Node after node: first interval arithmetic, then, for the units that are still unstable, backward propagation through the linear
relaxations of the nodes before. A node without a switching node before it is linear, and its bounds are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from relucert.bounding.interval import Interval, IntervalPropagation
from relucert.bounding.propagation import Functional, Relaxations, pull_back
from relucert.bounding.relaxation import MaxPoolRelaxation, ReLURelaxation, Rule, relax
from relucert.core.ball import Ball
from relucert.core.linear_minimum import linear_minimum, linear_range
from relucert.core.norms import dual, norm
from relucert.networks.affine_map import chain, one_hot, to_roots
from relucert.networks.network import Network
from relucert.networks.nodes import Switching
from relucert.networks.patches import Filters, patches
from relucert.networks.traversal import Graph, Node, affine_ancestors, propagate

BUDGET = 2**29  # bytes of temporaries
PIECE = 2**26  # bytes of temporaries of one backward propagation


@dataclass(frozen=True, eq=False)
class UnitBounds:
    """Intervals of the inputs of every switching node (by the node's index), and of all logits."""

    inputs: dict[int, Interval]
    logits: Interval

    def unstable(self) -> dict[int, Bool[Tensor, " batch *shape"]]:
        """The unstable units of each node."""
        return {index: within.unstable for index, within in self.inputs.items()}

    def restrict(self, batch: Int[Tensor, " n"]) -> UnitBounds:
        """The bounds of some examples."""
        return UnitBounds(
            {index: within.restrict(batch) for index, within in self.inputs.items()},
            self.logits.restrict(batch),
        )

    def detach(self) -> UnitBounds:
        """The bounds as constants, without gradients."""
        inputs = {index: within.detach() for index, within in self.inputs.items()}
        return UnitBounds(inputs, self.logits.detach())

    def relaxed(self, net: Network, rule: Rule) -> dict[int, ReLURelaxation | MaxPoolRelaxation]:
        """The linear relaxation of every switching node, by its index."""
        return {node.index: relax(node.op, self.inputs[node.index], rule) for node in net.switches}


def unit_bounds(
    net: Network, x: Tensor, ball: Ball, rule: Rule | None, *, intervals: bool = True, budget: int = BUDGET
) -> UnitBounds:
    """Bounds of every unit over the ball; without a rule for the lower slopes, by interval arithmetic alone.

    `intervals=False` leaves interval arithmetic out behind the first switching node: the relaxation as published, which is
    sometimes weaker.
    """
    bounds = _PreactivationBounds(BackwardBounds(net.graph, x, ball, budget), rule, intervals)
    logits = propagate(net.graph, bounds, {0: Interval(*ball.hull(x))})[len(net.graph) - 1]
    return UnitBounds(bounds.inputs, logits)


class _PreactivationBounds(IntervalPropagation):
    """Intervals through the network, tightened before every switching node by backward propagation.

    Later nodes read the tightened intervals. `inputs` has the bounds of the inputs of all switching nodes, by index.
    """

    def __init__(self, backward: BackwardBounds, rule: Rule | None, intervals: bool):
        self.backward, self.intervals = backward, intervals
        self.rule: Rule | None = rule
        self.inputs: dict[int, Interval] = {}
        self.relaxations: dict[int, ReLURelaxation | MaxPoolRelaxation] = {}

    def preactivation(self, node: Node[Switching], value: Interval) -> Interval:
        within = self.inputs[node.index] = self._tightened(node, value)
        if self.rule is not None:
            self.relaxations[node.index] = relax(node.op, within, self.rule)
        return within

    def _tightened(self, node: Node[Switching], known: Interval) -> Interval:
        source = node.inputs[0]
        inside, roots = affine_ancestors(self.backward.graph, source)
        if not inside:  # the input itself, or the output of another switching node
            return known
        if roots == [0]:
            return self.backward.linear(source, known)
        if self.rule is None:
            return known
        if self.backward.patched(source):
            within = self.backward.local(self.relaxations)
            return within.meet(known) if self.intervals else within
        everything = not (self.intervals and node.op.decided_by_sign)
        return self.backward.refined(source, known, self.relaxations, everything=everything, intervals=self.intervals)


class Chosen(NamedTuple):
    """Some examples of a batch, units (n, rows) of each, and which of these units are needed.

    Rows that only fill up the table are not needed, and their bounds must not be used: answers must be independent of batch
    composition.
    """

    batch: Int[Tensor, " n"]
    units: Int[Tensor, " n rows"]
    needed: Bool[Tensor, " n rows"]


class BackwardBounds:
    """Bounds of a node's units over a ball by backward propagation, in pieces that fit a memory budget; for one batch."""

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
        """The exact bounds of a node without a switching node before it, whose rows are the same for all examples."""
        if math.isinf(self.ball.p) and self._mixes_once(node):
            return known  # the ball is a box, and of a box one layer's intervals are exact
        shape, size = self.graph[node].shape, math.prod(self.graph[node].shape)
        rows: list[Tensor] = []
        offsets: list[Tensor] = []
        for units in torch.arange(size, device=self.x.device).split(self._rows_at_once()):
            exact = to_roots(self.graph, node, one_hot(units[None], shape, self.x.dtype))
            direct = exact.rows.get(0, self.x.new_zeros(1, len(units), *self.graph[0].shape))
            rows.append(direct[0].flatten(1))
            offsets.append(exact.offset[0])
        every, offset = torch.cat(rows), torch.cat(offsets)
        value = self.x.flatten(1) @ every.T + offset
        length, eps = norm(every, dual(self.ball.p)), self.ball.reach(self.x)[:, None]
        # Zero weights do not move at any eps: inf * 0 would be NaN.
        reach = length * torch.where(length == 0, torch.zeros_like(eps), eps)
        free = Interval((value - reach).reshape(-1, *shape), (value + reach).reshape(-1, *shape)).meet(known)
        if self.ball.box is None:
            return free
        low, high = free.lower.flatten(1), free.upper.flatten(1)
        for chosen in self.chosen(free.unstable.flatten(1)):
            batch, units, _ = chosen
            chosen_rows = every[units].reshape(*units.shape, *self.x.shape[1:])
            ends = Functional(chosen_rows, offset[units], offset[units]).range(self.x[batch], self.ball.restrict(batch))
            low, high = tightened((low, high), chosen, ends, keep=True)
        return Interval(low.reshape(-1, *shape), high.reshape(-1, *shape))

    def patched(self, node: int) -> bool:
        """Whether the rows of a node are patches: it is a convolution behind a convolution."""
        return self.pair is not None and node == self.pair[1].last

    def taps(self) -> int:
        """The number of entries that all positions of a node with patches see together, in one example."""
        assert self.pair is not None
        return math.prod(self.pair[1].shape[1:]) * self.pair[1].weight()[0].numel()

    def local(self, relaxations: Relaxations) -> Interval:
        """The bounds of all units of the node whose rows are patches."""
        assert self.pair is not None
        first, second = self.pair
        relaxed = relaxations[second.core.inputs[0]]
        assert not isinstance(relaxed, MaxPoolRelaxation)
        value = self.graph.values(self.x, [first.last])[first.last]
        at_x, offset = relaxed.convolved(value, Filters.of(second)), second.offset(self.x)
        low, high = at_x.lower + offset, at_x.upper + offset
        slacks = (None, None) if self.ball.box is None else self.ball.slacks(self.x)
        eps = self.ball.reach(self.x)

        def rows(rising: Tensor, falling: Tensor | None) -> Iterator[tuple[Tensor, tuple[Tensor | None, ...]]]:
            """The rows of every position, and the slacks of the pixels they belong to."""
            for patch in patches(first, second, self.graph[0].shape, rising, falling):
                yield patch.rows, tuple(None if slack is None else patch.cut(slack) for slack in slacks)

        p, budget = self.ball.p, self.budget
        if relaxed.parallel:
            ends = [linear_range(own, p, eps, *slack, budget=budget) for own, slack in rows(relaxed.above, None)]
            least, most = ([pair[side] for pair in ends] for side in (0, 1))
        else:
            falling, rising = rows(relaxed.below, relaxed.above), rows(relaxed.above, relaxed.below)
            least = [linear_minimum(own, p, eps, *slack, budget=budget)[0] for own, slack in falling]
            most = [-linear_minimum(-own, p, eps, *slack, budget=budget)[0] for own, slack in rising]

        def placed(by_position: list[Tensor]) -> Tensor:
            return torch.stack(by_position, 2).unflatten(2, second.shape[1:])

        return Interval(low + placed(least), high + placed(most))

    def refined(
        self,
        node: int,
        known: Interval,
        relaxations: dict[int, ReLURelaxation | MaxPoolRelaxation],
        *,
        everything: bool,
        intervals: bool,
    ) -> Interval:
        """The bounds of a node by backward propagation from its unstable units, or from every unit.

        `intervals` keeps a known bound where it is tighter.
        """
        shape = self.graph[node].shape
        low, high = known.lower.flatten(1), known.upper.flatten(1)
        needed = torch.ones_like(low, dtype=torch.bool) if everything else known.unstable.flatten(1)
        both = all(relaxation.parallel for relaxation in relaxations.values())
        for chosen in self.chosen(needed, 1 if both else 2):
            batch, units, _ = chosen
            some = {index: relaxation.restrict(batch) for index, relaxation in relaxations.items()}
            picked = one_hot(units, shape, self.x.dtype)
            ball, x = self.ball.restrict(batch), self.x[batch]
            if both:
                below, above = pull_back(self.graph, node, picked, some).range(x, ball)
            else:
                ends = pull_back(self.graph, node, torch.cat([picked, -picked], 1), some).minimum(x, ball)
                below, above = ends.split(units.shape[1], 1)
                above = -above
            low, high = tightened((low, high), chosen, (below, above), keep=intervals)
        return Interval(low.reshape(-1, *shape), high.reshape(-1, *shape))

    def _rows_at_once(self) -> int:
        widest = max(math.prod(node.shape) for node in self.graph)
        size = 6 * widest * (torch.finfo(self.x.dtype).bits // 8)
        # Beyond the cache propagation is bound by memory: pieces of some megabytes are faster than all at once.
        return max(1, min(self.budget, PIECE) // size)

    def chosen(self, needed: Bool[Tensor, " batch units"], functionals: int = 1) -> Iterator[Chosen]:
        """The needed units in pieces, for so many functionals of each unit."""
        at_once = max(1, self._rows_at_once() // functionals)
        counts = needed.sum(1)
        order = counts.argsort(descending=True)
        start = 0
        while start < len(order):
            wide = int(counts[order[start]])
            if wide == 0:
                return
            batch = order[start : start + max(1, at_once // wide)]
            start += len(batch)
            # The needed units of each example first.
            units = needed[batch].to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :wide]
            for part in units.split(at_once, 1):
                yield Chosen(batch, part, needed[batch].gather(1, part))

    def _mixes_once(self, node: int) -> bool:
        """Whether at most one node between the input and this one mixes pixels, on a path without branches."""
        nodes = affine_ancestors(self.graph, node)[0]
        return all(len(inner.inputs) == 1 for inner in nodes) and sum(not inner.op.elementwise for inner in nodes) <= 1


def tightened(
    known: tuple[Tensor, Tensor], chosen: tuple[Tensor, Tensor, Tensor], new: tuple[Tensor, Tensor], *, keep: bool
) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds (batch, units) with those of the chosen units replaced by new ones (n, rows).

    With `keep`, the tighter of old and new bounds stays. Rows that are not needed change nothing.
    """
    batch, units, needed = chosen
    place = (batch[:, None].expand_as(units), units)
    low, high = (bound[place] for bound in known)
    below, above = new
    if keep:
        below, above = torch.maximum(below, low), torch.minimum(above, high)
    return (
        known[0].index_put(place, torch.where(needed, below, low)),
        known[1].index_put(place, torch.where(needed, above, high)),
    )
