"""Convex polygons of the square [-1, 1]^2, many at once, and their subdivision by upper envelopes of affine functions.

Every switching unit, and the decision itself, is the maximum of a few affine functions: a ReLU of 0 and z, a max pool of
its window, the decision of all logits. On a convex polygon the maximum of S functions has at most S convex pieces, the
piece of k being the polygon cut with the half-planes `f_k >= f_j`. A function is three numbers, the coefficients of
1, p and q.

Signs are trusted beyond `TOLERANCE` times the function's size on the square (`FLOOR` times that of the largest function
beside it, which is what rounding leaves of a function that vanishes): a vertex closer to a line lies on it, so that equal
and concurrent lines leave no slivers, and a function that vanishes cuts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

TOLERANCE = 1e-12
FLOOR = 1e-14
_BLOCK = 1 << 16  # pairs of a cell and a group that are treated together


@dataclass(frozen=True, eq=False)
class Polygons:
    """Convex polygons, counterclockwise; rows with fewer vertices are padded with their first vertex.

    >>> square = Polygons.rectangle(torch.tensor([-1.0, -1.0]), torch.tensor([1.0, 1.0]))
    >>> len(square), square.areas().tolist(), square.centres().tolist()
    (1, [4.0], [[0.0, 0.0]])
    """

    vertices: Float[Tensor, "n m 2"]
    count: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.count)

    def __getitem__(self, rows: Tensor | slice) -> Polygons:
        return Polygons(self.vertices[rows], self.count[rows])

    @staticmethod
    def rectangle(lower: Float[Tensor, " 2"], upper: Float[Tensor, " 2"]) -> Polygons:
        """One rectangle with sides along the axes."""
        (left, bottom), (right, top) = lower, upper
        corners = [left, bottom, right, bottom, right, top, left, top]
        return Polygons(torch.stack(corners).reshape(1, 4, 2), torch.full((1,), 4, device=lower.device))

    @staticmethod
    def cat(parts: Sequence[Polygons]) -> Polygons:
        """All polygons of several batches."""
        width = max(part.vertices.shape[1] for part in parts)
        rows = [
            torch.cat([part.vertices, part.vertices[:, :1].expand(-1, width - part.vertices.shape[1], -1)], 1)
            for part in parts
        ]
        return Polygons(torch.cat(rows), torch.cat([part.count for part in parts]))

    def real(self) -> Bool[Tensor, "n m"]:
        """Which vertices are not padding."""
        return torch.arange(self.vertices.shape[1], device=self.count.device) < self.count[:, None]

    def following(self) -> Int[Tensor, "n m"]:
        """The index of the vertex after every vertex."""
        place = torch.arange(self.vertices.shape[1], device=self.count.device)
        return torch.where(place + 1 < self.count[:, None], place + 1, 0)

    def centres(self) -> Float[Tensor, "n 2"]:
        """The means of the vertices, which are interior points."""
        return (self.vertices * self.real()[..., None]).sum(1) / self.count[:, None]

    def areas(self) -> Float[Tensor, " n"]:
        """The areas, as sums of triangles at the first vertex."""
        arms = self.vertices - self.vertices[:, :1]
        ahead = arms.roll(-1, 1)
        return (arms[..., 0] * ahead[..., 1] - arms[..., 1] * ahead[..., 0]).sum(1) / 2


def evaluate(functions: Float[Tensor, "n 3 k"], points: Float[Tensor, "n m 2"]) -> Float[Tensor, "n m k"]:
    """The values of the affine functions of every row at the points of the row."""
    return torch.baddbmm(functions[:, :1], points, functions[:, 1:])


def tolerances(functions: Float[Tensor, "n 3 k"], scale: Float[Tensor, " n"]) -> Float[Tensor, "n k"]:
    """The absolute values below which the sign of a value is not certain."""
    return TOLERANCE * functions.abs().sum(1) + FLOOR * scale[:, None]


def clip(
    polygons: Polygons,
    labels: Int[Tensor, "n m"],
    values: Float[Tensor, "n m"],
    label: Int[Tensor, " n"],
) -> tuple[Polygons, Int[Tensor, "n m1"]]:
    """Clip every polygon to the side where the values at its vertices are positive; empty if no value is.

    `labels` belong to the edges, each at the vertex where it starts; the new edge gets `label`. Both sides of a cut
    compute the same new vertices, bit for bit.
    """
    real, ahead = polygons.real(), polygons.following()
    there = polygons.vertices.gather(1, ahead[..., None].expand(-1, -1, 2))
    ahead_values = values.gather(1, ahead)
    keep = real & (values >= 0)
    cross = real & (values * ahead_values < 0)
    step = torch.where(cross, ahead_values - values, 1.0)[..., None]
    crossing = (ahead_values[..., None] * polygons.vertices - values[..., None] * there) / step
    fresh = label[:, None]
    # Two slots for each vertex: the vertex, and the point where its edge crosses the line.
    slots = torch.stack([polygons.vertices, crossing], 2).flatten(1, 2)
    names = torch.stack(
        [torch.where((values == 0) & (ahead_values < 0), fresh, labels), torch.where(values > 0, fresh, labels)], 2
    ).flatten(1)
    used = torch.stack([keep, cross], 2).flatten(1) & (real & (values > 0)).any(1, keepdim=True)
    count = used.sum(1)
    width = max(int(count.max()), 1) if len(count) else 1
    row, slot = used.nonzero(as_tuple=True)
    place = (used.cumsum(1) - 1)[row, slot]
    vertices = slots[:, :1].expand(-1, width, -1).clone()
    vertices[row, place] = slots[row, slot]
    vertices = torch.where(
        (torch.arange(width, device=count.device) < count[:, None])[..., None], vertices, vertices[:, :1]
    )
    edges = labels.new_full((len(count), width), -1)
    edges[row, place] = names[row, slot]
    return Polygons(vertices, count), edges


def rivals(polygons: Polygons, functions: Float[Tensor, "n 3 k"], scale: Float[Tensor, " n"]) -> Bool[Tensor, "n k"]:
    """The functions that no other single function exceeds on the whole polygon; only the first of equal functions."""
    size = functions.shape[2]
    i, j = torch.triu_indices(size, size, 1, device=functions.device)
    gaps = functions[:, :, i] - functions[:, :, j]
    limit = tolerances(gaps, scale)
    values = evaluate(gaps, polygons.vertices)
    above = torch.zeros(len(functions), size, size, dtype=torch.bool, device=functions.device)
    above[:, i, j] = values.amax(1) > limit
    above[:, j, i] = values.amin(1) < -limit
    earlier = torch.ones(size, size, dtype=torch.bool, device=functions.device).tril(-1)
    return _nonempty(~(~above & (above.mT | earlier)).any(2), polygons, functions)


def _nonempty(alive: Bool[Tensor, "n k"], polygons: Polygons, functions: Float[Tensor, "n 3 k"]) -> Bool[Tensor, "n k"]:
    """Restore the largest function at the centre if tolerances have removed all functions."""
    if bool(alive.any(1).all()):
        return alive
    best = evaluate(functions, polygons.centres()[:, None])[:, 0].argmax(1)
    return alive | (~alive.any(1, keepdim=True) & F.one_hot(best, alive.shape[1]).bool())


@dataclass(frozen=True, eq=False)
class Envelope:
    """The pieces of upper envelopes: `winner` is the largest function on the piece of polygon `owner`.

    `labels` name at every edge the function that is larger beyond it, -1 on edges of the polygon. Sorted by owner.
    """

    pieces: Polygons
    labels: Int[Tensor, "n m"]
    owner: Int[Tensor, " n"]
    winner: Int[Tensor, " n"]

    def edges(self) -> tuple[Float[Tensor, "e 2 2"], Int[Tensor, " e"], Int[Tensor, "e 2"]]:
        """The inner edges, once each: ends, owner, the functions that are the largest on the left and on the right."""
        row, place = (self.pieces.real() & (self.labels > self.winner[:, None])).nonzero(as_tuple=True)
        start = self.pieces.vertices[row, place]
        end = self.pieces.vertices[row, self.pieces.following()[row, place]]
        # A shorter edge is a point where three functions meet, up to rounding: skip it.
        long = (end - start).norm(dim=1) > TOLERANCE
        sides = torch.stack([self.winner[row], self.labels[row, place]], 1)
        return torch.stack([start, end], 1)[long], self.owner[row][long], sides[long]


def envelope(polygons: Polygons, functions: Float[Tensor, "n 3 k"], scale: Float[Tensor, " n"]) -> Envelope:
    """The upper envelope of the functions of every row on the polygon of the row."""
    alive = rivals(polygons, functions, scale)
    while True:
        owner, winner = alive.nonzero(as_tuple=True)
        others = alive[owner].scatter(1, winner[:, None], False)
        number, order = others.sum(1), others.int().argsort(dim=1, descending=True, stable=True)
        pieces = polygons[owner]
        labels = torch.full(pieces.vertices.shape[:2], -1, device=owner.device)
        for rank in range(int(number.max()) if len(number) else 0):
            against = order[:, rank]
            gap = (functions[owner, :, winner] - functions[owner, :, against])[..., None]
            values = evaluate(gap, pieces.vertices)[..., 0]
            values = torch.where(values.abs() > tolerances(gap, scale[owner]), values, 0.0)
            values = torch.where((number > rank)[:, None], values, 1.0)
            pieces, labels = clip(pieces, labels, values, against)
        empty = pieces.count == 0
        if not bool(empty.any()):
            return Envelope(pieces, labels, owner, winner)
        # Two functions together may exceed a third that neither exceeds alone: remove it, and repeat without it.
        alive[owner[empty], winner[empty]] = False
        alive = _nonempty(alive, polygons, functions)


@dataclass(frozen=True, eq=False)
class Groups:
    """For each of R polygons, affine functions `maps` and groups of them whose maxima are wanted.

    A row of `table` lists the functions of one group; without a table every function is a group with zero, (0, f).
    """

    maps: Float[Tensor, "R 3 E"]
    table: Int[Tensor, "G k"] | None = None

    @cached_property
    def scale(self) -> Float[Tensor, " R"]:
        """A bound on the absolute values of the functions on the square."""
        return self.maps.abs().sum(1).amax(1)

    def functions(self, root: Int[Tensor, " n"], group: Int[Tensor, " n"]) -> Float[Tensor, "n 3 k"]:
        """The functions of the given groups."""
        if self.table is None:
            own = self.maps[root, :, group]
            return torch.stack([torch.zeros_like(own), own], 2)
        return self.maps[root[:, None], :, self.table[group]].mT

    def undecided(self, polygons: Polygons) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
        """The pairs (polygon, group) that may have several pieces, by a bound on the circle around the polygon."""
        centre = polygons.centres()
        radius = (polygons.vertices - centre[:, None]).norm(dim=2).amax(1)
        values = evaluate(self.maps, centre[:, None])[:, 0]
        if self.table is None:
            cell, group = (values.abs() < torch.hypot(self.maps[:, 1], self.maps[:, 2]) * radius[:, None]).nonzero(
                as_tuple=True
            )
            return cell, group
        slopes, values = self.maps[:, 1:, self.table], values[:, self.table]
        best = values.argmax(2, keepdim=True)
        steep = torch.hypot(*(slopes - slopes.gather(3, best[:, None].expand(-1, 2, -1, -1))).unbind(1))
        near = values.gather(2, best) - values < steep * radius[:, None, None]
        cell, group = near.any(2).nonzero(as_tuple=True)
        return cell, group


def _cut(
    polygons: Polygons, root: Int[Tensor, " P"], groups: Groups, cell: Int[Tensor, " n"], group: Int[Tensor, " n"]
) -> tuple[Int[Tensor, " c"], Int[Tensor, " c"], Float[Tensor, " c"]]:
    """The pairs (cell, group) with several pieces, and the distance of the nearest cut from the centre."""
    scale = groups.scale
    kept, distances = [], []
    for rows in torch.arange(len(cell), device=cell.device).split(_BLOCK):
        part, functions = polygons[cell[rows]], groups.functions(root[cell[rows]], group[rows])
        alive = rivals(part, functions, scale[root[cell[rows]]])
        several = alive.sum(1) > 1
        part, functions = part[several], functions[several]
        values = evaluate(functions, part.centres()[:, None])[:, 0]
        top, which = torch.where(alive[several], values, -torch.inf).topk(2, 1)
        slopes = functions[:, 1:].gather(2, which[:, None].expand(-1, 2, -1))
        distances.append((top[:, 0] - top[:, 1]) / (slopes[..., 0] - slopes[..., 1]).norm(dim=1))
        kept.append(rows[several])
    chosen = torch.cat(kept) if kept else cell
    return cell[chosen], group[chosen], torch.cat(distances) if distances else chosen.double()


def subdivide(
    polygons: Polygons, groups: Groups
) -> tuple[Polygons, Int[Tensor, " P"], tuple[Float[Tensor, "e 2 2"], Int[Tensor, " e"], Int[Tensor, "e 2"]]]:
    """Subdivide polygons until every group has a single largest function on every cell.

    Returns the cells, the polygon each one came from, and the edges (ends, group, winners left and right): all of a
    group's edges within one polygon belong to one envelope, so an edge is whole however often the others cut it.
    A round cuts all cells at once, each by the group that passes nearest to its centre, which halves the rest: the
    number of rounds is about the logarithm of the number of cuts.
    """
    root = torch.arange(len(polygons), device=polygons.count.device)
    cell, group, distance = _cut(polygons, root, groups, *groups.undecided(polygons))
    scale = groups.scale
    ends, owner, sides = envelope(polygons[cell], groups.functions(cell, group), scale[cell]).edges()
    edges = (ends, group[owner], sides)
    done: list[tuple[Polygons, Tensor]] = []
    while len(cell):
        pairs = torch.bincount(cell, minlength=len(polygons))
        done.append((polygons[pairs == 0], root[pairs == 0]))
        polygons, root = polygons[pairs > 0], root[pairs > 0]
        cell, pairs = ((pairs > 0).cumsum(0) - 1)[cell], pairs[pairs > 0]
        nearest = distance.new_full((len(pairs),), torch.inf).scatter_reduce(0, cell, distance, "amin")
        number = torch.arange(len(cell), device=cell.device)
        place = torch.where(distance == nearest[cell], number, len(cell))
        first = number.new_full((len(pairs),), len(cell)).scatter_reduce(0, cell, place, "amin")
        cut = envelope(polygons, groups.functions(root, group[first]), scale[root])
        # Every piece inherits the pairs of its polygon, except the pair that was just split.
        heir, pair = spread((pairs.cumsum(0) - pairs)[cut.owner], pairs[cut.owner])
        open_ = pair != first[cut.owner][heir]
        polygons, root = cut.pieces, root[cut.owner]
        cell, group, distance = _cut(polygons, root, groups, heir[open_], group[pair[open_]])
    done.append((polygons, root))
    return Polygons.cat([part for part, _ in done]), torch.cat([part for _, part in done]), edges


def spread(start: Int[Tensor, " n"], length: Int[Tensor, " n"]) -> tuple[Int[Tensor, " t"], Int[Tensor, " t"]]:
    """Enumerate ranges [start, start + length): the range of every number, and the number.

    >>> [part.tolist() for part in spread(torch.tensor([5, 0]), torch.tensor([2, 1]))]
    [[0, 0, 1], [5, 6, 0]]
    """
    row = torch.repeat_interleave(length)
    return row, torch.arange(len(row), device=row.device) - (length.cumsum(0) - length - start)[row]
