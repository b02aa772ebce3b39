"""The search over the regions of a network with one hidden layer: sets of flipped units of a fixed arrangement of hyperplanes.

The hyperplanes of the units are the same in all regions (`_layer`). For a set F of units let H_F be the points where no unit of
F has the sign that it has at x: h_i(z) <= 0 for i in F. The region of F is the part of H_F where the other units have h_i >= 0.
Every point of the box lies in the region of some F, the units with h_i < 0 there. Units are ordered by their distances, and a
set of flipped units is reached from the set without its last unit:

    {} -> {i_1} -> {i_1, i_2} -> ... -> F,     i_1 < i_2 < ...

The key of a set is a proved lower bound on the distance of x to H_F in the box (`_separation`). H_F shrinks along the chain, so
every set on the way to F has a key of at most the distance of x to the region of F. Hence either F has been entered, or a set
on its way is open, at a key of at most that distance. No point of the box is missed, whether regions are empty, hyperplanes
coincide or meet, or units vanish identically (h_i >= 0 holds for such a unit): no facet is needed, and a set of flipped units
changes exactly these units. Empty regions only cost time.

An entered region has a key for each decision: a proved lower bound on the distance of x to the points of the region in the box
where class s is as high as class y. It is first that of H_F and the decision hyperplane. When it is the smallest open key, the
units of the region that are most violated at the nearest point join, until the key rises, or the point lies in the region and
is a witness. The smallest open key is a lower bound on the distance to a change of decision; it never decreases.

A radius that is known to be certified raises the keys of decisions; sets of flipped units keep theirs, since the regions
nearer than that radius must be crossed all the same.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.norms import dual as dual_exponent
from relucert.core.norms import norm
from relucert.core.rounding import RAISED
from relucert.geometry.distances import margin_distances
from relucert.geometry.exploration._layer import Layer, last_weight
from relucert.geometry.exploration._screening import TINY, Screen
from relucert.geometry.exploration._separation import (
    FULL,
    QUICK,
    Box,
    Combined,
    Effort,
    HalfSpaces,
    ascend,
    combined,
    dual,
    paired,
)
from relucert.geometry.exploration.search import SAFETY, RegionSearch, measure, reach, stored_bytes
from relucert.geometry.witness import PUSHES
from relucert.networks.network import Network

MOST = 2**15 - 1  # units of an example, the nearest ones, that are flipped; beyond the next one nothing is proved
BOXED = 256  # units whose distances are computed in the box
WIDTH = 32  # keys of an example that are treated together at most
SHARE = 8  # one more key is treated together for every so many entered regions
NOTHING: tuple[float, int, int, Any] = (math.inf, 0, 4, None)  # the key of an empty heap
ROUNDS = 24  # times that the key of a decision is raised before it ends the search
JOIN = 4  # violated units that join a decision at once
VIOLATED = 1e-9  # relative violation of a unit's half space at a nearest point
LUCKY = (1e-6, 1e-4)  # relative steps beyond a decision hyperplane from a point that may lie outside the region
ROWS = 24  # rows of a key in the memory, besides those of the classes
CHILD, REGION, DECISION, MET, END = range(5)  # what a key is of


def has_one_layer(net: Network, budget: int) -> bool:
    """Whether the regions of a network are those of one arrangement, small enough for the memory."""
    weight = last_weight(net)
    return weight is not None and 64 * weight.shape[1] * math.prod(net.input_shape) <= budget


class _Set(NamedTuple):
    """A set of flipped units of an example: the units, their multipliers, the place of the last one, and the key."""

    units: tuple[int, ...]
    multipliers: tuple[float, ...]
    last: int
    key: float


class _Children(NamedTuple):
    """An entered region: its set, and the keys of the sets with one more unit, smallest first, with the units' places."""

    parent: _Set
    keys: np.ndarray
    places: np.ndarray


class _Decision(NamedTuple):
    """A decision in an entered region: the set, the class, units of the region that join, and how often the key was raised.

    `multipliers` of the set, of the decision and of the units that join; `new` is the half space that is weighed next: which of
    the three, and its place there.
    """

    parent: _Set
    target: int
    joined: tuple[int, ...]
    multipliers: tuple[tuple[float, ...], ...]
    new: tuple[int, int]
    turns: int


class ArrangementSearch(RegionSearch):
    """The search by sets of flipped units; one step treats the smallest keys of every open example."""

    def run(self) -> None:
        """Explore regions until every example is solved, or has used up its regions, its seconds or the memory."""
        with torch.no_grad():
            self._start()
            while bool(self.open.any()):
                self._step()
                self._look_at_clock()
                if self.stored > self.budget:
                    self.open[:] = False
        self.lower = torch.maximum(torch.minimum(self.lower, self.beyond), self.known)

    def _begin(self) -> None:
        self.entered = [1] * len(self.x)  # with the region of x
        self.heaps: list[list[tuple[float, int, int, Any]]] = [[] for _ in self.x]
        self.turn = 0
        self.beyond = torch.full_like(self.lower, math.inf)  # the smallest key that was not stored
        self.stored = 0
        # Keys that are treated in one batch of tensors.
        self.chunk = max(1, self.budget // (64 * self.x[0].numel() * (self.net.classes + ROWS)))

    def _start(self) -> None:
        """Measure the regions of x, order the units by distance, and open the empty sets."""
        every = torch.arange(len(self.x))
        measured = measure(self.first, self.x, self.y, True)
        weight = last_weight(self.net)
        assert weight is not None
        self.layer = Layer.of(measured, weight, self.y)
        self.open[~measured.certain] = False
        zero_rows = (self.layer.sizes == 0) & (self.layer.row_errors == 0)
        self.open[self._degenerate(every, measured, zero_rows)[1]] = False  # the sign of a constant unit is hidden
        flat = (len(self.x), -1)
        below, above = ((side * RAISED).reshape(flat) for side in (self.x - self.low, self.high - self.x))
        self.box = Box(below, above, reach(self.x, self.p, (self.low, self.high)))
        self.screen = Screen.of(self.layer, self.box) if self.p == 2 else None
        self._order(every, measured.margins)
        start = _Set((), (), -1, 0.0)
        for b in self.open.nonzero()[:, 0].tolist():
            self._push(b, float(self.horizon[b]), END, None)
        opened = [(b, start) for b in self.open.nonzero()[:, 0].tolist()]
        for first in range(0, len(opened), self.chunk):
            self._enter_sets(opened[first : first + self.chunk])

    def _order(self, index: Tensor, margins: Tensor) -> None:
        """The units of every example by their distances, in the box where they are near, and the distance of the next unit."""
        norms = norm(self.layer.rows, dual_exponent(self.p)) + self.layer.row_errors
        free = margin_distances(margins, norms) * (1 - SAFETY)
        count = min(MOST, free.shape[1])
        near, units = free.topk(min(count + 1, free.shape[1]), largest=False, sorted=True)
        self.horizon = near[:, count] if near.shape[1] > count else torch.full_like(self.lower, math.inf)
        units, near = units[:, :count], near[:, :count]
        distance = near.clone()
        for place in torch.arange(min(BOXED, count)).split(16):
            some = units[:, place]
            rows = self.layer.flipped(index, some).rows.reshape(*some.shape, *self.net.input_shape)
            errors = self.layer.row_errors.gather(1, some)
            found = self._distances_in_box(index, rows, margins.gather(1, some), errors).distance
            distance[:, place] = torch.where(near[:, place].isinf(), math.inf, torch.maximum(found, near[:, place]))
        self.distance, order = distance.sort(1)
        self.units = units.gather(1, order)

    def _push(self, b: int, key: float, kind: int, what: Any) -> None:
        """Open a key of an example, unless it is beyond the nearest witness or the box."""
        if key < math.inf:
            self.turn += 1
            heapq.heappush(self.heaps[b], (key, self.turn, kind, what))

    def _step(self) -> None:
        """Treat the smallest keys of every open example; an open set is solved first, and entered when its key is smallest."""
        upper = self.witnesses.distance.tolist()
        sets: list[tuple[int, _Set]] = []
        regions: list[tuple[int, _Set]] = []
        decisions: list[tuple[int, float, _Decision]] = []
        for b in self.open.nonzero()[:, 0].tolist():
            heap = self.heaps[b]
            self.lower[b] = max(float(self.lower[b]), heap[0][0] if heap else math.inf)
            for turn in range(min(WIDTH, 1 + self.entered[b] // SHARE)):
                key, _, kind, what = heap[0] if heap else NOTHING
                full = kind == REGION and self.entered[b] >= self.limit
                if key >= upper[b] * (1 - SAFETY) or kind in (MET, END) or full:
                    self.open[b] = turn > 0
                    break
                heapq.heappop(heap)
                if kind == CHILD:
                    sets.append((b, self._next_child(b, key, *what)))
                elif kind == REGION:
                    self.entered[b] += 1
                    regions.append((b, what))
                else:
                    decisions.append((b, key, what))
        for start in range(0, max(len(sets), len(regions), len(decisions)), self.chunk):
            part = slice(start, start + self.chunk)
            self._solve(sets[part])
            self._enter_sets(regions[part])
            self._raise(decisions[part])

    def _next_child(self, b: int, key: float, children: _Children, turn: int) -> _Set:
        """The set of an open child, whose multipliers are not known yet; the next child of the same set is opened."""
        if turn + 1 < len(children.keys):
            self._push(b, float(children.keys[turn + 1]), CHILD, (children, turn + 1))
        parent, place = children.parent, int(children.places[turn])
        units, multipliers = (*parent.units, int(self.units[b, place])), (*parent.multipliers, 0.0)
        return _Set(units, multipliers, place, key)

    def _solve(self, sets: list[tuple[int, _Set]]) -> None:
        """Find the multipliers of sets and open their regions at the proved keys."""
        if not sets:
            return
        index = torch.tensor([b for b, _ in sets])
        units, start = _padded([one.units for _, one in sets], -1), _padded([one.multipliers for _, one in sets], 0.0)
        spaces = self.layer.flipped(index, units)
        new = torch.tensor([len(one.units) - 1 for _, one in sets])
        key, multipliers, _ = self._distance(index, spaces, start, new, QUICK if self.p == 2 else FULL)
        every = zip(sets, key.tolist(), multipliers.tolist(), strict=True)
        for (b, one), proved, found in every:
            known = one._replace(multipliers=tuple(found[: len(one.units)]), key=max(proved, one.key))
            self._push(b, known.key, REGION, known)

    def _distance(
        self, index: Tensor, spaces: HalfSpaces, start: Float[Tensor, " n k"], new: Int[Tensor, " n"], effort: Effort
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n k"], Float[Tensor, " n size"]]:
        """Proved distances to intersections of half spaces, the multipliers, and the nearest points as steps from x.

        The search for multipliers begins at `start`, which lacks the half space `new`.
        """
        box = self.box.at(index)
        farthest = self.witnesses.distance[index].double()
        enough = farthest.square() if self.p == 2 else torch.full_like(farthest, math.inf)
        steep = ascend(spaces, start, box, enough, effort)
        if self.p == 2:
            found = dual(combined(spaces, steep), box)
            key = torch.minimum((2 * found.value).sqrt(), found.radius) * (1 - SAFETY)
            return torch.where(key > box.reach, math.inf, key), steep, found.step
        # Multipliers of l_2 are a proof in every norm; so are those of the pair of the start and the new half space.
        added = torch.nn.functional.one_hot(new, start.shape[1]).to(start.dtype)
        first, second = (combined(spaces, part) for part in (start, added))
        shares = paired(first, second, self.x[index], self.p, (self.low[index], self.high[index]))
        pair = start * shares[:, :1] + added * shares[:, 1:]
        (key, step), (other, further) = (self._combined_distance(index, combined(spaces, mu)) for mu in (pair, steep))
        better = (other > key)[:, None]
        return torch.maximum(key, other), torch.where(better, steep, pair), torch.where(better, further, step)

    def _combined_distance(
        self, index: Tensor, space: Combined
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n size"]]:
        """The proved distance to one half space in any norm, and the step to its nearest point."""
        rows = space.row.reshape(len(index), 1, *self.net.input_shape)
        margin = space.margin.clamp(min=0)[:, None]
        nearest = self._distances_in_box(index, rows, margin, space.error[:, None], points=True)
        assert nearest.point is not None
        step = (nearest.point[:, 0] - self.x[index]).flatten(1)
        return nearest.distance[:, 0].nan_to_num(0.0, math.inf, 0.0), step

    def _enter_sets(self, sets: list[tuple[int, _Set]]) -> None:
        """Enter regions: open the keys of the decisions there, and of the sets with one more unit."""
        if not sets:
            return
        index = torch.tensor([b for b, _ in sets])
        units = _padded([one.units for _, one in sets], -1)
        multipliers = _padded([one.multipliers for _, one in sets], 0.0)
        key = torch.tensor([one.key for _, one in sets], dtype=torch.float64)
        last = torch.tensor([one.last for _, one in sets])
        behind = self.layer.flipped(index, units)
        decisions = self.layer.decisions(index, units, behind)
        near = self.distance[index]
        if self.screen is not None:
            found = dual(combined(behind, multipliers), self.box.at(index))
            near = torch.maximum(near, self.screen.children(index, self.units[index], found))
            leads = self.screen.decisions(index, found, decisions)
        else:
            rows = decisions.rows.reshape(*decisions.rows.shape[:2], *self.net.input_shape)
            margins = (decisions.margins - decisions.margin_errors).clamp(min=0)
            leads = self._distances_in_box(index, rows, margins, decisions.row_errors).distance
        self._look_beyond(index, decisions, leads.masked_fill(self._own(index), math.inf))
        upper = self.witnesses.distance[index].double()[:, None]
        leads = torch.maximum(leads, torch.maximum(key, self.known[index])[:, None])
        leads = leads.masked_fill(self._own(index), math.inf)
        keys = torch.maximum(near, key[:, None]).masked_fill(torch.arange(near.shape[1]) <= last[:, None], math.inf)
        # Keys beyond the nearest witness are not stored.
        for part in (leads, keys):
            beyond = part.masked_fill(part < upper, math.inf).amin(1)
            self.beyond.scatter_reduce_(0, index, beyond, "amin")
            part.masked_fill_(part >= upper, math.inf)
        keys, places = keys.sort(1)
        counts = keys.isfinite().sum(1).tolist()
        sorted_keys, sorted_places = keys.numpy(), places.to(torch.int16).numpy()
        for i, ((b, one), count, lead) in enumerate(zip(sets, counts, leads.tolist(), strict=True)):
            self.stored += stored_bytes(count)
            if count:
                children = _Children(one, sorted_keys[i, :count].copy(), sorted_places[i, :count].copy())
                self._push(b, float(children.keys[0]), CHILD, (children, 0))
            for target, reached in enumerate(lead):
                self._push(b, reached, DECISION, _Decision(one, target, (), (one.multipliers, (0.0,), ()), (1, 0), 0))

    def _look_beyond(self, index: Tensor, decisions: HalfSpaces, leads: Float[Tensor, " n classes"]) -> None:
        """Offer points just beyond the nearest decision hyperplane of entered regions, one an example."""
        nearest, target = leads.min(1)
        best: dict[int, tuple[float, int]] = {}
        for i, (b, distance) in enumerate(zip(index.tolist(), nearest.tolist(), strict=True)):
            if distance < min(best.get(b, (math.inf, 0))[0], float(self.witnesses.distance[b])):
                best[b] = distance, i
        at = torch.tensor([i for _, i in best.values()], dtype=torch.long)
        shape = (len(at), *self.net.input_shape)
        rows = decisions.rows[at, target[at]].reshape(shape)
        self.witnesses.beyond(
            index[at], rows, decisions.margins[at, target[at]], LUCKY if max(self.entered) > 1 else PUSHES
        )

    def _raise(self, decisions: list[tuple[int, float, _Decision]]) -> None:
        """Raise the keys of decisions by half spaces of the region that the nearest points violate, and look for witnesses."""
        if not decisions:
            return
        index = torch.tensor([b for b, *_ in decisions])
        units = _padded([what.parent.units for *_, what in decisions], -1)
        joined = _padded([what.joined for *_, what in decisions], -1)
        target = torch.tensor([what.target for *_, what in decisions])
        behind, inside = self.layer.flipped(index, units), self.layer.flipped(index, joined, inside=True)
        decided = self.layer.decisions(index, units, behind, target)
        spaces = behind.joined(decided).joined(inside)
        start = torch.cat(
            [_padded([what.multipliers[part] for *_, what in decisions], 0.0, width)
             for part, width in zip(range(3), (units.shape[1], 1, joined.shape[1]), strict=True)], 1,
        )  # fmt: skip
        new = torch.tensor(
            [(0, units.shape[1], units.shape[1] + 1)[what.new[0]] + what.new[1] for *_, what in decisions]
        )
        key, multipliers, step = self._distance(index, spaces, start, new, FULL)
        violation, worst = self._violations(spaces, step).max(1)
        outside = self._violated(index, torch.cat([units, joined], 1), step)
        self._offer(index, decided.rows[:, 0], step, key, (outside[:, 0] >= 0) | (violation > 0))
        parts = multipliers.split((units.shape[1], 1, joined.shape[1]), 1)
        for i, (b, before, what) in enumerate(decisions):
            counts = (len(what.parent.units), 1, len(what.joined))
            more = tuple(unit for unit in outside[i].tolist() if unit >= 0)
            found = tuple(tuple(part[i, :count].tolist()) for part, count in zip(parts, counts, strict=True))
            found = (*found[:2], (*found[2], *(0.0 for _ in more)))
            kind, place = 0, int(worst[i])
            while place >= parts[kind].shape[1]:
                kind, place = kind + 1, place - parts[kind].shape[1]
            going = (more or float(violation[i]) > 0) and what.turns < ROUNDS
            changed = _Decision(
                what.parent, what.target, (*what.joined, *more), found, (2, counts[2]) if more else (kind, place),
                what.turns + 1,
            )  # fmt: skip
            self._push(b, max(before, float(key[i])), DECISION if going else MET, changed)

    def _violations(self, spaces: HalfSpaces, step: Tensor) -> Float[Tensor, " n k"]:
        """By how much steps miss half spaces, as distances; 0 up to a tolerance."""
        values = (spaces.rows @ step.unsqueeze(2)).squeeze(2) + spaces.margins
        scale = spaces.sizes * step.abs().amax(1, keepdim=True) + spaces.margins.abs()
        return values.masked_fill(values <= VIOLATED * scale, 0.0) / norm(spaces.rows, 2, 2).clamp(min=TINY)

    def _violated(self, index: Tensor, known: Tensor, step: Tensor) -> Int[Tensor, " n k"]:
        """The units, not among those known, whose half spaces h >= 0 are most violated by steps; -1 for none."""
        layer = self.layer
        values = layer.signs[index] * (step @ layer.rows.T) + layer.margins[index]
        scale = layer.sizes * step.abs().amax(1, keepdim=True) + layer.margins[index].abs()
        values = values.masked_fill(values >= -VIOLATED * scale, 0.0) / norm(layer.rows, 2).clamp(min=TINY)
        mask = torch.zeros(len(index), values.shape[1] + 1, dtype=torch.bool)
        values = values.masked_fill(mask.scatter_(1, known % mask.shape[1], True)[:, :-1], 0.0)
        worst, places = values.topk(min(JOIN if self.p == 2 else 1, values.shape[1]), largest=False)
        return places.where(worst < 0, -1)

    def _offer(self, index: Tensor, rows: Tensor, step: Tensor, key: Tensor, outside: Tensor) -> None:
        """Offer the points just beyond the nearest points of decisions, one an example: those in their regions first."""
        near = key * (1 - SAFETY) < self.witnesses.distance[index].double()
        best: dict[int, int] = {}
        for i in (near & key.isfinite()).nonzero()[:, 0].tolist():
            b = int(index[i])
            rank = (bool(outside[i]), float(key[i]))
            if b not in best or rank < (bool(outside[best[b]]), float(key[best[b]])):
                best[b] = i
        for pushes, wanted in ((PUSHES, False), (LUCKY, True)):
            at = torch.tensor([i for i in best.values() if bool(outside[i]) == wanted], dtype=torch.long)
            if len(at):
                points = self.x[index[at]] + step[at].reshape(len(at), *self.net.input_shape)
                shaped = rows[at].reshape(points.shape)
                self.witnesses.around(index[at], points, shaped, pushes)


def _padded(
    rows: list[tuple[float, ...]] | list[tuple[int, ...]], value: float | int, width: int | None = None
) -> Tensor:
    """Tuples as the rows of one tensor, filled up with a value."""
    width = max(map(len, rows), default=0) if width is None else width
    filled = [(*row, *(value,) * (width - len(row))) for row in rows]
    return torch.tensor(filled, dtype=torch.long if isinstance(value, int) else torch.float64).reshape(len(rows), width)
