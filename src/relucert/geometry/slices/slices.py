"""The exact linear regions of a network on the plane through three inputs.

On the plane `x(s, t) = origin + s u + t v` the network is piecewise affine in two variables, and each of its regions that
meets the plane is a convex polygon there. From node to node every cell carries the affine functions that the values are
on it, as three images (the coefficients of 1, s and t); every switching node cuts the cells where its winner changes, and
the logits cut them where the decision does. The paper's figure "The effects of MMR" shows such slices.

All is computed in float64; a float32 network is copied, its weights are exact in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.geometry.slices._plane import Plane, SliceGrid, prepared, slice_grid
from relucert.geometry.slices._polygons import Groups, Polygons, envelope, evaluate, spread, subdivide, tolerances
from relucert.networks.network import Network
from relucert.networks.nodes import Affine, MaxPool2d, Switching
from relucert.networks.traversal import ForwardRule, Graph, Node, propagate, read_later

__all__ = ["DecisionSegments", "Plane", "RegionSegments", "Slice", "SliceGrid", "slice_grid", "slice_segments"]

_COLLINEAR = 1e-9  # edges within this distance of a line count as collinear, in the square of side 2


@dataclass(frozen=True, kw_only=True, eq=False)
class RegionSegments:
    """The segments on which ReLUs and max pools switch, one for each unit and each cell of the nodes before it.

    `unit` of the graph's node `node` (counted in the node's flattened shape) has the first entry of `pattern` on the
    left of the segment from `ends[:, 0]` to `ends[:, 1]`, the second on its right: 0 and 1 for a ReLU, the winners' places
    in the channel for a max pool. Units of one node that change on the same line have a segment each; one that changes
    exactly where a unit of an earlier node does has none.
    """

    ends: Float[Tensor, "n 2 2"]
    node: Int[Tensor, " n"]
    unit: Int[Tensor, " n"]
    pattern: Int[Tensor, "n 2"]


@dataclass(frozen=True, kw_only=True, eq=False)
class DecisionSegments:
    """The segments on which the prediction changes: `classes` are the class on the left and the class on the right.

    Segments end at the boundaries of cells. If the decision changes exactly on a region boundary, segments shorter than about
    1e-7 of the rectangle are omitted.
    """

    ends: Float[Tensor, "n 2 2"]
    classes: Int[Tensor, "n 2"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Slice:
    """All regions of a network on a plane's rectangle, in its coordinates (s, t).

    Every activation pattern on the rectangle has one of the `cells`, on which the logits are `logits[:, 0] +
    s logits[:, 1] + t logits[:, 2]`; every class on a cell has one of the `pieces`. What is thinner than about 1e-12 of the
    rectangle is left to its neighbours; no other cell is dropped, however small.
    """

    cells: Polygons
    logits: Float[Tensor, "cells 3 classes"]
    pieces: Polygons
    piece_cell: Int[Tensor, " pieces"]
    piece_class: Int[Tensor, " pieces"]
    regions: RegionSegments
    decisions: DecisionSegments


@dataclass(frozen=True, eq=False)
class _Task:
    """Cells to propagate from the switching node `at` (0: the input), which has split them off polygons `root`."""

    at: int
    cells: Polygons
    root: Tensor
    images: dict[int, Tensor]  # of the polygons: node -> (R, 3, *shape)

    def __getitem__(self, rows: slice) -> _Task:
        return _Task(self.at, self.cells[rows], self.root[rows], self.images)


@dataclass(frozen=True, eq=False)
class _Leaf:
    """Finished cells: their logits, the pieces of their classes, and edges that may be decision boundaries."""

    cells: Polygons
    logits: Tensor
    pieces: Polygons
    cell: Tensor
    winner: Tensor
    edges: tuple[Tensor, Tensor]  # inside cells: ends, classes
    ties: tuple[Tensor, Tensor]  # edges of cells where another logit is equally large: ends, class


@torch.no_grad()
def slice_segments(net: Network, plane: Plane, budget: int = 1 << 28) -> Slice:
    """All regions, region boundaries and decision boundaries on the plane's rectangle, exactly up to rounding.

    Cells are propagated through the network in chunks that need about `budget` bytes in addition to the result.

    >>> from torch import nn
    >>> net = Network(nn.ReLU(), input_shape=(2,)).eval()
    >>> plane = Plane.through(*torch.tensor([[-1.0, -1.0], [1.0, -1.0], [0.0, 1.0]]), margin=0)
    >>> found = slice_segments(net, plane)
    >>> len(found.cells), found.regions.unit.tolist(), found.decisions.classes.tolist()
    (4, [0, 1], [[0, 1], [0, 1]])
    """
    net = prepared(net, plane, budget)
    graph = net.graph
    # Internally the rectangle is the square [-1, 1]^2, so that one tolerance fits all.
    middle, half = (plane.lower + plane.upper) / 2, (plane.upper - plane.lower) / 2
    images = torch.stack([plane.exact(middle[None])[0], half[0] * plane.u, half[1] * plane.v])[None]
    square = Polygons.rectangle(-torch.ones_like(half), torch.ones_like(half))
    chunk = max(1, budget // (24 * _numbers(graph) * (len(graph.switches) + 1)))
    tasks = [_Task(0, square, torch.zeros(1, dtype=torch.long, device=net.device), {0: images})]
    changes: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    leaves: list[_Leaf] = []
    while tasks:
        # Depth first: the images of at most one chunk of polygons are kept for every switching node.
        task = tasks.pop()
        if len(task.cells) > chunk:
            tasks.append(task[chunk:])
            task = task[:chunk]
        images, node = _advance(graph, task)
        if node is None:
            leaves.append(_decide(task.cells, images[len(graph) - 1]))
            continue
        groups = _groups(node, images[node.inputs[0]])
        cells, root, (ends, unit, sides) = subdivide(task.cells, groups)
        changes.append((ends, torch.full_like(unit, node.index), unit, _pattern(node, groups, unit, sides)))
        tasks.append(_Task(node.index, cells, root, images))
    return _slice(leaves, changes, middle, half)


def _numbers(graph: Graph) -> int:
    """The largest number of values of one input that are stored at the same time."""
    most = 0
    windows = {node.index: 2 * node.op.windows().shape[1] * math.prod(node.shape) for node in graph.max_pools}
    for index in range(len(graph)):  # a maximum over nodes, to which no value is propagated
        most = max(
            most, windows.get(index, 0) + sum(math.prod(graph[i].shape) for i in [*read_later(graph, index), index])
        )
    return most


def _advance(graph: Graph, task: _Task) -> tuple[dict[int, Tensor], Node | None]:
    """The images that the next switching node and later nodes need, and that node; None at the logits."""
    cells, after = len(task.cells), next((node for node in graph.switches if node.index > task.at), None)
    needed = [len(graph) - 1] if after is None else read_later(graph, after.index)
    # All cells of a polygon share its images without a copy.
    images = propagate(
        graph,
        _Images(task.cells),
        {i: z.expand(cells, *z.shape[1:]) if len(z) == 1 else z[task.root] for i, z in task.images.items()},
        needed,
    )
    return images, after


@dataclass(frozen=True, eq=False)
class _Images(ForwardRule[Tensor]):
    """The coefficients of 1, s and t of every node on polygons, (cells, 3, *shape); patterns are those of the centres."""

    cells: Polygons

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        z = node.op.linear(*(part.flatten(0, 1) for part in inputs)).unflatten(0, (len(self.cells), 3))
        offset = node.op.apply(*(part.new_zeros(1, *part.shape[2:]) for part in inputs))
        return torch.cat([z[:, :1] + offset[:, None], z[:, 1:]], 1)

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor:
        centres = self.cells.centres()[:, None]
        centre = evaluate(value.flatten(2), centres).reshape(len(self.cells), *value.shape[2:])
        return node.op.linear(value, node.op.pattern(centre))


def _groups(node: Node, images: Tensor) -> Groups:
    """The groups whose maxima a switching node computes: every unit and zero, or the windows of a max pool."""
    maps = images.flatten(2)
    if not isinstance(node.op, MaxPool2d):
        return Groups(maps)
    windows = node.op.windows().to(maps.device)
    # Padding is replaced by the first entry of the window, which does not change the maximum.
    inside = windows >= 0
    windows = torch.where(inside, windows, windows.gather(1, inside.int().argmax(1, keepdim=True)))
    channels, height, width = node.op.in_shape
    first = torch.arange(channels, device=maps.device) * height * width
    return Groups(maps, (first[:, None, None] + windows).flatten(0, 1))


def _pattern(node: Node[Switching], groups: Groups, unit: Tensor, sides: Tensor) -> Tensor:
    """The largest functions of groups, as entries of the pattern of the node."""
    if groups.table is None:
        return sides
    return groups.table[unit].gather(1, sides) % math.prod(node.op.in_shape[1:])


def _decide(cells: Polygons, logits: Tensor) -> _Leaf:
    """Split cells by class, and list the edges on which another logit is equally large."""
    classes = torch.arange(logits.shape[2], device=logits.device)
    groups = Groups(logits, classes[None])
    found = envelope(cells, logits, groups.scale)
    ends, _, sides = found.edges()
    own = logits[found.owner]
    gaps = own.gather(2, found.winner[:, None, None].expand(-1, 3, 1)) - own
    # Vertices may be moved onto lines within the tolerance.
    tied = evaluate(gaps, found.pieces.vertices) <= 10 * tolerances(gaps, groups.scale[found.owner])[:, None]
    tied &= classes != found.winner[:, None, None]
    ahead = found.pieces.following()
    both = (tied & tied.gather(1, ahead[..., None].expand_as(tied))).any(2)
    row, place = (both & found.pieces.real() & (found.labels < 0)).nonzero(as_tuple=True)
    corners = found.pieces.vertices
    ties = torch.stack([corners[row, place], corners[row, ahead[row, place]]], 1)
    return _Leaf(cells, logits, found.pieces, found.owner, found.winner, (ends, sides), (ties, found.winner[row]))


def _facing(ends: Tensor, winner: Tensor) -> tuple[Tensor, Tensor]:
    """The overlaps of edges of different cells with different classes: ends, classes left and right.

    These are decision boundaries on region boundaries, which cross no cell: for example `|z|` against 0 at z = 0.
    """
    way = ends[:, 1] - ends[:, 0]
    length = way.norm(dim=1)
    # Shorter edges have no reliable direction: skip them.
    ends, winner, way, length = (part[length > 100 * _COLLINEAR] for part in (ends, winner, way, length))
    way = way / length[:, None]
    normal = torch.stack([-way[:, 1], way[:, 0]], 1)
    # Collinear edges have equal distances to any point; use a point that few lines of a drawing contain.
    far = (normal * (ends[:, 0] - ends.new_tensor([3.7, 5.3]))).sum(1).abs()
    far, order = far.sort()
    low, high = (torch.searchsorted(far, far + sign * 100 * _COLLINEAR) for sign in (-1, 1))
    one, two = (order[part] for part in spread(low, high - low))
    facing = (winner[one] < winner[two]) & ((way[one] * way[two]).sum(1) < 0)
    one, two = one[facing], two[facing]
    offset = ends[two] - ends[one, :1]
    beside = (offset * normal[one, None]).sum(2).abs().amax(1)
    along = (offset * way[one, None]).sum(2)
    start, stop = along[:, 1].clamp_min(0), torch.minimum(along[:, 0], length[one])
    shared = (beside < _COLLINEAR) & (stop - start > _COLLINEAR)
    one, two, reach = one[shared], two[shared], torch.stack([start, stop], 1)[shared]
    return ends[one, :1] + reach[..., None] * way[one, None], torch.stack([winner[one], winner[two]], 1)


def _slice(
    leaves: list[_Leaf], changes: list[tuple[Tensor, Tensor, Tensor, Tensor]], middle: Tensor, half: Tensor
) -> Slice:
    """Concatenate the chunks, and map the square back to the coordinates of the plane."""

    def outside(parts: list[Polygons]) -> Polygons:
        polygons = Polygons.cat(parts)
        return Polygons(polygons.vertices * half + middle, polygons.count)

    device, whole = middle.device, {"dtype": torch.long, "device": middle.device}
    nothing = (torch.zeros(0, 2, 2, dtype=torch.float64, device=device), *(torch.zeros(0, **whole),) * 2)
    ends, node, unit, pattern = (
        torch.cat(column) for column in zip(*changes, (*nothing, torch.zeros(0, 2, **whole)), strict=True)
    )
    slopes = torch.cat([leaf.logits[:, 1:] for leaf in leaves]) / half[:, None]
    offsets = torch.cat([leaf.logits[:, :1] for leaf in leaves]) - (middle[:, None] * slopes).sum(1, keepdim=True)
    starts = torch.tensor([len(leaf.cells) for leaf in leaves], device=device).cumsum(0).roll(1)
    starts[0] = 0
    ties = _facing(torch.cat([leaf.ties[0] for leaf in leaves]), torch.cat([leaf.ties[1] for leaf in leaves]))
    inner = [torch.cat([leaf.edges[i] for leaf in leaves]) for i in (0, 1)]
    return Slice(
        cells=outside([leaf.cells for leaf in leaves]),
        logits=torch.cat([offsets, slopes], 1),
        pieces=outside([leaf.pieces for leaf in leaves]),
        piece_cell=torch.cat([leaf.cell + start for leaf, start in zip(leaves, starts, strict=True)]),
        piece_class=torch.cat([leaf.winner for leaf in leaves]),
        regions=RegionSegments(ends=ends * half + middle, node=node, unit=unit, pattern=pattern),
        decisions=DecisionSegments(
            ends=torch.cat([inner[0], ties[0]]) * half + middle, classes=torch.cat([inner[1], ties[1]])
        ),
    )
