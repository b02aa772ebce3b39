"""Backward propagation: a linear functional of a node's value, bounded below by a linear functional of the input.

Kolter-Wong, CROWN and alpha-CROWN differ only in the linear relaxations of the ReLUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.bounding.relaxation import MaxPoolRelaxation, ReLURelaxation, charged
from relucert.bounding.rounding import Charge, Margins, lowered
from relucert.core.ball import Ball
from relucert.core.rounding import gamma
from relucert.networks.affine_map import matrix_rows, offset_of_rows, one_hot, transpose_rows
from relucert.networks.nodes import Affine, Switching
from relucert.networks.traversal import BackwardRule, Graph, Node, propagate_back

Relaxations = Mapping[int, ReLURelaxation | MaxPoolRelaxation]
_BUDGET = 2**29  # bytes of temporaries on other devices than a CPU, whose blocks fit its cache


@dataclass(frozen=True, eq=False)
class Functional:
    """`rows z + low` (batch, rows) lies below the functional over the ball, `rows z + high` above (None: not known).

    `cost` (batch, rows, 2) is what rounding costs so far, `charge` that of the input; None where rounding is not charged.
    """

    rows: Float[Tensor, " batch rows *input"]
    low: Float[Tensor, " batch rows"]
    high: Float[Tensor, " batch rows"] | None
    cost: Float[Tensor, " batch rows 2"] | None = None
    charge: Charge | None = None

    def minimum(self, x: Tensor, ball: Ball) -> Float[Tensor, " batch rows"]:
        """The lower bound over the ball as computed; its rounding is not charged."""
        return ball.minimum(x, self.rows).value + self._at(x) + self.low

    def margins(self, x: Tensor, ball: Ball) -> Margins:
        """The lower bound over the ball as computed, and less what rounding costs."""
        return Margins.charged(self.minimum(x, ball), self._costs())

    def lower(self, x: Tensor, ball: Ball) -> Float[Tensor, " batch rows"]:
        """The lower bound over the ball that holds for the executed network as well."""
        return self.margins(x, ball).executed

    def range(self, x: Tensor, ball: Ball) -> tuple[Float[Tensor, " batch rows"], Float[Tensor, " batch rows"]]:
        """The lower and the upper bound over the ball; they hold for the executed network as well."""
        assert self.high is not None
        least, greatest = ball.range(x, self.rows)
        value, costs = self._at(x), self._costs()
        low, high = value + self.low + least, value + self.high + greatest
        if costs is None:
            return low, high
        return lowered(low, costs.sum(-1)), -lowered(-high, costs.sum(-1))

    @torch.no_grad()
    def _costs(self) -> Float[Tensor, " batch rows 2"] | None:
        """What rounding costs, with the last step: the minimum of the functional over the ball."""
        if self.cost is None or self.charge is None:
            return self.cost
        largest = (self.rows.abs().flatten(2) @ self.charge.largest.unsqueeze(2)).squeeze(2)
        high = 0.0 if self.high is None else self.high.abs()
        # Sums of the offsets are rounded a few times for every node.
        last = self.charge.steps * largest + gamma(8, self.low.dtype) * (self.low.abs() + high)
        cost = self.cost.clone()
        cost[..., 0] += last + self.charge.lost[:, None]
        return cost

    def _at(self, x: Tensor) -> Tensor:
        return (self.rows.flatten(2) @ x.flatten(1).unsqueeze(2)).squeeze(2)


def pull_back(
    graph: Graph,
    node: int,
    functionals: Float[Tensor, " batch rows *shape"],
    relaxations: Relaxations,
    charge: Charge | None = None,
) -> Functional:
    """Backward propagation of a linear bound from a node to the input.

    `relaxations` has the linear relaxation of every switching node on the way, by its index; `charge` what rounding costs at
    the node itself, None where rounding is not charged.
    """
    bound = LinearBound(relaxations, functionals.new_zeros(functionals.shape[:2]))
    if charge is not None:
        bound.cost = charged(functionals, charge.drift)
    return bound.functional(graph, propagate_back(graph, bound, node, functionals), charge)


def pull_back_units(
    graph: Graph,
    node: int,
    units: Int[Tensor, " batch units"],
    relaxations: Relaxations,
    charge: Charge | None = None,
    *,
    negated: bool = False,
) -> Functional:
    """Backward propagation from single units of a node; with `negated` also from minus these units, as further rows."""
    like = next(iter(relaxations.values())).offset
    bound = LinearBound(relaxations, like.new_zeros(len(units), (1 + negated) * units.shape[1]))
    start, rows = bound.start_at_units(graph, node, units, charge, negated=negated)
    return bound.functional(graph, propagate_back(graph, bound, start, rows), charge)


class LinearBound(BackwardRule[Tensor]):
    """Functionals (batch, rows, *shape) of a node's value, bounded by functionals of its inputs and by offsets.

    `low` is what the lower bound adds so far, `high` what the upper bound adds (None: not known), `cost` what rounding costs.
    """

    def __init__(self, relaxations: Relaxations, zero: Tensor):
        self.relaxations = relaxations
        self.low: Tensor = zero
        self.high: Tensor | None = zero
        self.cost: Tensor | None = None

    def start_at_units(
        self,
        graph: Graph,
        node: int,
        units: Int[Tensor, " batch units"],
        charge: Charge | None,
        *,
        negated: bool = False,
    ) -> tuple[int, Float[Tensor, " batch rows *shape"]]:
        """The node at which propagation from units of a node starts, and the functionals there; with `negated` minus these too.

        Where the node is one matrix they are rows of the matrix: no product with functionals that pick units is needed.
        """
        if charge is not None:
            cost = charge.drift.gather(2, units.unsqueeze(1).expand(-1, 2, -1)).mT
            self.cost = torch.cat([cost, cost], 1) if negated else cost.clone()
        known = matrix_rows(graph, node, units)
        if known is None:
            picked = one_hot(units, graph[node].shape, self.low.dtype)
            return node, torch.cat([picked, -picked], 1) if negated else picked
        rows, added = (torch.cat([part, -part], 1) for part in known) if negated else known
        self.shift(added, added, 0)
        return graph[node].inputs[0], rows

    def functional(self, graph: Graph, rows: Tensor | None, charge: Charge | None) -> Functional:
        """The functional of the input after propagation; `rows` is None where no node on the way depends on the input."""
        if rows is None:
            rows = self.low.new_zeros(*self.low.shape, *graph[0].shape)
        return Functional(rows, self.low, self.high, self.cost, charge)

    def affine(self, node: Node[Affine], value: Tensor) -> tuple[Tensor, ...]:
        if not node.op.homogeneous:
            added = offset_of_rows(node.op, value)
            self.shift(added, added, 0)
        return transpose_rows(node.op, value)

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor:
        back, below, above, cost = self.relaxations[node.index].pull_back(value)
        if self.cost is not None:
            assert cost is not None, "the relaxation of a charged bound has no charges"
            self.cost = self.cost + cost
        self.shift(below, above, math.prod(node.shape))
        return back

    def shift(self, below: Tensor, above: Tensor | None, terms: int) -> None:
        """Add offsets; those of a relaxation are sums of so many terms of one sign."""
        if self.cost is not None:
            # Each partial sum is rounded once; the terms of this one have been rounded before.
            with torch.no_grad():
                size = below.abs() if above is None else torch.maximum(below.abs(), above.abs())
                before = self.low.abs() if self.high is None else torch.maximum(self.low.abs(), self.high.abs())
                dtype = size.dtype
                self.cost[..., 0] += gamma(terms + 4, dtype) * size + gamma(2, dtype) * before
        self.low = self.low + below
        self.high = None if self.high is None or above is None else self.high + above
