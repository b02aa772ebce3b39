"""`kw`: the dual bound of Wong and Kolter (ICML 2018), in other words Fast-Lin (Weng et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding._gradient_bounds import GradientBounds
from relucert.bounding.backward_bounds import BUDGET
from relucert.bounding.preactivations import Bounding, Tightening, UnitBounds, unit_bounds
from relucert.bounding.propagation import pull_back
from relucert.bounding.rounding import Margins
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
    single = True
    intervals: bool = False
    budget: int = BUDGET

    def start(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, executed: torch.dtype | None = None
    ) -> UnitBounds:
        """Bounds of all units; where rounding is charged, of stable units whatever shows that they are."""
        # The relaxation of a max pool depends on all of its inputs, and gradients are those of the tight bounds.
        loose = executed is not None and not net.graph.max_pools and not torch.is_grad_enabled()
        how = Tightening(rule="parallel", intervals=self.intervals, loose=loose, budget=self.budget)
        return unit_bounds(net, x, ball, how, executed)

    def prove(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Margins]:
        """The margins; differentiable in the weights."""
        last, relaxed = len(net.graph) - 1, known.relaxed(net, "parallel")
        training = GradientBounds(net.graph, x, ball)
        if known.charge() is None and training.serves(relaxed):
            return known, Margins.charged(training.margins(prop.rows, relaxed), None).plus(prop.offsets)
        found = pull_back(net.graph, last, prop.rows, relaxed, known.charge())
        return known, found.margins(x, ball).plus(prop.offsets)
