"""From facet to facet: the search of `neighbours` for networks small enough to look at the polytopes themselves.

A key becomes the distance to the facet, the part of a hyperplane that bounds the region. Mostly that is known at once: a face
with an explored region behind it needs no key, and where the nearest point of the hyperplane lies in the region its distance
is that of the facet. What is left when it comes up as the smallest key is a linear or quadratic program with a proved lower
bound (`polytope`); a hyperplane is dropped only if that proves that it is no facet. So a search that may go on ends with the
exact distance.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relucert.geometry.exploration.crossing import patterns_behind
from relucert.geometry.exploration.neighbours import (
    BEYOND,
    SAFETY,
    Exploration,
    distances_in_box,
    names,
    reach,
    resolved,
)
from relucert.geometry.region import LinearRegion, WindowFaces
from relucert.geometry.witness import PUSHES
from relucert.polytopes.certificates import EPS, Array, certified_distances
from relucert.polytopes.farkas import certified_empties
from relucert.polytopes.interior import interior_point, pushed_inside
from relucert.polytopes.least_distances import least_distances
from relucert.polytopes.polytope import OPTIMAL, Polytope

ROUNDING = 1e-13  # the same for the points that quick programs find
INSIDE = 1e-12  # what of its size a margin may be below zero at a point that passes for one of the region
TOGETHER = 1024  # rows times inputs up to which all facets of a region are looked at when it is entered
NEAR = 1e-6  # keys below this are looked at as if they were as large
FAR = 1e6  # a distance, in parts of the size of x, beyond which a facet may well be none
LUCKY = 1e-4  # how far behind a decision hyperplane to look outside the region, in parts of the margin
HYPERPLANE, MET, FACET = 0, 1, 2  # what a key knows: a distance to the hyperplane, a point of the facet, its distance


@dataclass(eq=False)
class Cell:
    """One explored region of one example: rows z + offsets >= 0 for its faces, then for its decision hyperplanes.

    `points` are the nearest ones to x on the hyperplanes within the box, `inside` says which lie in the region; `void` faces
    have no direction, of these `sideless` ones vanish on the whole region. `margin_errors` and `row_errors` (hyperplanes,)
    bound the rounding of the margins at x and of the rows.
    """

    patterns: list[Tensor]
    name: bytes
    count: int
    rows: Array
    offsets: Array
    void: NDArray[np.bool_]
    sideless: NDArray[np.bool_]
    points: Array
    inside: NDArray[np.bool_]
    box: tuple[Array, Array]
    margin_errors: Array
    row_errors: Array
    facet_points: dict[int, Array] = field(default_factory=dict)
    _widened: tuple[float, Polytope, float] | None = None

    @cached_property
    def real(self) -> NDArray[np.intp]:
        """The faces that have a direction."""
        return np.flatnonzero(~self.void & self.rows[: self.count].any(1))

    def polytope(self, radius: float) -> tuple[Polytope, float]:
        """The region within the box, widened so that its facets hold the true ones within `radius`, up to a step in l_2.

        Also the length of that step; see `blurred`.
        """
        if self._widened is None or self._widened[0] != radius:
            blur, step = blurred(self.rows, self.margin_errors, self.row_errors, radius)
            box = self.box[0] - step, self.box[1] + step
            offsets = self.offsets[self.real] + blur[self.real]
            self._widened = radius, Polytope(-self.rows[self.real], offsets, box), float(step)
        return self._widened[1], self._widened[2]

    def interior(self, entry: int) -> tuple[Array, NDArray[np.bool_]] | None:
        """A point in the relative interior of a facet, and the faces (count,) in whose hyperplanes the facet lies."""
        within = self.void.copy()
        if entry < self.count:
            within[entry] = True
        near = self.points[entry] if self.inside[entry] else self.facet_points.get(entry)
        if near is not None and self.rows[entry].any():
            others = np.flatnonzero(~within)
            point = pushed_inside(near, self.rows[entry], self.rows[others], self.offsets[others], self.box)
            if point is not None:
                return point, within
        found = interior_point(
            -self.rows[self.real],
            self.offsets[self.real],
            self.rows[entry],
            -self.offsets[entry],
            self.box,
            near=self.facet_points.get(entry),
        )
        if found is None:
            return None
        within[self.real[found.slack == 0]] = True
        return found.point, within


def blurred(rows: Array, margin_errors: Array, row_errors: Array, radius: Array | float) -> tuple[Array, Array]:
    """What rounding can do to faces within `radius` of x: (blur of every hyperplane, length of a step).

    With margins off by m_k and rows by E_k, a face is off by m_k + E_k R within R. A point of a true facet of face j is off its
    computed hyperplane by as much, and a step of that part of ||w_j||_2 leads onto it: moved by the largest such step, every
    point of a true facet lies on the computed hyperplane, and violates computed faces by at most m_k + E_k R + step ||w_k||.
    Shapes: rows (.., n, d), errors (.., n), radius (..).
    """
    norms = np.linalg.norm(rows, axis=-1)
    # A row without an error is right however far away.
    rates = np.where(row_errors == 0, 0.0, np.expand_dims(radius, -1))
    off = margin_errors + row_errors * rates
    step = np.divide(off, norms, out=np.zeros_like(off), where=norms > 0).max(-1, initial=0.0)
    return off + np.expand_dims(step, -1) * norms, np.asarray(step)


class FacetExploration(Exploration):
    """The search of a batch of inputs; one pass of `advance` takes every open example to its next region."""

    def _begin(self) -> None:
        self.heaps: list[list[tuple[float, int, int, Cell, int]]] = [[] for _ in self.x]
        self.flips = self._flips()

    def _flips(self) -> list[tuple[int, int | bytes]]:
        """What crossing a face changes in a pattern's name, from which byte on: a bit of it, or the winner of a max pool."""
        found: list[tuple[int, int | bytes]] = []
        start = 0
        for faces in LinearRegion.at(self.net, self.x[:1]).faces:
            if not isinstance(faces, WindowFaces):
                found += [(start + unit // 8, 128 >> unit % 8) for unit in range(faces.count)]
                start += (faces.count + 7) // 8
                continue
            windows = faces.windows.tolist()
            units = math.prod(faces.node.shape)
            for unit in range(units):
                places = windows[unit % len(windows)]
                found += [(start + 4 * unit, np.int32(place).tobytes()) for place in places]
            start += 4 * units
        return found

    def _enter(self, index: Tensor, patterns: list[Tensor], key: Tensor) -> None:
        """Add a region of some examples: all its hyperplanes with their distances in the box."""
        found = self._measure(index, patterns)
        self._begin_own(index, found)
        region, x = found.region, self.x[index]
        everything = torch.arange(region.count).expand(len(index), -1)
        rows = torch.cat([region.rows(everything), found.class_rows], 1)
        margins = torch.cat([found.margins, found.lead], 1)
        raw = torch.cat([found.raw_margins, found.raw_lead], 1)
        own = self._own(index)
        flat = rows.flatten(2)
        errors = torch.cat([found.face_errors, found.class_errors], 1)
        # A row that is computed as zero has no direction only if it is known without an error.
        void = ((flat == 0).all(2) & (errors == 0)) | margins.isinf()
        # A class that is never ahead of or behind another has a distance, a face that is the same everywhere has none.
        skip = torch.cat([void[:, : region.count], own], 1)
        margins, raw = (part.masked_fill(void & part.isinf(), 0.0) for part in (margins, raw))
        box = (self.low[index], self.high[index])
        nearest = distances_in_box(x, rows, margins, errors, self.p, box, self.budget, point=True)
        assert nearest.point is not None
        norms = flat.norm(dim=2)
        self.blurred[index] |= ~resolved(norms[:, : region.count], found.face_errors)
        flat_faces = (norms == 0)[:, : region.count] & (found.face_errors == 0)
        sideless, hidden = self._sideless(index, found, flat_faces)
        distance = torch.where(hidden[:, None], 0.0, nearest.distance).masked_fill(skip, math.inf)
        off = torch.cat([found.margin_errors, found.lead_errors], 1)
        # What rounding does to the offsets below.
        sizes = (flat.abs() @ x.flatten(1).abs().unsqueeze(2))[:, :, 0] + raw.abs()
        off = off + (flat.shape[2] + 2) * torch.finfo(flat.dtype).eps * sizes
        keys = torch.maximum(distance, key[:, None])
        points = nearest.point.flatten(2)
        offsets = raw - (flat @ x.flatten(1).unsqueeze(2))[:, :, 0]
        inside = self._inside(flat[:, : region.count], offsets[:, : region.count], points, skip)
        self._look_behind(index, rows, margins, keys, inside)
        arrays = [part.numpy() for part in (flat, offsets, skip, points, inside, keys, off, errors)]
        found_keys, facet_points = self._together(index, names(patterns, len(index)), *arrays)
        low, high = self.low.flatten(1).numpy(), self.high.flatten(1).numpy()
        count = region.count
        for i, (b, name) in enumerate(zip(index.tolist(), names(patterns, len(index)), strict=True)):
            self.seen[b].add(name)
            pattern = [part[i] for part in patterns]
            own_rows, own_offsets, none, own_points, within, _, *own_errors = (part[i] for part in arrays)
            cell = Cell(
                pattern, name, count, own_rows, own_offsets, none[:count], sideless[i].numpy(), own_points, within,
                (low[b], high[b]), *own_errors,
            )  # fmt: skip
            heap, turn = self.heaps[b], len(self.seen[b])
            for entry in np.flatnonzero(np.isfinite(found_keys[i])).tolist():
                level = HYPERPLANE
                if (i, entry) in facet_points:
                    cell.facet_points[entry], level = facet_points[i, entry]
                heapq.heappush(heap, (float(found_keys[i, entry]), -turn, entry, cell, level))

    def _radius(self, index: Tensor, key: Array) -> Array:
        """How far from x facets with these keys are looked at: far beyond the key, to the nearest witness, through the box."""
        most = reach(self.x[index], self.p, (self.low[index], self.high[index])).numpy()
        with np.errstate(over="ignore"):  # a key so large that its multiple is infinite sets no limit
            far = np.minimum(2 * self.witnesses.distance[index].double().numpy(), BEYOND * np.maximum(key, NEAR))
        return np.minimum(most, far)

    def _together(
        self, index: Tensor, called: list[bytes], rows: Array, offsets: Array, skip: NDArray[np.bool_], points: Array,
        inside: NDArray[np.bool_], keys: Array, margin_errors: Array, row_errors: Array,
    ) -> tuple[Array, dict[tuple[int, int], tuple[Array, int]]]:  # fmt: skip
        """Keys of new regions after all that quick programs prove, and the points that they found on facets."""
        keys = keys.copy()
        upper = self.witnesses.distance[index].double().numpy()
        count = len(self.flips)
        prop = np.isfinite(keys) & ~inside & (keys < upper[:, None])
        for i, (b, name) in enumerate(zip(index.tolist(), called, strict=True)):
            seen = self.seen[b]
            if seen:
                for entry in np.flatnonzero(np.isfinite(keys[i, :count])).tolist():
                    if self._flipped(name, entry) in seen:
                        keys[i, entry] = math.inf
                        prop[i, entry] = False
        prop &= ~self.blurred[index].numpy()[:, None]
        if rows.shape[1] * rows.shape[2] > TOGETHER:
            return keys, {}
        example, entry = np.nonzero(prop)
        if len(example) == 0:
            return keys, {}
        x = self.x[index].flatten(1).numpy()
        below, above = x - self.low[index].flatten(1).numpy(), self.high[index].flatten(1).numpy() - x
        slacks = below[example], above[example]
        # The region's faces, and last the hyperplane in question.
        normals = np.concatenate((-rows[example, :count], rows[example, entry][:, None]), 1)
        radius = self._radius(index[example], keys[example, entry])
        blur, moved = blurred(rows[example], margin_errors[example], row_errors[example], radius)
        faces = (offsets[example] + blur)[:, :count]
        limits = np.concatenate((faces, -offsets[example, entry][:, None]), 1)
        limits[:, :count][skip[example, :count]] = math.inf
        face = np.flatnonzero(entry < count)
        limits[face, entry[face]] = math.inf
        centre = x[example]
        margins = limits - (normals @ centre[..., None])[..., 0]
        last = np.full(len(example), count)
        found = least_distances(normals, margins, last, slacks)
        wide = slacks[0] * (1.0 + EPS) + moved[:, None], slacks[1] * (1.0 + EPS) + moved[:, None]
        lower = certified_distances(normals, limits, found.multipliers, found.paid, centre, wide, self.p)
        lower = self._proved(lower, moved, radius, index[example])
        if not np.isfinite(slacks).any():
            far = np.flatnonzero(lower > FAR * (1.0 + np.abs(centre).max(1)))
            empty = certified_empties(normals[far], limits[far], found.multipliers[far], last[far], centre[far])
            # Limits are widened for rounding within the radius alone, unless nothing is rounded.
            known = (row_errors[example[far[empty]]] == 0).all(1)
            lower[far[empty]] = np.where(known, math.inf, np.maximum(lower[far[empty]], radius[far[empty]]))
        keys[example, entry] = np.maximum(keys[example, entry], lower)
        point = (centre + found.step).clip(centre - slacks[0], centre + slacks[1])
        with np.errstate(invalid="ignore"):
            size = (np.abs(normals) @ np.abs(point)[..., None])[..., 0]
            over = (normals @ point[..., None])[..., 0] - limits
            over[:, -1] = np.abs(over[:, -1])
            met = np.isfinite(lower) & (over <= ROUNDING * (size + np.abs(limits))).all(1)
            length = np.linalg.norm(point - centre, self.p, axis=1)
            level = np.where(length * (1 - OPTIMAL) <= lower, FACET, MET)
        return keys, {(int(example[i]), int(entry[i])): (point[i], int(level[i])) for i in np.flatnonzero(met)}

    def _inside(self, faces: Tensor, offsets: Tensor, points: Tensor, skip: Tensor) -> Tensor:
        """Whether the nearest points on hyperplanes lie in the region, up to rounding."""
        values = points @ faces.transpose(1, 2) + offsets[:, None]
        size = points.abs() @ faces.transpose(1, 2).abs() + offsets.abs()[:, None]
        count = faces.shape[1]
        fine = (values >= -INSIDE * size) | skip[:, None, :count]
        itself = torch.eye(skip.shape[1], count, dtype=torch.bool)
        return (fine | itself).all(2)

    def _look_behind(self, index: Tensor, rows: Tensor, margins: Tensor, keys: Tensor, inside: Tensor) -> None:
        """Look for a witness behind the nearest decision hyperplane of new regions: that is one if it is met inside."""
        first = rows.shape[1] - self.net.classes
        reached, chosen = keys[:, first:].min(1)
        near = reached < self.witnesses.distance[index].double()
        for met, pushes in ((True, PUSHES), (False, (LUCKY,))):
            at = (near & (inside[torch.arange(len(index)), first + chosen] == met)).nonzero()[:, 0]
            place = first + chosen[at]
            self.witnesses.beyond(index[at], rows[at, place], margins[at, place], pushes)

    def advance(self) -> None:
        """Take every open example to its next region, or close it."""
        wanted = [(b, *face) for b in self.open.nonzero()[:, 0].tolist() if (face := self._next(b)) is not None]
        if wanted:
            self._cross(wanted)

    def _next(self, b: int) -> tuple[Cell, int, float] | None:
        """The face through which an example leaves for a new region, with its key; None if the example is closed."""
        heap, seen = self.heaps[b], self.seen[b]
        lower, upper = float(self.lower[b]), float(self.witnesses.distance[b])
        face = None
        while heap:
            key, turn, entry, cell, level = heap[0]
            lower = max(lower, key)
            # Nothing is nearer than the nearest witness; what is blurred is not looked at any closer.
            if key >= upper * (1 - SAFETY) or bool(self.blurred[b]):
                break
            if entry >= cell.count:
                upper = self._witness(b, cell, entry, level)
                if level == FACET or upper * (1 - self.tolerance) <= key:
                    break
            elif self._flipped(cell.name, entry) in seen:
                heapq.heappop(heap)
                continue
            elif level == FACET or cell.inside[entry] or (level == MET and self.limit == math.inf):
                # Without a limit a region more is cheaper than a program for the distance.
                if len(seen) < self.limit:
                    heapq.heappop(heap)
                    face = cell, entry, key
                break
            distance, more = self._facet_distance(b, cell, entry, key)
            if math.isinf(distance):
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (max(key, distance), turn, entry, cell, level if more else FACET))
        else:
            lower = math.inf
        self.lower[b] = lower
        self.open[b] = face is not None
        return face

    def _flipped(self, name: bytes, entry: int) -> bytes:
        """The name of the region in which one unit or winner alone is another: if explored, it is what lies behind the face.

        The facet belongs to that region too, since both maps are the same there. Were others to change as well, it would
        have no interior, and be explored only if x lies in it: then its own faces lead on.
        """
        at, change = self.flips[entry]
        changed = bytearray(name)
        if isinstance(change, int):
            changed[at] ^= change
        else:
            changed[at : at + 4] = change
        return bytes(changed)

    def _facet_distance(self, b: int, cell: Cell, entry: int, key: float) -> tuple[float, bool]:
        """A proved lower bound on the distance to a facet, inf if there is none; and whether it may grow when asked again."""
        x, index = self.x[b].flatten().numpy(), torch.tensor([b])
        radius = self._radius(index, np.array([key]))
        polytope, step = cell.polytope(float(radius[0]))
        found = polytope.distance(x, E=cell.rows[entry], e=-cell.offsets[entry], p=self.p)
        lower = found.lower
        if found.point is not None:
            cell.facet_points[entry] = found.point.clip(*cell.box)
        elif found.status == "unknown" and polytope.proved_empty(cell.rows[entry], -cell.offsets[entry]):
            lower = math.inf
        proved = float(self._proved(np.array([lower]), np.array([step]), radius, index)[0])
        return proved, proved == float(radius[0]) and key < proved

    def _proved(self, lower: Array, step: Array, radius: Array, index: Tensor) -> Array:
        """Distances to true facets from those to computed ones, which hold them within `radius` up to a step in l_2."""
        longest = math.sqrt(self.x[0].numel()) if self.p < 2 else 1.0
        most = reach(self.x[index], self.p, (self.low[index], self.high[index])).numpy()
        found = np.maximum(lower * (1 - SAFETY) - longest * step, 0.0)
        return np.minimum(found, np.where(radius >= most, math.inf, radius))

    def _witness(self, b: int, cell: Cell, entry: int, level: int) -> float:
        """Look for a witness behind a decision hyperplane, at the nearest point of the region if that is known."""
        start = cell.points[entry] if level == HYPERPLANE and cell.inside[entry] else cell.facet_points.get(entry)
        if start is not None:
            at, shape = torch.tensor([b]), (1, *self.net.input_shape)
            rows = torch.from_numpy(cell.rows[entry]).reshape(shape)
            point = torch.from_numpy(start).reshape(shape)
            self.witnesses.around(at, point, rows)
            if level == FACET and (inner := cell.interior(entry)) is not None:
                # Towards the interior of the facet, so that the push stays in the region.
                middle = torch.from_numpy(inner[0]).reshape(shape)
                for share in (1e-8, 1e-7, 1e-6, 1e-5):
                    self.witnesses.around(at, point + share * (middle - point), rows)
        return float(self.witnesses.distance[b])

    def _cross(self, wanted: list[tuple[int, Cell, int, float]]) -> None:
        """Enter the regions behind some faces, unless they are known."""
        index = torch.tensor([b for b, *_ in wanted])
        rows = torch.from_numpy(np.stack([cell.rows[entry] for _, cell, entry, _ in wanted]))
        patterns = [torch.stack(part) for part in zip(*(cell.patterns for _, cell, *_ in wanted), strict=True)]
        old = LinearRegion(self.net, patterns, len(wanted))
        crossed = torch.tensor([entry for *_, entry, _ in wanted])
        sideless = torch.from_numpy(np.stack([cell.sideless for _, cell, *_ in wanted]))
        patterns = patterns_behind(old, crossed, sideless, -rows.reshape(len(wanted), *self.net.input_shape))
        called = zip(wanted, names(patterns, len(wanted)), strict=True)
        new = torch.tensor([name not in self.seen[b] for (b, *_), name in called])
        if bool(new.any()):
            key = torch.tensor([key for *_, key in wanted], dtype=torch.float64)
            self._enter(index[new], [pattern[new] for pattern in patterns], key[new])
