"""From region to region: lower bounds that grow, and the exact distance where they end (appendix A.2 of the paper).

Explored regions are kept with all their hyperplanes, faces and decision hyperplanes alike, each with a key: a proved lower
bound on how far from x anything can be that lies behind it in this region,

    key = max(key at which the region was entered, distance of x to the hyperplane).

When a region is entered at key k, the ball of radius k is covered by explored regions without a change of decision: a
straight path to the nearest change first leaves their union through a face, or meets a decision hyperplane inside. So the
smallest open key is a lower bound, and it never falls. It is found lazily: a key is first the free distance, when it comes
up that within the box. Then a face is crossed, and what comes up as a decision hyperplane is the answer if the network
changes its decision just behind it. Small networks go further, to the facets themselves (`facets`).

Everything is computed in float64. Margins are reduced by a bound on their rounding errors. So are distances for the errors of
the rows: a row that is off by E in the dual norm changes a margin by at most E R within distance R of x (`Measured.distances`).
Where rows are known to fewer digits than `RESOLVED`, what lies behind a face cannot be told, and the search ends there.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.norms import dual, norm
from relucert.core.rounding import gamma_above
from relucert.geometry.distances import to_faces
from relucert.geometry.exploration.crossing import patterns_behind
from relucert.geometry.hyperplane import HyperplaneDistance, free_distance, hyperplane_distance
from relucert.geometry.region import Faces, LinearRegion, UnitFaces
from relucert.geometry.row_norms.row_norms import row_norms
from relucert.geometry.witness import Witnesses
from relucert.networks.layers.linear import Linear
from relucert.networks.network import Network
from relucert.networks.prediction import logits_with_errors

SAFETY = 1e-9  # what distances are reduced by besides, relative
RESOLVED = 1e-9  # the error of a row, in parts of its norm, up to which the search goes on behind a face
NOTHING = 1e-290  # an error below this is one of underflow alone: the value was added up from zeros
BEYOND = 100.0  # distances in the box are proved up to this many times the free one
FREE, BOXED = 0, 1  # how much a key knows: the free distance, that in the box
BLOCK = 8  # hyperplanes of an example that learn their distance in the box together


class Measured(NamedTuple):
    """New regions of some examples: the margins at x and the rows of V, all with bounds on their rounding errors.

    `margins` and `lead` are those of faces and decision hyperplanes, made smaller by what rounding may have added;
    `raw_margins` and `raw_lead` are as computed; `class_rows` (batch, classes, *input). `face_errors` and `class_errors` bound
    the errors of rows in every l_q; `margin_errors` and `lead_errors` those of the margins. `certain`: whether the
    class is y at x itself.
    """

    region: LinearRegion
    raw_margins: Float[Tensor, " batch faces"]
    margins: Float[Tensor, " batch faces"]
    raw_lead: Float[Tensor, " batch classes"]
    lead: Float[Tensor, " batch classes"]
    class_rows: Float[Tensor, " batch classes *input"]
    face_errors: Float[Tensor, " batch faces"]
    class_errors: Float[Tensor, " batch classes"]
    margin_errors: Float[Tensor, " batch faces"]
    lead_errors: Float[Tensor, " batch classes"]
    certain: Bool[Tensor, " batch"]


def resolved(norms: Float[Tensor, " batch rows"], errors: Float[Tensor, " batch rows"]) -> Bool[Tensor, " batch"]:
    """Whether all rows are known to enough digits: their errors are small parts of their norms, or both are zero."""
    return (errors <= RESOLVED * norms).all(1)


def distances_in_box(
    x: Tensor, rows: Tensor, margins: Tensor, errors: Tensor, p: float, box: tuple[Tensor, Tensor], budget: int, *,
    point: bool = False,
) -> HyperplaneDistance:  # fmt: skip
    """Distances to hyperplanes in the box that hold for all rows within `errors` (dual norm) of the given ones.

    With m the margin, D(m) the distance for the given row and R any radius, a step d of a length below R reaches the true
    hyperplane only if it gains m - E R by the given row: the distance is at least min(R, D(m - E R)). R is `BEYOND` times the
    free distance m / (||w|| + E), which is a bound, too; or it reaches through the box, which nothing exceeds.
    """
    free = free_distance(margins, norm(rows, dual(p), 2) + errors)
    most = reach(x, p, box)[:, None]
    radius = torch.minimum(BEYOND * free, most)
    kept = margins.sign() * (margins.abs() - errors * radius).clamp(min=0)
    kept = torch.where(errors == 0, margins, kept)
    found = hyperplane_distance(x, rows, kept, p, box, budget=budget, point=point)
    limit = torch.where((errors == 0) | (radius >= most), math.inf, radius)
    distance = torch.maximum(torch.minimum(found.distance, limit), free) * (1 - SAFETY)
    return replace(found, distance=distance)


def reach(x: Tensor, p: float, box: tuple[Tensor, Tensor]) -> Float[Tensor, " batch"]:
    """A radius at which the ball holds the whole box, rounded up; inf without a box."""
    return norm(torch.maximum(x - box[0], box[1] - x), p) * (1 + SAFETY)


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
        self.blurred = torch.zeros(count, dtype=torch.bool)  # rows of a region are not known to enough digits
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
        self.errors = self.x.new_zeros(count, 0, 0)  # of the rows of faces
        self.sideless = torch.zeros(count, 0, 0, dtype=torch.bool)  # faces that vanish on the whole region

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
        off, class_errors = _row_errors(region, places, x, y)
        certain = torch.ones(len(index), dtype=torch.bool)
        if not self.seen[int(index[0])]:  # not by the pattern, which rounding may have chosen wrongly
            values_at, off_at = logits_with_errors(self.net, x)
            least = values_at.gather(1, y[:, None]) - values_at - off_at.gather(1, y[:, None]) - off_at
            certain = ((least > 0) | self._own(index)).all(1)
        return Measured(
            region, margins, inner, lead, ahead, region.decision_rows(y),
            _face_errors(region, off, x), class_errors, slack, lead_slack, certain,
        )  # fmt: skip

    def _begin_own(self, index: Tensor, found: Measured) -> None:
        """Close the examples whose class at x itself is lost in rounding: nothing is proved of them."""
        if not self.seen[int(index[0])]:
            self.open[index[~found.certain]] = False

    def _enter(self, index: Tensor, patterns: list[Tensor], key: Tensor) -> None:
        """Add a region of some examples: the keys of all its hyperplanes, and a witness if one is near."""
        found = self._measure(index, patterns)
        self._begin_own(index, found)
        rows, lead = found.class_rows, found.lead
        norms = row_norms(found.region, dual(self.p), self.budget)
        self.blurred[index] |= ~resolved(norms, found.face_errors)
        faces = to_faces(found.margins, norms + found.face_errors) * (1 - SAFETY)
        box = (self.low[index], self.high[index])
        classes = distances_in_box(self.x[index], rows, lead, found.class_errors, self.p, box, self.budget).distance
        classes = classes.masked_fill(self._own(index), math.inf)
        distance = torch.cat([faces, classes], 1)
        level = torch.full(distance.shape, FREE, dtype=torch.int8)
        level[:, faces.shape[1] :] = BOXED
        ahead = torch.cat([found.margins, lead], 1)
        sideless, hidden = self._sideless(index, found, (norms == 0) & (found.face_errors == 0))
        distance = torch.where(hidden[:, None] & distance.isfinite(), 0.0, distance)
        distance[:, faces.shape[1] :].masked_fill_(self._own(index), math.inf)
        self._store(index, found, torch.maximum(distance, key[:, None]), level, ahead, sideless)
        # The nearest decision hyperplane may do.
        nearest = classes.argmin(1)
        near = classes.gather(1, nearest[:, None])[:, 0] < self.witnesses.distance[index].double()
        chosen = nearest[near]
        here = torch.arange(len(index))[near]
        self.witnesses.beyond(index[near], rows[here, chosen], lead[here, chosen])

    def _own(self, index: Tensor) -> Bool[Tensor, " rows classes"]:
        """Which class is the example's own."""
        return torch.nn.functional.one_hot(self.y[index], self.net.classes).bool()

    def _sideless(
        self, index: Tensor, found: Measured, flat: Tensor
    ) -> tuple[Bool[Tensor, " rows faces"], Bool[Tensor, " rows"]]:
        """The faces of regions that vanish identically: a `flat` row and a margin that is zero without an error.

        Second, the regions in which rounding hides the side of a constant unit: there nothing is known beyond the key at which
        the region was entered, and the search ends.
        """
        zero = flat & (found.raw_margins == 0) & (found.margin_errors < NOTHING)
        hidden = (flat & (found.raw_margins.abs() <= found.margin_errors) & ~zero).any(1)
        self.blurred[index] |= hidden
        return zero, hidden

    def _store(
        self, index: Tensor, found: Measured, keys: Tensor, level: Tensor, margins: Tensor, sideless: Tensor
    ) -> None:
        """Append a layer of regions; examples that are not in it get closed entries."""
        count, region = len(self.x), found.region
        self.faces = region.faces

        def grown(old: Tensor, new: Tensor, other: float | int) -> Tensor:
            layer = torch.full((count, 1, *new.shape[1:]), other, dtype=new.dtype)
            layer[index, 0] = new
            return layer if old.shape[1] == 0 else torch.cat([old, layer], 1)

        self.keys = grown(self.keys, keys, math.inf)
        self.level = grown(self.level, level, BOXED)
        self.margins = grown(self.margins, margins, 0.0)
        self.errors = grown(self.errors, found.face_errors, 0.0)
        self.sideless = grown(self.sideless, sideless, False)
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
        chosen = places.where(real, torch.zeros_like(places))
        rows = self._regions(index, region).rows(chosen)
        margins = self.margins[index, region].gather(1, places)
        errors = self.errors[index, region].gather(1, chosen)
        box = (self.low[index], self.high[index])
        found = distances_in_box(self.x[index], rows, margins, errors, self.p, box, self.budget).distance
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
        more = (used < self.limit) & ~self.blurred[index]
        self.open[index[~more]] = False
        index, region, entry, key = (part[more] for part in (index, region, entry, key))
        old = self._regions(index, region)
        known_there = self._flipped_is_known(index, old, entry)
        self.keys[index[known_there], region[known_there], entry[known_there]] = math.inf
        index, region, entry, key = (part[~known_there] for part in (index, region, entry, key))
        if len(index) == 0:
            return
        old = old.restrict((~known_there).nonzero()[:, 0])
        patterns = patterns_behind(old, entry, self.sideless[index, region], -old.rows(entry[:, None])[:, 0])
        self.keys[index, region, entry] = math.inf
        behind = names(patterns, len(index))
        new = torch.tensor([name not in self.seen[b] for b, name in zip(index.tolist(), behind, strict=True)])
        if bool(new.any()):
            self._enter(index[new], [pattern[new] for pattern in patterns], key[new])

    def _flipped_is_known(self, index: Tensor, old: LinearRegion, entry: Tensor) -> Bool[Tensor, " rows"]:
        """Whether the region in which one ReLU alone is flipped was explored: then that is what lies behind its face."""
        flipped = [pattern.clone() for pattern in old.patterns]
        single = torch.zeros(len(index), dtype=torch.bool)
        start = 0
        for faces, pattern in zip(old.faces, flipped, strict=True):
            mine = ((entry >= start) & (entry < start + faces.count)).nonzero()[:, 0]
            if isinstance(faces, UnitFaces) and len(mine):
                flat = pattern.view(len(index), -1)
                flat[mine, entry[mine] - start] ^= True
                single[mine] = True
            start += faces.count
        flat_names = names(flipped, len(index))
        seen = torch.tensor(
            [name in self.seen[b] for b, name in zip(index.tolist(), flat_names, strict=True)], dtype=torch.bool
        )
        return seen & single


def _row_errors(
    region: LinearRegion, places: list[int], x: Tensor, y: Tensor
) -> tuple[list[Tensor], Float[Tensor, " batch classes"]]:
    """Bounds on the errors of the rows of nodes, and on those of the decision rows V_y - V_s, in every l_q.

    Behind a linear layer the difference of two of its rows is computed first, with one rounding an entry: equal rows cancel
    without an error.
    """
    last = region.net.graph[-1]
    source = last.inputs[0]
    errors, sizes = region.map.row_errors([*places, source, last.index], x)
    if isinstance(last.op, Linear):
        weight = last.op.weight.value
        apart = (weight[y][:, None] - weight).abs()
        each = errors[source].flatten(1) + gamma_above(2, x.dtype) * sizes[source].flatten(1)
        found = (apart @ each.unsqueeze(2)).squeeze(2)
    else:
        found = errors[last.index].gather(1, y[:, None]) + errors[last.index]
    own = torch.nn.functional.one_hot(y, region.net.classes).bool()
    return [errors[place] for place in places], found.masked_fill(own, 0.0)


def _face_errors(region: LinearRegion, errors: list[Tensor], x: Tensor) -> Float[Tensor, " batch faces"]:
    """The errors of faces from those of their nodes."""
    every = zip(region.faces, errors, region.patterns, strict=True)
    parts = [faces.errors(error.expand(len(x), *error.shape[1:]), pattern) for faces, error, pattern in every]
    return torch.cat(parts, 1) if parts else x.new_zeros(len(x), 0)


def names(patterns: list[Tensor], count: int) -> list[bytes]:
    """The activation patterns as names that can be compared."""
    if not patterns:
        return [b""] * count
    flat = [p.flatten(1).to(torch.uint8 if p.dtype == torch.bool else torch.int32).numpy() for p in patterns]
    packed = [np.packbits(part, axis=1) if part.dtype == np.uint8 else part.view(np.uint8) for part in flat]
    return [b"".join(part[i].tobytes() for part in packed) for i in range(count)]
