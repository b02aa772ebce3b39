"""Best-first search over neighbouring linear regions: lower bounds that grow until they are exact (appendix A.2 of the paper).

Every hyperplane of an explored region, whether of a unit or of a decision, has a key: a proved lower bound on the distance of
x to any point of the region's closure on or beyond that hyperplane,

    key = max(key at which the region was entered, distance of x to the hyperplane).

When a region is entered at key k, the ball of radius k is covered by explored regions without a change of decision: a straight
path to the nearest change of decision first leaves the union of these regions through a hyperplane of a unit, or meets a
decision hyperplane inside. So the smallest open key is a lower bound on the distance to a change of decision, and it never
decreases. The search crosses the hyperplane with the smallest key; a decision hyperplane with the smallest key gives the exact
distance if the network changes its decision just beyond it.

Two searches share this loop: `neighbours` computes distances to hyperplanes, `facets` distances to facets. If the rows of a
region have relative errors above `RESOLVED`, the pattern beyond its hyperplanes is uncertain, and the search of that example
ends.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.norms import dual, norm
from relucert.geometry.exploration._crossing import patterns_behind
from relucert.geometry.exploration._measure import SAFETY, UNDERFLOW, Measured, measure, names, own_class, reach
from relucert.geometry.hyperplane import HyperplaneDistance, free_distance, hyperplane_distance, hyperplane_projection
from relucert.geometry.region import LinearRegion, WindowHyperplanes
from relucert.geometry.witness import Witnesses

BEYOND = 100.0  # distances in the box are proved up to this many times the free distance


class Crossing(NamedTuple):
    """Hyperplanes to cross, one for each of the examples `index`: the regions, the hyperplanes and their keys."""

    index: Int[Tensor, " rows"]
    region: LinearRegion
    entry: Int[Tensor, " rows"]
    row: Float[Tensor, " rows *input"]
    degenerate: Bool[Tensor, " rows hyperplanes"]
    key: Float[Tensor, " rows"]


class RegionSearch:
    """The search of a batch of inputs. `lower` are the proved distances, `witnesses` the nearest adversarial points.

    The search begins in `region`, the regions of the inputs. Subclasses store regions (`_add`) and choose the hyperplanes to
    cross (`_next`). `limit` is the number of regions of an example, `budget` the memory in bytes.
    """

    def __init__(self, region: LinearRegion, witnesses: Witnesses, box: Any, limit: float, budget: int):
        self.net, self.first = region.net, region
        self.witnesses, self.y, self.p = witnesses, witnesses.y, witnesses.p
        self.limit, self.budget = limit, budget
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
