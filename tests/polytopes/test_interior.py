"""Relative interiors: a row has slack at the point found if it has any on the face; no point is found where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from relucert.core.errors import InvalidInput
from relucert.polytopes.interior import interior_point
from relucert.polytopes.polytope import polytope_distance


def largest_slacks(G, h, E, e, box):
    """The largest slack of every row over the face, one linear program each; None if there is no point."""
    A_eq, b_eq = (None, None) if E is None else (np.atleast_2d(E), np.atleast_1d(e))
    bounds = [(None, None) if box is None else box] * G.shape[1]
    problem = {"A_ub": G, "b_ub": h, "A_eq": A_eq, "b_eq": b_eq, "bounds": bounds}
    if linprog(np.zeros(G.shape[1]), **problem).status == 2:
        return None
    # With a feasible point known, no optimum means an unbounded slack, whatever presolve calls it.
    best = [linprog(row, **problem) for row in G]
    return np.array([limit - found.fun if found.status == 0 else np.inf for limit, found in zip(h, best, strict=True)])


coordinate = st.integers(-3, 3)


@settings(max_examples=80, deadline=None)
@example(
    rows=[(0, 0, -1), (1, 1, -2), (-1, 0, -1), (2, -1, -2), (3, 3, 3), (-3, 1, -1)],
    limits=[0] * 7,
    reversed_rows=0,
    face=False,
    box=None,
)  # HiGHS gives up on it without presolve
@given(
    rows=st.lists(st.tuples(coordinate, coordinate, coordinate), min_size=1, max_size=7),
    limits=st.lists(st.integers(-2, 4), min_size=7, max_size=7),
    reversed_rows=st.integers(0, 2),
    face=st.booleans(),
    box=st.none() | st.just((-2.0, 2.0)),
)
def test_slack_wherever_the_face_has_some(rows, limits, reversed_rows, face, box):
    """Small integers make implied equalities all the time: their slack is 0, all others are positive, the point is feasible."""
    G, h = np.array(rows, dtype=float), np.array(limits[: len(rows)], dtype=float)
    G, h = np.concatenate((G, -G[:reversed_rows])), np.concatenate((h, -h[:reversed_rows]))
    E, e = (G[0], h[0]) if face else (None, None)
    truth, found = largest_slacks(G, h, E, e, box), interior_point(G, h, E, e, box)
    if truth is None:
        assert found is None
        return
    assert found is not None
    np.testing.assert_array_equal(found.slack > 0.0, (truth > 1e-7) | ~G.any(1))
    assert found.radius > 1e-4
    assert (G @ found.point <= h + 1e-9).all()
    if face:
        assert abs(E @ found.point - e) <= 1e-9
    if box is not None:
        assert (np.abs(found.point) <= 2.0).all()
    norms = np.linalg.norm(G, axis=1)
    moved = norms > 0.0
    np.testing.assert_allclose(found.slack[moved], ((h - G @ found.point) / norms.clip(1e-300))[moved], atol=1e-9)


def test_the_largest_ball_of_a_triangle_and_the_cap():
    """The centre of the incircle of the triangle with sides 3, 4, 5; in the whole space the radius stops at 1."""
    G = np.array([[-1.0, 0.0], [0.0, -1.0], [0.8, 0.6]])
    small = interior_point(G, [0.0, 0.0, 0.24])
    assert small is not None
    np.testing.assert_allclose(small.point, [0.1, 0.1], atol=1e-9)
    np.testing.assert_allclose([*small.slack, small.radius], 0.1, atol=1e-9)
    whole = interior_point([[1.0, 0.0]], [0.0])
    assert whole is not None
    assert whole.radius == 1.0
    assert whole.slack[0] >= 1.0 - 1e-9


@pytest.mark.parametrize("boxed", [False, True])
def test_many_coordinates(boxed):
    """A facet in 100 dimensions, from its nearest point: only its own row keeps the slack 0; a hyperplane beyond gives None."""
    rng = np.random.default_rng(0)
    d, m = 100, 150
    centre = rng.uniform(0.2, 0.8, size=d)
    G = rng.normal(size=(m, d)) / np.sqrt(d)
    h = G @ centre + rng.exponential(0.2, size=m) + 0.01
    box = (0.0, 1.0) if boxed else None
    near = polytope_distance(centre, G, h, G[0], h[0], box)
    assert near.status == "optimal"
    found = interior_point(G, h, G[0], h[0], box, near.point)
    assert found is not None
    assert found.slack[0] == 0.0
    assert (found.slack[1:] > 1e-5).all()
    assert (G @ found.point <= h + 1e-9).all()
    assert abs(G[0] @ found.point - h[0]) <= 1e-9
    assert interior_point(G, h, G[0], h[0] + 0.1, box, centre) is None
    with pytest.raises(InvalidInput, match="near must be 100 finite numbers"):
        interior_point(G, h, near=[0.0])


def test_rows_of_zeros():
    found = interior_point([[0.0, 0.0], [1.0, 0.0]], [1.0, 0.0])
    assert found is not None
    assert found.slack[0] == np.inf
    assert interior_point([[0.0, 0.0]], [-1.0]) is None
    assert interior_point([[1.0, 0.0]], [1.0], [0.0, 0.0], 1.0) is None
