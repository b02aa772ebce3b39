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
from functools import partial

import torch

from relucert.core.errors import OutOfTime
from relucert.core.methods import spec
from relucert.core.results import RadiusInterval
from relucert.geometry.theorem import Known
from relucert.networks.traversal import ending
from relucert.verification._incomplete import BATCH
from relucert.verification._intervals import Intervals, unknown
from relucert.verification._regions import RegionTheorem
from relucert.verification._search import RadiusSearch
from relucert.verification.verifier import Budget, Query


@dataclass(frozen=True)
class Exploration(RegionTheorem):
    """The radius theorem; `start` finds the certified radii that it starts from."""

    start: RadiusSearch | None = None

    def intervals(self, query: Query, budget: Budget, tol: float) -> Iterator[Intervals]:
        """Lower and upper ends, and which are exact, from one search; the time of the start counts."""
        self._refuse_strict(query)
        return Intervals.by_batches(query, BATCH, partial(self._explored, budget=budget, tol=tol))

    def _explored(self, part: Query, budget: Budget, tol: float) -> RadiusInterval:
        own = math.inf if self.method.seconds is None else self.method.seconds
        seconds = min(own, float(torch.as_tensor(budget.seconds).min()))
        began, certified = time.monotonic(), None
        if self.start is not None:
            certified = Intervals.joined(self.start.intervals(part, budget, tol)).lower
        spent = (time.monotonic() - began) / len(part)
        left = min(seconds - spent, budget.left / len(part))
        known = Known(radius=certified, seconds=max(0.0, left))
        try:
            with ending(time.monotonic() + max(0.0, left) * len(part)):
                found = self.method.radius(part.net, part.x, part.y, part.p, part.sides, known)
        except OutOfTime:
            found = unknown(part.x, spec(self.method))
            found = found if certified is None else replace(found, lower=certified)
            spent = (time.monotonic() - began) / len(part)
        return replace(found, seconds=found.seconds + spent)
