"""Exact bounds of a convolution of the input, from rows on receptive fields.

A row has the pixels of a receptive field and nothing else, and the minimum over the ball is taken over these pixels: of a
filter of 16 taps on an image of 784 pixels that is a fiftieth of the work, and sums that round less.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.backward_bounds import PIECE, BackwardBounds
from relucert.bounding.interval import Interval
from relucert.bounding.rounding import RAISED, Charge, lowered
from relucert.core.linear_minimum import linear_range
from relucert.core.norms import dual, norm
from relucert.core.rounding import gamma
from relucert.networks.affine_map import Step
from relucert.networks.nodes import Affine
from relucert.networks.traversal import ForwardRule, Node, affine_ancestors, propagate
from relucert.networks.windows import Units, WindowRows


class _Absolute(ForwardRule[Tensor]):
    """|W| z from node to node, as far as nodes are affine."""

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        return node.op.absolute(*inputs)


@dataclass(frozen=True, eq=False)
class FilterRows:
    """Rows on receptive fields: of all units the value at x, the dual norm of the row, and what rounding costs the bounds."""

    work: WindowRows
    filters: Float[Tensor, " maps taps"]
    inside: Float[Tensor, " positions taps"]
    value: Float[Tensor, " batch units"]
    length: Float[Tensor, " units"]
    cost: Float[Tensor, " batch units"] | None

    def bounds(self, backward: BackwardBounds, known: Interval) -> Interval:
        """Exact bounds of all units, cut with known ones.

        With a box only units that are unstable over the ball alone have their bounds over the ball cut with the box.
        """
        eps = backward.ball.reach(backward.x)[:, None]
        # Zero weights do not move at any eps: inf * 0 would be NaN.
        reach = self.length * torch.where(self.length == 0, torch.zeros_like(eps), eps)
        if self.cost is not None:
            reach = reach + RAISED * self.cost
        free = Interval((self.value - reach).view_as(known.lower), (self.value + reach).view_as(known.upper)).meet(
            known
        )
        return free if backward.ball.box is None else self._boxed(backward, free)

    @staticmethod
    def of(backward: BackwardBounds, step: Step, charge: Charge | None) -> FilterRows:
        """From the filters, with what stands around them multiplied in."""
        graph, x = backward.graph, backward.x
        work = WindowRows([step], graph[0].shape)
        (filters,), inside, q = work.factors(), work.inside(x), dual(backward.ball.p)
        at_once = max(1, min(backward.budget, PIECE) // (4 * inside.numel() * x.element_size()))
        lengths = [norm(some.unsqueeze(1) * inside, q, 2) for some in filters.split(at_once)]
        value = graph.values(x, [step.last])[step.last].flatten(1)
        cost = None
        if charge is not None:
            with torch.no_grad():
                # The drift pays for the value. Minima over a receptive field are sums of as many terms as it has pixels, and
                # what is folded into the filters is rounded besides.
                steps = charge.steps * gamma(filters.shape[1] + 16, x.dtype) / gamma(x.shape[1:].numel() + 16, x.dtype)
                largest = charge.largest.reshape(x.shape)
                size = propagate(graph, _Absolute(), {0: largest}, [step.last])[step.last].flatten(1)
                count = 1 + len(affine_ancestors(graph, step.last)[0]) / 8
                cost = (
                    count * steps * size + gamma(4, x.dtype) * value.abs() + charge.drift.sum(1) + charge.lost[:, None]
                )
        return FilterRows(work, filters, inside, value, torch.cat(lengths).flatten(), cost)

    def _boxed(self, backward: BackwardBounds, free: Interval) -> Interval:
        """Known bounds, tightened for unstable units by those over the ball cut with the box."""
        ball, x = backward.ball, backward.x
        places = free.unstable.flatten(1).nonzero(as_tuple=True)
        if len(places[0]) == 0:
            return free
        units = Units(*places, free.lower.shape[1:])  # type: ignore[arg-type]
        slacks, eps, value = ball.slacks(x), ball.reach(x), self.value[places]
        low, high = free.lower.flatten(1), free.upper.flatten(1)
        at_once = max(1, min(backward.budget, PIECE) // (12 * self.filters.shape[1] * x.element_size()))
        ends = [
            self._ends(units.restrict(some), ball.p, eps, slacks, backward.budget)
            for some in torch.arange(len(units), device=x.device).split(at_once)
        ]
        least, greatest = (torch.cat(each) for each in zip(*ends, strict=True))
        below, above = value + least, value + greatest
        if self.cost is not None:
            below, above = lowered(below, self.cost[places]), -lowered(-above, self.cost[places])
        low = low.index_put(places, torch.fmax(low[places], below))
        high = high.index_put(places, torch.fmin(high[places], above))
        return Interval(low.reshape(free.lower.shape), high.reshape(free.upper.shape))

    def _ends(
        self, units: Units, p: float, eps: Tensor, slacks: tuple[Tensor, Tensor], budget: int
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """How far single units can fall and rise."""
        rows = self.filters.index_select(0, units.maps()) * units.pick(self.inside, self.work.grids[0])
        room = [self.work.windows[0].picked(slack, units) for slack in slacks]
        least, greatest = linear_range(rows.unsqueeze(1), p, eps[units.batch], *room, budget=budget)
        return least[:, 0], greatest[:, 0]
