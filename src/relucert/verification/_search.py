"""The largest radius that a bound certifies: a batched search that trusts only bounds it has evaluated.

`lower` is the largest radius at which the bound was evaluated and the margin was proved; no root is interpolated, and nothing
is assumed to be monotone (CROWN's margin is not). A certificate at a larger ball covers every smaller one. The search itself
may use whatever makes it fast: it starts from the linear estimate d_D, then tries the root of a curve through the margins.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.preactivations import Bounding
from relucert.core.ball import Ball
from relucert.core.errors import OutOfTime
from relucert.core.methods import spec
from relucert.core.results import RadiusInterval, meets
from relucert.core.rounding import cast_up
from relucert.geometry.distances import distances
from relucert.geometry.theorem import Region
from relucert.networks.traversal import ending
from relucert.verification._incomplete import BATCH, proved_margins
from relucert.verification._intervals import Intervals, unknown
from relucert.verification._upper import refuse_contradictions
from relucert.verification.verifier import Budget, Query

TOLERANCE = 0.01  # the search ends when a radius 1 % larger has failed
ROUNDS = 40
POWER = 5.0  # of the radius, with which relaxations lose the lead, as long as one margin is known
POWERS = (1.5, 8.0)  # its range when two are known


@dataclass(frozen=True)
class RadiusSearch:
    """A bounding method as a radius method."""

    method: Bounding

    def intervals(self, query: Query, budget: Budget, tol: float) -> Iterator[Intervals]:
        """The interval of every input: `lower` by the bound, `upper` by the witness of the region theorem, if it has one."""
        return Intervals.by_batches(query, BATCH, lambda part: self.searched(part, budget.until(len(part))))

    @torch.no_grad()
    def searched(self, query: Query, deadline: float) -> RadiusInterval:
        """The intervals that are known at the deadline; `lower` is then the largest radius that was proved by then."""
        started, name, dtype = time.perf_counter(), [spec(self.method)] * len(query), query.x.dtype
        try:
            with ending(deadline):
                first, search = theorem(query), _Search(query, self.method)
        except OutOfTime:
            seconds = torch.full_like(query.x.flatten(1)[:, 0], (time.perf_counter() - started) / len(query))
            return replace(unknown(query.x, name[0]), seconds=seconds)
        searched = -cast_up(-search.run(deadline), dtype)
        # The proved margins cover rounding in every dtype, so nothing explains a witness inside.
        refuse_contradictions(searched, first.upper, name)
        lower = torch.maximum(searched, first.lower)
        covered = (search.covered & (searched >= first.lower) & (searched > 0)).tolist()
        seconds = torch.full_like(lower, (time.perf_counter() - started) / max(1, len(query)))
        exact = meets(lower, first.upper) & (first.upper.isfinite() | lower.isinf())
        arithmetic = ["executed" if each else "real" for each in covered]
        return RadiusInterval(lower, first.upper, exact, first.witness, seconds, name, arithmetic)


def theorem(query: Query) -> RadiusInterval:
    """The intervals of the region theorem with one region; in a strict query its lower ends prove nothing and are zero."""
    found = Region(regions=0).radius(query.net, query.x, query.y, query.p, query.sides)
    if not query.strict:
        return found
    return replace(found, lower=torch.zeros_like(found.lower), exact=found.upper == 0)


class _Search:
    """Radii that were proved, radii that failed, and the margins at both; `covered`: where proofs hold as executed."""

    def __init__(self, query: Query, method: Bounding):
        self.query, self.method = query, method
        self.proved = query.wide.new_zeros(len(query))
        self.failed = torch.full_like(self.proved, math.inf)
        self.covered = torch.zeros_like(query.holds)
        self.above = query.prop.margins(query.double(query.wide)).amin(1)
        self.below, self.lead = torch.full_like(self.proved, -math.inf), self.above.clone()
        self.width, self.slow = torch.full_like(self.proved, math.inf), torch.zeros_like(self.proved)
        # A ball that reaches the farthest corner of the box holds all of it: a proof there holds for every radius.
        self.reach = query.reach()

    def run(self, deadline: float = math.inf) -> Float[Tensor, " batch"]:
        """The largest radii that are proved by the deadline."""
        with suppress(OutOfTime), ending(deadline):
            self._search()
        return self.proved

    def _search(self) -> None:
        query = self.query
        self.guess = distances(query.double, query.wide, query.y, query.p).decision.clamp(min=2e-6, max=2e3)
        trial = torch.minimum(0.5 * self.guess, self.reach)
        for _ in range(ROUNDS):
            wide = (self.failed > self.proved * (1 + TOLERANCE)) & (self.failed > 1e-6)
            open_ = (query.holds & wide & (self.proved < 1e3)).nonzero()[:, 0]
            if len(open_) == 0:
                break
            self._evaluate(open_, trial[open_])
            trial = self._next()

    def _evaluate(self, index: Tensor, eps: Tensor) -> None:
        """Bound the margins of some inputs at one radius each."""
        part = self.query.restrict(index)
        margins = proved_margins(replace(part, ball=Ball(part.p, eps, part.wide_sides)), self.method, alone=False)
        rows = torch.stack([margins.real, margins.executed], -1)
        lead = rows[..., 1 if part.strict else 0].nan_to_num(-math.inf, math.inf, -math.inf).amin(1).clamp(min=-1e30)
        proved = part.proves(rows).all(1)
        eps = torch.where(proved & (eps >= self.reach[index]), math.inf, eps)
        new = proved & (eps > self.proved[index])
        self.covered[index[new]] = (rows[..., 1] > 0).all(1)[new]
        for which, end, value in ((proved, self.proved, self.above), (~proved, self.failed, self.below)):
            place, old = index[which], end[index[which]]
            # A bound need not be monotone: what is proved at a larger radius than one that failed is proved all the same.
            further = eps[which] > old if end is self.proved else eps[which] < old
            end[place[further]], value[place[further]] = eps[which][further], lead[which][further]
        width = (self.failed / self.proved.clamp(min=1e-9))[index]
        self.slow[index] = torch.where(width.sqrt() > 1 + 0.5 * (self.width[index].sqrt() - 1), self.slow[index] + 1, 0)
        self.width[index] = width

    def _next(self) -> Tensor:
        """The next radii: near the estimated root, but far enough from both ends that one more answer can end the search."""
        low, high = self.proved, self.failed
        root = self._root()
        wider = 1 + 0.98 * TOLERANCE
        # A little below the root: a proof there leaves only a radius 1 % larger to try.
        trial = 0.997 * root
        trial = torch.where(trial < low * wider, low * wider, torch.where(trial > high / wider, high / wider, trial))
        middle = torch.where(low > 0, torch.sqrt(low * high), high / 16)
        stalled = high.isfinite() & (self.slow >= 3) & (self.slow % 2 == 1) & (high > low * wider)
        trial = torch.where(stalled, middle, trial)
        upwards = torch.minimum(torch.maximum(0.997 * root, wider * low), 2 * low).clamp(min=1e-6)
        trial = torch.where(high.isinf(), upwards, trial)
        return torch.minimum(trial, self.reach)

    def _root(self) -> Tensor:
        """The radius where the margin vanishes if the looseness of the relaxations grows like a power of the radius.

        Near x every margin is linear, and would vanish at the distance to the decision hyperplanes, the guess: a relaxation
        loses D(t) = lead (1 - t / guess) - margin. The power is that between the ends of the interval, if there are two.
        """
        low, high, two = self.proved, self.failed, self.failed.isfinite() & (self.proved > 0)
        tiny = 1e-9 * self.lead + 1e-300

        def lost(radius: Tensor, margin: Tensor) -> Tensor:
            return torch.maximum(self.lead * (1 - radius / self.guess) - margin, tiny)

        inner, outer = lost(low, self.above), lost(high, self.below)
        power = (outer / inner).log() / (high / low).log()
        power = torch.where(two, power.clamp(*POWERS), POWER)
        # The curve goes through the end whose margin is nearer to zero.
        by_low = high.isinf() | (two & (self.above < -self.below))
        anchor, size = torch.where(by_low, low, high), torch.where(by_low, inner, outer)
        least, most = low.clone(), torch.where(high.isfinite(), high, 2 * low.clamp(min=1e-6))
        for _ in range(30):
            middle = (least + most) / 2
            positive = self.lead * (1 - middle / self.guess) > size * (middle / anchor) ** power
            least, most = torch.where(positive, middle, least), torch.where(positive, most, middle)
        return most
