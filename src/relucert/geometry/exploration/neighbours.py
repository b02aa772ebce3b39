"""The search over neighbouring regions with distances to hyperplanes, for networks of every size.

All keys of a region are at least the distance of x to the region, which is bounded by the half spaces of the region that x
violates most (`_separation`). A key is first the distance to the hyperplane without the box; when it becomes the smallest key,
it is replaced by the distance within the box, and then the hyperplane is crossed. A decision hyperplane with the smallest key
gives the exact distance if the network changes its decision just beyond it. If its nearest point lies outside the region, the
decision is bounded together with the hyperplane of the region that the point violates most, and its key grows, again and again,
until another key is the smallest or the point lies in the region. All examples advance together, with one tensor of keys.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.core.norms import dual, norm
from relucert.core.rounding import RAISED
from relucert.geometry.distances import margin_distances
from relucert.geometry.exploration._separation import QUICK, Box, Combined, HalfSpaces, ascend, combined, paired
from relucert.geometry.exploration.search import (
    SAFETY,
    Crossing,
    Measured,
    RegionSearch,
    measure,
    names,
    reach,
    resolved,
)
from relucert.geometry.hyperplane import HyperplaneDistance
from relucert.geometry.region import Hyperplanes, LinearRegion
from relucert.geometry.row_norms.row_norms import row_norms

FREE, BOXED = 0, 1  # what a key is: the distance without the box, or within it
GROWN = 40  # times that the key of a decision may grow
VIOLATED = 1e-9  # distance to a half space, relative to the size of the point, that counts as outside
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
        self.used = 0  # layers of regions; the tensors above have room for more
        self.least = self.x.new_zeros(count, 0)  # the smallest key of every region
        self.raised: dict[
            tuple[int, int, int], tuple[Combined, int]
        ] = {}  # what bounds a decision, and how often it grew

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
        sure = ~self.blurred[index]
        key = torch.where(sure, torch.maximum(key, self._region_distance(index, measured)), key)
        leads = torch.maximum(distance[:, units.shape[1] :], self.known[index][:, None])
        distance[:, units.shape[1] :] = leads.masked_fill(self._own(index), math.inf)
        self._store(index, measured, torch.maximum(distance, key[:, None]), level, degenerate)
        nearest = classes.argmin(1)
        near = classes.gather(1, nearest[:, None])[:, 0] < self.witnesses.distance[index].double()
        chosen = nearest[near]
        which = torch.arange(len(index))[near]
        self.witnesses.beyond(index[near], rows[which, chosen], lead[which, chosen])

    def _region_distance(self, index: Tensor, measured: Measured) -> Float[Tensor, " rows"]:
        """Proved distances of x to regions, by the half spaces that x violates most; inf if a region is empty."""
        region, nothing = measured.region, self.x.new_zeros(len(index))
        if not measured.margins.numel() or int((measured.margins < 0).sum(1).max()) < 2:
            return nothing
        worst, places = measured.margins.topk(min(BLOCK, region.count), largest=False)
        real = worst < 0
        rows = region.rows(places).flatten(2) * -real.unsqueeze(2).double()
        parts = (-measured.raw_margins, measured.margin_errors, measured.row_errors)
        margins, margin_errors, row_errors = (part.gather(1, places).where(real, 0.0) for part in parts)
        spaces = HalfSpaces(rows, margins, margin_errors, row_errors, norm(rows, 1, 2))
        x, low, high = self.x[index], self.low[index], self.high[index]
        below, above = ((side * RAISED).flatten(1) for side in (x - low, high - x))
        box = Box(below, above, reach(x, self.p, (low, high)))
        multipliers = ascend(spaces, torch.zeros_like(margins), box, torch.full_like(nothing, math.inf), QUICK)
        distance = self._nearest_of(index, combined(spaces, multipliers)).distance[:, 0]
        return distance.nan_to_num(0.0, math.inf, 0.0)

    def _store(self, index: Tensor, measured: Measured, keys: Tensor, level: Tensor, degenerate: Tensor) -> None:
        """Add a layer of regions; examples outside `index` get closed entries."""
        count, region, layer = len(self.x), measured.region, self.used
        self.hyperplanes, self.used = region.hyperplanes, layer + 1

        def grown(old: Tensor, new: Tensor, other: float | int) -> Tensor:
            if layer == old.shape[1] or old.shape[2:] != new.shape[1:]:
                room = new.new_full((count, max(1, layer), *new.shape[1:]), other)
                old = torch.cat([old, room], 1) if layer else room
            old[index, layer] = new
            return old

        self.keys = grown(self.keys, keys, math.inf)
        self.least = grown(self.least, keys.amin(1), math.inf)
        self.level = grown(self.level, level, BOXED)
        self.margins = grown(self.margins, torch.cat([measured.margins, measured.lead], 1), 0.0)
        self.errors = grown(self.errors, measured.row_errors, 0.0)
        self.degenerate = grown(self.degenerate, degenerate, False)
        before = self.patterns or [pattern[:0, None].new_zeros(count, 0) for pattern in region.patterns]
        self.patterns = [grown(old, new, 0) for old, new in zip(before, region.patterns, strict=True)]
        for b, name in zip(index.tolist(), names(region.patterns, len(index)), strict=True):
            self.seen[b].add(name)
            self.names[b][layer] = name

    def _set_keys(self, at: tuple[Tensor, Tensor, Tensor], keys: Tensor | float) -> None:
        """Change keys, given by examples, regions and hyperplanes."""
        self.keys[at] = keys
        self.least[at[0], at[1]] = self.keys[at[0], at[1]].amin(1)

    def _next(self) -> Crossing | None:
        """Treat the smallest key of every open example; return the hyperplanes to cross."""
        index = self.open.nonzero()[:, 0]
        count = self.keys.shape[2]
        key, region = self.least[index].min(1)
        self.lower[index] = torch.maximum(self.lower[index], key)
        # At a key beyond the nearest witness the interval is closed.
        closed = key >= self.witnesses.distance[index].double() * (1 - SAFETY)
        self.open[index[closed | key.isinf()]] = False
        rest = ~(closed | key.isinf())
        index, key, region = index[rest], key[rest], region[rest]
        entry = self.keys[index, region].argmin(1)
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
        self.level[at] = BOXED
        self._set_keys(at, torch.maximum(distance, near)[real])

    def _meet_decision(self, index: Tensor, region: Tensor, entry: Tensor) -> None:
        """Look for a witness just beyond decision hyperplanes with the smallest keys, or raise these keys.

        An example is closed where the nearest point lies in the region without a witness (a tie), or the key has grown `GROWN`
        times: the interval stays open.
        """
        if len(index) == 0:
            return
        old = self._regions(index, region)
        measured = measure(old, self.x[index], self.y[index], False)
        every, classes = torch.arange(len(index)), entry - (self.keys.shape[2] - self.net.classes)
        rows = measured.class_rows[every, classes]
        self.witnesses.beyond(index, rows, measured.lead[every, classes])
        if old.count == 0:  # a linear network
            self.open[index] = False
            return
        fresh = Combined(
            rows.flatten(1).clone(),
            (measured.raw_lead - measured.lead_errors)[every, classes],
            measured.class_errors[every, classes],
        )
        names_ = list(zip(index.tolist(), region.tolist(), entry.tolist(), strict=True))
        turns = torch.tensor([self.raised[name][1] if name in self.raised else 0 for name in names_])
        for i, name in enumerate(names_):
            if name in self.raised:
                for part, known in zip(fresh, self.raised[name][0], strict=True):
                    part[i] = known[0]
        nearest = self._nearest_of(index, fresh)
        assert nearest.point is not None
        point = nearest.point[:, 0]
        self.witnesses.around(index, point, rows)
        second, violated = self._most_violated(measured, point)
        going = violated & (turns < GROWN) & ~self.blurred[index]  # nothing is raised where the pattern is uncertain
        self.open[index[~going]] = False
        kept = going.nonzero()[:, 0]
        if len(kept) == 0:
            return
        first, second = (Combined(*(part[kept] for part in space)) for space in (fresh, second))
        at = index[kept]
        shares = paired(first, second, self.x[at], self.p, (self.low[at], self.high[at]))
        both = combined(HalfSpaces.of(first, second), shares)
        distance = self._nearest_of(at, both).distance[:, 0]
        place = (at, region[kept], entry[kept])
        self._set_keys(place, torch.maximum(distance.nan_to_num(0.0, math.inf, 0.0), self.keys[place]))
        for i, k in enumerate(kept.tolist()):
            self.raised[names_[k]] = Combined(*(part[i : i + 1] for part in both)), int(turns[k]) + 1

    def _nearest_of(self, index: Tensor, space: Combined) -> HyperplaneDistance:
        """The distances to half spaces in the box, and the nearest points."""
        rows = space.row.reshape(len(index), 1, *self.net.input_shape)
        return self._distances_in_box(
            index, rows, space.margin.clamp(min=0)[:, None], space.error[:, None], points=True
        )

    def _most_violated(self, measured: Measured, point: Tensor) -> tuple[Combined, Bool[Tensor, " rows"]]:
        """For every region the half space of a unit, h >= 0, that a point violates most; and whether it violates one."""
        region = measured.region
        values = region.margins(point)
        some = values.topk(min(BLOCK, values.shape[1]), largest=False).indices
        rows = region.rows(some).flatten(2)
        sizes = norm(rows, 2, 2).clamp(min=1e-300)
        far, which = (values.gather(1, some) / sizes).min(1)
        place = some.gather(1, which[:, None])
        chosen = rows[torch.arange(len(rows)), which]
        errors = [part.gather(1, place)[:, 0] for part in (measured.margin_errors, measured.row_errors)]
        margin = -measured.raw_margins.gather(1, place)[:, 0] - errors[0]
        scale = norm(point - 0.0, 2) + 1.0
        return Combined(-chosen, margin, errors[1]), far < -VIOLATED * scale

    def _crossing(self, index: Tensor, region: Tensor, entry: Tensor, key: Tensor) -> Crossing | None:
        """Remove keys whose neighbour is explored, close examples without regions left, and return the hyperplanes to cross."""
        if len(index) == 0:
            return None
        used = torch.tensor([len(self.seen[b]) for b in index.tolist()])
        more = (used < self.limit) & ~self.blurred[index]
        self.open[index[~more]] = False
        index, region, entry, key = (values[more] for values in (index, region, entry, key))
        known = self._is_known(index, region, entry)
        self._set_keys((index, region, entry), math.inf)
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
