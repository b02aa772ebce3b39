"""`kw`: the dual bound of Wong and Kolter (ICML 2018), in other words Fast-Lin (Weng et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from relucert.bounding.backward import pull
from relucert.bounding.units import BUDGET, UnitBounds, unit_bounds
from relucert.core.ball import Ball
from relucert.core.methods import Method
from relucert.core.properties import Property
from relucert.networks.network import Network


@dataclass(frozen=True, kw_only=True)
class KW(Method):
    """Parallel lines at every unstable unit, intermediate bounds by the same relaxation and nothing else.

    With `intervals` the units' bounds meet with what intervals say, and only units that may still switch are walked from:
    tighter and faster, but not the published method. `budget`: bytes of memory for the walks.
    """

    name = "kw"
    intervals: bool = False
    budget: int = BUDGET

    def units(self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball) -> UnitBounds:
        """Bounds of all units."""
        return unit_bounds(net, x, ball, "parallel", intervals=self.intervals, budget=self.budget)

    def solve(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, asked: Property
    ) -> tuple[UnitBounds, Float[Tensor, " batch specs"]]:
        """Bounds of all units, and lower bounds on the property's margins over the ball; differentiable in the weights."""
        bounds = self.units(net, x, ball)
        found = pull(net.graph, len(net.graph) - 1, asked.rows, bounds.relaxations)
        return bounds, found.minimum(x, ball) + asked.offsets
