"""Slices: cells, segments and grids against the network itself, on networks of every kind and on lines known by hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from relucert.core.errors import InvalidInput, WrongMode
from relucert.geometry.slices._polygons import Polygons
from relucert.geometry.slices.slices import Plane, Slice, slice_grid, slice_segments
from relucert.networks.network import Network
from relucert.networks.nodes import ReLU
from zoo import NETWORKS, inputs, network

POINTS = 1500


@dataclass(frozen=True)
class Case:
    """A network, a plane through three of its inputs and everything on it."""

    net: Network
    plane: Plane
    found: Slice


@cache
def case(name: str) -> Case:
    net = network(name)
    plane = Plane.through(*inputs(net, 3), margin=0.5)
    # Make the classes equal near the middle, so that decisions are met on every plane.
    last = [part for part in net.modules() if isinstance(part, nn.Linear)][-1]
    with torch.no_grad():
        last.bias.data -= net.logits(plane.point((0.53 * plane.lower + 0.47 * plane.upper)[None]))[0]
    found = slice_segments(net, plane)
    assert len(found.decisions.ends) > 0
    assert {node.index for node in net.switches} == set(found.regions.node.tolist())
    return Case(net, plane, found)


every_network = pytest.mark.parametrize("name", NETWORKS)


def sampled(plane: Plane, count: int = POINTS, seed: int = 1) -> Tensor:
    """Random coordinates in the rectangle."""
    generator = torch.Generator().manual_seed(seed)
    return plane.lower + torch.rand(count, 2, generator=generator, dtype=torch.float64) * (plane.upper - plane.lower)


def area(plane: Plane) -> float:
    return float((plane.upper - plane.lower).prod())


def containing(polygons: Polygons, points: Tensor) -> Tensor:
    """The polygon that holds each point, which must be exactly one: every edge has the point on its left."""
    start = polygons.vertices
    way = start.roll(-1, 1) - start
    found = []
    for part in points.split(100):
        offset = part[:, None, None] - start
        inside = ((way[..., 0] * offset[..., 1] - way[..., 1] * offset[..., 0]) >= 0).all(2)
        assert bool((inside.sum(1) == 1).all())
        found.append(inside.int().argmax(1))
    return torch.cat(found)


def patterns(net: Network, x: Tensor) -> Tensor:
    """The whole activation pattern, one row an input."""
    return torch.cat([torch.zeros(len(x), 1), *(part.flatten(1).double() for part in net.pattern(x))], 1)


def halfway(ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The middle of every segment, and a point 1e-6 to the left and to the right of it; less where segments are tiny."""
    way = ends[:, 1] - ends[:, 0]
    length = way.norm(dim=1, keepdim=True)
    left = torch.stack([-way[:, 1], way[:, 0]], 1) / length * (length / 100).clamp_max(1e-6)
    return ends.mean(1), ends.mean(1) + left, ends.mean(1) - left


@every_network
def test_cells_and_pieces_cover_the_rectangle_once(name: str) -> None:
    found, plane = case(name).found, case(name).plane
    cells, pieces = found.cells.areas(), found.pieces.areas()
    assert float(cells.min()) > 0
    assert float(pieces.min()) > 0
    assert float(cells.sum()) == pytest.approx(area(plane), rel=1e-12)
    summed = torch.zeros_like(cells).index_add(0, found.piece_cell, pieces)
    assert torch.allclose(summed, cells, rtol=0, atol=1e-12 * area(plane))


@every_network
def test_a_cell_is_an_activation_pattern(name: str) -> None:
    c = case(name)
    own = patterns(c.net, c.plane.point(c.found.cells.centres()))
    assert len(torch.unique(own, dim=0)) == len(c.found.cells), "one cell for each pattern"
    points = sampled(c.plane)
    assert torch.equal(patterns(c.net, c.plane.point(points)), own[containing(c.found.cells, points)])


@every_network
def test_a_piece_is_a_class_and_the_logits_are_affine_on_a_cell(name: str) -> None:
    c = case(name)
    points = sampled(c.plane)
    x = c.plane.point(points)
    piece = containing(c.found.pieces, points)
    assert torch.equal(c.net.predict(x), c.found.piece_class[piece])
    f = c.found.logits[c.found.piece_cell[piece]]
    logits = f[:, 0] + (points[:, :, None] * f[:, 1:]).sum(1)
    assert torch.allclose(logits, c.net.logits(x), rtol=0, atol=1e-10)


@every_network
def test_the_named_unit_changes_across_its_segment(name: str) -> None:
    c = case(name)
    segments = c.found.regions
    middle, left, right = halfway(segments.ends)
    for node, z, lefts, rights in zip(
        c.net.switches,
        c.net.preactivations(c.plane.point(middle)),
        c.net.pattern(c.plane.point(left)),
        c.net.pattern(c.plane.point(right)),
        strict=True,
    ):
        rows = (segments.node == node.index).nonzero()[:, 0]
        unit, sides = segments.unit[rows], segments.pattern[rows]
        assert torch.equal(lefts.flatten(1)[rows, unit].long(), sides[:, 0])
        assert torch.equal(rights.flatten(1)[rows, unit].long(), sides[:, 1])
        assert bool((sides[:, 0] != sides[:, 1]).all())
        if isinstance(node.op, ReLU):
            gap = z.flatten(1)[rows, unit]
        else:
            channel = unit // (node.shape[1] * node.shape[2])
            one, two = (z.flatten(2)[rows, channel, sides[:, i]] for i in (0, 1))
            pooled = node.op.apply(z).flatten(1)[rows, unit]  # type: ignore[union-attr]
            gap = torch.maximum((one - two).abs(), (pooled - one).abs())
        assert bool((gap.abs() < 1e-9).all())


@every_network
def test_decision_segments_lie_where_the_two_largest_logits_are_equal(name: str) -> None:
    c = case(name)
    segments = c.found.decisions
    middle, left, right = (c.plane.point(part) for part in halfway(segments.ends))
    logits = c.net.logits(middle)
    assert bool(((logits.gather(1, segments.classes) - logits.amax(1, keepdim=True)).abs() < 1e-9).all())
    assert torch.equal(c.net.predict(left), segments.classes[:, 0])
    assert torch.equal(c.net.predict(right), segments.classes[:, 1])
    assert bool((segments.classes[:, 0] != segments.classes[:, 1]).all())


def crossings(ends: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The segments that the line from p to q crosses, and the positions of the crossings (0 to 1)."""

    def cross(a: Tensor, b: Tensor) -> Tensor:
        return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]

    way, edge, offset = q - p, ends[:, 1] - ends[:, 0], ends[:, 0] - p
    det = cross(way, edge)
    there, along = cross(offset, edge) / det, cross(offset, way) / det
    hit = ((there > 0) & (there < 1) & (along >= 0) & (along <= 1)).nonzero()[:, 0]
    return hit, there[hit]


@every_network
def test_the_pattern_changes_at_the_segments_and_nowhere_else(name: str) -> None:
    # Along a straight line the pattern is constant between crossings and changes at each crossing.
    c = case(name)
    for p, q in sampled(c.plane, 120, seed=2).reshape(-1, 2, 2):
        _, where = crossings(c.found.regions.ends, p, q)
        where = torch.cat([torch.zeros(1), where.sort()[0], torch.ones(1)])
        long = where.diff() > 1e-9  # equal lines are crossed together
        after, before = where[:-1][long] + 1e-10, where[1:][long] - 1e-10
        one, two = (patterns(c.net, c.plane.point(p + part[:, None] * (q - p))) for part in (after, before))
        assert torch.equal(one, two)
        assert bool((one[1:] != two[:-1]).any(1).all())


def assert_decisions_lead_on(net: Network, plane: Plane, found: Slice) -> None:
    """Along a straight line, the crossed decision segments lead from the first class to the last."""
    for p, q in sampled(plane, 120, seed=2).reshape(-1, 2, 2):
        hit, where = crossings(found.decisions.ends, p, q)
        hit = hit[where.argsort()]
        first, last = net.predict(plane.point(torch.stack([p, q]))).tolist()
        for ends, classes in zip(found.decisions.ends[hit], found.decisions.classes[hit].tolist(), strict=True):
            edge = ends[1] - ends[0]
            to_right = bool(edge[0] * (q - p)[1] - edge[1] * (q - p)[0] < 0)
            before, after = classes if to_right else classes[::-1]
            assert before == first
            first = after
        assert first == last


@every_network
def test_no_decision_segment_is_missing(name: str) -> None:
    assert_decisions_lead_on(case(name).net, case(name).plane, case(name).found)


@every_network
def test_grids_show_the_cells(name: str) -> None:
    c = case(name)
    grid = slice_grid(c.net, c.plane, (23, 31))
    points = torch.cartesian_prod(grid.t, grid.s).flip(1)
    cell, piece = containing(c.found.cells, points), containing(c.found.pieces, points)
    both = torch.unique(torch.stack([cell, grid.regions.flatten()], 1), dim=0)
    assert len(both) == len(cell.unique()) == len(grid.regions.unique()), "regions and cells belong together"
    assert torch.equal(grid.classes.flatten(), c.found.piece_class[piece])
    top = c.net.logits(c.plane.point(points)).sort(1)[0]
    assert torch.allclose(grid.margin.flatten(), top[:, -1] - top[:, -2], rtol=0, atol=1e-12)
    firsts = list(dict.fromkeys(grid.regions.flatten().tolist()))
    assert firsts == list(range(len(firsts))), "numbered as they appear"
    assert (grid.classes.shape, grid.s.shape, grid.t.shape) == ((23, 31), (31,), (23,))
    step = (c.plane.upper - c.plane.lower) / torch.tensor([31, 23])
    assert torch.allclose(torch.stack([grid.s[0], grid.t[0]]), c.plane.lower + step / 2)
    assert torch.allclose(torch.stack([grid.s[-1], grid.t[-1]]), c.plane.upper - step / 2)


@pytest.mark.parametrize(("name", "budget"), [("fc deep", 1), ("max pool", 100_000), ("dense", 20_000)])
def test_the_budget_changes_memory_alone(name: str, budget: int) -> None:
    c = case(name)
    small = slice_segments(c.net, c.plane, budget=budget)
    for one, two in (
        (c.found.cells.centres(), small.cells.centres()),
        (c.found.pieces.centres(), small.pieces.centres()),
        (c.found.regions.ends.flatten(1), small.regions.ends.flatten(1)),
        (c.found.decisions.ends.flatten(1), small.decisions.ends.flatten(1)),
    ):
        assert len(one) == len(two) > 0
        distances = torch.cdist(one, two, compute_mode="donot_use_mm_for_euclid_dist")
        assert float(distances.amin(1).max()) < 1e-9
        assert float(distances.amin(0).max()) < 1e-9
    assert torch.equal(containing(small.cells, small.pieces.centres()), small.piece_cell)
    whole, parts = slice_grid(c.net, c.plane, (9, 7)), slice_grid(c.net, c.plane, (9, 7), budget=budget // 100 + 1)
    assert torch.equal(whole.classes, parts.classes)
    assert torch.equal(whole.regions, parts.regions)


@pytest.mark.parametrize("name", ["fc1", "max pool", "leaky"])
def test_single_precision_networks_are_sliced_in_double(name: str) -> None:
    net = network(name, torch.float32)
    a, b, c = inputs(net, 3)
    plane = Plane.through(a, b, c)
    found = slice_segments(net, plane)
    double = network(name, torch.float32).double()
    assert found.cells.vertices.dtype == torch.float64
    assert net.dtype == torch.float32
    z = double.preactivations(plane.exact(found.regions.ends.mean(1)))
    for node, value in zip(net.switches, z, strict=True):
        if isinstance(node.op, ReLU):
            rows = (found.regions.node == node.index).nonzero()[:, 0]
            assert bool((value.flatten(1)[rows, found.regions.unit[rows]].abs() < 1e-9).all())
    grid = slice_grid(net, plane, (8, 8))
    points = torch.cartesian_prod(grid.t, grid.s).flip(1)
    assert torch.equal(grid.classes.flatten(), double.predict(plane.exact(points)))


# Lines known by hand.


def by_hand(weight: list[list[float]], bias: list[float], out: list[list[float]], offset: list[float]) -> Network:
    """One hidden layer on two inputs."""
    net = Network(nn.Sequential(nn.Linear(2, len(bias)), nn.ReLU(), nn.Linear(len(bias), len(offset))), (2,)).double()
    for layer, w, b in ((net.module[0], weight, bias), (net.module[2], out, offset)):  # type: ignore[index]
        layer.weight.data = torch.tensor(w, dtype=torch.float64)
        layer.bias.data = torch.tensor(b, dtype=torch.float64)
    return net.eval()


def square_plane() -> Plane:
    """The rectangle [-1, 1] x [-1, 1] of a two-dimensional input space, with (s, t) = x + (1, 1)."""
    return Plane.through(*torch.tensor([[-1.0, -1.0], [1.0, -1.0], [0.0, 1.0]], dtype=torch.float64), margin=0)


def as_set(ends: Tensor) -> set[frozenset[tuple[float, ...]]]:
    """Segments in input coordinates, without direction."""
    return {frozenset(tuple(round(v, 12) + 0.0 for v in end) for end in pair) for pair in (ends - 1).tolist()}


def test_two_units_on_two_inputs() -> None:
    # z1 = x1 - 0.5, z2 = x1 + x2; f1 - f0 = relu(z1) + relu(z2) - 1.
    net = by_hand([[1, 0], [1, 1]], [-0.5, 0], [[0, 0], [1, 1]], [1, 0])
    found = slice_segments(net, square_plane())
    assert len(found.cells) == 4
    assert found.cells.areas().sort()[0].tolist() == pytest.approx([0.125, 0.875, 1.125, 1.875])
    units = {unit: as_set(found.regions.ends[found.regions.unit == unit]) for unit in (0, 1)}
    assert units == {
        0: {frozenset({(0.5, -1.0), (0.5, 1.0)})},
        1: {frozenset({(-1.0, 1.0), (1.0, -1.0)})},
    }
    # Both on: 2 x1 + x2 = 1.5; z2 alone: x1 + x2 = 1; z1 alone would need x1 = 1.5.
    assert as_set(found.decisions.ends) == {
        frozenset({(0.5, 0.5), (1.0, -0.5)}),
        frozenset({(0.5, 0.5), (0.0, 1.0)}),
    }
    assert found.decisions.classes.tolist() == [[0, 1], [0, 1]]
    assert len(found.pieces) == 6


def test_a_decision_on_a_region_boundary_is_found() -> None:
    # f0 = relu(x1), f1 = relu(-x1): the class changes at x1 = 0, inside no region.
    net = by_hand([[1, 0], [-1, 0], [1, 1]], [0, 0, 0], [[1, 0, 0], [0, 1, 0]], [0, 0])
    plane = square_plane()
    found = slice_segments(net, plane)
    assert as_set(found.decisions.ends) == {
        frozenset({(0.0, -1.0), (0.0, 0.0)}), frozenset({(0.0, 0.0), (0.0, 1.0)}),
    }  # fmt: skip
    assert_decisions_lead_on(net, plane, found)


def test_a_decision_at_the_edge_of_a_tie_is_found() -> None:
    # f0 = 0, f1 = relu(x1): a tie where x1 <= 0, which the first class has.
    net = by_hand([[1, 0], [1, 1]], [0, 0.3], [[0, 0], [1, 0]], [0, 0])
    plane = square_plane()
    found = slice_segments(net, plane)
    assert as_set(found.decisions.ends) == {
        frozenset({(0.0, -1.0), (0.0, -0.3)}), frozenset({(0.0, -0.3), (0.0, 1.0)}),
    }  # fmt: skip
    assert found.decisions.classes.tolist() == [[0, 1], [0, 1]]
    assert_decisions_lead_on(net, plane, found)


def test_equal_parallel_and_concurrent_lines_and_zero_rows() -> None:
    third = 1 / 3
    rows = [[1, 0], [third, 0], [-7, 0], [1, 0], [0, 0], [0, 0], [1, 1], [1, -1]]
    bias = [0, 0, 0, -0.25, 0, 5, 0, 0]
    generator = torch.Generator().manual_seed(0)
    out = torch.randn(3, len(rows), generator=generator).tolist()
    net = by_hand(rows, bias, out, [0.1, 0.0, -0.1])
    plane = square_plane()
    found = slice_segments(net, plane)
    # Three lines through the origin make six sectors; x1 = 0.25 cuts three of them.
    assert len(found.cells) == 9
    assert float(found.cells.areas().min()) > 0.01
    assert found.regions.unit.tolist() == [0, 1, 2, 3, 6, 7]
    assert as_set(found.regions.ends[:3]) == {frozenset({(0.0, -1.0), (0.0, 1.0)})}
    assert_decisions_lead_on(net, plane, found)


def test_a_unit_after_a_dead_unit_has_no_line() -> None:
    module = nn.Sequential(
        nn.Linear(2, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 2)
    )
    net = Network(module, (2,)).double().eval()
    module[0].weight.data = torch.tensor([[1.0, 0.3]], dtype=torch.float64)
    module[2].weight.data = torch.tensor([[2.0]], dtype=torch.float64)
    found = slice_segments(net, square_plane())
    assert len(found.cells) == 2
    assert found.regions.node.tolist() == [2]


def test_a_plane_that_a_unit_is_constant_on() -> None:
    # The third input never changes on the plane: its unit has a zero row there, up to rounding.
    weight = torch.eye(3, dtype=torch.float64)
    net = Network(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (3,)).double().eval()
    net.module[0].weight.data, net.module[0].bias.data = weight, torch.tensor([-0.2, -0.3, -0.7]).double()  # type: ignore[index]
    a, b, c = torch.tensor([[0.1, 0.1, 0.7], [0.9, 0.2, 0.7], [0.3, 0.8, 0.7]], dtype=torch.float64)
    found = slice_segments(net, Plane.through(a, b, c))
    assert sorted(found.regions.unit.tolist()) == [0, 1]
    assert len(found.cells) == 4


# The plane.


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.integers(0, 10_000), st.floats(1e-3, 1e3), st.floats(0, 2))
def test_planes_have_orthonormal_coordinates(size: int, seed: int, spread: float, margin: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = spread * torch.randn(3, size, generator=generator, dtype=torch.float64)
    plane = Plane.through(*x, margin=margin)
    basis = torch.stack([plane.u, plane.v])
    assert torch.allclose(basis @ basis.T, torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.allclose(plane.point(plane.inputs), x, rtol=0, atol=1e-11 * spread)
    st_ = sampled(plane, 20)
    assert torch.allclose(plane.coordinates(plane.point(st_)), st_, rtol=0, atol=1e-11 * spread)
    assert torch.allclose(torch.pdist(plane.point(st_)), torch.pdist(st_), rtol=0, atol=1e-11 * spread)
    size_ = plane.inputs.amax(0) - plane.inputs.amin(0)
    assert torch.allclose(plane.inputs.amin(0) - plane.lower, margin * size_)
    assert torch.allclose(plane.upper - plane.inputs.amax(0), margin * size_)
    assert float(plane.inputs[2, 1]) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_planes_answer_in_the_dtype_of_their_inputs(dtype: torch.dtype) -> None:
    x = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    a, b, c = x
    plane = Plane.through(a, b, c)
    assert plane.point(plane.inputs).dtype == dtype
    assert plane.point(plane.inputs).shape == (3, 1, 4, 4)
    assert plane.exact(plane.inputs).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "weights", [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (1.0, 0.3), (1.0, -2.7), (0.1, 1.3)]
)
@pytest.mark.parametrize("length", [1.0, 1e-3])
def test_three_inputs_on_a_line_span_no_plane(dtype: torch.dtype, weights: tuple[float, float], length: float) -> None:
    a, way = torch.rand(2, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    with pytest.raises(InvalidInput, match="a, b and c must span a plane"):
        Plane.through(a, a + length * weights[0] * way, a + length * weights[1] * way)


def test_invalid_arguments_are_refused() -> None:
    a, b, c = torch.eye(3)
    with pytest.raises(InvalidInput, match="b must be one input like a"):
        Plane.through(a, b[:2], c)
    with pytest.raises(InvalidInput, match="c must be finite"):
        Plane.through(a, b, c / 0)
    with pytest.raises(InvalidInput, match="margin must be"):
        Plane.through(a, b, c, margin=-0.1)
    plane, net = Plane.through(a, b, c), network("fc")
    with pytest.raises(InvalidInput, match="plane must lie among inputs"):
        slice_segments(network("linear"), plane)
    with pytest.raises(InvalidInput, match="budget must be"):
        slice_segments(net, plane, budget=0)
    with pytest.raises(InvalidInput, match="resolution must be"):
        slice_grid(net, plane, (0, 4))
    with pytest.raises(WrongMode, match="slicing needs"):
        slice_grid(Network(nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 2)).double(), (3,)), plane)
