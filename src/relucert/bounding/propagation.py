"""Backward propagation: a linear functional of a node's value, bounded below by a linear functional of the input.

Kolter-Wong, CROWN and alpha-CROWN differ only in the linear relaxations of the ReLUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from relucert.bounding.relaxation import MaxPoolRelaxation, ReLURelaxation
from relucert.core.ball import Ball
from relucert.networks.affine_map import offset_of_rows, transpose_rows
from relucert.networks.nodes import Affine, Switching
from relucert.networks.traversal import BackwardRule, Graph, Node, propagate_back

Relaxations = Mapping[int, ReLURelaxation | MaxPoolRelaxation]


@dataclass(frozen=True, eq=False)
class Functional:
    """`rows z + low` (batch, rows) lies below the functional over the ball, `rows z + high` above (None: not known)."""

    rows: Float[Tensor, " batch rows *input"]
    low: Float[Tensor, " batch rows"]
    high: Float[Tensor, " batch rows"] | None

    def minimum(self, x: Tensor, ball: Ball) -> Float[Tensor, " batch rows"]:
        """The lower bound over the ball."""
        return ball.minimum(x, self.rows).value + self._at(x) + self.low

    def range(self, x: Tensor, ball: Ball) -> tuple[Float[Tensor, " batch rows"], Float[Tensor, " batch rows"]]:
        """The lower and the upper bound over the ball."""
        assert self.high is not None
        least, greatest = ball.range(x, self.rows)
        value = self._at(x)
        return value + self.low + least, value + self.high + greatest

    def _at(self, x: Tensor) -> Tensor:
        return (self.rows.flatten(2) @ x.flatten(1).unsqueeze(2)).squeeze(2)


def pull_back(
    graph: Graph, node: int, functionals: Float[Tensor, " batch rows *shape"], relaxations: Relaxations
) -> Functional:
    """Backward propagation of a linear bound from a node to the input.

    `relaxations` has the linear relaxation of every switching node on the way, by its index.
    """
    bound = _LinearBound(relaxations, functionals.new_zeros(functionals.shape[:2]))
    rows = propagate_back(graph, bound, node, functionals)
    if rows is None:  # no node on the way depends on the input
        rows = functionals.new_zeros(*functionals.shape[:2], *graph[0].shape)
    return Functional(rows, bound.low, bound.high)


class _LinearBound(BackwardRule[Tensor]):
    """Functionals (batch, rows, *shape) of a node's value, bounded by functionals of its inputs and by offsets.

    `low` is what the lower bound adds so far, `high` what the upper bound adds (None: not known).
    """

    def __init__(self, relaxations: Relaxations, zero: Tensor):
        self.relaxations = relaxations
        self.low: Tensor = zero
        self.high: Tensor | None = zero

    def affine(self, node: Node[Affine], value: Tensor) -> tuple[Tensor, ...]:
        added = offset_of_rows(node.op, value)
        self._add(added, added)
        return transpose_rows(node.op, value)

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor:
        back, below, above = self.relaxations[node.index].pull_back(value)
        self._add(below, above)
        return back

    def _add(self, below: Tensor, above: Tensor | None) -> None:
        self.low = self.low + below
        self.high = None if self.high is None or above is None else self.high + above
