"""Verifiers that answer one way only: bounds prove, attacks falsify. (Theorems about linear regions: `_regions`.)

A margin counts as proved when it is positive after rounding was charged (`bounding.rounding`).

A network in float32 is bounded in float32 first, with that rounding charged. What is near zero then is bounded in float64,
from the pre-activation bounds of float32: these hold for real arithmetic and for the executed network, whatever they were
computed in, and only what functionals of later passes round is charged again. Everything is computed in float64 where what
float32 was charged for rounding may be missing still.

Cheaper methods go first, each from the pre-activation bounds of the one before it; so do the verifiers of a cascade, within
one dtype. Inputs that are proved are left out, and so are rows of other inputs that are proved for the executed network.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.attacks.base import FixedAttack
from relucert.bounding.interval import Interval
from relucert.bounding.methods.crown import CROWN, Alpha
from relucert.bounding.methods.lipschitz import Lipschitz
from relucert.bounding.methods.moments import Moments
from relucert.bounding.methods.sdp import SDP
from relucert.bounding.preactivations import Bounding, KnownUnits, UnitBounds
from relucert.bounding.rounding import Margins
from relucert.core.errors import OutOfTime
from relucert.core.methods import Method, spec
from relucert.core.verdict import Reason
from relucert.networks.network import Network
from relucert.networks.prediction import descended
from relucert.networks.traversal import ending, regardless
from relucert.verification.verifier import Budget, Decision, Outcome, Query

BATCH = 100  # inputs whose radii are found together
CLOSE = 0.05  # of the lead at the input: margins of float32 that are not below minus this are computed again in float64
COUNTED = 2**28  # multiplications of a bound, counted for the worst case, that no clock ends
DESCENT = 3  # steps of the search for counterexamples outside the box
TIMES = 2.0  # what float32 was charged, so many times, may be won by pre-activation bounds in float64


@dataclass(frozen=True)
class Named:
    """A verifier that is made of a method, and named after it."""

    method: Method

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.method.name


@dataclass(frozen=True)
class Attack(Named):
    """An attack within the ball as a verifier."""

    method: FixedAttack

    @torch.no_grad()
    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """VULNERABLE where the attack finds a witness; the property must be "the class stays y"."""
        steps = getattr(self.method, "steps", 1) * getattr(self.method, "restarts", 1)
        for start, part, deadline in pieces(query, budget, 6 * steps):
            with ending(deadline):
                found = self._attacked(part)
            yield from _decisions(found, start, self.method)

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
class Bound(Named):
    """A bounding method as a verifier; `alone`: whether what it does not prove is bounded without the box as well."""

    method: Bounding
    alone: bool = True

    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """ROBUST where every row of the property is proved; open inputs have the margins of the rows that are.

        A method that can stop early has the seconds that the inputs have left together.
        """
        method, each = self.method, budget.each(len(query))
        if self.counted(query):
            with regardless():
                found = bounded(query, method, alone=self.alone)
            yield from _decisions(found, 0, self.method)
            return
        for start, part, deadline in pieces(query, budget, self._passes(query)):
            if isinstance(self.method, Alpha):
                left = min(float(each[start : start + len(part)].sum()), budget.left)
                method = replace(self.method, seconds=max(0.0, min(self.method.seconds, left)))
            with ending(deadline):
                found = bounded(part, method, alone=self.alone)
            yield from _decisions(found, start, self.method)

    def counted(self, query: Query) -> bool:
        """Whether the bound takes so few multiplications that it is finished whatever the clock says."""
        if isinstance(self.method, Alpha | Lipschitz):
            return False
        return self._passes(query) * query.net.graph.multiplications * len(query) <= COUNTED

    def _passes(self, query: Query) -> int:
        """The passes forward that an input costs, at most: a backward pass for every unit costs as much as some."""
        return 4 * query.net.hidden_units


@dataclass(frozen=True)
class TimedBound(Named):
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
            yield from _decisions(found, start, self.method)
            start += len(part)


def _decisions(found: Outcome, start: int, method: Method) -> Iterator[Decision]:
    """All decisions about a piece that begins at `start`; then the end, if the deadline has passed."""
    for decision in found.decisions(range(len(found.proved)), spec(method), found.witness.dtype):
        yield replace(decision, index=start + decision.index)
    if found.cut:
        raise OutOfTime


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
    """What a bounding method proves, until a deadline around the call: cheaper methods and bounds in float32 go first."""
    started, found, best = time.monotonic(), Outcome.nothing(query.x), _nothing_proved(query)
    try:
        margins = proved_margins(query, method, alone=alone, best=best)
    except OutOfTime:
        margins, found.cut = Margins.unstacked(_joint(best)), True
    rows = torch.stack([margins.real, margins.executed], -1)
    found.prove(query.proves(rows).all(1), rows, margins.computed)
    explain(found)
    if found.cut:
        found.timed, found.reasons = ~found.proved, dict.fromkeys(found.reasons, Reason.TIME)
    found.seconds += (time.monotonic() - started) / len(query)
    return found


def explain(found: Outcome) -> None:
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
    more, other = bound(replace(part, ball=part.ball.without_box(), units=None))
    inputs = {index: _met(within, more.inputs[index], some) for index, within in units.inputs.items()}
    best = margins.stacked()
    best[some] = torch.fmax(best[some], other.stacked())
    met = UnitBounds(inputs, _met(units.logits, more.logits, some), units.rounding)
    return met, Margins.unstacked(best)


def _met(within: Interval, other: Interval, some: Tensor) -> Interval:
    """An interval, cut with that of some examples."""
    both = within.restrict(some).known().meet(other.known())
    return Interval(within.lower.index_copy(0, some, both.lower), within.upper.index_copy(0, some, both.upper))


def proved_margins(query: Query, method: Bounding, *, alone: bool = True, best: Tensor | None = None) -> Margins:
    """The margins of all inputs by a bounding method, in float64; unless `alone`, bounds over balls without a box are left out.

    A box makes the set smaller but not every bound better: slopes and norms follow from other intervals. Where `alone`, what is
    not proved over the ball cut with the box is bounded over the ball alone as well, and the larger margins count, unless a
    counterexample shows that the ball alone cannot be proved. `best` (2, batch, specs, 3) has the margins over both kinds of
    balls that are known: of a call that a deadline ends those that it has proved by then.
    """
    best = _nothing_proved(query) if best is None else best
    if query.units is not None and query.row_margins is not None:
        best[0] = query.row_margins[..., [2, 0, 1]].nan_to_num(-math.inf, math.inf, -math.inf)
    exact = _Pass(query, method, query.double, query.wide, best, alone)
    everything = torch.ones(2, len(query), dtype=torch.bool, device=best.device)
    if not (method.single and query.net.dtype == torch.float32 and query.prop.fits(torch.float32)):
        exact.run(everything, share=True)
        return Margins.unstacked(_joint(best))
    first = _Pass(query, method, query.net, query.x, best, alone)
    first.run(everything, share=True)
    lead, charged = query.prop.margins(query.net(query.x).double()).amin(1), best[..., 0] - best[..., 2]
    near = _least_missing(best, best[..., 0]) > -CLOSE * lead
    if bool(near.any()):
        exact.started = first.started
        exact.run(near, first.units)
        near &= _least_missing(best, best[..., 2] + TIMES * charged) >= 0
    if bool(near.any()):
        exact.run(near, share=True)
    return Margins.unstacked(_joint(best))


def _nothing_proved(query: Query) -> Float[Tensor, " 2 batch specs 3"]:
    return query.wide.new_full((2, *query.prop.offsets.shape, 3), -math.inf)


def started(query: Query, method: Bounding, net: Network, x: Float[Tensor, " batch *input"]) -> UnitBounds:
    """The bounds of the units that a method starts from: those that an earlier one has left, or its own."""
    shared = query.units.of(net, query.x, query.ball) if query.units is not None and method.shares else None
    if shared is None:
        return method.start(net, x, query.ball, query.net.dtype)
    return shared.charged(net, x, query.ball, query.net.dtype)


def _joint(best: Float[Tensor, " 2 batch specs 3"]) -> Float[Tensor, " batch specs 3"]:
    """The better of the margins over balls cut with the box and over balls alone."""
    return torch.fmax(best[0], best[1])


def _least_missing(best: Float[Tensor, " 2 batch specs 3"], rows: Float[Tensor, " 2 batch specs"]) -> Tensor:
    """The least value (2, batch) among rows that are not proved for the executed network; what is not a number is -inf.

    It is -inf for inputs whose rows are all proved.
    """
    proved = _joint(best)[..., 2] > 0
    least = rows.nan_to_num(-math.inf, math.inf, -math.inf).masked_fill(proved, math.inf).amin(2)
    return least.masked_fill(proved.all(1), -math.inf)


@dataclass(eq=False)
class _Pass:
    """A bounding method on a network and inputs in one dtype.

    `best` (2, batch, specs, 3) has the best margins of all passes, over the balls of the query and over balls alone, `units`
    the pre-activation bounds of what is not proved for the executed network.
    """

    query: Query
    method: Bounding
    net: Network
    x: Float[Tensor, " batch *input"]
    best: Float[Tensor, " 2 batch specs 3"]
    alone: bool
    units: tuple[KnownUnits, KnownUnits] = field(default_factory=lambda: (KnownUnits(), KnownUnits()))
    #: When the first of the passes of a method began, which have its seconds together.
    started: float = field(default_factory=time.monotonic)

    def run(
        self, worth: Bool[Tensor, " 2 batch"], known: Sequence[KnownUnits] | None = None, *, share: bool = False
    ) -> None:
        """Raise the best margins of the inputs that are worth it, over the balls of the query, and then over balls alone.

        `known` has pre-activation bounds of another pass to go on from. With `share` those of this one are left to others.
        """
        query, ball, before = self.query, self.query.ball, known or (None, None)
        self.units = KnownUnits(), KnownUnits()
        index = worth[0].nonzero()[:, 0]
        if len(index):
            self._timed()._improve(0, index, query, before[0])
        if share and query.units is not None and self.method.shares:
            query.units.add(self.net, query.x, ball, self.units[0])
        if not self.alone or ball.box is None:
            return
        open_ = ~query.proves(_joint(self.best)[..., 1:]).all(1)
        index = (open_ & worth[1]).nonzero()[:, 0]
        index = index[ball.restrict(index).cut(self.x[index])]
        if len(index):
            # A counterexample in the ball alone: no bound over it can prove the input.
            row = _joint(self.best)[index][..., 0].argmin(1, keepdim=True)
            eps = ball.restrict(index).radii(query.x[index])
            prop = query.prop.restrict(index).select(row).to(query.x.dtype)
            index = index[~descended(query.net, query.x[index], prop, eps, query.p, DESCENT)]
        if len(index):
            self._timed()._improve(1, index, replace(query, ball=ball.without_box(), units=None), before[1])

    def _timed(self) -> _Pass:
        """The pass with the seconds that are left."""
        if not isinstance(self.method, Alpha | SDP | Moments) or math.isinf(self.method.seconds):
            return self
        left = max(0.0, self.method.seconds - (time.monotonic() - self.started))
        return replace(self, method=replace(self.method, seconds=left))

    def _improve(self, kind: int, open_: Int[Tensor, " open"], query: Query, before: KnownUnits | None) -> None:
        """Raise the best margins of open inputs over the balls of a query, which are of this kind."""
        known = None if before is None else self._recharged(open_, query, before)
        for stage in _stages(self.method):
            rows, needed = _unproved(_joint(self.best)[open_])
            x, ball = self.x[open_], query.ball.restrict(open_)
            prop = query.prop.restrict(open_).select(rows).to(x.dtype)
            known = started(query.restrict(open_), stage, self.net, x) if known is None else known
            prove = stage.prove_least if isinstance(stage, CROWN) and bool(needed.all()) else stage.prove
            known, margins = prove(self.net, known, x, ball, prop)
            places, best = rows.unsqueeze(2).expand(-1, -1, 3), self.best[kind, open_]
            old = best.gather(1, places)
            # Rows that only fill up the table change nothing: answers must be independent of batch composition.
            new = torch.where(needed.unsqueeze(2), torch.fmax(old, margins.stacked().double()), old)
            self.best[kind, open_] = best.scatter(1, places, new)
            best = _joint(self.best)[open_]
            open_left = ~query.proves(best[..., 1:]).all(1)
            done = (~open_left & ~(best[..., 2] > 0).all(1)).nonzero()[:, 0]
            self.units[kind].add(open_[done], known.restrict(done))
            left = open_left.nonzero()[:, 0]
            open_, known = open_[left], known.restrict(left)
            if len(open_) == 0:
                return
        assert known is not None
        self.units[kind].add(open_, known)

    def _recharged(self, index: Int[Tensor, " n"], query: Query, before: KnownUnits) -> UnitBounds | None:
        """Pre-activation bounds of another pass with the rounding of computations in the dtype of this one."""
        known = before.of(index)
        if known is None:
            return None
        return known.charged(self.net, self.x[index], query.ball.restrict(index), query.net.dtype)


def _stages(method: Bounding) -> tuple[Bounding, ...]:
    """The methods that a method contains, and the method itself: it need not go on where a row is decided or out of reach."""
    last = replace(method, early=True) if isinstance(method, Alpha) else method
    return *method.contains, last


def _unproved(
    margins: Float[Tensor, " batch specs 3"],
) -> tuple[Int[Tensor, " batch some"], Bool[Tensor, " batch some"]]:
    """The rows of each input that are not proved for the executed network, and which of the table's rows are such ones."""
    needed = ~(margins[..., 2] > 0)
    count = max(1, int(needed.sum(1).max()))
    rows = needed.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]
    return rows, needed.gather(1, rows)
