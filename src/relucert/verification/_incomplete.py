"""Verifiers that answer one way only: the region theorem and bounds prove, attacks falsify.

A margin counts as proved when it is positive after rounding was charged (`bounding.rounding`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
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
from relucert.networks.network import Network
from relucert.verification.verifier import Budget, Decision, Intervals, Outcome, Query

BATCH = 100  # inputs whose radii are found together

CLOSE = 0.05  # of the lead at the input: margins of float32 that are not below minus this are computed again in float64


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
        started, found = time.monotonic(), Outcome.nothing(query.x)
        generator = torch.Generator().manual_seed(self.method.seed)
        result = self.method.attack(query.net, query.x, query.y.long(), query.ball, generator)
        # The property holds at the inputs: an attack that calls an input itself a success saw other rounding in another batch.
        moved = (result.x != query.x).flatten(1).any(1)
        found.falsified, found.witness = result.success & moved, result.x
        found.seconds += (time.monotonic() - started) / len(query)
        yield from found.decisions(range(len(query)), spec(self.method), query.x.dtype)


@dataclass(frozen=True)
class Bound(_Named):
    """A bounding method as a verifier; `alone`: whether what it does not prove is bounded without the box as well."""

    method: Bounding
    alone: bool = True

    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """ROBUST where every row of the property is proved; open inputs have the margins of the rows that are.

        A method that can stop early has the seconds that the inputs have left together.
        """
        method = self.method
        if isinstance(method, Alpha):
            left = min(float(budget.each(len(query)).sum()), budget.left)
            method = replace(method, seconds=max(0.0, min(method.seconds, left)))
        return bounded(query, method, spec(self.method), alone=self.alone)


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
            if budget.over:
                found = Outcome.nothing(part.x).decisions(range(len(part)), spec(self.method), part.x.dtype)
            else:
                method = replace(self.method, seconds=max(0.0, left))
                found = bounded(part, method, spec(self.method), alone=self.alone)
            for decision in found:
                yield replace(decision, index=start + decision.index)
            start += len(part)


@torch.no_grad()
def bounded(query: Query, method: Bounding, name: str, *, alone: bool = True) -> Iterator[Decision]:
    """The decisions of a bounding method under a name."""
    started, found = time.monotonic(), Outcome.nothing(query.x)
    margins = proved_margins(query, method, alone=alone)
    rows = torch.stack([margins.real, margins.executed], -1)
    found.prove(query.proves(rows).all(1), rows, margins.computed)
    _explain(found)
    found.seconds += (time.monotonic() - started) / len(query)
    yield from found.decisions(range(len(query)), name, query.x.dtype)


def _explain(found: Outcome) -> None:
    """Note why inputs are not proved: the computed bound is not positive, or not any more when rounding is charged."""
    for place in (~found.proved).nonzero()[:, 0].tolist():
        found.reasons[place] = Reason.ROUNDING if float(found.computed[place]) > 0 else Reason.BOUND


def proved_margins(query: Query, method: Bounding, *, alone: bool = True) -> Margins:
    """The margins of all inputs by a bounding method, in float64; unless `alone`, bounds over balls without a box are left out.

    For a network in float32 the method goes first in float32, with its rounding charged. What is not proved of the executed
    network by then is bounded in float64, where the margin is so near to zero that rounding may be what is missing.
    """
    if not (method.single and query.net.dtype == torch.float32 and query.prop.fits(torch.float32)):
        return _margins(query, method, query.double, query.wide, alone=alone)
    found = _margins(query, method, query.net, query.x, alone=alone)
    best = found.stacked().double()
    lead = query.prop.margins(query.net(query.x).double()).amin(1)
    computed = found.computed.double().nan_to_num(-math.inf, math.inf, -math.inf).amin(1)
    near = ~(best[..., 2] > 0).all(1) & (computed > -CLOSE * lead)
    some = near.nonzero()[:, 0]
    if len(some):
        part = query.restrict(some)
        best[some] = torch.fmax(best[some], _margins(part, method, part.double, part.wide, alone=alone).stacked())
    return Margins.unstacked(best)


def _margins(
    query: Query, method: Bounding, net: Network, x: Float[Tensor, " batch *input"], *, alone: bool
) -> Margins:
    """The margins of all inputs by a bounding method, in the dtype of x.

    A box makes the set smaller but not every bound better: slopes and norms follow from other intervals. Where `alone`, what is
    not proved over the ball cut with the box is bounded over the ball alone as well, and the larger margins count.
    """
    best, started = x.new_full((*query.prop.offsets.shape, 3), -math.inf), time.monotonic()
    open_ = _improve(best, torch.arange(len(x), device=x.device), query, method, (net, x))
    if alone and query.ball.box is not None and len(open_):
        cut = open_[query.ball.restrict(open_).cut(x[open_])]
        if isinstance(method, SDP | Moments):
            method = replace(method, seconds=max(0.0, method.seconds - (time.monotonic() - started)))
        if len(cut):
            _improve(best, cut, replace(query, ball=query.ball.without_box()), method, (net, x))
    return Margins.unstacked(best)


def _improve(
    best: Float[Tensor, " batch specs 3"],
    open_: Int[Tensor, " open"],
    query: Query,
    method: Bounding,
    bounded: tuple[Network, Float[Tensor, " batch *input"]],
) -> Int[Tensor, " left"]:
    """Raise the best margins of open inputs to those of a bounding method; which inputs are still not proved.

    The network and its inputs are those of `bounded`. Cheaper methods that the method contains go first, each from the
    pre-activation bounds of the one before it; inputs that they prove are left out later, and so are rows of other inputs
    that they prove for the executed network as well.
    """
    net, x = bounded
    known: UnitBounds | None = None
    for stage in (*method.contains, method):
        rows, needed = _unproved(best[open_])
        ball, prop = query.ball.restrict(open_), query.prop.restrict(open_).select(rows).to(x.dtype)
        known = stage.start(net, x[open_], ball, query.net.dtype) if known is None else known
        known, margins = stage.prove(net, known, x[open_], ball, prop)
        places = rows.unsqueeze(2).expand(-1, -1, 3)
        before = best[open_].gather(1, places)
        # Rows that only fill up the table change nothing: answers must be independent of batch composition.
        after = torch.where(needed.unsqueeze(2), torch.fmax(before, margins.stacked()), before)
        best[open_] = best[open_].scatter(1, places, after)
        left = (~query.proves(best[open_][..., 1:]).all(1)).nonzero()[:, 0]
        open_, known = open_[left], known.restrict(left)
        if len(open_) == 0:
            break
    return open_


def _unproved(
    margins: Float[Tensor, " batch specs 3"],
) -> tuple[Int[Tensor, " batch some"], Bool[Tensor, " batch some"]]:
    """The rows of each input that are not proved for the executed network, and which of the table's rows are such ones."""
    needed = ~(margins[..., 2] > 0)
    count = max(1, int(needed.sum(1).max()))
    rows = needed.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]
    return rows, needed.gather(1, rows)


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
    return units.recharged(double, query.wide, ball), Margins.unstacked(margins.stacked().double())
