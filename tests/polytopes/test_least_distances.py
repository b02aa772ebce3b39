"""Many small programs at once: what they prove holds, and it is as much as one program at a time proves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from relucert.polytopes.certificates import certified_distances
from relucert.polytopes.farkas import certified_empties
from relucert.polytopes.interior import pushed_inside
from relucert.polytopes.least_distances import _combination, least_distances
from relucert.polytopes.polytope import polytope_distance


def problems(seed: int, count: int, boxed: bool):
    """Random polytopes (count, 9, 3), of which the last row is an equality; about half of them are empty."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, 9, 3))
    inside = rng.uniform(size=(count, 3))
    limits = (
        (rows @ inside[..., None])[..., 0]
        + rng.uniform(-1.0, 1.0, size=(count, 9)) * rng.integers(0, 2, size=(count, 1))
        + 0.1
    )
    limits[:, -1] = (rows[:, -1] * inside).sum(1)
    x = rng.uniform(0.2, 0.8, size=(count, 3))
    slacks = (x, 1.0 - x) if boxed else (np.full_like(x, math.inf), np.full_like(x, math.inf))
    return rows, limits, x, slacks


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("boxed", [False, True])
def test_as_one_at_a_time(boxed: bool, p: float) -> None:
    rows, limits, x, slacks = problems(5, 60, boxed)
    last = np.full(len(x), 8)
    found = least_distances(rows, limits - (rows @ x[..., None])[..., 0], last, slacks)
    assert bool((np.delete(found.multipliers, 8, 1) >= 0.0).all())
    assert bool((found.paid >= 0.0).all())
    lower = certified_distances(rows, limits, found.multipliers, found.paid, x, slacks, p)
    empty = np.zeros(len(x), dtype=bool)
    if not boxed:
        empty = certified_empties(rows, limits, found.multipliers, last, x)
    finite = 0
    for i in range(len(x)):
        box = (0.0, 1.0) if boxed else None
        answer = polytope_distance(x[i], rows[i, :8], limits[i, :8], rows[i, 8], limits[i, 8], box, p)
        assert answer.status != "unknown"
        assert lower[i] <= answer.upper
        if math.isinf(answer.upper):
            # Without a box multipliers that vanish up to rounding prove a distance beyond all others.
            assert lower[i] == math.inf if boxed else lower[i] > 1e10 and empty[i]
            continue
        finite += 1
        assert not empty[i]
        if p == 2.0:
            assert lower[i] == pytest.approx(answer.upper, rel=1e-9)
            assert answer.point is not None
            np.testing.assert_allclose(x[i] + found.step[i], answer.point, rtol=0, atol=1e-9)
    assert 10 < finite < 50


def test_any_multipliers_prove_something_true() -> None:
    rng = np.random.default_rng(1)
    for boxed in (False, True):
        rows, limits, x, slacks = problems(9, 40, boxed)
        truth = [
            polytope_distance(
                x[i], rows[i, :8], limits[i, :8], rows[i, 8], limits[i, 8], (0, 1) if boxed else None
            ).upper
            for i in range(len(x))
        ]
        for _ in range(20):
            multipliers = rng.exponential(size=limits.shape) * rng.integers(0, 2, size=limits.shape)
            multipliers[:, -1] *= rng.choice([-1.0, 1.0], size=len(x))
            paid = rng.exponential(size=x.shape)
            lower = certified_distances(rows, limits, multipliers, paid, x, slacks, 2.0)
            assert bool((lower <= truth).all())
            if not boxed:
                empty = certified_empties(rows, limits, multipliers, np.full(len(x), 8), x)
                assert bool(np.isinf(truth)[empty].all())


def test_pushed_inside() -> None:
    """From a corner of a face of the unit cube into its interior; no way in where the face is an edge."""
    rows, offsets = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, -1.0]]), np.array([0.0, 1.0])
    box = (np.zeros(3), np.ones(3))
    found = pushed_inside(np.zeros(3), np.array([0.0, 0.0, 1.0]), rows, offsets, box)
    assert found is None  # the side z3 = 0 of the box is the plane itself
    box = (np.array([0.0, 0.0, -1.0]), np.ones(3))
    found = pushed_inside(np.zeros(3), np.array([0.0, 0.0, 1.0]), rows, offsets, box)
    assert found is not None
    assert found[2] == 0.0
    assert bool(((found[:2] > 1e-7) & (found[:2] < 1 - 1e-7)).all())
    edge = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    assert pushed_inside(np.zeros(3), np.array([0.0, 0.0, 1.0]), edge, np.zeros(2), box) is None


def test_repeated_columns_have_a_combination() -> None:
    """Where one problem's Gram matrix is singular, it and its neighbours are solved all the same."""
    gram = np.array([[[1.0, 1.0], [1.0, 1.0]], [[2.0, 0.0], [0.0, 4.0]]])
    target = np.array([[[2.0], [2.0]], [[2.0], [4.0]]])
    np.testing.assert_allclose(_combination(gram, target), np.ones((2, 2, 1)), rtol=1e-12)
