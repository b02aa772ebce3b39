"""Radii by `auto`: what proves most for its cost goes first, and every step starts from what the steps before have proved.

A search over radii with CROWN, a short attack and the `best` one, in l2 a search with SDP-CROWN, the exploration of regions
from the radius that is certified by then, and narrowing by branch and bound. Each step has a share of the time; what it has not
finished by then is given up, and what was known before it is kept. So `lower` is never below that of CROWN, given the time that
CROWN takes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relucert.bounding.methods.crown import CROWN
from relucert.bounding.methods.sdp import SDP
from relucert.core.errors import OutOfTime
from relucert.core.methods import Method, spec
from relucert.core.results import RadiusInterval, meets, scattered
from relucert.geometry.theorem import Known, Region
from relucert.networks.traversal import ending
from relucert.verification._incomplete import pieces
from relucert.verification._intervals import Intervals, unknown
from relucert.verification._narrowing import Narrowing
from relucert.verification._search import RadiusSearch
from relucert.verification._upper import ROUNDING, attacked, refuse_contradictions
from relucert.verification.bab.bab import BaB
from relucert.verification.verifier import Budget, Query

#: Of the time that is left: at most so much for the attack, for SDP-CROWN and for the exploration of regions.
ATTACK_SHARE, SDP_SHARE, REGION_SHARE = 0.5, 0.3, 0.3
#: Neighbouring regions that are explored at most.
REGIONS = 50
#: Inputs of the first piece, so that the first intervals come soon, and of the largest.
FIRST, LARGEST = 4, 32
#: Passes forward that an input costs at most, in units of its hidden units: some ten bounds. An attack: some hundred steps.
SEARCH_PASSES, ATTACK_PASSES = 40, 3000

#: Better intervals of some inputs, from those that are known.
Step = Callable[[Query, RadiusInterval, float], RadiusInterval]


@dataclass(frozen=True)
class RadiusCascade:
    """`auto` as a radius method; `method` gives it its name, and at most `nodes` subproblems for each radius and input."""

    method: Method
    nodes: int

    def intervals(self, query: Query, budget: Budget, tol: float) -> Iterator[Intervals]:
        """The interval of every input, to a relative width of `tol` or until its seconds are spent."""
        for index in _growing(len(query)):
            part = query.restrict(index.to(query.x.device))
            own = Budget(budget.seconds, budget.until(len(part)))
            for places, found in self._narrowed(part, own, tol):
                yield Intervals(index[places], replace(found, method=[spec(self.method)] * len(found)))

    @torch.no_grad()
    def _narrowed(self, query: Query, budget: Budget, tol: float) -> Iterator[Intervals]:
        units = query.net.hidden_units
        first = _wrong(query, spec(self.method))
        first = _improved(query, first, budget, tol, _crown, SEARCH_PASSES * units)
        first = _improved(query, first, _share(budget, ATTACK_SHARE), tol, _quick_attack, ATTACK_PASSES // 10)
        first = _improved(query, first, _share(budget, ATTACK_SHARE), tol, _attack, ATTACK_PASSES)
        if query.p == 2:
            first = _improved(query, first, _share(budget, SDP_SHARE), tol, _sdp, SEARCH_PASSES * units)
        if not query.strict:
            first = _improved(query, first, _share(budget, REGION_SHARE), tol, _explore, SEARCH_PASSES * units)
        return Narrowing(query, BaB(nodes=self.nodes), first, budget, tol).run()


def _growing(count: int) -> Iterator[Tensor]:
    """The positions of `count` inputs in pieces, each twice as large as the one before it.

    >>> [len(piece) for piece in _growing(100)]
    [4, 8, 16, 32, 32, 8]
    """
    start, size = 0, FIRST
    while start < count:
        yield torch.arange(start, min(count, start + size))
        start, size = start + size, min(LARGEST, 2 * size)


def _share(budget: Budget, share: float) -> Budget:
    """The budget with a share of the time until its deadline."""
    left = budget.left
    return budget if math.isinf(left) else Budget(budget.seconds, time.monotonic() + share * max(0.0, left))


def _wrong(query: Query, name: str) -> RadiusInterval:
    """What is known at the beginning: misclassified inputs have the interval [0, 0], all others [0, inf]."""
    first, wrong = unknown(query.x, name), ~query.holds
    kept = wrong.reshape(-1, *(1,) * (query.x.dim() - 1))
    return replace(
        first, upper=torch.where(wrong, 0.0, first.upper), witness=torch.where(kept, query.x, torch.nan),
    )  # fmt: skip


def _improved(
    query: Query, known: RadiusInterval, budget: Budget, tol: float, step: Step, passes: int
) -> RadiusInterval:
    """The intervals after a step, for inputs whose interval is wider than `tol`, some at a time where time is short."""
    open_ = (query.holds & (known.upper > known.lower * (1 + tol))).nonzero()[:, 0]
    if len(open_) == 0 or budget.over:
        return known
    for start, part, deadline in pieces(query.restrict(open_), budget, passes):
        some, began = open_[start : start + len(part)], time.monotonic()
        before = known[some]
        with suppress(OutOfTime):
            found = step(part, before, min(deadline, budget.deadline))
            before = better(part.x, before, found)
        spent = (time.monotonic() - began) / len(part)
        known = scattered(known, some, replace(before, seconds=known.seconds[some] + spent))
        if budget.over:
            break
    return known


def better(x: Tensor, one: RadiusInterval, other: RadiusInterval) -> RadiusInterval:
    """The intersection of two intervals for every input: the larger lower end, and the nearer witness."""
    higher, nearer = other.lower > one.lower, other.upper < one.upper
    proved, upper = torch.maximum(one.lower, other.lower), torch.minimum(one.upper, other.upper)
    refuse_contradictions(proved, upper, one.method, ROUNDING)
    lower = torch.minimum(proved, upper)
    # A proved radius that is cut back to a witness by more than the tolerance is not exact.
    exact = meets(lower, upper) & meets(upper, proved) & (upper.isfinite() | lower.isinf())
    points = [torch.full_like(x, torch.nan) if each.witness is None else each.witness for each in (one, other)]
    witness = torch.where(nearer.reshape(-1, *(1,) * (x.dim() - 1)), points[1], points[0])
    covers = zip(higher.tolist(), (other.lower == one.lower).tolist(), one.arithmetic, other.arithmetic, strict=True)
    arithmetic = [b if more or (same and b == "executed") else a for more, same, a, b in covers]
    return RadiusInterval(lower, upper, exact, witness, one.seconds, one.method, arithmetic)


def _crown(query: Query, known: RadiusInterval, deadline: float) -> RadiusInterval:
    return RadiusSearch(CROWN()).searched(query, deadline)


def _attack(query: Query, known: RadiusInterval, deadline: float) -> RadiusInterval:
    with ending(deadline):
        return attacked(query, known, "best")


def _quick_attack(query: Query, known: RadiusInterval, deadline: float) -> RadiusInterval:
    with ending(deadline):
        return attacked(query, known, "fab(steps=10, targets=2)")


def _sdp(query: Query, known: RadiusInterval, deadline: float) -> RadiusInterval:
    return RadiusSearch(SDP()).searched(query, deadline)


def _explore(query: Query, known: RadiusInterval, deadline: float) -> RadiusInterval:
    seconds = math.inf if math.isinf(deadline) else max(0.0, deadline - time.monotonic()) / len(query)
    start = Known(radius=known.lower, seconds=0.8 * seconds)
    with ending(deadline):
        return Region(regions=REGIONS).radius(query.net, query.x, query.y, query.p, query.sides, start)
