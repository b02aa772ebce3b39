"""The search over neighbouring regions with distances to facets, for small networks: exact if regions are not limited.

A key becomes the distance to the facet, the part of a hyperplane that bounds the region. It is often known at once: a
hyperplane with an explored region beyond it needs no key, and if the nearest point of the hyperplane lies in the region, its
distance is that of the facet. Otherwise, when it is the smallest key, a linear or quadratic program gives a proved lower bound
(`polytopes.polytope`); a hyperplane is dropped only if that program proves that it has no facet. So an unlimited search ends
with the exact distance.
"""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relucert.core.rounding import gamma_above
from relucert.geometry.exploration.search import (
    BEYOND,
    SAFETY,
    Crossing,
    Measured,
    RegionSearch,
    names,
    reach,
    resolved,
)
from relucert.geometry.region import LinearRegion
from relucert.geometry.witness import PUSHES
from relucert.polytopes.certificates import EPS, Array, certified_distances
from relucert.polytopes.farkas import certified_empties
from relucert.polytopes.interior import interior_point, pushed_inside
from relucert.polytopes.least_distances import least_distances
from relucert.polytopes.polytope import OPTIMAL, Polytope

INSIDE = 1e-12  # relative tolerance of margins for a point that counts as inside the region
ROUNDING = 1e-13  # the same for the points of batched programs
TOGETHER = 1024  # rows times inputs up to which all facets of a region are solved when it is entered
NEAR = 1e-6  # smaller keys are treated as this large when the radius of a program is chosen
FAR = 1e6  # a distance, relative to the size of x, beyond which the facet may be empty
LUCKY = 1e-4  # relative step beyond a decision hyperplane that is not met inside the region
HYPERPLANE, MET, FACET = (
    0,
    1,
    2,
)  # what a key is: distance to the hyperplane, the same with a point of the facet, to the facet


@dataclass(eq=False)
class Cell:
    """One explored region of one example: rows z + offsets >= 0, for its `count` hyperplanes and then for the decisions.

    `points` are the points of the hyperplanes in the box nearest to x, `inside` says which of them lie in the region. `void`
    hyperplanes have zero rows; of these, `degenerate` ones vanish on the whole region. `margin_errors` and `row_errors`
    (hyperplanes,) bound the rounding errors of the margins at x and of the rows.
    """

    patterns: list[Tensor]
    name: bytes
    count: int
    rows: Array
    offsets: Array
    void: NDArray[np.bool_]
    degenerate: NDArray[np.bool_]
    points: Array
    inside: NDArray[np.bool_]
    box: tuple[Array, Array]
    margin_errors: Array
    row_errors: Array
    facet_points: dict[int, Array] = field(default_factory=dict)
    _widened: tuple[float, Polytope, float] | None = None

    @cached_property
    def real(self) -> NDArray[np.intp]:
        """The hyperplanes of the region with nonzero rows."""
        return np.flatnonzero(~self.void & self.rows[: self.count].any(1))

    def polytope(self, radius: float) -> tuple[Polytope, float]:
        """The region within the box, widened so that its facets contain the true facets within `radius` up to an l_2 step.

        The second result is the length of that step; see `blurred`.
        """
        if self._widened is None or self._widened[0] != radius:
            blur, step = blurred(self.rows, self.margin_errors, self.row_errors, radius)
            box = self.box[0] - step, self.box[1] + step
            offsets = self.offsets[self.real] + blur[self.real]
            self._widened = radius, Polytope(-self.rows[self.real], offsets, box), float(step)
        return self._widened[1], self._widened[2]

    def interior(self, entry: int) -> tuple[Array, NDArray[np.bool_]] | None:
        """A point in the relative interior of a facet, and the hyperplanes (count,) that contain the facet."""
        within = self.void.copy()
        if entry < self.count:
            within[entry] = True
        near = self.points[entry] if self.inside[entry] else self.facet_points.get(entry)
        if near is not None and self.rows[entry].any():
            others = np.flatnonzero(~within)
            point = pushed_inside(near, self.rows[entry], self.rows[others], self.offsets[others], self.box)
            if point is not None:
                return point, within
        interior = interior_point(
            -self.rows[self.real],
            self.offsets[self.real],
            self.rows[entry],
            -self.offsets[entry],
            self.box,
            near=self.facet_points.get(entry),
        )
        if interior is None:
            return None
        within[self.real[interior.slack == 0]] = True
        return interior.point, within


def blurred(rows: Array, margin_errors: Array, row_errors: Array, radius: Array | float) -> tuple[Array, Array]:
    """The effect of rounding on hyperplanes within `radius` of x: (blur of every hyperplane, length of a step).

    With errors m_k of margins and E_k of rows, hyperplane k is off by at most b_k = m_k + E_k R within R. A point of a true
    facet of hyperplane j is off the computed hyperplane by at most b_j, and an l_2 step of b_j / ||w_j||_2 leads onto it.
    After the largest such step every point of a true facet lies on the computed hyperplane, and violates the computed half
    spaces by at most b_k + step ||w_k||_2. Shapes: rows (.., n, d), errors (.., n), radius (..).
    """
    norms = np.linalg.norm(rows, axis=-1)
    # A row without an error is exact at every distance.
    rates = np.where(row_errors == 0, 0.0, np.expand_dims(radius, -1))
    off = margin_errors + row_errors * rates
    step = np.divide(off, norms, out=np.zeros_like(off), where=norms > 0).max(-1, initial=0.0)
    return off + np.expand_dims(step, -1) * norms, np.asarray(step)


class _Arrays(NamedTuple):
    """New regions of some examples in numpy: the fields of `Cell` (examples, hyperplanes, ...), and their keys."""

    rows: Array
    offsets: Array
    skip: NDArray[np.bool_]
    points: Array
    inside: NDArray[np.bool_]
    keys: Array
    margin_errors: Array
    row_errors: Array


class FacetSearch(RegionSearch):
    """The search by distances to facets; one step takes every open example to its next region."""

    def _begin(self) -> None:
        self.heaps: list[list[tuple[float, int, int, Cell, int]]] = [[] for _ in self.x]

    def _add(self, index: Tensor, measured: Measured, key: Tensor) -> None:
        """Store all hyperplanes of new regions with their distances in the box, or to the facet where that is quick."""
        arrays, degenerate = self._arrays(index, measured, key)
        patterns, count = measured.region.patterns, measured.region.count
        called = names(patterns, len(index))
        keys, facet_points = self._solve_together(index, called, arrays)
        low, high = self.low.flatten(1).numpy(), self.high.flatten(1).numpy()
        for i, (b, name) in enumerate(zip(index.tolist(), called, strict=True)):
            self.seen[b].add(name)
            cell = Cell(
                [pattern[i] for pattern in patterns], name, count, arrays.rows[i], arrays.offsets[i],
                arrays.skip[i, :count], degenerate[i].numpy(), arrays.points[i], arrays.inside[i], (low[b], high[b]),
                arrays.margin_errors[i], arrays.row_errors[i],
            )  # fmt: skip
            heap, turn = self.heaps[b], len(self.seen[b])
            for entry in np.flatnonzero(np.isfinite(keys[i])).tolist():
                level = HYPERPLANE
                if (i, entry) in facet_points:
                    cell.facet_points[entry], level = facet_points[i, entry]
                heapq.heappush(heap, (float(keys[i, entry]), -turn, entry, cell, level))

    def _arrays(self, index: Tensor, measured: Measured, key: Tensor) -> tuple[_Arrays, Tensor]:
        """The hyperplanes of new regions with their distances in the box, and the degenerate units."""
        region, x = measured.region, self.x[index]
        everything = torch.arange(region.count).expand(len(index), -1)
        rows = torch.cat([region.rows(everything), measured.class_rows], 1)
        margins = torch.cat([measured.margins, measured.lead], 1)
        raw = torch.cat([measured.raw_margins, measured.raw_lead], 1)
        flat = rows.flatten(2)
        errors = torch.cat([measured.row_errors, measured.class_errors], 1)
        # A computed zero row is a true zero row only if its error is 0.
        void = ((flat == 0).all(2) & (errors == 0)) | margins.isinf()
        # A decision with a zero row keeps its distance 0 or inf; a unit with a zero row has no hyperplane.
        skip = torch.cat([void[:, : region.count], self._own(index)], 1)
        margins, raw = (values.masked_fill(void & values.isinf(), 0.0) for values in (margins, raw))
        nearest = self._distances_in_box(index, rows, margins, errors, points=True)
        assert nearest.point is not None
        norms = flat.norm(dim=2)[:, : region.count]
        self.blurred[index] |= ~resolved(norms, measured.row_errors)
        degenerate, hidden = self._degenerate(index, measured, (norms == 0) & (measured.row_errors == 0))
        distance = torch.where(hidden[:, None], 0.0, nearest.distance).masked_fill(skip, math.inf)
        off = torch.cat([measured.margin_errors, measured.lead_errors], 1)
        # The rounding errors of the offsets below.
        sizes = (flat.abs() @ x.flatten(1).abs().unsqueeze(2))[:, :, 0] + raw.abs()
        off = off + gamma_above(flat.shape[2] + 2, flat.dtype) * sizes
        keys = torch.maximum(distance, key[:, None])
        # Nothing changes within a radius that is certified.
        decided = torch.where(keys.isinf(), keys, torch.maximum(keys, self.known[index][:, None]))
        keys = torch.cat([keys[:, : region.count], decided[:, region.count :]], 1)
        points = nearest.point.flatten(2)
        offsets = raw - (flat @ x.flatten(1).unsqueeze(2))[:, :, 0]
        inside = self._inside(flat[:, : region.count], offsets[:, : region.count], points, skip)
        self._look_beyond(index, rows, margins, keys, inside)
        every = (flat, offsets, skip, points, inside, keys, off, errors)
        return _Arrays(*(values.numpy() for values in every)), degenerate

    def _radius(self, index: Tensor, key: Array) -> Array:
        """The radius up to which facets with these keys are bounded: `BEYOND` keys, two witness distances, or the whole box."""
        most = reach(self.x[index], self.p, (self.low[index], self.high[index])).numpy()
        with np.errstate(over="ignore"):  # a key so large that its multiple is infinite sets no limit
            far = np.minimum(2 * self.witnesses.distance[index].double().numpy(), BEYOND * np.maximum(key, NEAR))
        return np.minimum(most, far)

    def _solve_together(
        self, index: Tensor, called: list[bytes], arrays: _Arrays
    ) -> tuple[Array, dict[tuple[int, int], tuple[Array, int]]]:
        """The keys of new regions after batched programs, and points of facets with the levels of their keys.

        Hyperplanes with an explored region beyond them get the key inf.
        """
        rows, offsets, skip, _, inside, keys, margin_errors, row_errors = arrays
        keys = keys.copy()
        upper = self.witnesses.distance[index].double().numpy()
        count = len(self.flips)
        wanted = np.isfinite(keys) & ~inside & (keys < upper[:, None])
        for i, (b, name) in enumerate(zip(index.tolist(), called, strict=True)):
            seen = self.seen[b]
            if seen:
                for entry in np.flatnonzero(np.isfinite(keys[i, :count])).tolist():
                    if self._flipped(name, entry) in seen:
                        keys[i, entry] = math.inf
                        wanted[i, entry] = False
        wanted &= ~self.blurred[index].numpy()[:, None]
        if rows.shape[1] * rows.shape[2] > TOGETHER:
            return keys, {}
        example, entry = np.nonzero(wanted)
        if len(example) == 0:
            return keys, {}
        x = self.x[index].flatten(1).numpy()
        below, above = x - self.low[index].flatten(1).numpy(), self.high[index].flatten(1).numpy() - x
        slacks = below[example], above[example]
        # The hyperplanes of the region, and last the hyperplane of the facet.
        normals = np.concatenate((-rows[example, :count], rows[example, entry][:, None]), 1)
        radius = self._radius(index[example], keys[example, entry])
        blur, moved = blurred(rows[example], margin_errors[example], row_errors[example], radius)
        widened = (offsets[example] + blur)[:, :count]
        limits = np.concatenate((widened, -offsets[example, entry][:, None]), 1)
        limits[:, :count][skip[example, :count]] = math.inf
        own = np.flatnonzero(entry < count)
        limits[own, entry[own]] = math.inf
        centre = x[example]
        margins = limits - (normals @ centre[..., None])[..., 0]
        last = np.full(len(example), count)
        least = least_distances(normals, margins, last, slacks)
        wide = slacks[0] * (1.0 + EPS) + moved[:, None], slacks[1] * (1.0 + EPS) + moved[:, None]
        lower = certified_distances(normals, limits, least.multipliers, least.paid, centre, wide, self.p)
        lower = self._proved(lower, moved, radius, index[example])
        if not np.isfinite(slacks).any():
            far = np.flatnonzero(lower > FAR * (1.0 + np.abs(centre).max(1)))
            empty = certified_empties(normals[far], limits[far], least.multipliers[far], last[far], centre[far])
            # The widened limits hold only within the radius, unless the rows have no error.
            known = (row_errors[example[far[empty]]] == 0).all(1)
            lower[far[empty]] = np.where(known, math.inf, np.maximum(lower[far[empty]], radius[far[empty]]))
        keys[example, entry] = np.maximum(keys[example, entry], lower)
        point = (centre + least.step).clip(centre - slacks[0], centre + slacks[1])
        with np.errstate(invalid="ignore"):
            size = (np.abs(normals) @ np.abs(point)[..., None])[..., 0]
            over = (normals @ point[..., None])[..., 0] - limits
            over[:, -1] = np.abs(over[:, -1])
            met = np.isfinite(lower) & (over <= ROUNDING * (size + np.abs(limits))).all(1)
            length = np.linalg.norm(point - centre, self.p, axis=1)
            level = np.where(length * (1 - OPTIMAL) <= lower, FACET, MET)
        return keys, {(int(example[i]), int(entry[i])): (point[i], int(level[i])) for i in np.flatnonzero(met)}

    def _inside(self, units: Tensor, offsets: Tensor, points: Tensor, skip: Tensor) -> Tensor:
        """Whether the nearest points of hyperplanes lie in the region, up to rounding."""
        values = points @ units.transpose(1, 2) + offsets[:, None]
        size = points.abs() @ units.transpose(1, 2).abs() + offsets.abs()[:, None]
        count = units.shape[1]
        fine = (values >= -INSIDE * size) | skip[:, None, :count]
        itself = torch.eye(skip.shape[1], count, dtype=torch.bool)
        return (fine | itself).all(2)

    def _look_beyond(self, index: Tensor, rows: Tensor, margins: Tensor, keys: Tensor, inside: Tensor) -> None:
        """Look for a witness beyond the nearest decision hyperplane of new regions; certain if it is met inside the region."""
        first = rows.shape[1] - self.net.classes
        reached, chosen = keys[:, first:].min(1)
        near = reached < self.witnesses.distance[index].double()
        for met, pushes in ((True, PUSHES), (False, (LUCKY,))):
            at = (near & (inside[torch.arange(len(index)), first + chosen] == met)).nonzero()[:, 0]
            place = first + chosen[at]
            self.witnesses.beyond(index[at], rows[at, place], margins[at, place], pushes)

    def _next(self) -> Crossing | None:
        """The facet through which every open example enters its next region; examples without one are closed."""
        every = self.open.nonzero()[:, 0].tolist()
        wanted = [(b, *facet) for b in every if (facet := self._next_facet(b)) is not None]
        if not wanted:
            return None
        shape = (len(wanted), *self.net.input_shape)
        patterns = [torch.stack(part) for part in zip(*(cell.patterns for _, cell, *_ in wanted), strict=True)]
        return Crossing(
            torch.tensor([b for b, *_ in wanted]),
            LinearRegion(self.net, patterns, len(wanted)),
            torch.tensor([entry for *_, entry, _ in wanted]),
            torch.from_numpy(np.stack([cell.rows[entry] for _, cell, entry, _ in wanted])).reshape(shape),
            torch.from_numpy(np.stack([cell.degenerate for _, cell, *_ in wanted])),
            torch.tensor([key for *_, key in wanted], dtype=torch.float64),
        )

    def _next_facet(self, b: int) -> tuple[Cell, int, float] | None:
        """The facet with the smallest key of an example, if it leads to a new region; None if the example is closed."""
        heap, seen = self.heaps[b], self.seen[b]
        lower, upper = float(self.lower[b]), float(self.witnesses.distance[b])
        facet = None
        while heap:
            key, turn, entry, cell, level = heap[0]
            lower = max(lower, key)
            # At a key beyond the nearest witness the interval is closed; blurred examples are not refined.
            if key >= upper * (1 - SAFETY) or bool(self.blurred[b]) or time.monotonic() >= self.until:
                break
            if entry >= cell.count:
                upper = self._witness(b, cell, entry, level)
                if level == FACET or upper * (1 - self.tolerance) <= key:
                    break
            elif self._flipped(cell.name, entry) in seen:
                heapq.heappop(heap)
                continue
            elif level == FACET or cell.inside[entry] or (level == MET and self.limit == math.inf):
                # Without a limit, entering another region is faster than a program for the distance.
                if len(seen) < self.limit:
                    heapq.heappop(heap)
                    facet = cell, entry, key
                break
            distance, more = self._facet_distance(b, cell, entry, key)
            if math.isinf(distance):
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (max(key, distance), turn, entry, cell, level if more else FACET))
        else:
            lower = math.inf
        self.lower[b] = lower
        self.open[b] = facet is not None
        return facet

    def _facet_distance(self, b: int, cell: Cell, entry: int, key: float) -> tuple[float, bool]:
        """A proved lower bound on the distance to a facet, inf if it is empty; and whether a larger radius may improve it."""
        x, index = self.x[b].flatten().numpy(), torch.tensor([b])
        radius = self._radius(index, np.array([key]))
        polytope, step = cell.polytope(float(radius[0]))
        nearest = polytope.distance(x, E=cell.rows[entry], e=-cell.offsets[entry], p=self.p)
        lower = nearest.lower
        if nearest.point is not None:
            cell.facet_points[entry] = nearest.point.clip(*cell.box)
        elif nearest.status == "unknown" and polytope.proved_empty(cell.rows[entry], -cell.offsets[entry]):
            lower = math.inf
        proved = float(self._proved(np.array([lower]), np.array([step]), radius, index)[0])
        return proved, proved == float(radius[0]) and key < proved

    def _proved(self, lower: Array, step: Array, radius: Array, index: Tensor) -> Array:
        """Lower bounds for true facets from those for widened facets, which contain them within `radius` up to an l_2 step."""
        longest = math.sqrt(self.x[0].numel()) if self.p < 2 else 1.0
        most = reach(self.x[index], self.p, (self.low[index], self.high[index])).numpy()
        proved = np.maximum(lower * (1 - SAFETY) - longest * step, 0.0)
        return np.minimum(proved, np.where(radius >= most, math.inf, radius))

    def _witness(self, b: int, cell: Cell, entry: int, level: int) -> float:
        """Look for a witness beyond a decision hyperplane, at its nearest point in the region if known; return the distance."""
        start = cell.points[entry] if level == HYPERPLANE and cell.inside[entry] else cell.facet_points.get(entry)
        if start is not None:
            at, shape = torch.tensor([b]), (1, *self.net.input_shape)
            rows = torch.from_numpy(cell.rows[entry]).reshape(shape)
            point = torch.from_numpy(start).reshape(shape)
            self.witnesses.around(at, point, rows)
            if level == FACET and (inner := cell.interior(entry)) is not None:
                # Move towards the interior of the facet, so that the push stays in the region.
                middle = torch.from_numpy(inner[0]).reshape(shape)
                for share in (1e-8, 1e-7, 1e-6, 1e-5):
                    self.witnesses.around(at, point + share * (middle - point), rows)
        return float(self.witnesses.distance[b])
