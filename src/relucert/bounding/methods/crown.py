"""`crown`: linear bounds with adaptive slopes (Zhang et al. 2018), never worse than with flat ones or than intervals."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.backward_bounds import BUDGET
from relucert.bounding.preactivations import Bounding, Tightening, UnitBounds, interval_margins, unit_bounds
from relucert.bounding.propagation import pull_back
from relucert.bounding.relaxation import Rule
from relucert.bounding.rounding import Margins
from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.networks.network import Network


@dataclass(frozen=True, kw_only=True)
class CROWN(Bounding):
    """Adaptive lower slopes, and flat ones, whichever proves more; intermediate bounds are intersected with intervals.

    `budget`: bytes of memory for backward propagation.
    """

    name = "crown"
    single = True
    budget: int = BUDGET

    def start(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, executed: torch.dtype | None = None
    ) -> UnitBounds:
        """Bounds of all units."""
        return unit_bounds(net, x, ball, Tightening(rule="adaptive", budget=self.budget), executed)

    def prove(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Margins]:
        """The margins; differentiable in the weights."""
        return known, crown_margins(net, known, x, ball, prop)


@dataclass(frozen=True, kw_only=True)
class AfterCROWN(Bounding):
    """A method that starts from CROWN's bounds of the units; no gradient in the weights."""

    budget: int = BUDGET

    @torch.no_grad()
    def start(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, executed: torch.dtype | None = None
    ) -> UnitBounds:
        """CROWN's bounds of the units."""
        return CROWN(budget=self.budget).start(net, x, ball, executed)


def crown_margins(net: Network, bounds: UnitBounds, x: Tensor, ball: Ball, prop: Property) -> Margins:
    """The margins from known bounds of the units: the best of adaptive slopes, flat slopes and intervals."""
    last = len(net.graph) - 1
    rules: tuple[Rule, ...] = "adaptive", "flat"
    found = interval_margins(net, bounds, x, ball, prop)
    for rule in rules:
        functional = pull_back(net.graph, last, prop.rows, bounds.relaxed(net, rule), bounds.charge())
        found = found.best(functional.margins(x, ball).plus(prop.offsets))
    return found


def mixed_margins(
    net: Network, bounds: UnitBounds, x: Tensor, ball: Ball, prop: Property
) -> Float[Tensor, " batch specs"]:
    """Margins by backward propagation with adaptive slopes from any bounds of the units: with intervals, CROWN-IBP."""
    found = pull_back(net.graph, len(net.graph) - 1, prop.rows, bounds.relaxed(net, "adaptive"))
    return found.minimum(x, ball) + prop.offsets
