"""Pre-activation bounds by linear programs: the relaxation of the program so far, minimised and maximised for each unit.

No claim of the solver is used. For any multipliers m of the rows, with c the cost,

    min c x  >=  sum_i (m_i > 0: m_i row_lower_i, else m_i row_upper_i)  +  sum_j min over [l_j, u_j] of (c - m' A)_j x_j,

so the multipliers of the solver prove a bound, less the rounding error of its evaluation, however the solver ended. Rows that
are off by r_i, because their coefficients were rounded, cost sum_i |m_i| r_i more.
"""

from __future__ import annotations

import math
import time

import numpy as np
from numpy.typing import NDArray

from relucert.core.rounding import gamma_above
from relucert.polytopes.highs import Highs, Options
from relucert.verification.mip._problem import TOLERANCE, Problem
from relucert.verification.mip._program import Program, Units
from relucert.verification.mip._scaling import Scaling

Array = NDArray[np.float64]


def proved_minimum(problem: Problem, cost: Array, multipliers: Array) -> float:
    """The bound above, rounded down; multipliers of infinite limits count as 0."""
    m = np.where((multipliers > 0) & np.isinf(problem.row_lower), 0.0, multipliers)
    m = np.where((m < 0) & np.isinf(problem.row_upper), 0.0, m)
    limits = np.where(m > 0, problem.row_lower, problem.row_upper)
    limits = np.where(m == 0, 0.0, limits)
    reduced = cost - problem.rows.T @ m
    size = abs(cost) + abs(problem.rows).T @ abs(m)
    reach = np.maximum(abs(problem.lower), abs(problem.upper))
    value = float(m @ limits + np.where(reduced > 0, problem.lower, problem.upper) @ reduced)
    terms = len(cost) + len(m) + 8
    error = gamma_above(2 * terms) * float(abs(m) @ abs(limits) + size @ reach)
    if problem.row_errors is not None:
        error += (1 + gamma_above(2 * terms)) * float(abs(m) @ problem.row_errors)
    return value - error if math.isfinite(value) else -math.inf


class LinearPrograms:
    """Bounds of unstable units, at most `seconds` for each and until `deadline` (of `time.monotonic`) for all."""

    def __init__(self, seconds: float, deadline: float):
        self.seconds, self.deadline = seconds, deadline

    def __call__(
        self, program: Program, z: Units, low: Array, high: Array, which: NDArray[np.bool_]
    ) -> tuple[Array, Array]:
        """Lower and upper bounds of all units, improved for the units `which`."""
        low, high = low.copy(), high.copy()
        places = np.flatnonzero(which & (z.column >= 0))
        if len(places) == 0 or time.monotonic() >= self.deadline:
            return low, high
        problem = program.problem(np.zeros(program.columns), integer=False)
        scaling = Scaling.of(problem)
        highs = Highs(scaling.scaled(problem).linear, Options(tolerance=TOLERANCE))
        if not highs.accepted:
            return low, high
        for at in places:
            column, factor, constant = int(z.column[at]), float(z.factor[at]), float(z.constant[at])
            for sign in (1.0, -1.0):
                left = self.deadline - time.monotonic()
                if left <= 0:
                    return low, high
                cost = np.zeros(program.columns)
                cost[column] = sign * factor
                value = sign * constant + self._minimum(highs, problem, scaling, cost, column, min(self.seconds, left))
                if sign > 0:
                    low[at] = max(low[at], value)
                else:
                    high[at] = min(high[at], -value)
                if low[at] >= 0 or high[at] <= 0:
                    break
        return low, high

    def _minimum(
        self, highs: Highs, problem: Problem, scaling: Scaling, cost: Array, column: int, seconds: float
    ) -> float:
        """A proved lower bound on the cost of a column, from the basis of the last program."""
        highs.change_cost(column, float(scaling.scaled_cost(cost)[column]))
        highs.solve(seconds)
        multipliers = highs.multipliers()
        highs.change_cost(column, 0.0)
        if multipliers is None:
            multipliers = np.zeros(len(problem.row_lower))
        return proved_minimum(problem, cost, scaling.multipliers(multipliers))
