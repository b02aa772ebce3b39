"""Best-first search over neighbouring linear regions: lower bounds that grow until they are exact (appendix A.2 of the paper).

Every hyperplane of an explored region, whether of a unit or of a decision, has a key: a proved lower bound on the distance of
x to any point of the region's closure on or beyond that hyperplane,

    key = max(key at which the region was entered, distance of x to the region, distance of x to the hyperplane).

When a region is entered at key k, the ball of radius k is covered by explored regions without a change of decision: a straight
path to the nearest change of decision first leaves the union of these regions through a hyperplane of a unit, or meets a
decision hyperplane inside. It does so at a point of an explored region, whose distance is at least that region's and that
hyperplane's. So the smallest open key is a lower bound on the distance to a change of decision, and it never decreases. The
search crosses the hyperplane with the smallest key, whether its nearest point lies on a facet or not, and even if the region
behind it is empty (`_crossing`). A decision hyperplane with the smallest key gives the exact distance if the network changes
its decision just beyond it; otherwise its key is raised by hyperplanes of the region, and the search goes on.

Within a certified radius that is known before, no decision changes: the keys of decisions are at least that radius, and so is
the answer. The keys of units stay, since regions nearer than that radius must be crossed to know what lies behind them.

Three searches share this: `neighbours` computes distances to hyperplanes, `facets` distances to facets, and `arrangement` is
for networks with one hidden layer, whose regions differ in the class rows only. If the rows of a region have relative errors
above `RESOLVED`, the pattern beyond its hyperplanes is uncertain, and the first two searches end there.

Regions are measured in float64 (`measure`): margins are reduced by bounds on their rounding errors. Distances account for the
errors of the rows: a row that is off by E in the dual norm changes a margin by at most E R within distance R of x.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.norms import dual, norm
from relucert.core.rounding import gamma_above
from relucert.geometry.exploration._crossing import patterns_behind
from relucert.geometry.hyperplane import HyperplaneDistance, free_distance, hyperplane_distance, hyperplane_projection
from relucert.geometry.region import LinearRegion, WindowHyperplanes
from relucert.geometry.witness import Witnesses
from relucert.networks.layers.linear import Linear
from relucert.networks.prediction import logits_with_errors

BEYOND = 100.0  # distances in the box are proved up to this many times the free distance
SAFETY = 1e-9  # relative reduction of distances in addition to the error bounds
OBJECT = 2000  # bytes of an entered region without its keys
RESOLVED = 1e-9  # largest relative error of a row at which the search crosses hyperplanes of the region
UNDERFLOW = 1e-290  # an error bound below this comes from underflow alone: the value is a sum of zeros


class Measured(NamedTuple):
    """New regions of some examples: the margins at x and the rows of V, with bounds on their rounding errors.

    `margins` and `lead` are the margins of the region's hyperplanes and of the decision hyperplanes, reduced by their error
    bounds; `raw_margins` and `raw_lead` are the computed values; `class_rows` (batch, classes, *input). `row_errors` and
    `class_errors` bound the errors of rows in every l_q; `margin_errors` and `lead_errors` bound the errors of margins.
    `certain`: whether the class at x is y in real arithmetic (checked for the region of x only).
    """

    region: LinearRegion
    raw_margins: Float[Tensor, " batch hyperplanes"]
    margins: Float[Tensor, " batch hyperplanes"]
    raw_lead: Float[Tensor, " batch classes"]
    lead: Float[Tensor, " batch classes"]
    class_rows: Float[Tensor, " batch classes *input"]
    row_errors: Float[Tensor, " batch hyperplanes"]
    class_errors: Float[Tensor, " batch classes"]
    margin_errors: Float[Tensor, " batch hyperplanes"]
    lead_errors: Float[Tensor, " batch classes"]
    certain: Bool[Tensor, " batch"]


def measure(region: LinearRegion, x: Tensor, y: Tensor, of_x: bool) -> Measured:
    """The margins and rows of regions at x; `of_x` says that they are the regions of x itself."""
    sources = [hyperplanes.source for hyperplanes in region.hyperplanes]
    last = len(region.net.graph) - 1
    values, errors = region.map.values_with_errors(x, [*sources, last])
    margins = region.margins_of([values[source] for source in sources], x)
    margin_errors = _hyperplane_errors(region, [errors[source] for source in sources], x)
    logits = values[last]
    lead = logits.gather(1, y[:, None]) - logits
    lead_errors = errors[last].gather(1, y[:, None]) + errors[last]
    inner, ahead = margins, lead
    if of_x:  # x lies in its own region and has its own class: a negative margin is a rounding error
        inner, ahead = margins.clamp(min=0), lead.clamp(min=0)
    inner = inner.sign() * (inner.abs() - margin_errors).clamp(min=0)
    ahead = ahead.sign() * (ahead.abs() - lead_errors).clamp(min=0)
    errors_of_rows, class_errors = _row_errors(region, sources, x, y)
    certain = torch.ones(len(x), dtype=torch.bool)
    if of_x:  # independent of the pattern, which rounding may have chosen wrongly
        values_at, off_at = logits_with_errors(region.net, x)
        least = values_at.gather(1, y[:, None]) - values_at - off_at.gather(1, y[:, None]) - off_at
        certain = ((least > 0) | own_class(y, region.net.classes)).all(1)
    return Measured(
        region, margins, inner, lead, ahead, region.decision_rows(y),
        _hyperplane_errors(region, errors_of_rows, x), class_errors, margin_errors, lead_errors, certain,
    )  # fmt: skip


def own_class(y: Int[Tensor, " rows"], classes: int) -> Bool[Tensor, " rows classes"]:
    """The mask of the class y of every example."""
    return torch.nn.functional.one_hot(y, classes).bool()


def resolved(norms: Float[Tensor, " batch rows"], errors: Float[Tensor, " batch rows"]) -> Bool[Tensor, " batch"]:
    """Whether the errors of all rows are at most `RESOLVED` times their norms."""
    return (errors <= RESOLVED * norms).all(1)


def reach(x: Tensor, p: float, box: tuple[Tensor, Tensor]) -> Float[Tensor, " batch"]:
    """A radius at which the ball contains the whole box, rounded up; inf without a box."""
    return norm(torch.maximum(x - box[0], box[1] - x), p) * (1 + SAFETY)


def stored_bytes(keys: int) -> int:
    """The bytes of an entered region with so many open keys."""
    return OBJECT + 10 * keys


def names(patterns: list[Tensor], count: int) -> list[bytes]:
    """The activation patterns of `count` regions as byte strings, for sets of regions."""
    if not patterns:
        return [b""] * count
    flat = [p.flatten(1).to(torch.uint8 if p.dtype == torch.bool else torch.int32).numpy() for p in patterns]
    packed = [np.packbits(part, axis=1) if part.dtype == np.uint8 else part.view(np.uint8) for part in flat]
    return [b"".join(part[i].tobytes() for part in packed) for i in range(count)]


def _row_errors(
    region: LinearRegion, sources: list[int], x: Tensor, y: Tensor
) -> tuple[list[Tensor], Float[Tensor, " batch classes"]]:
    """Bounds on the errors of the rows of nodes, and of the decision rows V_y - V_s, in every l_q.

    If the last node is a linear layer, the difference of two of its rows is computed first, with one rounding per entry: equal
    rows cancel without an error.
    """
    last = region.net.graph[-1]
    source = last.inputs[0]
    errors, sizes = region.map.row_errors([*sources, source, last.index], x)
    if isinstance(last.op, Linear):
        weight = last.op.weight.value
        apart = (weight[y][:, None] - weight).abs()
        each = errors[source].flatten(1) + gamma_above(2, x.dtype) * sizes[source].flatten(1)
        class_errors = (apart @ each.unsqueeze(2)).squeeze(2)
    else:
        class_errors = errors[last.index].gather(1, y[:, None]) + errors[last.index]
    return [errors[node] for node in sources], class_errors.masked_fill(own_class(y, region.net.classes), 0.0)


def _hyperplane_errors(region: LinearRegion, errors: list[Tensor], x: Tensor) -> Float[Tensor, " batch hyperplanes"]:
    """The errors of all hyperplanes from the errors of their nodes."""
    every = zip(region.hyperplanes, errors, region.patterns, strict=True)
    parts = [
        hyperplanes.errors(error.expand(len(x), *error.shape[1:]), pattern) for hyperplanes, error, pattern in every
    ]
    return torch.cat(parts, 1) if parts else x.new_zeros(len(x), 0)


class Crossing(NamedTuple):
    """Hyperplanes to cross, one for each of the examples `index`: the regions, the hyperplanes and their keys."""

    index: Int[Tensor, " rows"]
    region: LinearRegion
    entry: Int[Tensor, " rows"]
    row: Float[Tensor, " rows *input"]
    degenerate: Bool[Tensor, " rows hyperplanes"]
    key: Float[Tensor, " rows"]


class Limits(NamedTuple):
    """What ends a search: `regions` of an example, its own included, `budget` in bytes, and `until`, a `time.monotonic`.

    `known` (batch,) are radii that are certified already.
    """

    regions: float
    budget: int
    until: float = math.inf
    known: Float[Tensor, " batch"] | None = None


class RegionSearch:
    """The search of a batch of inputs. `lower` are the proved distances, `witnesses` the nearest adversarial points.

    The search begins in `region`, the regions of the inputs. Subclasses store regions (`_add`) and choose the hyperplanes to
    cross (`_next`).
    """

    def __init__(self, region: LinearRegion, witnesses: Witnesses, box: Any, limits: Limits):
        self.net, self.first = region.net, region
        self.witnesses, self.y, self.p = witnesses, witnesses.y, witnesses.p
        self.limit, self.budget, self.until = limits.regions, limits.budget, limits.until
        self.known = witnesses.x.new_zeros(len(witnesses.x)) if limits.known is None else limits.known
        self.known = self.known.double()
        self.x = witnesses.x.double()
        self.low, self.high = Ball(self.p, math.inf, box).bounds(self.x)
        self.tolerance = 1e-6 if witnesses.x.dtype == torch.float64 else 1e-4
        count = len(self.x)
        self.seen: list[set[bytes]] = [set() for _ in range(count)]
        self.lower = self.x.new_zeros(count)
        self.open = torch.ones(count, dtype=torch.bool)
        self.blurred = torch.zeros(count, dtype=torch.bool)  # rows of a region have too large errors
        self.flips = _flips(region)
        self._begin()

    def run(self) -> None:
        """Explore regions until every example is solved, cannot be improved, or has used up its regions."""
        with torch.no_grad():
            every = torch.arange(len(self.x))
            self._enter(every, self.first.patterns, self.x.new_zeros(len(self.x)))
            while bool(self.open.any()):
                crossing = self._next()
                if crossing is not None:
                    self._cross(crossing)
                self._look_at_clock()
        self.lower = torch.maximum(self.lower, self.known)

    def _look_at_clock(self) -> None:
        """Close all examples when the time is over: what is proved by then stays proved."""
        if time.monotonic() >= self.until:
            self.open[:] = False

    def _begin(self) -> None:
        """Prepare the storage of regions."""
        raise NotImplementedError

    def _next(self) -> Crossing | None:
        """Treat the smallest keys of the open examples: raise lower bounds, close examples, and return what to cross."""
        raise NotImplementedError

    def _add(self, index: Tensor, measured: Measured, key: Tensor) -> None:
        """Store a region of some examples, entered at the given keys."""
        raise NotImplementedError

    def _enter(self, index: Tensor, patterns: list[Tensor], key: Tensor) -> None:
        """Measure and store the regions of some examples with the given patterns."""
        of_x = not self.seen[int(index[0])]
        measured = measure(LinearRegion(self.net, patterns, len(index)), self.x[index], self.y[index], of_x)
        if of_x:  # nothing is proved for examples whose class at x is uncertain
            self.open[index[~measured.certain]] = False
        self._add(index, measured, key)

    def _cross(self, crossing: Crossing) -> None:
        """Enter the regions beyond hyperplanes, unless they are explored already."""
        index, old, entry, row, degenerate, key = crossing
        patterns = patterns_behind(old, entry, degenerate, -row)
        behind = names(patterns, len(index))
        new = torch.tensor([name not in self.seen[b] for b, name in zip(index.tolist(), behind, strict=True)])
        if bool(new.any()):
            self._enter(index[new], [pattern[new] for pattern in patterns], key[new])

    def _flipped(self, name: bytes, entry: int) -> bytes:
        """The name of the region that differs in one unit or window only: if it is explored, it lies beyond the hyperplane.

        The facet belongs to that region too, since both affine maps agree on it. If crossing changed other units as well, that
        region would have no interior, and it would be explored only if x lies in it: then its own hyperplanes lead on.
        """
        at, change = self.flips[entry]
        changed = bytearray(name)
        if isinstance(change, int):
            changed[at] ^= change
        else:
            changed[at : at + 4] = change
        return bytes(changed)

    def _own(self, index: Tensor) -> Bool[Tensor, " rows classes"]:
        """The mask of the class y of some examples."""
        return own_class(self.y[index], self.net.classes)

    def _degenerate(
        self, index: Tensor, measured: Measured, zero_rows: Tensor
    ) -> tuple[Bool[Tensor, " rows hyperplanes"], Bool[Tensor, " rows"]]:
        """The degenerate units of regions, which vanish identically: a zero row and a margin that is zero without an error.

        The second result are the regions in which rounding hides the sign of a constant unit: nothing is proved beyond the key
        at which such a region was entered, and the search ends.
        """
        zero = zero_rows & (measured.raw_margins == 0) & (measured.margin_errors < UNDERFLOW)
        hidden = (zero_rows & (measured.raw_margins.abs() <= measured.margin_errors) & ~zero).any(1)
        self.blurred[index] |= hidden
        return zero, hidden

    def _distances_in_box(
        self, index: Tensor, rows: Tensor, margins: Tensor, errors: Tensor, *, points: bool = False
    ) -> HyperplaneDistance:
        """Distances to hyperplanes in the box that hold for all rows within `errors` (dual norm) of the given rows.

        Let m be the margin, D(m) the distance for the given row and R any radius. A step shorter than R reaches the true
        hyperplane only if it decreases the given function by at least m - E R: the distance is at least min(R, D(m - E R)). R
        is `BEYOND` times the free distance m / (||w|| + E), which is a lower bound too, or the reach of the box.
        """
        x, box = self.x[index], (self.low[index], self.high[index])
        free = free_distance(margins, norm(rows, dual(self.p), 2) + errors)
        most = reach(x, self.p, box)[:, None]
        radius = torch.minimum(BEYOND * free, most)
        kept = margins.sign() * (margins.abs() - errors * radius).clamp(min=0)
        kept = torch.where(errors == 0, margins, kept)
        solve = hyperplane_projection if points else hyperplane_distance
        nearest = solve(x, rows, kept, self.p, box, budget=self.budget)
        limit = torch.where((errors == 0) | (radius >= most), math.inf, radius)
        distance = torch.maximum(torch.minimum(nearest.distance, limit), free) * (1 - SAFETY)
        return replace(nearest, distance=distance)


def _flips(region: LinearRegion) -> list[tuple[int, int | bytes]]:
    """The change of a pattern's name for every hyperplane: the first byte, and a bit to flip or the maximum of a window."""
    changes: list[tuple[int, int | bytes]] = []
    start = 0
    for hyperplanes in region.hyperplanes:
        if not isinstance(hyperplanes, WindowHyperplanes):
            changes += [(start + unit // 8, 128 >> unit % 8) for unit in range(hyperplanes.count)]
            start += (hyperplanes.count + 7) // 8
            continue
        windows = hyperplanes.windows.tolist()
        units = math.prod(hyperplanes.node.shape)
        for unit in range(units):
            places = windows[unit % len(windows)]
            changes += [(start + 4 * unit, np.int32(place).tobytes()) for place in places]
        start += 4 * units
    return changes
