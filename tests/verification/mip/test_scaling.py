"""Scaling: the same program in other units, exactly; what no scaling mends is said."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from relucert.verification.mip._problem import Problem
from relucert.verification.mip._scaling import Scaling, spread, warning
from relucert.verification.mip._solver import HiGHS


def wild(seed: int, orders: float) -> Problem:
    """A feasible program whose rows and columns differ by so many orders of magnitude."""
    generator = np.random.default_rng(seed)
    by_row, by_column = 10.0 ** generator.uniform(-orders, orders, 6), 10.0 ** generator.uniform(-orders, orders, 8)
    integer = np.arange(8) < 3
    by_column[integer] = 1.0
    rows = generator.normal(size=(6, 8)) * by_row[:, None] / by_column
    lower, upper = np.zeros(8), np.where(integer, 1.0, by_column)
    middle = rows @ np.where(integer, 1.0, 0.5 * by_column)
    size = abs(rows) @ upper
    cost = generator.normal(size=8) / by_column
    return Problem(cost, lower, upper, integer, csr_array(rows), middle - size, middle + 0.1 * size)


@pytest.mark.parametrize("seed", range(10))
def test_scaled_programs_are_the_same_program(seed):
    problem = wild(seed, 6.0)
    scaling = Scaling.of(problem)
    scaled = scaling.scaled(problem)
    for factors in (scaling.rows, scaling.columns, np.array([scaling.cost])):
        assert (np.frexp(factors)[0] == 0.5).all(), "a factor is no power of two"
    assert (scaling.columns[problem.integer] == 1).all()
    generator = np.random.default_rng(seed)
    for _ in range(20):
        point = scaled.lower + generator.random(8) * (scaled.upper - scaled.lower)
        own = scaling.point(point)
        # Up to the order of summation.
        np.testing.assert_allclose(scaled.rows @ point, (problem.rows @ own) * scaling.rows, rtol=1e-9)
        np.testing.assert_allclose(scaled.cost @ point, problem.cost @ own * scaling.cost, rtol=1e-9)
        m = generator.normal(size=6)
        mine = scaling.multipliers(m)
        np.testing.assert_allclose(
            (scaled.cost - scaled.rows.T @ m) / scaling.columns / scaling.cost,
            problem.cost - problem.rows.T @ mine,
            rtol=1e-6, atol=1e-9 * abs(problem.rows.T @ mine).max(),
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_scaling_narrows_the_spread(seed):
    problem = wild(seed, 6.0)
    assert spread(Scaling.of(problem).scaled(problem)) < 0.1 * spread(problem)


def test_what_scaling_does_not_mend_is_said():
    rows = np.array([[1.0, 1e-13, 1.0], [1e-13, 1.0, 1.0], [1.0, 1.0, 1e-13]])
    problem = Problem(
        np.ones(3), np.zeros(3), np.ones(3), np.zeros(3, dtype=bool), csr_array(rows), np.zeros(3), np.ones(3)
    )
    scaled = Scaling.of(problem).scaled(problem)
    assert "a row of the program has coefficients in the ratio 1e+13" in warning(scaled)
    assert warning(scaled) == HiGHS().minimise(problem, seconds=1.0).warning
    mild = Problem(
        np.ones(3), np.zeros(3), np.ones(3), np.zeros(3, dtype=bool), csr_array(np.eye(3)), np.zeros(3), np.ones(3)
    )
    assert warning(mild) == ""
