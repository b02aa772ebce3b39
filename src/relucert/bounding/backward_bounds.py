"""Bounds of a node's units over a ball by backward propagation, in pieces that fit a memory budget.

A node without a switching node before it is linear, and its bounds are exact; of a convolution behind a convolution the rows
are patches; all other nodes are pulled back to the input through linear relaxations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.propagation import (
    Functional,
    Relaxations,
    pull_back_units,
)
from relucert.bounding.relaxation import MaxPoolRelaxation, ReLURelaxation
from relucert.bounding.rounding import RAISED, Charge, Magnitudes, Rounding, lowered
from relucert.core.ball import Ball
from relucert.core.linear_minimum import linear_minimum, linear_range
from relucert.core.norms import dual, norm
from relucert.core.rounding import gamma
from relucert.networks.affine_map import chain, one_hot, to_roots
from relucert.networks.patches import Filters, patches
from relucert.networks.traversal import Graph, affine_ancestors, propagate
from relucert.networks.windows import Units, WindowRows

BUDGET = 2**29  # bytes of temporaries
PIECE = 2**24  # bytes of temporaries of one backward propagation
# Shares of unstable units from which on the rows of all units, which are patches, cost less than those of the unstable ones.
ALL_PARALLEL, ALL = 0.3, 0.5


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

    def __init__(self, graph: Graph, x: Tensor, ball: Ball, budget: int, rounding: Rounding | None = None):
        self.graph, self.x, self.ball, self.budget, self.rounding = graph, x, ball, budget, rounding
        steps = chain(graph)
        # Two convolutions with nothing between them but a ReLU: the rows of the second are patches.
        two = steps is not None and len(steps) > 2 and steps[0].conv is not None and steps[1].conv is not None
        self.pair = (steps[0], steps[1]) if steps is not None and two and not steps[1].before else None

    @cached_property
    def _windows(self) -> tuple[WindowRows, list[Tensor]]:
        """What the units of the node whose rows are patches see, and the factors of their rows."""
        assert self.pair is not None
        work = WindowRows(self.pair, self.graph[0].shape)
        return work, work.factors()

    @cached_property
    def _first(self) -> Float[Tensor, " batch *first"]:
        """The value of the first convolution at the inputs."""
        assert self.pair is not None
        return self.graph.values(self.x, [self.pair[0].last])[self.pair[0].last]

    def switched(self, node: int) -> bool:
        """Whether a switching node lies between the input and this node."""
        return affine_ancestors(self.graph, node)[1] != [0]

    def exact(self, node: int) -> bool:
        """Whether intervals of a node without a switching node before it are exact: the ball is a box, and one layer mixes."""
        return math.isinf(self.ball.p) and self._mixes_once(node)

    def linear(self, node: int, known: Interval, charge: Charge | None) -> Interval:
        """The exact bounds of a node without a switching node before it, whose rows are the same for all examples."""
        if self.exact(node):
            return known
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
        if charge is not None:
            with torch.no_grad():
                # Offsets of affine nodes in a row are added up one after the other.
                count = 1 + len(affine_ancestors(self.graph, node)[0]) / 8
                own = count * charge.steps * (charge.largest @ every.abs().T + offset.abs())
                reach = reach + RAISED * (own + charge.drift.sum(1) + charge.lost[:, None])
        free = Interval((value - reach).reshape(-1, *shape), (value + reach).reshape(-1, *shape)).meet(known)
        if self.ball.box is None:
            return free
        low, high = free.lower.flatten(1), free.upper.flatten(1)
        for chosen in self.chosen(free.unstable.flatten(1)):
            batch, units, _ = chosen
            chosen_rows = every[units].reshape(*units.shape, *self.x.shape[1:])
            cost = some = None
            if charge is not None:
                some = charge.restrict(batch)
                cost = some.drift.gather(2, units.unsqueeze(1).expand(-1, 2, -1)).mT.clone()
            functional = Functional(chosen_rows, offset[units], offset[units], cost, some)
            ends = functional.range(self.x[batch], self.ball.restrict(batch))
            low, high = tightened((low, high), chosen, ends, keep=True)
        return Interval(low.reshape(-1, *shape), high.reshape(-1, *shape))

    def patched(self, node: int) -> bool:
        """Whether the rows of a node are patches: it is a convolution behind a convolution."""
        return self.pair is not None and node == self.pair[1].last

    def taps(self) -> int:
        """The number of entries that all positions of a node with patches see together, in one example."""
        assert self.pair is not None
        return math.prod(self.pair[1].shape[1:]) * self.pair[1].weight()[0].numel()

    def local(self, relaxations: Relaxations, charge: Charge | None) -> Interval:
        """The bounds of all units of the node whose rows are patches."""
        assert self.pair is not None
        first, second = self.pair
        relaxed = relaxations[second.core.inputs[0]]
        assert not isinstance(relaxed, MaxPoolRelaxation)
        at_x, offset = relaxed.convolved(self._first, Filters.of(second)), second.offset(self.x)
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

        low, high = low + placed(least), high + placed(most)
        if charge is None:
            return Interval(low, high)
        cost = self._local_cost(relaxed, charge)
        return Interval(lowered(low, cost), -lowered(-high, cost))

    def local_unstable(self, relaxations: Relaxations, known: Interval, charge: Charge | None) -> Interval:
        """The bounds of the node whose rows are patches: known ones, tightened for its unstable units."""
        assert self.pair is not None
        relaxed = relaxations[self.pair[1].core.inputs[0]]
        assert isinstance(relaxed, ReLURelaxation)
        unstable = known.unstable.detach().flatten(1)
        many = (unstable.sum(1) > (ALL_PARALLEL if relaxed.parallel else ALL) * unstable.shape[1]).nonzero()[:, 0]
        if len(many):
            known, unstable = self._local_of(many, relaxed, known, charge), unstable.index_fill(0, many, False)
        low, high = known.lower.flatten(1), known.upper.flatten(1)
        places = unstable.nonzero(as_tuple=True)
        if len(places[0]) == 0:
            return known
        ends = self._patch_ends(relaxed, Units(*places, self.pair[1].shape), charge)  # type: ignore[arg-type]
        low = low.index_put(places, torch.fmax(low[places], ends[0]))
        high = high.index_put(places, torch.fmin(high[places], ends[1]))
        return Interval(low.view(known.lower.shape), high.view(known.upper.shape))

    def _local_of(
        self, some: Int[Tensor, " n"], relaxed: ReLURelaxation, known: Interval, charge: Charge | None
    ) -> Interval:
        """The bounds of some examples, most of whose units are unstable: all of them are made, which costs less."""
        assert self.pair is not None
        work = BackwardBounds(self.graph, self.x[some], self.ball.restrict(some), self.budget)
        lines = {self.pair[1].core.inputs[0]: relaxed.restrict(some)}
        found, own = work.local(lines, None if charge is None else charge.restrict(some)), known.restrict(some)
        low = torch.where(own.unstable, torch.fmax(own.lower, found.lower), own.lower)
        high = torch.where(own.unstable, torch.fmin(own.upper, found.upper), own.upper)
        return Interval(known.lower.index_copy(0, some, low), known.upper.index_copy(0, some, high))

    def _patch_ends(self, relaxed: ReLURelaxation, units: Units, charge: Charge | None) -> tuple[Tensor, Tensor]:
        """Both ends (n,) of single units of the node whose rows are patches, made on their receptive fields."""
        assert self.pair is not None
        second = self.pair[1]
        work, (*adjoint, filters) = self._windows
        pixels, taps = work.windows
        value, eps = self._first, self.ball.reach(self.x)
        slacks = [] if self.ball.box is None else self.ball.slacks(self.x)
        inside = work.inside(self.x)
        below, above = relaxed.below * value, relaxed.above * value + relaxed.offset
        cost = None if charge is None else self._tap_cost(relaxed, charge)
        drift = None if charge is None else charge.drift.sum(1) + charge.lost[:, None]
        offset = second.offset(self.x).flatten()
        ends: tuple[list[Tensor], list[Tensor]] = ([], [])
        at_once = max(1, min(self.budget, PIECE) // (10 * work.entries * (torch.finfo(self.x.dtype).bits // 8)))
        for rows in torch.arange(len(units), device=self.x.device).split(at_once):
            some = units.restrict(rows)
            weights = filters.index_select(0, some.maps())
            up, down = weights.clamp(min=0), weights.clamp(max=0)
            lines, slopes = (
                tuple(taps.picked(part, some) for part in parts)
                for parts in ((below, above), (relaxed.below, relaxed.above))
            )
            constant = offset[some.places]
            low = (up * lines[0] + down * lines[1]).sum(1) + constant
            high = (up * lines[1] + down * lines[0]).sum(1) + constant
            field, radii = some.pick(inside, work.grids[0]), eps[some.batch]
            room = [pixels.picked(slack, some) for slack in slacks]
            own = (work.adjoint(0, up * slopes[0] + down * slopes[1], adjoint[0]) * field).unsqueeze(1)
            if relaxed.parallel:
                least, most = linear_range(own, self.ball.p, radii, *room, budget=self.budget)
            else:
                rising = (work.adjoint(0, up * slopes[1] + down * slopes[0], adjoint[0]) * field).unsqueeze(1)
                least = linear_minimum(own, self.ball.p, radii, *room, budget=self.budget)[0]
                most = -linear_minimum(-rising, self.ball.p, radii, *room, budget=self.budget)[0]
            low, high = low + least[:, 0], high + most[:, 0]
            if cost is not None and drift is not None:
                with torch.no_grad():
                    paid = ((up - down) * taps.picked(cost, some)).sum(1) + gamma(8, low.dtype) * constant.abs()
                    paid = paid + drift[some.batch, some.places]
                low, high = lowered(low, paid), -lowered(-high, paid)
            ends[0].append(low)
            ends[1].append(high)
        return torch.cat(ends[0]), torch.cat(ends[1])

    @torch.no_grad()
    def _local_cost(self, relaxed: ReLURelaxation, charge: Charge) -> Float[Tensor, " batch *shape"]:
        """What rounding costs the bounds of units whose rows are patches.

        The coefficients of the first convolution's units are weights of the second, so the charges at these units go through
        its absolute weights.
        """
        assert self.pair is not None
        second = self.pair[1]
        filters = Filters.of(second)
        passed = replace(filters, weight=filters.weight.abs()).apply(self._tap_cost(relaxed, charge))
        offset = gamma(8, self.x.dtype) * second.offset(self.x).abs()
        return passed + offset + charge.drift.sum(1).reshape(passed.shape) + charge.lost.reshape(-1, 1, 1, 1)

    @torch.no_grad()
    def _tap_cost(self, relaxed: ReLURelaxation, charge: Charge) -> Float[Tensor, " batch *inner"]:
        """What rounding costs a unit of the second convolution for every unit of the first, times its weight.

        Rows on the receptive field are at most |second| |first|.
        """
        assert self.pair is not None
        first, second = self.pair
        largest = charge.largest.reshape(self.x.shape)
        sizes = propagate(self.graph, Magnitudes(), {0: largest}, [first.last])[first.last]
        field = max(charge.steps, gamma(Filters.of(second).weight[0].numel() + 16, self.x.dtype))
        assert relaxed.charge is not None
        return relaxed.charge.sum(1).reshape(sizes.shape) + 4 * field * (sizes + relaxed.offset)

    def refined(
        self,
        node: int,
        known: Interval,
        relaxations: dict[int, ReLURelaxation | MaxPoolRelaxation],
        charge: Charge | None,
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
            ball, x = self.ball.restrict(batch), self.x[batch]
            part = None if charge is None else charge.restrict(batch)
            if both:
                below, above = pull_back_units(self.graph, node, units, some, part).range(x, ball)
            else:
                ends = pull_back_units(self.graph, node, units, some, part, negated=True).lower(x, ball)
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
            # Examples with fewer than half as many units would mostly have rows that fill up the table.
            batch = batch[2 * counts[batch] >= wide]
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

    With `keep`, the tighter of old and new bounds stays; what is not a number is none. Rows that are not needed change nothing.
    """
    batch, units, needed = chosen
    place = (batch[:, None].expand_as(units), units)
    low, high = (bound[place] for bound in known)
    below, above = new
    if keep:
        below, above = torch.fmax(below, low), torch.fmin(above, high)
    return (
        known[0].index_put(place, torch.where(needed, below, low)),
        known[1].index_put(place, torch.where(needed, above, high)),
    )
