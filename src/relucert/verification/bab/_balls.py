"""Balls of l2 that the inputs of ReLUs lie in, for the subproblems of branch and bound; from `lipschitz`, as in `sdp`.

A subproblem is bounded over boxes and balls (`bounding.split_bounds`) where its problem was bounded better so than over boxes
alone before the first split; elsewhere balls cost time and gain nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.methods.lipschitz import Deviations, deviations
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.reduced_network import ReducedNetwork
from relucert.verification.verifier import Budget, Query

_AT_ONCE = 8  # points whose norms are computed together


@dataclass(frozen=True, eq=False)
class UnitBalls:
    """Bounds of the units of all points, and how far units move from their values at x, for some points.

    `place` has the piece of `moved` and the position there, by point.
    """

    bounds: UnitBounds
    moved: list[Deviations]
    place: dict[int, tuple[int, int]]

    @staticmethod
    @torch.no_grad()
    def around(query: Query, bounds: UnitBounds, points: Int[Tensor, " n"], budget: Budget) -> UnitBalls:
        """The balls of some points of a query, in l2 and as long as there is time, and bounds that are no wider than these.

        `bounds` must hold over the ball or over a part of it; in a part that does not hold x units have no balls.
        """
        moved: list[Deviations] = []
        place: dict[int, tuple[int, int]] = {}
        inputs = dict(bounds.inputs)
        for some in points.split(_AT_ONCE) if query.p == 2 and len(points) else ():
            if budget.over:
                break
            piece = query.restrict(some)
            own = deviations(query.double, piece.wide, piece.ball, bounds.restrict(some))
            # Moves are measured from the values at x: bounds that x itself violates are those of a part of the ball.
            holds = torch.ones(len(some), dtype=torch.bool)
            for index, value in own.centres.items():
                within = bounds.inputs[index].restrict(some)
                holds &= ((value >= within.lower) & (value <= within.upper)).flatten(1).all(1)
            inside = holds.nonzero()[:, 0]
            place |= {int(some[position]): (len(moved), position) for position in inside.tolist()}
            moved.append(own)
            for index, within in own.inputs.items():
                tighter = within.restrict(inside)
                inputs[index] = Interval(
                    inputs[index].lower.index_copy(0, some[inside], tighter.lower),
                    inputs[index].upper.index_copy(0, some[inside], tighter.upper),
                )
        return UnitBalls(bounds.improved(inputs), moved, place)

    def known(self, point: int) -> bool:
        """Whether the balls of a point are known."""
        return point in self.place

    def of(self, point: int, reduced: ReducedNetwork, count: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Centres (count, units) and radii (count,) of a point's unstable units by node, for `count` problems."""
        piece, position = self.place[point]
        moved = self.moved[piece]
        return {
            index: (
                moved.centres[index][position].flatten()[reduced.units[index]].expand(count, -1),
                moved.before[index][position].expand(count),
            )
            for index in reduced.layers
        }
