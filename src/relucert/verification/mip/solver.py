"""Solvers of mixed-integer programs: one interface, one class for each solver.

A solver works in floating point, with tolerances. It accepts reduced costs that have the wrong sign by its tolerance t, so its
bound on the optimum may be too large by t times the widths of everything that a multiplier stands at, columns and
inequalities; what is pruned for being too little better than an incumbent adds a gap. `allowance` is the sum of both. It is an
estimate and no proof: presolve, cuts and rows that were wrongly found to exclude each other can exceed it without end. What a
solver says decides where to look for counterexamples and where a proof is worth trying, never a verdict.

Programs are scaled before they are solved (`scaling`). Another solver joins by a class with `minimise` and a line in `SOLVERS`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import highspy
import numpy as np
from numpy.typing import NDArray

from relucert.core.errors import InvalidInput
from relucert.verification.mip.problem import TOLERANCE as TOLERANCE
from relucert.verification.mip.problem import Answer as Answer
from relucert.verification.mip.problem import Problem as Problem
from relucert.verification.mip.problem import Squares as Squares
from relucert.verification.mip.scaling import Scaling, warning

Array = NDArray[np.float64]


class Solver(Protocol):
    """Who minimises a program."""

    squares: bool  # whether it takes quadratic rows
    gap: float  # what may be lost by pruning, absolutely and relative to the cutoff

    def minimise(self, problem: Problem, *, seconds: float, cutoff: float, target: float) -> Answer:
        """Look for points that cost less than `cutoff`, until one costs less than `target`, none is left or time is up."""
        ...


def allowance(problem: Problem, gap: float, cutoff: float = 0.0) -> float:
    """How far the tolerances of a solver may have taken its bound above the optimum; see above."""
    widths = problem.upper - problem.lower
    one_sided = np.isinf(problem.row_lower) | np.isinf(problem.row_upper)
    ranges = (abs(problem.rows) @ widths)[one_sided]
    return TOLERANCE * float(widths.sum() + ranges.sum()) + gap * (1 + abs(cutoff))


def solved_scaled(problem: Problem, solve: Callable[[Problem, float], Answer]) -> Answer:
    """The answer to a program that is solved in scaled units; `solve(scaled, factor)` is told the factor of costs.

    Bounds are the solver's divided by the factor.
    """
    if not problem.finite:
        return Answer("failed", -math.inf, None, warning="the program has coefficients that are not finite")
    scaling = Scaling.of(problem)
    scaled = scaling.scaled(problem)
    if not scaled.finite:
        return Answer("failed", -math.inf, None, warning="the program has coefficients beyond the range of float64")
    answer = solve(scaled, scaling.cost)
    point = None if answer.point is None else scaling.point(answer.point)
    return replace(answer, bound=answer.bound / scaling.cost, point=point, warning=answer.warning or warning(scaled))


class HiGHS:
    """HiGHS on one thread: linear rows only."""

    squares = False
    gap = 4 * TOLERANCE

    def minimise(
        self, problem: Problem, *, seconds: float, cutoff: float = math.inf, target: float = -math.inf
    ) -> Answer:
        """See `Solver`."""
        if problem.squares is not None:
            raise InvalidInput("problem must have linear rows only for highs, got a quadratic one; scip takes these")
        return solved_scaled(
            problem, lambda scaled, factor: self._minimise(scaled, seconds, cutoff * factor, target * factor)
        )

    def _minimise(self, problem: Problem, seconds: float, cutoff: float, target: float) -> Answer:
        mixed = bool(problem.integer.any())
        options: dict[str, Any] = {
            "time_limit": max(0.0, seconds), "mip_feasibility_tolerance": TOLERANCE, "mip_rel_gap": 0.0,
            "mip_abs_gap": TOLERANCE, "objective_target": target,
        }  # fmt: skip
        if mixed and math.isfinite(cutoff):
            options["objective_bound"] = cutoff
        if problem.rows.nnz > 1e5 * seconds:
            options["presolve"] = "off"  # it does not look at the clock
        highs = opened(problem, options)
        if highs is None:
            return Answer("failed", -math.inf, None)
        highs.run()
        found, info = highs.getModelStatus(), highs.getInfo()
        status = highspy.HighsModelStatus
        bound = info.mip_dual_bound if mixed else info.objective_function_value
        has_point = info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible)
        point = np.array(highs.getSolution().col_value) if has_point else None
        nodes = max(0, int(info.mip_node_count)) if mixed else 0
        if found == status.kOptimal:
            return Answer("optimal", bound, point, nodes)
        if found in (status.kInfeasible, status.kObjectiveBound):
            return Answer("cutoff", cutoff, None, nodes)
        if not mixed or math.isnan(bound):
            bound = -math.inf
        if found == status.kObjectiveTarget:
            return Answer("target", bound, point, nodes)
        if found in (status.kTimeLimit, status.kInterrupt):
            return Answer("time", min(bound, cutoff), point, nodes)
        return Answer("failed", -math.inf, point, nodes)


def opened(problem: Problem, options: dict[str, Any]) -> highspy.Highs | None:
    """HiGHS with a program loaded from arrays; None if it does not take it."""
    highs = highspy.Highs()
    settings = {
        "output_flag": False, "threads": 1, "parallel": "off", "small_matrix_value": 1e-12,
        "primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE, **options,
    }  # fmt: skip
    for option, value in settings.items():
        if highs.setOptionValue(option, value) != highspy.HighsStatus.kOk:
            return None
    rows = problem.rows
    sizes = (
        len(problem.cost),
        len(problem.row_lower),
        rows.nnz,
        int(highspy.MatrixFormat.kRowwise),
        int(highspy.ObjSense.kMinimize),
    )
    limits = problem.cost, problem.lower, problem.upper, problem.row_lower, problem.row_upper
    matrix = rows.indptr.astype(np.int32), rows.indices.astype(np.int32), rows.data.astype(np.float64)
    taken = highs.passModel(*sizes, 0.0, *limits, *matrix, problem.integer.astype(np.int32))
    return highs if taken == highspy.HighsStatus.kOk else None


class SCIP:
    """SCIP on one thread, by pyscipopt, which is an extra: quadratic rows too."""

    squares = True
    gap = 1e-6  # SCIP compares sums with this tolerance

    def __init__(self) -> None:
        try:
            self._scip: Any = importlib.import_module("pyscipopt")
        except ImportError as error:
            raise InvalidInput(
                "solver of mip must be installed: scip needs pyscipopt (pip install 'relucert[scip]'), got 'scip' without it"
            ) from error

    def minimise(
        self, problem: Problem, *, seconds: float, cutoff: float = math.inf, target: float = -math.inf
    ) -> Answer:
        """See `Solver`."""
        return solved_scaled(
            problem, lambda scaled, factor: self._minimise(scaled, seconds, cutoff * factor, target * factor)
        )

    def _minimise(self, problem: Problem, seconds: float, cutoff: float, target: float) -> Answer:
        model, columns = self._model(problem)
        model.setParam("limits/time", max(0.0, seconds))
        if math.isfinite(cutoff):
            model.setObjlimit(cutoff)
            model.setParam("limits/dual", cutoff)
        if math.isfinite(target):
            model.setParam("limits/primal", target)
        try:
            model.optimize()
        except Exception as error:  # pyscipopt raises plain exceptions where an inner solver fails
            return Answer("failed", -math.inf, None, warning=f"SCIP failed: {error}")
        status, bound = model.getStatus(), float(model.getDualbound())
        best = model.getBestSol() if model.getNSols() else None
        point = None if best is None else np.array([model.getSolVal(best, column) for column in columns])
        nodes = int(model.getNTotalNodes())
        if status in ("infeasible", "duallimit"):
            return Answer("cutoff", cutoff, None, nodes)
        if status == "optimal":
            return Answer("optimal", bound, point, nodes)
        if status in ("timelimit", "primallimit"):
            bound = -math.inf if bound <= -model.infinity() else min(bound, cutoff)
            return Answer("time" if status == "timelimit" else "target", bound, point, nodes)
        return Answer("failed", -math.inf, point, nodes)

    def _model(self, problem: Problem) -> tuple[Any, list[Any]]:
        """The program, column by column and row by row."""
        model = self._scip.Model()
        model.hideOutput()
        for name in ("numerics/feastol", "numerics/dualfeastol"):
            model.setParam(name, TOLERANCE)
        model.setParam("numerics/epsilon", TOLERANCE / 10)
        model.setParam("lp/threads", 1)
        kinds = np.where(problem.integer, "I", "C")
        columns = [
            model.addVar(lb=low, ub=high, vtype=kind, obj=cost)
            for low, high, kind, cost in zip(
                *(part.tolist() for part in (problem.lower, problem.upper, kinds, problem.cost)), strict=True
            )
        ]
        rows = problem.rows
        starts, indices = ([int(place) for place in part] for part in (rows.indptr, rows.indices))
        data = [float(value) for value in rows.data]
        limits = zip(problem.row_lower.tolist(), problem.row_upper.tolist(), strict=True)
        for row, (low, high) in enumerate(limits):
            part = range(starts[row], starts[row + 1])
            total = self._scip.quicksum(data[at] * columns[indices[at]] for at in part)
            if low == high:
                model.addCons(total == low)
                continue
            if math.isfinite(high):
                model.addCons(total <= high)
            if math.isfinite(low):
                model.addCons(total >= low)
        if problem.squares is not None:
            total = self._scip.quicksum(columns[at] * columns[at] for at in problem.squares.columns.tolist())
            more = 0 if problem.squares.column is None else columns[problem.squares.column]
            model.addCons(total - more <= problem.squares.limit)
        return model, columns


#: What `solver` of `mip` may be.
SOLVERS: dict[str, Callable[[], Solver]] = {"highs": HiGHS, "scip": SCIP}
