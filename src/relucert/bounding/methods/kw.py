"""`kw`: the dual bound of Wong and Kolter (ICML 2018), in other words Fast-Lin (Weng et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from relucert.bounding.base import Bounding
from relucert.bounding.preactivations import BUDGET, UnitBounds, unit_bounds
from relucert.bounding.propagation import pull_back
from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.networks.network import Network


@dataclass(frozen=True, kw_only=True)
class KW(Bounding):
    """Parallel bounds at every unstable unit, intermediate bounds by the same relaxation and nothing else.

    With `intervals` the units' bounds are intersected with interval arithmetic, and only unstable units are refined: tighter
    and faster, but not the published method. `budget`: bytes of memory for backward propagation.
    """

    name = "kw"
    intervals: bool = False
    budget: int = BUDGET

    def units(self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball) -> UnitBounds:
        """Bounds of all units."""
        return unit_bounds(net, x, ball, "parallel", intervals=self.intervals, budget=self.budget)

    def proceed(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Tensor]:
        """The margins; differentiable in the weights."""
        found = pull_back(net.graph, len(net.graph) - 1, prop.rows, known.relaxed(net, "parallel"))
        return known, found.minimum(x, ball) + prop.offsets
