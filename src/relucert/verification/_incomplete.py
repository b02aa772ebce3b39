"""Verifiers that answer one way only: the region theorem and bounds prove, attacks falsify.

A margin counts as proved when it is positive after rounding was charged (`bounding.rounding`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from relucert.attacks.base import FixedAttack
from relucert.bounding.interval import Interval
from relucert.bounding.methods.alpha import Alpha
from relucert.bounding.methods.ibp import IBP
from relucert.bounding.methods.moments import Moments
from relucert.bounding.methods.sdp import SDP
from relucert.bounding.preactivations import Bounding, UnitBounds
from relucert.bounding.propagation import pull_back
from relucert.bounding.relaxation import relax
from relucert.bounding.rounding import Margins
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method, spec
from relucert.core.norms import dual
from relucert.core.results import RadiusInterval
from relucert.core.verdict import Reason
from relucert.geometry.exploration.universal import Universal
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms.row_norms import hyperplane_norms
from relucert.geometry.theorem import Known, Region
from relucert.networks.traversal import ending
from relucert.verification._intervals import Intervals
from relucert.verification._proving import proved_margins
from relucert.verification.verifier import Budget, Decision, Outcome, Query

BATCH = 100  # inputs whose radii are found together


@dataclass(frozen=True)
class _Named:
    """A verifier that is made of a method, and named after it."""

    method: Method

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.method.name


@dataclass(frozen=True)
class RegionTheorem(_Named):
    """The radius theorem as a verifier."""

    method: Region

    @torch.no_grad()
    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """ROBUST where the theorem's radius covers the ball and the ball lies in the linear region of x."""
        started, found = time.monotonic(), Outcome.nothing(query.x)
        inside, margins = self._margins(query)
        rows = torch.where(inside[:, None, None], torch.stack([margins.real, margins.executed], -1), -math.inf)
        found.prove(query.proves(rows).all(1), rows, margins.computed.where(inside[:, None], -math.inf))
        _explain(found)
        found.seconds += (time.monotonic() - started) / len(query)
        yield from found.decisions(range(len(query)), spec(self.method), query.x.dtype)

    def intervals(self, query: Query, budget: Budget, tol: float) -> Iterator[Intervals]:
        """The intervals of the theorem, which is about real arithmetic."""
        self._refuse_strict(query)
        return Intervals.by_batches(query, BATCH, self._radius)

    def _refuse_strict(self, query: Query) -> None:
        if query.strict:
            raise InvalidInput(
                f"arithmetic must be 'real' for a radius by {self.name}, whose theorem is about real arithmetic, got 'executed'"
            )

    def _radius(self, part: Query) -> RadiusInterval:
        return self.method.radius(part.net, part.x, part.y, part.p, part.sides)

    def _margins(self, query: Query) -> tuple[Bool[Tensor, " batch"], Margins]:
        """Which balls lie inside the linear region of x, and the margins there, where the network is linear.

        Where only neighbouring regions cover the ball the decision is proved to stay, but no margin is.
        """
        double, x, y, ball = query.double, query.wide, query.y, query.ball
        eps = ball.radii(x)
        region, values, _ = LinearRegion.evaluated(double, x)
        hyperplanes, _ = hyperplane_norms(region, y, dual(ball.p))
        away = torch.where(
            hyperplanes == 0, math.inf, region.margins_of(values, x) / torch.where(hyperplanes == 0, 1.0, hyperplanes)
        )
        near = away.amin(1) if away.shape[1] else x.new_full((len(x),), math.inf)
        inside = near * (1 - 1e-9) > eps
        # The theorem covers the rounding errors of the distances; it is needed only where the ball lies in the region.
        some = inside.nonzero()[:, 0]
        if len(some):
            part = query.restrict(some)
            proved = self.method.radius(
                part.net, part.x, part.y, part.p, part.sides, Known(region=region.restrict(some))
            )
            inside[some] = proved.lower > eps[some]
        return inside, _region_margins(query, values)


@dataclass(frozen=True)
class UniversalTheorem(RegionTheorem):
    """The radius of every l_p from distances in l_1 and l_inf as a verifier and as a radius method."""

    method: Universal  # type: ignore[assignment]

    def _margins(self, query: Query) -> tuple[Bool[Tensor, " batch"], Margins]:
        proved = self.method.radius(query.net, query.x, query.y, query.p).lower
        _, values, _ = LinearRegion.evaluated(query.double, query.wide)
        return proved > query.ball.radii(query.wide), _region_margins(query, values)


def _region_margins(query: Query, values: list[Tensor]) -> Margins:
    """The smallest margins over the ball of the linear function that the network is in the region of x.

    `values` are the inputs of the switching nodes at x.
    For the executed network they hold where rounding cannot change the pattern: all units are stable by interval arithmetic.
    """
    double, x, ball = query.double, query.wide, query.ball
    bounds = IBP().start(double, x, ball, query.net.dtype)
    lines = {
        node.index: relax(node.op, Interval(value, value), "adaptive", bounds.drift(node.index))
        for node, value in zip(double.switches, values, strict=True)
    }
    functional = pull_back(double.graph, len(double.graph) - 1, query.prop.rows, lines, bounds.charge())
    found = functional.margins(x, ball).plus(query.prop.offsets)
    stable = x.new_ones(len(x), dtype=torch.bool)
    for node in double.switches:
        within = bounds.inputs[node.index]
        line = relax(node.op, within, "parallel")
        fixed = ~within.unstable if node.op.decided_by_sign else line.offset == 0
        stable &= fixed.flatten(1).all(1)
    return replace(found, executed=torch.where(stable[:, None], found.executed, -math.inf))


@dataclass(frozen=True)
class Attack(_Named):
    """An attack within the ball as a verifier."""

    method: FixedAttack

    @torch.no_grad()
    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """VULNERABLE where the attack finds a witness; the property must be "the class stays y"."""
        steps = getattr(self.method, "steps", 1) * getattr(self.method, "restarts", 1)
        for start, part, deadline in pieces(query, budget, 6 * steps):
            with ending(deadline):
                found = self._attacked(part)
            for decision in found.decisions(range(len(part)), spec(self.method), query.x.dtype):
                yield replace(decision, index=start + decision.index)

    def _attacked(self, query: Query) -> Outcome:
        started, found = time.monotonic(), Outcome.nothing(query.x)
        generator = torch.Generator().manual_seed(self.method.seed)
        result = self.method.attack(query.net, query.x, query.y.long(), query.ball, generator)
        # The property holds at the inputs: an attack that calls an input itself a success saw other rounding in another batch.
        moved = (result.x != query.x).flatten(1).any(1)
        found.falsified, found.witness = result.success & moved, result.x
        found.seconds += (time.monotonic() - started) / len(query)
        return found


@dataclass(frozen=True)
class Bound(_Named):
    """A bounding method as a verifier; `alone`: whether what it does not prove is bounded without the box as well."""

    method: Bounding
    alone: bool = True

    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """ROBUST where every row of the property is proved; open inputs have the margins of the rows that are.

        A method that can stop early has the seconds that the inputs have left together.
        """
        method, each = self.method, budget.each(len(query))
        # A backward pass for every unit costs as much as some passes forward.
        for start, part, deadline in pieces(query, budget, 4 * query.net.hidden_units):
            if isinstance(self.method, Alpha):
                left = min(float(each[start : start + len(part)].sum()), budget.left)
                method = replace(self.method, seconds=max(0.0, min(self.method.seconds, left)))
            with ending(deadline):
                found = bounded(part, method, alone=self.alone)
            for decision in found.decisions(range(len(part)), spec(self.method), query.x.dtype):
                yield replace(decision, index=start + decision.index)


@dataclass(frozen=True)
class TimedBound(_Named):
    """A bounding method that takes seconds for an input: `chunk` inputs are bounded between two looks at the clock.

    `alone` is that of `Bound`.
    """

    method: SDP | Moments
    chunk: int
    alone: bool = True

    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """As `Bound`, in the seconds that the inputs have left."""
        each, start = budget.each(len(query)), 0
        for part in query.split(self.chunk):
            left = min(self.method.seconds, float(each[start : start + len(part)].sum()), budget.left)
            method = replace(self.method, seconds=max(0.0, left))
            found = Outcome.nothing(part.x) if budget.over else bounded(part, method, alone=self.alone)
            for decision in found.decisions(range(len(part)), spec(self.method), part.x.dtype):
                yield replace(decision, index=start + decision.index)
            start += len(part)


def pieces(query: Query, budget: Budget, passes: int) -> Iterator[tuple[int, Query, float]]:
    """The query as a whole, or in pieces where the deadline may pass first, so that what is found out of a piece is kept.

    An input costs about `passes` passes forward, at most. Pieces begin with one input; each has at most twice as many as the
    one before, as many as take half of the time that is left at the same pace. With each comes the number of inputs before it,
    and a deadline of its own: a piece that takes more than half of that time, and more than its inputs may cost,
    is given up, and so are all after it, so that other verifiers have the rest.
    """
    if math.isinf(budget.deadline) or _pass_seconds(query) * passes * len(query) < budget.left:
        yield 0, query, budget.deadline
        return
    start, size, each = 0, 1, budget.each(len(query))
    while start < len(query):
        part = query.restrict(torch.arange(start, min(start + size, len(query)), device=query.x.device))
        began, own = time.monotonic(), float(each[start : start + size].clamp(min=0).sum())
        yield start, part, began + max(own, (budget.deadline - began) / 2)
        pace = (time.monotonic() - began) / len(part)
        start, size = start + len(part), 2 * size
        while size > 1 and 2 * size * pace > budget.left:
            size //= 2


def _pass_seconds(query: Query) -> float:
    """The seconds of a pass forward with one input, from a few."""
    few, began = query.x[:8], time.monotonic()
    with torch.no_grad():
        query.net(few)
    return (time.monotonic() - began) / len(few)


@torch.no_grad()
def bounded(query: Query, method: Bounding, *, alone: bool = True) -> Outcome:
    """What a bounding method proves."""
    started, found = time.monotonic(), Outcome.nothing(query.x)
    margins = proved_margins(query, method, alone=alone)
    rows = torch.stack([margins.real, margins.executed], -1)
    found.prove(query.proves(rows).all(1), rows, margins.computed)
    _explain(found)
    found.seconds += (time.monotonic() - started) / len(query)
    return found


def _explain(found: Outcome) -> None:
    """Note why inputs are not proved: the computed bound is not positive, or not any more when rounding is charged."""
    for place in (~found.proved).nonzero()[:, 0].tolist():
        found.reasons[place] = Reason.ROUNDING if float(found.computed[place]) > 0 else Reason.BOUND


Root = tuple[UnitBounds, Margins]


def better_of_both(query: Query, bound: Callable[[Query], Root]) -> Root:
    """Bounds of units and margins by `bound` over balls cut with the box, and over balls alone where these prove too little.

    A box makes the set smaller but not every bound better. What the ball alone proves holds for its part inside the box, so
    pre-activation bounds are those of both, and of two margins the larger counts. What rounding does to the nodes is that of
    the smaller sets.
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
    """Pre-activation bounds of deep networks in float64, and margins, by a method that optimises inner slopes.

    Where the network is in float32 so is the computation, with its rounding charged: that is twice as fast, and rounding is far
    below what optimised slopes gain.
    """
    net, double, ball, prop = query.net, query.double, query.ball, query.prop
    if net.dtype != torch.float32 or net.graph.max_pools or not prop.fits(torch.float32):
        return method.prove(double, method.start(double, query.wide, ball, net.dtype), query.wide, ball, prop)
    known = method.start(net, query.x, ball, net.dtype)
    units, margins = method.prove(net, known, query.x, ball, prop.to(torch.float32))
    return units.charged(double, query.wide, ball, net.dtype), Margins.unstacked(margins.stacked().double())
