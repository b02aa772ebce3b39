"""Roots of branch and bound over the ball cut with its box, no worse than over the ball alone.

A box makes the set smaller but not every bound better: slopes and norms follow from other intervals. What the ball alone proves
holds for its part inside the box, so pre-activation bounds are those of both, and of two margins the larger counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from relucert.bounding.interval import Interval
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.rounding import Margins
from relucert.verification.verifier import Query

Root = tuple[UnitBounds, Margins]


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
