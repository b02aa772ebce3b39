"""Subdivision of polygons: areas, maxima and counts against exact arithmetic, on lines that often coincide."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relucert.geometry.slices._polygons import Groups, Polygons, clip, envelope, subdivide

SQUARE = Polygons.rectangle(-torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
SMALL = st.integers(-4, 4)
FUNCTION = st.tuples(SMALL, SMALL, SMALL)
CORNERS = tuple(itertools.product((-1, 1), repeat=2))


def functions(rows: list[tuple[int, int, int]], factor: float = 1.0) -> Tensor:
    """Coefficients (1, 3, k); dividing by 3 and 7 leaves nothing exact in floating point."""
    return torch.tensor(rows, dtype=torch.float64).T[None] * factor


def euler(lines: list[tuple[int, int, int]]) -> int:
    """The number of cells that lines cut the square into, in exact arithmetic: 1 + lines + sum over points of (lines - 1)."""
    distinct = set()
    for c, a, b in lines:
        values = [c + a * p + b * q for p, q in CORNERS]
        if min(values) < 0 < max(values):
            lead = Fraction(a if a else b)
            distinct.add((c / lead, a / lead, b / lead))
    through: dict[tuple[Fraction, Fraction], set[object]] = {}
    for one, two in itertools.combinations(distinct, 2):
        det = one[1] * two[2] - one[2] * two[1]
        if det:
            p, q = (one[2] * two[0] - one[0] * two[2]) / det, (one[0] * two[1] - one[1] * two[0]) / det
            if abs(p) < 1 and abs(q) < 1:
                through.setdefault((p, q), set()).update((one, two))
    return 1 + len(distinct) + sum(len(found) - 1 for found in through.values())


@settings(max_examples=100, deadline=None)
@given(st.lists(FUNCTION, min_size=1, max_size=12), st.sampled_from([1.0, 1 / 3, 1e-6 / 7, 1e5 / 3]))
def test_lines_that_coincide_or_concur_leave_no_slivers(lines: list[tuple[int, int, int]], factor: float) -> None:
    # Each line a second time, with other rounding and the other sign.
    maps = torch.cat([functions(lines, factor), functions(lines, -factor / 11)], 2)
    cells, root, (ends, unit, sides) = subdivide(SQUARE, Groups(maps))
    assert len(cells) == euler(lines)
    assert not root.any()
    assert float(cells.areas().sum()) == pytest.approx(4, abs=1e-12)
    assert float(cells.areas().min()) > 1e-6
    cutting = [
        min(values) < 0 < max(values) for values in ([c + a * p + b * q for p, q in CORNERS] for c, a, b in lines)
    ]
    assert unit.tolist() == [i for i, cuts in enumerate(cutting * 2) if cuts]
    assert (sides == torch.tensor([0, 1])).all()
    values = maps[0, 0, unit, None] + (ends * maps[0, 1:, unit].T[:, None]).sum(2)
    assert bool((values.abs() <= 1e-14 * factor).all())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*(st.integers(-2, 2),) * 3), min_size=1, max_size=8))
def test_lines_that_are_equal_up_to_the_rounding_of_a_deep_network_are_one(lines: list[tuple[int, int, int]]) -> None:
    errors = 1 + 1e-14 * torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)[:, None]
    cells, _, _ = subdivide(SQUARE, Groups(torch.cat([functions(lines), functions(lines, -3) * errors], 2)))
    assert len(cells) == euler(lines)
    assert float(cells.areas().sum()) == pytest.approx(4, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.lists(FUNCTION, min_size=2, max_size=7), st.sampled_from([1.0, 1 / 3, 1e-6 / 7]))
def test_envelopes_cover_the_polygon_once_with_their_maxima(rows: list[tuple[int, int, int]], factor: float) -> None:
    maps = functions(rows, factor)
    found = envelope(SQUARE, maps, Groups(maps).scale)
    assert float(found.pieces.areas().sum()) == pytest.approx(4, abs=1e-12)
    assert len(set(found.winner.tolist())) == len(found.winner)
    for (p, q), winner in zip(found.pieces.centres().tolist(), found.winner.tolist(), strict=True):
        values = [Fraction(c) + a * Fraction(p) + b * Fraction(q) for c, a, b in rows]
        assert values[winner] == max(values)
        assert rows.index(rows[winner]) == winner, "of equal functions the first wins"
    ends, _, sides = found.edges()
    middle, way = ends.mean(1), ends[:, 1] - ends[:, 0]
    left = torch.stack([-way[:, 1], way[:, 0]], 1)
    assert bool((way.norm(dim=1) > 1e-3).all())
    for step, column in ((1e-6, 0), (-1e-6, 1)):
        values = maps[0, 0] + (middle + step * left) @ maps[0, 1:]
        lead = values.amax(1) - values.gather(1, sides[:, column : column + 1])[:, 0]
        assert bool((lead <= 1e-14 * factor).all())


def test_a_function_between_two_others_names_no_edge() -> None:
    # 0, z and 2 z: neither 0 nor 2 z exceeds z everywhere, but z is nowhere the unique maximum.
    maps = functions([(0, 0, 0), (0, 1, 0), (0, 2, 0)])
    found = envelope(SQUARE, maps, Groups(maps).scale)
    assert found.winner.tolist() == [0, 2]
    assert found.edges()[2].tolist() == [[0, 2]]


@pytest.mark.parametrize("noise", [0.0, 1e-17])
def test_functions_that_vanish_cut_nothing(noise: float) -> None:
    maps = functions([(1, 2, 0), (0, 0, 0)])
    maps[0, :, 1] = noise * torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
    cells, _, (_, unit, _) = subdivide(SQUARE, Groups(maps))
    assert len(cells) == 2
    assert unit.tolist() == [0]


def test_windows_are_split_exactly_where_their_maximum_changes() -> None:
    # max(-p, 0.5) and max(-p, q, -q): the second one alone has three pieces that meet in (0, 0).
    maps = functions([(0, -2, 0), (1, 0, 0), (0, 0, 2), (0, 0, -2)], 0.5)
    cells, _, (ends, unit, sides) = subdivide(SQUARE, Groups(maps, torch.tensor([[0, 1, 1], [0, 2, 3]])))
    assert len(cells) == 6
    assert sorted(zip(unit.tolist(), map(tuple, sides.tolist()), strict=True)) == [
        (0, (0, 1)), (1, (0, 1)), (1, (0, 2)), (1, (1, 2)),
    ]  # fmt: skip
    between = ends[sides.tolist().index([1, 2])]
    assert sorted(map(tuple, between.tolist())) == [(0.0, 0.0), (1.0, 0.0)]


def test_both_sides_of_a_cut_share_its_vertices_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(200, 4, generator=generator, dtype=torch.float64)
    many = SQUARE[torch.zeros(200, dtype=torch.long)]
    # Signs of a linear function: the fourth corner follows from the others.
    values[:, 3] = values[:, 0] + values[:, 2] - values[:, 1]
    none = torch.full((200, 4), -1)
    name = torch.zeros(200, dtype=torch.long)
    one, two = clip(many, none, values, name)[0], clip(many, none, -values, name)[0]
    for i, row in enumerate(values):
        fresh = [
            {tuple(vertex) for vertex in part.vertices[i, : int(part.count[i])].tolist()} - set(CORNERS)
            for part in (one, two)
        ]
        assert fresh[0] == fresh[1]
        assert len(fresh[0]) == (2 if row.min() < 0 < row.max() else 0)
    assert torch.allclose(one.areas() + two.areas(), torch.full((200,), 4.0, dtype=torch.float64))
