"""Verifiers that answer one way only: the region theorem and bounds prove, attacks falsify.

A margin counts as proved when, less the rounding error of its bound, it exceeds the evaluation error of the network in its
dtype (`bounding.rounding`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.attacks.base import FixedAttack
from relucert.bounding.base import Bounding
from relucert.bounding.methods.moments import Moments
from relucert.bounding.methods.sdp import SDP
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.rounding import bound_error, evaluation_error
from relucert.core.methods import Method, spec
from relucert.core.norms import dual
from relucert.core.results import RadiusInterval
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms.row_norms import hyperplane_norms
from relucert.geometry.theorem import Region
from relucert.verification.verifier import Budget, Decision, Outcome, Query


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
    """The radius theorem as a verifier and as a radius method."""

    method: Region

    @torch.no_grad()
    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """ROBUST where the theorem's radius covers the ball and the ball lies in the linear region of x."""
        started, found = time.monotonic(), Outcome.nothing(query.x)
        margin, needed = self._margins(query)
        found.margin, found.proved = margin, margin > needed
        found.seconds += (time.monotonic() - started) / len(query)
        yield from found.decisions(range(len(query)), spec(self.method), query.x.dtype)

    def radius(self, query: Query, budget: Budget, tol: float) -> RadiusInterval:
        """The intervals of the theorem."""
        return self.method.radius(query.net, query.x, query.y, query.p, query.sides)

    def _margins(self, query: Query) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """The proved margins inside the linear region of x, -inf for a ball that leaves it, and what they must exceed.

        Inside the region every margin is linear: m(z) >= m(x) - eps ||V_y - V_s||_q. Where only neighbouring regions cover
        the ball the decision is proved to stay, but no margin is, so the evaluation error is not covered.
        """
        double, x, y, ball = query.double, query.wide, query.y, query.ball
        eps = ball.radii(x)
        region, values, logits = LinearRegion.evaluated(double, x)
        hyperplanes, classes = hyperplane_norms(region, y, dual(ball.p))
        away = torch.where(
            hyperplanes == 0, math.inf, region.margins_of(values, x) / torch.where(hyperplanes == 0, 1.0, hyperplanes)
        )
        near = away.amin(1) if away.shape[1] else x.new_full((len(x),), math.inf)
        inside = near * (1 - 1e-9) > eps
        # The theorem covers the rounding errors of the distances; it is needed only where the ball lies in the region.
        some = inside.nonzero()[:, 0]
        if len(some):
            part = query.restrict(some)
            proved = self.method.radius(part.net, part.x, part.y, part.p, part.sides, region.restrict(some))
            inside[some] = proved.lower > eps[some]
        own = torch.nn.functional.one_hot(y, double.classes).bool()
        lead = (logits.gather(1, y[:, None]) - logits - eps[:, None] * classes * (1 + 1e-9))[~own].reshape(len(x), -1)
        needed = evaluation_error(double, x, ball, {}, query.prop, query.net.dtype)
        lead = lead - bound_error(double, x, ball, {}, query.prop)
        margin, need = narrowest(lead, needed)
        return torch.where(inside, margin, torch.full_like(margin, -math.inf)), need


@dataclass(frozen=True)
class Attack(_Named):
    """An attack within the ball as a verifier."""

    method: FixedAttack

    @torch.no_grad()
    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """VULNERABLE where the attack finds a witness; the property must be "the class stays y"."""
        started, found = time.monotonic(), Outcome.nothing(query.x)
        generator = torch.Generator(device=query.x.device).manual_seed(self.method.seed)
        result = self.method.attack(query.net, query.x, query.y.long(), query.ball, generator)
        # The property holds at the inputs: an attack that calls an input itself a success saw other rounding in another batch.
        moved = (result.x != query.x).flatten(1).any(1)
        found.falsified, found.witness = result.success & moved, result.x
        found.seconds += (time.monotonic() - started) / len(query)
        yield from found.decisions(range(len(query)), spec(self.method), query.x.dtype)


@dataclass(frozen=True)
class Bound(_Named):
    """A bounding method as a verifier."""

    method: Bounding

    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """ROBUST where every row of the property is proved; open inputs have the margins of the rows that are."""
        return bounded(query, self.method, spec(self.method))


@dataclass(frozen=True)
class TimedBound(_Named):
    """A bounding method that takes seconds for an input: `chunk` inputs are bounded between two looks at the clock."""

    method: SDP | Moments
    chunk: int

    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """As `Bound`, in the seconds that the inputs have left."""
        each, start = budget.each(len(query)), 0
        for part in query.split(self.chunk):
            left = min(self.method.seconds, float(each[start : start + len(part)].sum()), budget.left)
            if budget.over:
                found = Outcome.nothing(part.x).decisions(range(len(part)), spec(self.method), part.x.dtype)
            else:
                found = bounded(part, replace(self.method, seconds=max(0.0, left)), spec(self.method))
            for decision in found:
                yield replace(decision, index=start + decision.index)
            start += len(part)


@torch.no_grad()
def bounded(query: Query, method: Bounding, name: str) -> Iterator[Decision]:
    """The decisions of a bounding method under a name."""
    started, found = time.monotonic(), Outcome.nothing(query.x)
    margin, needed, found.row_margins = proved_margins(query, method)
    found.margin, found.proved = margin, margin > needed
    found.seconds += (time.monotonic() - started) / len(query)
    yield from found.decisions(range(len(query)), name, query.x.dtype)


def proved_margins(
    query: Query, method: Bounding
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"], Float[Tensor, " batch specs"]]:
    """The smallest proved margin of every input, and the evaluation error that it must exceed.

    Last, the margins of the single rows that exceed their evaluation error, -inf for others. Cheaper methods that the method
    contains go first, each from the pre-activation bounds of the one before it; inputs that they prove are left out later.
    """
    double, x = query.double, query.wide
    margin, needed = x.new_full((len(x),), -math.inf), x.new_zeros(len(x))
    best, rows = (x.new_full(query.prop.offsets.shape, -math.inf) for _ in range(2))
    open_ = torch.arange(len(x), device=x.device)
    known: UnitBounds | None = None
    for stage in (*method.contains, method):
        ball, prop = query.ball.restrict(open_), query.prop.restrict(open_)
        known = stage.start(double, x[open_], ball) if known is None else known
        known, margins = stage.proceed(double, known, x[open_], ball, prop)
        margins = margins - bound_error(double, x[open_], ball, known.inputs, prop)
        best[open_] = margins = torch.fmax(best[open_], margins)
        errors = evaluation_error(double, x[open_], ball, known.inputs, prop, query.net.dtype)
        least, need = narrowest(margins, errors)
        margin[open_], needed[open_] = least, need
        rows[open_] = torch.maximum(rows[open_], torch.where(margins > errors, margins, -math.inf))
        left = (~(least > need)).nonzero()[:, 0]
        open_, known = open_[left], known.restrict(left)
        if len(open_) == 0:
            break
    return margin, needed, rows


def narrowest(margins: Tensor, needed: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest margin of every input, and what it must exceed for every row to exceed its error; NaN proves nothing."""
    least, spare = (part.nan_to_num(-math.inf, math.inf, -math.inf).amin(1) for part in (margins, margins - needed))
    return least, (least - spare).nan_to_num(0.0, math.inf, -math.inf)
