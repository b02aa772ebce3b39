"""The search over neighbouring regions with distances to hyperplanes, for networks of every size.

A key is first the distance to the hyperplane without the box; when it becomes the smallest key, it is replaced by the distance
within the box, and then the hyperplane is crossed. A decision hyperplane with the smallest key ends the search: the distance is
exact if the network changes its decision just beyond it. All examples advance together, with one tensor of keys.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool
from torch import Tensor

from relucert.core.norms import dual
from relucert.geometry.distances import margin_distances
from relucert.geometry.exploration._search import SAFETY, Crossing, Measured, RegionSearch, names, resolved
from relucert.geometry.region import Hyperplanes, LinearRegion
from relucert.geometry.row_norms.row_norms import row_norms

FREE, BOXED = 0, 1  # what a key is: the distance without the box, or within it
BLOCK = 8  # hyperplanes of an example whose distances in the box are computed together


class HyperplaneSearch(RegionSearch):
    """The search by distances to hyperplanes; one step treats the smallest key of every open example."""

    def _begin(self) -> None:
        count = len(self.x)
        self.hyperplanes: tuple[Hyperplanes, ...] = ()
        self.patterns: list[Tensor] = []  # (batch, regions, *shape) for every switching node
        self.keys = self.x.new_zeros(count, 0, 0)
        self.level = torch.zeros(count, 0, 0, dtype=torch.int8)
        self.margins = self.x.new_zeros(count, 0, 0)
        self.errors = self.x.new_zeros(count, 0, 0)  # of the rows of the region's hyperplanes
        self.degenerate = torch.zeros(count, 0, 0, dtype=torch.bool)
        self.names: list[dict[int, bytes]] = [{} for _ in range(count)]  # region -> name of its pattern

    def _add(self, index: Tensor, measured: Measured, key: Tensor) -> None:
        """Store the keys of all hyperplanes of new regions, and look for a witness beyond the nearest decision hyperplane."""
        rows, lead, errors = measured.class_rows, measured.lead, measured.row_errors
        norms = row_norms(measured.region, dual(self.p), self.budget)
        self.blurred[index] |= ~resolved(norms, errors)
        units = margin_distances(measured.margins, norms + errors) * (1 - SAFETY)
        classes = self._distances_in_box(index, rows, lead, measured.class_errors).distance
        classes = classes.masked_fill(self._own(index), math.inf)
        distance = torch.cat([units, classes], 1)
        level = torch.full(distance.shape, FREE, dtype=torch.int8)
        level[:, units.shape[1] :] = BOXED
        degenerate, hidden = self._degenerate(index, measured, (norms == 0) & (errors == 0))
        distance = torch.where(hidden[:, None] & distance.isfinite(), 0.0, distance)
        distance[:, units.shape[1] :].masked_fill_(self._own(index), math.inf)
        self._store(index, measured, torch.maximum(distance, key[:, None]), level, degenerate)
        nearest = classes.argmin(1)
        near = classes.gather(1, nearest[:, None])[:, 0] < self.witnesses.distance[index].double()
        chosen = nearest[near]
        which = torch.arange(len(index))[near]
        self.witnesses.beyond(index[near], rows[which, chosen], lead[which, chosen])

    def _store(self, index: Tensor, measured: Measured, keys: Tensor, level: Tensor, degenerate: Tensor) -> None:
        """Append a layer of regions; examples outside `index` get closed entries."""
        count, region, layer = len(self.x), measured.region, self.keys.shape[1]
        self.hyperplanes = region.hyperplanes

        def grown(old: Tensor, new: Tensor, other: float | int) -> Tensor:
            added = torch.full((count, 1, *new.shape[1:]), other, dtype=new.dtype)
            added[index, 0] = new
            return added if old.shape[1] == 0 else torch.cat([old, added], 1)

        self.keys = grown(self.keys, keys, math.inf)
        self.level = grown(self.level, level, BOXED)
        self.margins = grown(self.margins, torch.cat([measured.margins, measured.lead], 1), 0.0)
        self.errors = grown(self.errors, measured.row_errors, 0.0)
        self.degenerate = grown(self.degenerate, degenerate, False)
        before = self.patterns or [pattern[:0, None].new_zeros(count, 0) for pattern in region.patterns]
        self.patterns = [grown(old, new, 0) for old, new in zip(before, region.patterns, strict=True)]
        for b, name in zip(index.tolist(), names(region.patterns, len(index)), strict=True):
            self.seen[b].add(name)
            self.names[b][layer] = name

    def _next(self) -> Crossing | None:
        """Treat the smallest key of every open example; return the hyperplanes to cross."""
        index = self.open.nonzero()[:, 0]
        count = self.keys.shape[2]
        key, flat = self.keys[index].flatten(1).min(1)
        self.lower[index] = torch.maximum(self.lower[index], key)
        # At a key beyond the nearest witness the interval is closed.
        closed = key >= self.witnesses.distance[index].double() * (1 - SAFETY)
        self.open[index[closed | key.isinf()]] = False
        rest = ~(closed | key.isinf())
        index, key, region, entry = index[rest], key[rest], flat[rest] // count, flat[rest] % count
        level = self.level[index, region, entry]
        decision = entry >= count - self.net.classes
        self._solve_in_box(index[level == FREE], region[level == FREE])
        pick = (level == BOXED) & decision
        self._meet_decision(index[pick], region[pick], entry[pick])
        pick = (level == BOXED) & ~decision
        return self._crossing(index[pick], region[pick], entry[pick], key[pick])

    def _regions(self, index: Tensor, region: Tensor) -> LinearRegion:
        """One explored region of each of some examples."""
        patterns = [pattern[index, region] for pattern in self.patterns]
        return LinearRegion(self.net, patterns, len(index), self.hyperplanes)

    def _solve_in_box(self, index: Tensor, region: Tensor) -> None:
        """Compute the distances within the box of the nearest hyperplanes of a region that have only free distances."""
        if len(index) == 0:
            return
        fresh = self.level[index, region] == FREE
        near, places = (
            self.keys[index, region].masked_fill(~fresh, math.inf).topk(min(BLOCK, fresh.shape[1]), largest=False)
        )
        real = near.isfinite()
        chosen = places.where(real, torch.zeros_like(places))
        rows = self._regions(index, region).rows(chosen)
        margins = self.margins[index, region].gather(1, places)
        errors = self.errors[index, region].gather(1, chosen)
        distance = self._distances_in_box(index, rows, margins, errors).distance
        at = (index[:, None].expand_as(places)[real], region[:, None].expand_as(places)[real], places[real])
        self.keys[at] = torch.maximum(distance, near)[real]
        self.level[at] = BOXED

    def _meet_decision(self, index: Tensor, region: Tensor, entry: Tensor) -> None:
        """Look for a witness just beyond decision hyperplanes with the smallest keys, and close the examples.

        Without a witness it is not known whether the region contains points of the hyperplane: the interval stays open.
        """
        if len(index) == 0:
            return
        classes = entry - (self.keys.shape[2] - self.net.classes)
        rows = self._regions(index, region).decision_rows(self.y[index])[torch.arange(len(index)), classes]
        self.witnesses.beyond(index, rows, self.margins[index, region, entry])
        self.open[index] = False

    def _crossing(self, index: Tensor, region: Tensor, entry: Tensor, key: Tensor) -> Crossing | None:
        """Remove keys whose neighbour is explored, close examples without regions left, and return the hyperplanes to cross."""
        if len(index) == 0:
            return None
        used = torch.tensor([len(self.seen[b]) for b in index.tolist()])
        more = (used < self.limit) & ~self.blurred[index]
        self.open[index[~more]] = False
        index, region, entry, key = (values[more] for values in (index, region, entry, key))
        known = self._is_known(index, region, entry)
        self.keys[index, region, entry] = math.inf
        index, region, entry, key = (values[~known] for values in (index, region, entry, key))
        if len(index) == 0:
            return None
        old = self._regions(index, region)
        return Crossing(index, old, entry, old.rows(entry[:, None])[:, 0], self.degenerate[index, region], key)

    def _is_known(self, index: Tensor, region: Tensor, entry: Tensor) -> Bool[Tensor, " rows"]:
        """Whether the region with one flipped ReLU is explored, and so lies beyond the hyperplane."""
        every = zip(index.tolist(), region.tolist(), entry.tolist(), strict=True)
        known = [
            isinstance(self.flips[e][1], int) and self._flipped(self.names[b][r], e) in self.seen[b]
            for b, r, e in every
        ]
        return torch.tensor(known, dtype=torch.bool)
