"""The radius theorem as a radius method: the exploration of regions, started from the certified radius of a bound if wanted.

No decision changes within a certified radius r0. So decision hyperplanes that come up below r0 do not end the search, and all
keys count as at least r0: the answer is at least r0, and larger as soon as the regions nearer than r0 are explored. These
regions must be crossed all the same, since it is not known otherwise what lies behind them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from relucert.core.results import RadiusInterval
from relucert.geometry.theorem import Known, Region
from relucert.verification._incomplete import BATCH, refuse_strict
from relucert.verification._search import RadiusSearch
from relucert.verification.verifier import Budget, Intervals, Query


@dataclass(frozen=True)
class Exploration:
    """The radius theorem; `start` finds the certified radii that it starts from."""

    method: Region
    start: RadiusSearch | None = None

    def intervals(self, query: Query, budget: Budget, tol: float) -> Iterator[Intervals]:
        """Lower and upper ends, and which are exact, from one search; the time of the start counts."""
        refuse_strict(query, self.method.name)
        for index in torch.arange(len(query)).split(BATCH):
            yield Intervals(index, self._radius(query.restrict(index.to(query.x.device)), budget.restrict(index), tol))

    def _radius(self, query: Query, budget: Budget, tol: float) -> RadiusInterval:
        seconds = min(float(budget.each(len(query)).min()), budget.left / len(query))
        if self.start is None:
            known = Known(seconds=seconds)
            return self.method.radius(query.net, query.x, query.y, query.p, query.sides, known)
        began = time.monotonic()
        first = Intervals.joined(self.start.intervals(query, budget, tol))
        spent = (time.monotonic() - began) / len(query)
        own = math.inf if self.method.seconds is None else self.method.seconds
        known = Known(radius=first.lower, seconds=max(0.0, min(seconds, own) - spent))
        found = self.method.radius(query.net, query.x, query.y, query.p, query.sides, known)
        return replace(found, seconds=found.seconds + spent)
