"""`ibp`: interval bound propagation (Gowal et al. 2018; Mirman et al. 2018), its last matrix multiplied into the property."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.preactivations import Bounding, Tightening, UnitBounds, interval_margins, unit_bounds
from relucert.bounding.rounding import Margins
from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.networks.network import Network


@dataclass(frozen=True, kw_only=True)
class IBP(Bounding):
    """Intervals from node to node; exact up to the first switching node. Margins grow as ball and box shrink."""

    name = "ibp"
    single = True

    def start(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, executed: torch.dtype | None = None
    ) -> UnitBounds:
        """Bounds of all units."""
        return unit_bounds(net, x, ball, Tightening(rule=None), executed)

    def prove(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Margins]:
        """The margins; differentiable in the weights."""
        return known, interval_margins(net, known, x, ball, prop)
