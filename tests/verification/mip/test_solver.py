"""Solvers: their bounds hold, their points are feasible, cut-offs, targets and clocks end them; what is missing is named."""

from __future__ import annotations

import importlib
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array

from relucert.core.errors import InvalidInput
from relucert.verification.mip._problem import TOLERANCE, Problem, Squares
from relucert.verification.mip._scip import SCIP
from relucert.verification.mip._solver import SOLVERS, HiGHS, allowance

ALL = pytest.mark.parametrize("name", sorted(SOLVERS))


def solver(name):
    if name == "scip":
        pytest.importorskip("pyscipopt")
    return SOLVERS[name]()


def random_problem(seed, whole=5, others=4, rows=6) -> Problem:
    """Some columns of 0 and 1 and some between; the point in the middle is feasible when rounded down."""
    generator = np.random.default_rng(seed)
    columns = whole + others
    matrix = generator.normal(size=(rows, columns))
    matrix[abs(matrix) < 0.3] = 0.0
    upper = np.maximum(matrix, 0).sum(1) * 0.4 + 0.1
    lower = np.where(np.arange(rows) == 0, np.minimum(matrix, 0).sum(1) - 1, -math.inf)
    integer = np.arange(columns) < whole
    zeros, ones = np.zeros(columns), np.ones(columns)
    return Problem(generator.normal(size=columns), zeros, ones, integer, csr_array(matrix), lower, upper)


def brute_force(problem: Problem) -> float:
    """The optimum: a linear program for every choice of the whole columns."""
    best, dense = math.inf, problem.rows.toarray()
    both = np.concatenate([dense, -dense[np.isfinite(problem.row_lower)]])
    limits = np.concatenate([problem.row_upper, -problem.row_lower[np.isfinite(problem.row_lower)]])
    for choice in itertools.product((0.0, 1.0), repeat=int(problem.integer.sum())):
        lower, upper = problem.lower.copy(), problem.upper.copy()
        lower[problem.integer] = upper[problem.integer] = choice
        found = linprog(problem.cost, both, limits, bounds=np.stack([lower, upper], 1))
        best = min(best, found.fun if found.status == 0 else math.inf)
    return best


@ALL
def test_optima_are_those_of_all_choices(name):
    one = solver(name)
    for seed in range(4):
        problem = random_problem(seed)
        truth = brute_force(problem)
        found = one.minimise(problem, seconds=20.0, cutoff=math.inf, target=-math.inf)
        assert found.status == "optimal"
        assert found.bound == pytest.approx(truth, abs=1e-6)
        assert found.bound - allowance(problem, one.gap) <= truth + 1e-9
        assert found.point is not None
        assert problem.cost @ found.point == pytest.approx(truth, abs=1e-6)
        assert (problem.rows @ found.point <= problem.row_upper + 1e-6).all()
        assert np.allclose(found.point[problem.integer] % 1.0 * (1 - found.point[problem.integer] % 1.0), 0, atol=1e-6)


@ALL
def test_a_cutoff_below_the_optimum_is_the_bound_and_one_above_changes_nothing(name):
    one, problem = solver(name), random_problem(0)
    truth = brute_force(problem)
    below = one.minimise(problem, seconds=20.0, cutoff=truth - 0.1, target=-math.inf)
    assert (below.status, below.bound, below.point) == ("cutoff", truth - 0.1, None)
    above = one.minimise(problem, seconds=20.0, cutoff=truth + 0.1, target=-math.inf)
    assert above.status == "optimal"
    assert above.bound == pytest.approx(truth, abs=1e-6)


@ALL
def test_a_target_is_enough(name):
    one, problem = solver(name), random_problem(1, whole=12, others=12, rows=12)
    best = one.minimise(problem, seconds=20.0, cutoff=math.inf, target=-math.inf)
    found = one.minimise(problem, seconds=20.0, cutoff=math.inf, target=best.bound + 0.5)
    assert found.status in ("target", "optimal")
    assert found.point is not None
    assert problem.cost @ found.point <= best.bound + 0.5 + 1e-6
    assert found.bound <= best.bound + 1e-6


@ALL
def test_without_time_nothing_is_claimed(name):
    one, problem = solver(name), random_problem(2, whole=40, others=40, rows=40)
    found = one.minimise(problem, seconds=0.0, cutoff=math.inf, target=-math.inf)
    assert found.status == "time"
    truth = one.minimise(problem, seconds=20.0, cutoff=math.inf, target=-math.inf)
    assert found.bound <= truth.bound + 1e-6


@ALL
def test_programs_that_cannot_be_met_have_no_point(name):
    one, problem = solver(name), random_problem(3)
    impossible = replace(problem, row_upper=np.where(np.arange(6) == 2, -100.0, problem.row_upper))
    found = one.minimise(impossible, seconds=20.0, cutoff=5.0, target=-math.inf)
    assert (found.status, found.bound, found.point) == ("cutoff", 5.0, None)


def test_quadratic_rows_are_for_scip():
    cost = np.array([3.0, -4.0, 0.0])
    none, ends = np.zeros(3, dtype=bool), np.full(3, 2.0)
    rows = csr_array(np.array([[1.0, 1.0, 1.0]]))
    problem = Problem(
        cost, -ends, ends, none, rows, np.array([-math.inf]), np.array([9.0]), Squares(np.arange(3), 0.25)
    )
    with pytest.raises(InvalidInput, match=r"linear rows only for highs.*scip"):
        HiGHS().minimise(problem, seconds=1.0)
    one = solver("scip")
    found = one.minimise(problem, seconds=20.0, cutoff=math.inf, target=-math.inf)
    assert found.bound == pytest.approx(-2.5, abs=1e-6)
    assert found.bound - allowance(problem, one.gap) <= -2.5
    # The norm itself: the least square that lets 3 a - 4 b reach -2 is 0.4 squared.
    aim = replace(
        problem, cost=np.array([0.0, 0.0, 1.0]), rows=csr_array(cost[None]), row_upper=np.array([-2.0]),
        squares=Squares(np.arange(2), 0.0, 2),
    )  # fmt: skip
    assert one.minimise(aim, seconds=20.0, cutoff=math.inf, target=-math.inf).bound == pytest.approx(0.16, abs=1e-6)


def test_a_solver_that_is_not_installed_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InvalidInput, match=r"scip needs pyscipopt \(pip install 'relucert\[scip\]'\), got 'scip'"):
        SCIP()


def test_the_allowance_is_the_tolerance_times_all_widths():
    problem = random_problem(0)
    ranges = abs(problem.rows.toarray())[1:].sum()
    assert allowance(problem, 0.0) == pytest.approx(TOLERANCE * (9 + ranges))
    assert allowance(problem, 0.5, -3.0) == pytest.approx(TOLERANCE * (9 + ranges) + 2.0)


@ALL
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_numbers_that_are_none_are_an_answer_not_a_proof(name, wrong):
    one, problem = solver(name), random_problem(0)
    falsified = replace(problem, rows=csr_array(np.where(problem.rows.toarray() == 0, 0, wrong)))
    for other in (
        falsified,
        replace(problem, cost=problem.cost * wrong),
        replace(problem, row_upper=problem.row_upper * math.nan),
    ):
        found = one.minimise(other, seconds=1.0, cutoff=0.0, target=-math.inf)
        assert (found.status, found.bound, found.point) == ("failed", -math.inf, None)
