"""From region to region: lower bounds that grow, and the exact distance where they end (appendix A.2 of the paper).

Explored regions are kept with all their hyperplanes, faces and decision hyperplanes alike, each with a key: a proved lower
bound on how far from x anything can be that lies behind it in this region,

    key = max(key at which the region was entered, distance of x to the hyperplane).

When a region is entered at key k, the ball of radius k is covered by explored regions without a change of decision: a
straight path to the nearest change first leaves their union through a face, or meets a decision hyperplane inside. So the
smallest open key is a lower bound, and it never falls. It is found lazily: a key is first the free distance, when it comes
up that within the box. Then a face is crossed, and what comes up as a decision hyperplane is the answer if the network
changes its decision just behind it. Small networks go further, to the facets themselves (`facets`).

Everything is computed in float64. Margins are reduced by a bound on their rounding errors, distances by `SAFETY` of
themselves, a thousand times what rounding does to the rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.core.ball import Ball
from relucert.geometry.crossing import patterns_beyond
from relucert.geometry.distances import face_distances
from relucert.geometry.hyperplane import hyperplane_distance
from relucert.geometry.region import Faces, LinearRegion
from relucert.geometry.witness import Witnesses
from relucert.networks.network import Network

SAFETY = 1e-9
FREE, BOXED = 0, 1  # how much a key knows: the free distance, that in the box
BLOCK = 8  # hyperplanes of an example that learn their distance in the box together


class Measured(NamedTuple):
    """New regions of some examples: the margins at x and the rows of V, all with bounds on their rounding errors.

    `margins` and `lead` are those of faces and decision hyperplanes, made smaller by what rounding may have added;
    `raw_margins` and `raw_lead` are as computed; `class_rows` (batch, classes, *input).
    """

    region: LinearRegion
    raw_margins: Float[Tensor, " batch faces"]
    margins: Float[Tensor, " batch faces"]
    raw_lead: Float[Tensor, " batch classes"]
    lead: Float[Tensor, " batch classes"]
    class_rows: Float[Tensor, " batch classes *input"]


class Exploration:
    """The search of a batch of inputs; one pass of `advance` treats the smallest key of every open example."""

    def __init__(self, net: Network, witnesses: Witnesses, y: Tensor, p: float, box: Any, limit: float, budget: int):
        self.net, self.witnesses, self.y, self.p, self.limit = net, witnesses, y, p, limit
        self.budget = budget
        self.x = witnesses.x.double()
        self.low, self.high = Ball(p, math.inf, box).bounds(self.x)
        self.tolerance = 1e-6 if witnesses.x.dtype == torch.float64 else 1e-4
        count = len(self.x)
        self.seen: list[set[bytes]] = [set() for _ in range(count)]
        self.lower = self.x.new_zeros(count)
        self.open = torch.ones(count, dtype=torch.bool)
        with torch.no_grad():
            self._begin()
            self._enter(torch.arange(count), LinearRegion.at(net, self.x).patterns, self.x.new_zeros(count))

    def _begin(self) -> None:
        """Prepare to store regions."""
        count = len(self.x)
        self.faces: tuple[Faces, ...] = ()
        self.patterns: list[Tensor] = []  # (batch, regions, *shape) for every switching node
        self.keys = self.x.new_zeros(count, 0, 0)
        self.level = torch.zeros(count, 0, 0, dtype=torch.int8)
        self.margins = self.x.new_zeros(count, 0, 0)
        self.void = torch.zeros(count, 0, 0, dtype=torch.bool)  # faces without a direction

    def run(self) -> None:
        """Go on until every example is solved, stuck, or has used up its regions."""
        with torch.no_grad():
            while bool(self.open.any()):
                self.advance()

    def advance(self) -> None:
        """Treat the smallest key of every open example."""
        index = self.open.nonzero()[:, 0]
        count = self.keys.shape[2]
        key, flat = self.keys[index].flatten(1).min(1)
        self.lower[index] = torch.maximum(self.lower[index], key)
        # Nothing is nearer than the nearest witness: the interval is closed.
        closed = key >= self.witnesses.distance[index].double() * (1 - SAFETY)
        self.open[index[closed | key.isinf()]] = False
        rest = ~(closed | key.isinf())
        index, key, region, entry = index[rest], key[rest], flat[rest] // count, flat[rest] % count
        level = self.level[index, region, entry]
        decision = entry >= count - self.net.classes
        self._learn_box(index[level == FREE], region[level == FREE])
        pick = (level == BOXED) & decision
        self._meet_decision(index[pick], region[pick], entry[pick])
        pick = (level == BOXED) & ~decision
        self._cross(index[pick], region[pick], entry[pick], key[pick])

    # A new region.

    def _measure(self, index: Tensor, patterns: list[Tensor]) -> Measured:
        """The margins of new regions of some examples, and of the classes."""
        region = LinearRegion(self.net, patterns, len(index))
        x, y = self.x[index], self.y[index]
        places = [faces.source for faces in region.faces]
        last = len(self.net.graph) - 1
        values, errors = region.map.values_with_errors(x, [*places, last])
        margins = region.margins_of([values[place] for place in places], x)
        slack = _face_errors(region, [errors[place] for place in places], x)
        logits = values[last]
        lead = logits.gather(1, y[:, None]) - logits
        lead_slack = errors[last].gather(1, y[:, None]) + errors[last]
        inner, ahead = margins, lead
        if not self.seen[int(index[0])]:  # x lies in its own region, with its own class: what is below zero is rounding
            inner, ahead = margins.clamp(min=0), lead.clamp(min=0)
        inner = inner.sign() * (inner.abs() - slack).clamp(min=0)
        ahead = ahead.sign() * (ahead.abs() - lead_slack).clamp(min=0)
        return Measured(region, margins, inner, lead, ahead, region.decision_rows(y))

    def _enter(self, index: Tensor, patterns: list[Tensor], key: Tensor) -> None:
        """Add a region of some examples: the keys of all its hyperplanes, and a witness if one is near."""
        found = self._measure(index, patterns)
        rows, lead = found.class_rows, found.lead
        faces = face_distances(found.region, found.margins, self.p, self.budget) * (1 - SAFETY)
        box = (self.low[index], self.high[index])
        classes = hyperplane_distance(self.x[index], rows, lead, self.p, box, budget=self.budget).distance
        classes = classes.mul(1 - SAFETY).masked_fill(self._own(index), math.inf)
        distance = torch.cat([faces, classes], 1)
        level = torch.full(distance.shape, FREE, dtype=torch.int8)
        level[:, faces.shape[1] :] = BOXED
        ahead = torch.cat([found.margins, lead], 1)
        self._store(index, found.region, torch.maximum(distance, key[:, None]), level, ahead, faces.isinf())
        # The nearest decision hyperplane may do.
        nearest = classes.argmin(1)
        near = classes.gather(1, nearest[:, None])[:, 0] < self.witnesses.distance[index].double()
        chosen = nearest[near]
        here = torch.arange(len(index))[near]
        self.witnesses.beyond(index[near], rows[here, chosen], lead[here, chosen])

    def _own(self, index: Tensor) -> Bool[Tensor, " rows classes"]:
        """Which class is the example's own."""
        return torch.nn.functional.one_hot(self.y[index], self.net.classes).bool()

    def _store(
        self, index: Tensor, region: LinearRegion, keys: Tensor, level: Tensor, margins: Tensor, void: Tensor
    ) -> None:
        """Append a layer of regions; examples that are not in it get closed entries."""
        count = len(self.x)
        self.faces = region.faces

        def grown(old: Tensor, new: Tensor, other: float | int) -> Tensor:
            layer = torch.full((count, 1, *new.shape[1:]), other, dtype=new.dtype)
            layer[index, 0] = new
            return layer if old.shape[1] == 0 else torch.cat([old, layer], 1)

        self.keys = grown(self.keys, keys, math.inf)
        self.level = grown(self.level, level, BOXED)
        self.margins = grown(self.margins, margins, 0.0)
        self.void = grown(self.void, void, True)
        before = self.patterns or [pattern[:0, None].new_zeros(count, 0) for pattern in region.patterns]
        self.patterns = [grown(old, new, 0) for old, new in zip(before, region.patterns, strict=True)]
        for b, name in zip(index.tolist(), names(region.patterns, len(index)), strict=True):
            self.seen[b].add(name)

    def _regions(self, index: Tensor, region: Tensor) -> LinearRegion:
        """One explored region of each of some examples."""
        patterns = [pattern[index, region] for pattern in self.patterns]
        return LinearRegion(self.net, patterns, len(index), self.faces)

    # What a key learns.

    def _learn_box(self, index: Tensor, region: Tensor) -> None:
        """The distances within the box of the nearest faces of a region that do not have one yet."""
        if len(index) == 0:
            return
        fresh = self.level[index, region] == FREE
        near, places = (
            self.keys[index, region].masked_fill(~fresh, math.inf).topk(min(BLOCK, fresh.shape[1]), largest=False)
        )
        real = near.isfinite()
        rows = self._regions(index, region).rows(places.where(real, torch.zeros_like(places)))
        margins = self.margins[index, region].gather(1, places)
        box = (self.low[index], self.high[index])
        found = hyperplane_distance(self.x[index], rows, margins, self.p, box, budget=self.budget).distance * (
            1 - SAFETY
        )
        at = (index[:, None].expand_as(places)[real], region[:, None].expand_as(places)[real], places[real])
        self.keys[at] = torch.maximum(found, near)[real]
        self.level[at] = BOXED

    # What a key leads to.

    def _meet_decision(self, index: Tensor, region: Tensor, entry: Tensor) -> None:
        """A decision hyperplane comes up: if the network changes its decision just behind it, that is the answer.

        If not, nobody knows whether this region has such a point, and the interval stays open.
        """
        if len(index) == 0:
            return
        classes = entry - (self.keys.shape[2] - self.net.classes)
        rows = self._regions(index, region).decision_rows(self.y[index])[torch.arange(len(index)), classes]
        self.witnesses.beyond(index, rows, self.margins[index, region, entry])
        self.open[index] = False

    def _cross(self, index: Tensor, region: Tensor, entry: Tensor, key: Tensor) -> None:
        """Enter the regions behind some faces, unless they are known or there may be no more."""
        if len(index) == 0:
            return
        used = torch.tensor([len(self.seen[b]) for b in index.tolist()])
        self.open[index[used >= self.limit]] = False
        index, region, entry, key = (part[used < self.limit] for part in (index, region, entry, key))
        old = self._regions(index, region)
        known_there = self._flipped_is_known(index, old, entry)
        self.keys[index[known_there], region[known_there], entry[known_there]] = math.inf
        index, region, entry, key = (part[~known_there] for part in (index, region, entry, key))
        if len(index) == 0:
            return
        old = old.restrict((~known_there).nonzero()[:, 0])
        rows = old.rows(entry[:, None])
        margins = self.margins[index, region].gather(1, entry[:, None])
        box = (self.low[index], self.high[index])
        found = hyperplane_distance(self.x[index], rows, margins, self.p, box, point=True)
        assert found.point is not None
        points, rows = found.point[:, 0], rows[:, 0]
        may_flip = self.void[index, region]
        may_flip[torch.arange(len(index)), entry] = True
        # Where the box has no width there is no step: units that meet on the box alone are left together.
        wide = self.high[index] > self.low[index]
        patterns = patterns_beyond(self.net.graph, points, -rows * wide)
        # Behind a face only what lies in its hyperplane, or has no side at all, is another. Anything else means that the
        # point was not in the interior of the face: then nobody knows what lies behind, and the key stays as it is.
        known = only_these(old, patterns, may_flip)
        self.open[index[~known]] = False
        index, region, entry, key = (part[known] for part in (index, region, entry, key))
        patterns = [pattern[known] for pattern in patterns]
        if len(index) == 0:
            return
        self.keys[index, region, entry] = math.inf
        behind = names(patterns, len(index))
        new = torch.tensor([name not in self.seen[b] for b, name in zip(index.tolist(), behind, strict=True)])
        if bool(new.any()):
            self._enter(index[new], [pattern[new] for pattern in patterns], key[new])

    def _flipped_is_known(self, index: Tensor, old: LinearRegion, entry: Tensor) -> Bool[Tensor, " rows"]:
        """Whether the region in which one ReLU alone is flipped was explored: then that is what lies behind its face.

        Only patterns of regions with an interior are ever explored, so no other unit can have flipped as well.
        """
        flipped = [pattern.clone() for pattern in old.patterns]
        single = torch.zeros(len(index), dtype=torch.bool)
        start = 0
        for faces, pattern in zip(old.faces, flipped, strict=True):
            mine = ((entry >= start) & (entry < start + faces.count)).nonzero()[:, 0]
            if faces.node.kind == "relu" and len(mine):
                flat = pattern.view(len(index), -1)
                flat[mine, entry[mine] - start] ^= True
                single[mine] = True
            start += faces.count
        flat_names = names(flipped, len(index))
        seen = torch.tensor(
            [name in self.seen[b] for b, name in zip(index.tolist(), flat_names, strict=True)], dtype=torch.bool
        )
        return seen & single


def only_these(
    region: LinearRegion, patterns: list[Tensor], may_flip: Bool[Tensor, " batch faces"]
) -> Bool[Tensor, " batch"]:
    """Whether patterns differ from those of the region only at faces that may be left."""
    fine = torch.ones(len(region), dtype=torch.bool)
    start = 0
    for faces, old, new in zip(region.faces, region.patterns, patterns, strict=True):
        left = faces.left(old, new)
        fine &= (~left | may_flip[:, start : start + faces.count]).all(1)
        start += faces.count
    return fine


def _face_errors(region: LinearRegion, errors: list[Tensor], x: Tensor) -> Float[Tensor, " batch faces"]:
    """Bounds on the rounding errors of margins: of a unit its own, of a comparison those of both."""
    parts = []
    for faces, error in zip(region.faces, errors, strict=True):
        if faces.node.kind == "relu":
            parts.append(error.flatten(1))
        else:
            most = 2 * error.flatten(1).amax(1, keepdim=True)
            parts.append(most.expand(-1, faces.count))
    return torch.cat(parts, 1) if parts else x.new_zeros(len(x), 0)


def names(patterns: list[Tensor], count: int) -> list[bytes]:
    """The activation patterns as names that can be compared."""
    if not patterns:
        return [b""] * count
    flat = [p.flatten(1).to(torch.uint8 if p.dtype == torch.bool else torch.int32).numpy() for p in patterns]
    packed = [np.packbits(part, axis=1) if part.dtype == np.uint8 else part.view(np.uint8) for part in flat]
    return [b"".join(part[i].tobytes() for part in packed) for i in range(count)]
