"""Radii by a complete verifier: the interval is narrowed until its ends meet to a tolerance, or time is up.

The upper end starts at an attack's witness, the lower end at a bound's radius. An interval of relative width `tol` needs a
proof at upper / (1 + tol), so that radius is tried first: a proof there ends the search, and a witness lowers the upper end;
the next radius is then further below it. After a radius that could not be decided, one nearer to the lower end is tried. Every
witness cuts off all larger radii, every proof all smaller ones. A search goes on from the subproblems that the last one at a
larger radius left open: what was closed stays closed. Where no witness is known, the first radius covers the whole box: a
proof there holds for every radius.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.bounding.methods.crown import CROWN
from relucert.core.ball import Ball
from relucert.core.errors import OutOfTime
from relucert.core.methods import spec
from relucert.core.results import RadiusInterval, Verdict, meets
from relucert.core.rounding import cast_up, length_up
from relucert.networks.traversal import ending
from relucert.verification._incomplete import BATCH
from relucert.verification._intervals import Intervals
from relucert.verification._search import RadiusSearch
from relucert.verification._upper import ROUNDING, attacked, refuse_contradictions
from relucert.verification.bab.bab import BaB
from relucert.verification.verifier import Budget, Query, SavedSubproblems, Verifier, in_time

ROUNDS = 60
SHARE = 0.5  # of the time that an input has left, for one radius


@dataclass(frozen=True)
class RadiusNarrowing:
    """Branch and bound as a radius method."""

    method: BaB

    def intervals(self, query: Query, budget: Budget, tol: float) -> Iterator[Intervals]:
        """The interval of every input, to a relative width of `tol` or until its seconds are spent."""
        for index in torch.arange(len(query)).split(BATCH):
            part = query.restrict(index.to(query.x.device))
            started, deadline = time.monotonic(), budget.until(len(part))
            first = RadiusSearch(CROWN()).searched(part, deadline)
            with suppress(OutOfTime), ending(deadline):
                first = attacked(part, first, "best")
            spent = torch.full_like(first.lower, (time.monotonic() - started) / len(part))
            first, own = replace(first, seconds=spent), Budget(budget.seconds, deadline)
            for places, found in Narrowing(part, self.method, first, own, tol).run():
                yield Intervals(index[places], found)


class Narrowing:
    """The intervals of some inputs, beginning with `first`, and the smallest radii that could not be decided.

    An input may cost the seconds of the `budget`, those of `first` included.
    """

    def __init__(self, query: Query, method: BaB, first: RadiusInterval, budget: Budget, tol: float):
        self.query, self.method, self.tol, self.deadline = query, method, tol, budget.deadline
        self.limit = float(torch.as_tensor(budget.seconds).amin())
        self.lower, self.upper = first.lower.double(), first.upper.double()
        self.witness = torch.full_like(query.x, math.nan) if first.witness is None else first.witness.clone()
        self.arithmetic = list(first.arithmetic)
        self.blocked = torch.full_like(self.lower, math.inf)
        self.hits = torch.zeros_like(self.lower)
        self.seconds = first.seconds.double()
        self.open = query.holds.clone()
        self.reach = query.reach()
        self.saved: dict[int, SavedSubproblems] = {}
        self.saved_at = torch.zeros_like(self.lower)  # the radii of their balls

    def guess(self, radii: Float[Tensor, " batch"], verifier: Verifier) -> None:
        """Try radii (float64) where a proof is likely, infinity for the whole box; a proof there ends the search."""
        radii = torch.minimum(radii, self.reach)
        index = (self.open & (radii > self.lower) & radii.isfinite()).nonzero()[:, 0]
        if len(index):
            self._try(index, radii[index], verifier)
            # Rounded to the input's dtype the radius may have become a little smaller.
            self.open[index[self.lower[index] >= radii[index] * (1 - 1e-6)]] = False

    def run(self) -> Iterator[Intervals]:
        """Try radii until every interval is narrow; intervals come as soon as no radius of theirs will be tried any more."""
        done = torch.zeros_like(self.open)
        endless = (self.open & self.upper.isinf() & self.reach.isfinite() & (self.seconds < self.limit)).nonzero()[:, 0]
        if len(endless):
            self._try(endless, self.reach[endless], self.method)
        for _ in range(ROUNDS):
            top = torch.minimum(self.upper, self.blocked)
            wide = (top > self.lower * (1 + self.tol)) & top.isfinite()
            index = (self.open & wide & (self.seconds < self.limit)).nonzero()[:, 0]
            index = index[:0] if time.monotonic() >= self.deadline else index
            ended = (~done).index_fill(0, index, False)
            if bool(ended.any()):
                done |= ended
                yield self._intervals(ended)
            if len(index) == 0:
                return
            self._try(index, self._trial(index), self.method)
        yield self._intervals(~done)

    def _intervals(self, which: Bool[Tensor, " batch"]) -> Intervals:
        """The intervals of some inputs as they are."""
        index = which.nonzero()[:, 0]
        # A proved radius that is cut back to a witness by more than the tolerance is not exact.
        dtype = self.query.x.dtype
        proved, upper = -cast_up(-self.lower[index], dtype), self.upper[index].to(dtype)
        lower = torch.minimum(proved, upper)
        exact = meets(lower, upper) & meets(upper, proved) & (upper.isfinite() | lower.isinf())
        names = [spec(self.method)] * len(index)
        arithmetic = [self.arithmetic[i] for i in index.tolist()]
        seconds = self.seconds[index].to(dtype)
        return Intervals(
            index.cpu(), RadiusInterval(lower, upper, exact, self.witness[index], seconds, names, arithmetic)
        )

    def _trial(self, index: Tensor) -> Tensor:
        """The next radii: just below the witness, further below after each that was found, or halfway where that is blocked."""
        low, high, blocked = self.lower[index], self.upper[index], self.blocked[index]
        middle = torch.where(low > 0, (low * torch.minimum(high, blocked)).sqrt(), torch.minimum(high, blocked) / 2)
        near = high / (1 + self.tol) ** (2 ** self.hits[index])
        return torch.where(blocked.isfinite(), middle, torch.maximum(near, middle))

    def _try(self, index: Tensor, eps: Tensor, verifier: Verifier) -> None:
        """Let a verifier decide one radius of each of some inputs."""
        part, dtype = self.query.restrict(index), self.query.x.dtype
        # What covers the whole box must do so after rounding, too.
        eps = torch.where(eps >= self.reach[index], cast_up(eps, dtype), eps.to(dtype))
        radii, numbers = eps.double(), index.tolist()
        # Distances of witnesses are rounded: subproblems of a ball that is smaller, by however little, prove nothing here.
        usable = (radii <= self.saved_at[index]).tolist()
        saved = {place: self.saved[i] for place, i in enumerate(numbers) if i in self.saved and usable[place]}
        question = replace(part, ball=Ball(part.p, radii, part.sides), saved=saved)
        seconds = (SHARE * (self.limit - self.seconds[index])).clamp(min=0.1)
        budget = Budget(seconds, Budget(seconds, self.deadline).until(len(index)))
        for found in in_time(verifier, question, budget):
            i, radius = numbers[found.index], radii[found.index]
            self.seconds[i] += found.seconds
            if found.saved is not None:
                self.saved[i], self.saved_at[i] = found.saved, radius
            if found.verdict is Verdict.ROBUST:
                proved = float(math.inf if radius >= self.reach[i] else radius)
                if proved > float(self.lower[i]):
                    covered = "executed" if self.query.strict else found.arithmetic
                    self.lower[i], self.arithmetic[i] = proved, covered
            elif found.witness is not None:
                self._falsified(i, found.witness)
            else:
                self.blocked[i] = torch.minimum(self.blocked[i], radius)
        self._forget()
        refuse_contradictions(self.lower, self.upper, [spec(self.method)] * len(self.lower), ROUNDING)

    def _falsified(self, i: int, witness: Tensor) -> None:
        """Lower the upper end to the distance of a witness, if that is smaller."""
        dtype = self.query.x.dtype
        distance = cast_up(length_up(self.query.x[i : i + 1], witness[None], self.query.p), dtype).double()[0]
        if distance < self.upper[i]:
            self.upper[i], self.witness[i] = distance, witness
        self.hits[i] += 1

    def _forget(self) -> None:
        """Drop the largest sets of saved subproblems until all fit into memory."""
        for index in sorted(self.saved, key=lambda index: -self.saved[index].size):
            if sum(saved.size for saved in self.saved.values()) <= self.method.memory:
                break
            del self.saved[index]
