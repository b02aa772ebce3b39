"""Trees of linear programs: they prove what is true of mixed-integer programs, and nothing else."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array

from relucert.verification.mip._lp_tree import prove_cutoff
from relucert.verification.mip._problem import Problem


def program(seed: int, scale: float = 1.0) -> Problem:
    """Some columns of 0 and 1, some between, and rows that leave something; `scale`, a power of two, multiplies them all."""
    generator = np.random.default_rng(seed)
    integer = np.arange(9) < 5
    rows = generator.normal(size=(7, 9)) * scale
    point = np.where(integer, generator.integers(0, 2, 9), generator.random(9))
    limits = rows @ point + scale * generator.random(7)
    return Problem(
        scale * generator.normal(size=9),
        np.zeros(9),
        np.ones(9),
        integer,
        csr_array(rows),
        np.full(7, -math.inf),
        limits,
    )


def minimum(problem: Problem) -> float:
    """The optimum by brute force over the whole numbers."""
    best = math.inf
    whole = np.flatnonzero(problem.integer)
    for values in itertools.product((0.0, 1.0), repeat=len(whole)):
        lower, upper = problem.lower.copy(), problem.upper.copy()
        lower[whole] = upper[whole] = values
        found = linprog(
            problem.cost, problem.rows.toarray(), problem.row_upper, bounds=np.stack([lower, upper], 1), method="highs"
        )
        best = min(best, found.fun if found.status == 0 else math.inf)
    return best


@pytest.mark.parametrize("scale", [1.0, 2.0**-20, 2.0**20])
@pytest.mark.parametrize("seed", range(12))
def test_cutoffs_below_the_optimum_are_proved_and_others_are_not(seed, scale):
    problem = program(seed, scale)
    truth = minimum(program(seed)) * scale
    for below in (1e-3, 1e-6):
        assert prove_cutoff(problem, truth - below * scale, 10.0, 200).proved
    for above in (1e-7, 1e-3):
        assert not prove_cutoff(problem, truth + above * scale, 10.0, 200).proved


@pytest.mark.parametrize("seed", range(6))
def test_empty_programs_are_proved_empty(seed):
    problem = program(seed)
    rows = csr_array(np.vstack([problem.rows.toarray(), -problem.rows.toarray()[:1]]))
    empty = replace(
        problem, rows=rows, row_lower=np.full(8, -math.inf),
        row_upper=np.append(problem.row_upper, -problem.row_upper[0] - 0.1),
    )  # fmt: skip
    assert minimum(empty) == math.inf
    assert prove_cutoff(empty, 1e6, 10.0, 200).proved


def test_errors_of_rows_are_paid_for():
    """A program whose rows are not known well proves less, never more."""
    problem = program(3)
    truth = minimum(problem)
    blurred = replace(problem, row_errors=np.full(7, 0.05))
    assert prove_cutoff(problem, truth - 1e-3, 10.0, 200).proved
    assert not prove_cutoff(blurred, truth - 1e-3, 10.0, 200).proved
    assert prove_cutoff(blurred, truth - 50.0, 10.0, 200).proved


def test_limits_end_the_search():
    problem = program(1)
    assert not prove_cutoff(problem, minimum(problem) - 1e-6, 0.0, 200).proved
    assert prove_cutoff(problem, minimum(problem) - 1e-6, 10.0, 1).nodes <= 1
