"""One backward walk: a linear functional of a node's value, bounded below by a linear functional of the input.

It serves Kolter-Wong, CROWN and alpha-CROWN alike, which differ only in the lines of the relaxations on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from relucert.bounding.relaxation import Lines, Winners
from relucert.core.ball import Ball
from relucert.networks.affine import Affine
from relucert.networks.graph import Graph

Relaxations = Mapping[int, Lines | Winners]


@dataclass(frozen=True, eq=False)
class Functional:
    """`rows z + low` (batch, rows) lies below the functional over the ball, `rows z + high` above (None: not known)."""

    rows: Float[Tensor, " batch rows *input"]
    low: Float[Tensor, " batch rows"]
    high: Float[Tensor, " batch rows"] | None

    def minimum(self, x: Tensor, ball: Ball) -> Float[Tensor, " batch rows"]:
        """The lower bound over the ball."""
        return ball.minimum(x, self.rows).value + self._at(x) + self.low

    def ends(self, x: Tensor, ball: Ball) -> tuple[Float[Tensor, " batch rows"], Float[Tensor, " batch rows"]]:
        """The lower and the upper bound over the ball."""
        assert self.high is not None
        least, greatest = ball.range(x, self.rows)
        value = self._at(x)
        return value + self.low + least, value + self.high + greatest

    def _at(self, x: Tensor) -> Tensor:
        return (self.rows.flatten(2) @ x.flatten(1).unsqueeze(2)).squeeze(2)


def pull(
    graph: Graph, node: int, functionals: Float[Tensor, " batch rows *shape"], relaxations: Relaxations
) -> Functional:
    """Walk from a node to the input; `relaxations` has the lines of every switching node on the way, by its index."""
    count, rows = functionals.shape[:2]
    found: dict[int, Tensor] = {node: functionals}
    low = functionals.new_zeros(count, rows)
    high: Tensor | None = low
    for index in range(node, 0, -1):
        if index not in found:
            continue
        here, output = graph[index], found.pop(index)
        if isinstance(here.op, Affine):
            flat = output.flatten(0, 1)
            zeros = (output.new_zeros(1, *graph[source].shape) for source in here.inputs)
            offset = here.op.apply(*zeros).flatten()
            added = (output.flatten(2) @ offset).reshape(count, rows)
            low, high = low + added, None if high is None else high + added
            parts = tuple(part.reshape(count, rows, *part.shape[1:]) for part in here.op.transpose(flat))
        else:
            back, below, above = relaxations[index].pull(output)
            low = low + below
            high = None if high is None or above is None else high + above
            parts = (back,)
        for source, part in zip(here.inputs, parts, strict=True):
            found[source] = found[source] + part if source in found else part
    rest = found.get(0)
    if rest is None:  # nothing on the way depends on the input
        rest = functionals.new_zeros(count, rows, *graph[0].shape)
    return Functional(rest, low, high)
