"""Solvers of mixed-integer programs: one interface, one class for each solver.

A solver works in floating point, with tolerances. It accepts reduced costs that have the wrong sign by its tolerance t, so its
bound on the optimum may be too large by t times the widths of everything that a multiplier stands at, columns and
inequalities; what is pruned for being too little better than an incumbent adds a gap. `allowance` is the sum of both. It is an
estimate and no proof: presolve, cuts and rows that were wrongly found to exclude each other can exceed it without end. What a
solver claims decides where to look for counterexamples and where a proof is worth trying, never a verdict.

Programs are scaled before they are solved (`scaling`). Another solver joins by a class with `minimise` and a line in `SOLVERS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from relucert.core.errors import InvalidInput
from relucert.polytopes.highs import Highs, Options
from relucert.verification.mip._problem import TOLERANCE, Answer, Problem
from relucert.verification.mip._scaling import solve_scaled
from relucert.verification.mip._scip import SCIP


class Solver(Protocol):
    """Minimises a mixed-integer program."""

    squares: bool  # whether quadratic rows are possible
    gap: float  # what pruning may lose, absolutely and relative to the cutoff

    def minimise(self, problem: Problem, *, seconds: float, cutoff: float, target: float) -> Answer:
        """Search for points that cost less than `cutoff`, until one costs less than `target`, none is left or time is up."""
        ...


def allowance(problem: Problem, gap: float, cutoff: float = 0.0) -> float:
    """An estimate of how far tolerances take a solver's bound above the optimum; see the top of the file."""
    widths = problem.upper - problem.lower
    one_sided = np.isinf(problem.row_lower) | np.isinf(problem.row_upper)
    ranges = (abs(problem.rows) @ widths)[one_sided]
    return TOLERANCE * float(widths.sum() + ranges.sum()) + gap * (1 + abs(cutoff))


class HiGHS:
    """Minimises mixed-integer programs with linear rows by HiGHS."""

    squares = False
    gap = 4 * TOLERANCE

    def minimise(
        self, problem: Problem, *, seconds: float, cutoff: float = math.inf, target: float = -math.inf
    ) -> Answer:
        """See `Solver`."""
        if problem.squares is not None:
            raise InvalidInput("problem must have linear rows only for highs, got a quadratic one; scip takes these")
        return solve_scaled(
            problem, lambda scaled, factor: self._minimise(scaled, seconds, cutoff * factor, target * factor)
        )

    def _minimise(self, problem: Problem, seconds: float, cutoff: float, target: float) -> Answer:
        # Presolve does not look at the clock: large programs do without it.
        options = Options(tolerance=TOLERANCE, presolve=problem.rows.nnz <= 1e5 * seconds)
        highs = Highs(problem.linear, options)
        if not highs.accepted:
            return Answer("failed", -math.inf, None)
        status = highs.solve(seconds, cutoff, target)
        bound, point, nodes = highs.bound, highs.point(), highs.nodes
        if status == "optimal":
            return Answer("optimal", bound, point, nodes)
        if status in ("infeasible", "bound"):
            return Answer("cutoff", cutoff, None, nodes)
        if not problem.integer.any() or math.isnan(bound):
            bound = -math.inf
        if status == "target":
            return Answer("target", bound, point, nodes)
        if status == "time":
            return Answer("time", min(bound, cutoff), point, nodes)
        return Answer("failed", -math.inf, point, nodes)


#: The values of `solver` of `mip`.
SOLVERS: dict[str, Callable[[], Solver]] = {"highs": HiGHS, "scip": SCIP}
