"""`envelopes`: branch and bound for networks with one layer of ReLUs, by linear programs with upper envelopes.

A subproblem is a region: a box of inputs, intervals of the units, and some ReLUs split into active and inactive. Its program
(`_envelope_program`) knows of every ReLU that pushes the margin down the upper envelope over the box, which is much tighter
than the chord between the ends of the unit's interval. The linear function below the margin that its multipliers prove cuts
the region (`_layer_margin.LayerMargin.cut`): where it is positive there is no counterexample. What is left is split at the
ReLU that is farthest from its envelope at the minimiser. ReLUs that push the margin up are never split.

Bounds are proofs for real arithmetic over the box as given in float64.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from relucert.bounding.methods.crown import CROWN
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method, spec
from relucert.core.verdict import Reason
from relucert.polytopes.certificates import Array
from relucert.verification.bab._confirming import Confirm, falsifying
from relucert.verification.bab._envelope_program import Bounded, LinearRows, bounded
from relucert.verification.bab._layer_margin import LayerMargin, Region
from relucert.verification.verifier import Budget, Decision, Outcome, Query

#: Whether a point is confirmed as a counterexample.
Confirmed = Callable[[Array], bool]

FALSIFIED = "falsified"
INPUTS, ENTRIES = 256, 2**16  # most inputs that are not fixed, and most weights of the layer
_STEPS, _SHARES = 6, np.array([0.05, 0.2, 0.5, 1.0])  # of the descent from a minimiser, towards a corner


@dataclass(frozen=True, kw_only=True)
class Envelopes(Method):
    """At most `nodes` regions for a row of the property; `rounds` of envelopes for a region, thrice as many for the first."""

    name = "envelopes"
    nodes: int = 1_000_000
    rounds: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("nodes", "rounds"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} of envelopes must be at least 1, got {getattr(self, name)}")

    @staticmethod
    def takes(query: Query) -> bool:
        """Whether the method can decide a query: one small layer of ReLUs, l_inf, every clause one row, real arithmetic."""
        net = query.double
        free = math.prod(net.input_shape)
        small = len(net.switches) == 1 and free <= INPUTS and math.prod(net.switches[0].shape) * free <= ENTRIES
        plain = len(net.relus) == len(net.switches) and query.prop.clauses is None and not query.strict
        return small and plain and math.isinf(query.p)

    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """Either verdict for every input, given time."""
        return self.search(query, budget, falsifying(query))

    def search(self, query: Query, budget: Budget, confirm: Confirm) -> Iterator[Decision]:
        """As `decide`; `confirm` says which points count as counterexamples."""
        if not self.takes(query):
            raise InvalidInput(
                "method envelopes must have one small layer of ReLUs, a ball of l_inf and single rows, got "
                f"{query.double!r} and {query.ball!r}"
            )
        return _decide(self, query, budget, confirm)


@torch.no_grad()
def _decide(method: Envelopes, query: Query, budget: Budget, confirm: Confirm) -> Iterator[Decision]:
    """One input after the other, and its rows one after the other."""
    found, limits = Outcome.nothing(query.wide), budget.each(len(query))
    reported = torch.zeros(len(query), dtype=torch.bool)
    units = CROWN().start(query.double, query.wide, query.ball, torch.float64)
    sides = [side.flatten(1).numpy() for side in query.ball.hull(query.wide)]
    for place in range(len(query)):
        started = time.monotonic()
        deadline = min(budget.deadline, started + float(limits[place]))
        own, prop = torch.tensor([place]), query.prop
        box = sides[0][place], sides[1][place]
        margins = LayerMargin.of(query.double, units.restrict(own), prop.rows[place], prop.offsets[place], box)
        searches = [] if margins is None else [_Search(method, margin, deadline) for margin in margins]
        found.proved[place], least = bool(searches), math.inf if searches else -math.inf
        for search in searches:
            reason = search.run(lambda x, place=place: _confirmed(x, place, query, found, confirm))
            found.nodes[place] += search.nodes
            found.proved[place] &= reason is None
            least = min(least, search.least)
            if reason is not None and not found.falsified[place]:
                found.timed[place] |= reason == Reason.TIME
                found.reasons.setdefault(place, reason)
            if found.falsified[place]:
                break
        found.seconds[place] = time.monotonic() - started
        if not found.decided[place]:
            found.margin[place] = least
        if found.decided[place]:
            reported[place] = True
            yield from found.decisions([place], spec(method), query.x.dtype)
    yield from found.finish(reported, spec(method), query.x.dtype)


def _confirmed(x: Array, place: int, query: Query, found: Outcome, confirm: Confirm) -> bool:
    """Whether a point is a counterexample; then it is the witness of the input."""
    point = torch.from_numpy(x).reshape(1, *query.wide.shape[1:]).clone()
    if bool(confirm(point, place)[0]):
        found.falsified[place], found.witness[place] = True, point[0].to(query.x.dtype)
    return bool(found.falsified[place])


@dataclass(order=True)
class _Open:
    """A region that is not proved, what its program found, and what its splits leave to split."""

    margin: float
    number: int
    region: Region = field(compare=False)
    bounded: Bounded = field(compare=False)


class _Search:
    """The open regions of one margin, those with the smallest bounds first."""

    def __init__(self, method: Envelopes, margin: LayerMargin, deadline: float):
        self.method, self.margin, self.deadline = method, margin, deadline
        self.nodes, self.open, self.dropped = 0, list[_Open](), False

    @property
    def least(self) -> float:
        """The least margin of what is open, as proved, inf if nothing is; -inf where a region was given up."""
        return -math.inf if self.dropped else self.open[0].margin if self.open else math.inf

    def run(self, confirm: Confirmed) -> str | None:
        """None if the margin is proved to be positive, or the reason why not."""
        none = LinearRows(np.zeros(0, dtype=np.int64), np.zeros((0, len(self.margin.p))))
        if self._bound(self.margin.root(), none, 3 * self.method.rounds, confirm):
            return FALSIFIED
        while self.open:
            if time.monotonic() >= self.deadline:
                return Reason.TIME
            if self.nodes >= self.method.nodes:
                return Reason.NODES
            node = heapq.heappop(self.open)
            unit = self._chosen(node)
            if unit is None:
                self.dropped = True
                return Reason.SUBPROBLEM
            for sign in (1, -1):
                region = self.margin.split(node.region, unit, sign)
                if region is None:
                    continue
                if self._bound(region, node.bounded.lines, self.method.rounds, confirm):
                    return FALSIFIED
        return None

    def _bound(self, region: Region, lines: LinearRows, rounds: int, confirm: Confirmed) -> bool:
        """Bound a region, and keep what is left of it; whether a counterexample was found."""
        self.nodes += 1
        found = bounded(self.margin, region, lines, rounds, self.deadline)
        if found.below.margin > 0:
            return False
        x, value = self._descended(found.x)
        if value <= 0 and confirm(x):
            return True
        left = self.margin.cut(region, found.below)
        if left is not None:
            heapq.heappush(self.open, _Open(found.below.margin, self.nodes, left, found))
        return False

    def _chosen(self, node: _Open) -> int | None:
        """The unit to split: the one farthest from its envelope, or else from its chord; None if all are exact."""
        least, most, v = node.region.least, node.region.most, self.margin.v
        possible = (least < 0) & (most > 0) & (v < 0)
        if not possible.any():
            return None
        gaps = np.where(possible, node.bounded.gaps, -1.0)
        if gaps.max() <= 0:
            gaps = np.where(possible, v * least * most / np.maximum(most - least, math.ulp(0.0)), -1.0)
        return int(gaps.argmax())

    def _descended(self, x: Array) -> tuple[Array, float]:
        """A point of a small margin and its margin: from x towards the corner where the margin's linear part is smallest."""
        margin = self.margin
        value = float(margin.value(x[None])[0])
        for _ in range(_STEPS):
            slope = margin.p + np.where(margin.w @ x + margin.b > 0, margin.v, 0.0) @ margin.w
            corner = np.where(slope > 0, margin.lower, margin.upper)
            points = x + _SHARES[:, None] * (corner - x)
            values = margin.value(points)
            place = int(values.argmin())
            if not values[place] < value:
                break
            x, value = points[place], float(values[place])
        return x, value
