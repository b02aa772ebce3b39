"""The least margin of every example by adaptive and flat slopes, without flat slopes for rows that cannot have it.

A row's margin is the best of intervals, adaptive and flat slopes; an example's is the least of its rows. Adaptive slopes go
through the network for all rows. An example with a row that is not proved by then gets flat slopes for all rows, because
whoever goes on with the example needs them. All other examples get them first for the rows with the least margins so far. With
m the least margin of these rows afterwards, the example's margin is at most m, so that rows above m cannot have it, and flat
slopes go through the network for the rows below m alone.

So the least margins of examples are those of all rows by both slopes, up to rounding, and the same rows are proved. Other
margins of rows that are proved may be smaller. Rows go through the network in pieces whose relaxations stay in the cache.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.bounding.backward_bounds import BackwardBounds
from relucert.bounding.preactivations import UnitBounds, interval_margins
from relucert.bounding.propagation import pull_back
from relucert.bounding.relaxation import Rule
from relucert.bounding.rounding import Margins
from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.networks.network import Network


@torch.no_grad()
def least_margins(net: Network, bounds: UnitBounds, x: Tensor, ball: Ball, prop: Property, budget: int) -> Margins:
    """Margins of rows from known bounds of the units, of which the least of every example, and the signs, are exact.

    Exact means as large as the best of intervals, adaptive and flat slopes; not a number counts as minus infinity.
    """
    best = interval_margins(net, bounds, x, ball, prop).stacked().nan_to_num_(-math.inf, math.inf, -math.inf)
    rows = _Rows(net, bounds, BackwardBounds(net.graph, x, ball, budget), prop, best)
    rows.improve("adaptive", torch.ones_like(best[..., 0], dtype=torch.bool))
    tried = ~(best[..., 2] > 0).all(1, keepdim=True) | (best == best.amin(1, keepdim=True)).any(2)
    rows.improve("flat", tried)
    most = best.masked_fill(~tried.unsqueeze(2), math.inf).amin(1, keepdim=True)
    rows.improve("flat", (best < most).any(2) & ~tried)
    return Margins.unstacked(best)


class _Rows:
    """The rows of a property with the best margins `best` (batch, specs, 3) so far."""

    def __init__(
        self, net: Network, bounds: UnitBounds, work: BackwardBounds, prop: Property, best: Float[Tensor, " b s 3"]
    ):
        self.net, self.bounds, self.work, self.prop, self.best = net, bounds, work, prop, best

    def improve(self, rule: Rule, needed: Bool[Tensor, " batch specs"]) -> None:
        """Raise the margins of the needed rows by backward propagation through lines of a rule."""
        net, work, best = self.net, self.work, self.best
        for batch, rows, wanted in work.chosen(needed):
            some, prop = self.bounds.restrict(batch), self.prop.restrict(batch).select(rows)
            functional = pull_back(net.graph, len(net.graph) - 1, prop.rows, some.relaxed(net, rule), some.charge())
            found = functional.margins(work.x[batch], work.ball.restrict(batch)).plus(prop.offsets).stacked()
            places = rows.unsqueeze(2).expand(-1, -1, 3)
            old = best[batch].gather(1, places)
            # Rows that only fill up the table change nothing.
            new = torch.where(wanted.unsqueeze(2), torch.fmax(old, found), old)
            best[batch] = best[batch].scatter(1, places, new)
