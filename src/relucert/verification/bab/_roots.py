"""Roots of branch and bound: pre-activation bounds and margins over whole balls.

Of deep networks the slopes of inner bounds are optimised, in float32 if possible (`deep_bounds`). A box makes the set smaller
but not every bound better: slopes and norms follow from other intervals. What the ball alone proves holds for its part inside
the box, so pre-activation bounds are those of both, and of two margins the larger counts (`better_of_both`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.methods.alpha import Alpha
from relucert.bounding.methods.crown import CROWN
from relucert.bounding.methods.sdp import SDP
from relucert.bounding.preactivations import Bounding, UnitBounds
from relucert.bounding.rounding import Margins, rounding_over
from relucert.verification.verifier import Budget, Query

ROOT_SHARE = 0.4  # of the seconds of a point, for its root in a deep network
AT_ONCE = 8  # points that are bounded between two looks at the clock, in l2 and in deep networks
Root = tuple[UnitBounds, Margins]


@dataclass(frozen=True)
class WholeBalls:
    """Bounds of the points of a query as a whole: alpha, in l2 SDP-CROWN, and CROWN when time is up; `memory` in bytes."""

    query: Query
    limits: Budget
    memory: int

    @property
    def deep(self) -> bool:
        """Whether slopes of inner bounds are optimised."""
        return self.query.p != 2 and Alpha().inner_steps(self.query.double) > 0

    def bound(self, given: tuple[Root, ...]) -> Root:
        """Pre-activation bounds and margins of all points, or those that are `given`."""
        query, size = self.query, AT_ONCE if self.deep or self.query.p == 2 else max(1, len(self.query))
        found = list(given) or [
            better_of_both(query.restrict(some), partial(self._root, some))
            for some in torch.arange(len(query)).split(size)
        ]
        units = UnitBounds.joined([units for units, _ in found])
        rounding = rounding_over(query.double, query.wide, query.ball, units.inputs, query.net.dtype)
        margins = Margins.unstacked(torch.cat([margins.stacked() for _, margins in found]))
        return replace(units, rounding=rounding), margins

    def _root(self, some: Int[Tensor, " points"], query: Query) -> Root:
        """Pre-activation bounds and margins over the balls of a query about the points `some`, or some of these."""
        left = min(float(self.limits.each(len(self.query))[some].sum()), self.limits.left)
        method: Bounding = Alpha(budget=self.memory, seconds=max(0.0, ROOT_SHARE * left))
        if query.p == 2:
            # Where the rows that SDP-CROWN proves are known, only the pre-activation bounds are new.
            steps = SDP.steps if query.row_margins is None else 0
            method = SDP(steps=steps, seconds=max(0.0, left), budget=self.memory)
        alone = query.ball.box is None and self.query.ball.box is not None  # seldom better, and other norms gain least
        if left <= 0 or (alone and query.p != 2):
            method = CROWN(budget=self.memory)
        elif self.deep:
            return deep_bounds(query, method)
        known = method.start(query.double, query.wide, query.ball, query.net.dtype)
        return method.prove(query.double, known, query.wide, query.ball, query.prop)


def better_of_both(query: Query, bound: Callable[[Query], Root]) -> Root:
    """Bounds of units and margins by `bound` over balls cut with the box, and over balls alone where these prove too little.

    What rounding does to the nodes is that of the smaller sets.
    """
    units, margins = bound(query)
    rows = torch.stack([margins.real, margins.executed], -1)
    if query.row_margins is not None:
        rows = torch.fmax(rows, query.row_margins[..., :2])
    open_ = ~query.proves(rows).all(1)
    if query.ball.box is None or not bool(open_.any()):
        return units, margins
    some = (open_ & query.ball.cut(query.wide)).nonzero()[:, 0]
    if not len(some):
        return units, margins
    part = query.restrict(some)
    more, other = bound(replace(part, ball=part.ball.without_box()))
    inputs = {index: _met(within, more.inputs[index], some) for index, within in units.inputs.items()}
    best = margins.stacked()
    best[some] = torch.fmax(best[some], other.stacked())
    met = UnitBounds(inputs, _met(units.logits, more.logits, some), units.rounding)
    return met, Margins.unstacked(best)


def _met(within: Interval, other: Interval, some: torch.Tensor) -> Interval:
    """An interval, cut with that of some examples."""
    both = within.restrict(some).known().meet(other.known())
    return Interval(within.lower.index_copy(0, some, both.lower), within.upper.index_copy(0, some, both.upper))


def deep_bounds(query: Query, method: Bounding) -> tuple[UnitBounds, Margins]:
    """Pre-activation bounds in float64, and margins.

    Where the network is in float32 so is the computation, with its rounding charged: that is twice as fast, and rounding is far
    below what optimised slopes gain.
    """
    net, double, ball, prop = query.net, query.double, query.ball, query.prop
    if net.dtype != torch.float32 or net.graph.max_pools or not prop.fits(torch.float32):
        return method.prove(double, method.start(double, query.wide, ball, net.dtype), query.wide, ball, prop)
    known = method.start(net, query.x, ball, net.dtype)
    units, margins = method.prove(net, known, query.x, ball, prop.to(torch.float32))
    return units.recharged(double, query.wide, ball), Margins.unstacked(margins.stacked().double())
