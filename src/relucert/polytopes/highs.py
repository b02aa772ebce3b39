"""HiGHS: the adapter for linear and mixed-integer programs, built from arrays without a modelling layer.

    min cost x   subject to   lower <= x <= upper,   row_lower <= rows x <= row_upper,   x_j whole where `integer`

HiGHS runs silently on one thread. A program that was solved can be changed and solved again, starting from its last basis.
HiGHS works in floating point, with tolerances: every claim is untrusted until multipliers or a witness prove it elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

from relucert.polytopes.certificates import Array

Indices = NDArray[np.int32]
#: `bound`: no point costs less than the cutoff; `target`: a point costs no more than the target; `time`: the time is up.
Status = Literal["optimal", "infeasible", "bound", "target", "time", "failed"]

_STATUS: dict[highspy.HighsModelStatus, Status] = {
    highspy.HighsModelStatus.kOptimal: "optimal",
    highspy.HighsModelStatus.kInfeasible: "infeasible",
    highspy.HighsModelStatus.kObjectiveBound: "bound",
    highspy.HighsModelStatus.kObjectiveTarget: "target",
    highspy.HighsModelStatus.kTimeLimit: "time",
    highspy.HighsModelStatus.kInterrupt: "time",
}


class SparseRows(NamedTuple):
    """A matrix in compressed rows: row i has `values[starts[i]:starts[i + 1]]` in the columns of the same positions."""

    starts: Indices
    columns: Indices
    values: Array

    @classmethod
    def of(cls, rows: Array) -> SparseRows:
        """The entries of a dense matrix that are not 0.

        >>> SparseRows.of(np.array([[0.0, 2.0], [3.0, 0.0]])).columns
        array([1, 0], dtype=int32)
        """
        row, column = np.nonzero(rows)
        starts = np.searchsorted(row, np.arange(len(rows) + 1))
        return cls(starts.astype(np.int32), column.astype(np.int32), rows[row, column])


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """A linear program as above, or a mixed-integer one; all limits may be infinite."""

    cost: Array
    lower: Array
    upper: Array
    rows: SparseRows
    row_lower: Array
    row_upper: Array
    integer: NDArray[np.bool_] | None = None

    @property
    def mixed(self) -> bool:
        """Whether some columns are whole numbers."""
        return self.integer is not None and bool(self.integer.any())


@dataclass(frozen=True, kw_only=True)
class Options:
    """`tolerance` of feasibility, primal, dual and integer; coefficients below `smallest` are dropped.

    `presolve` does not look at the clock. `simplex`: always the simplex method.
    """

    tolerance: float = 1e-9
    smallest: float = 1e-12
    presolve: bool = True
    simplex: bool = False


#: For the many tiny linear programs of this folder: the smallest tolerance that HiGHS accepts, and no presolve.
TINY = Options(tolerance=1e-10, smallest=1e-9, presolve=False, simplex=True)


class Optimum(NamedTuple):
    """A minimiser and the multipliers of the rows, which are not negative where only the upper limit of a row binds."""

    x: Array
    multipliers: Array


class Highs:
    """A program loaded into HiGHS. `accepted`: HiGHS took the program and the options as given.

    >>> one = np.ones(1)
    >>> rows = SparseRows.of(-np.ones((1, 1)))
    >>> program = LinearProgram(one, -5.0 * one, 5.0 * one, rows, row_lower=-np.inf * one, row_upper=2.0 * one)
    >>> Highs(program, TINY).optimum()
    Optimum(x=array([-2.]), multipliers=array([1.]))
    """

    def __init__(self, program: LinearProgram, options: Options) -> None:
        self._highs, self._mixed = highspy.Highs(), program.mixed
        settings: dict[str, Any] = {
            "output_flag": False, "threads": 1, "parallel": "off", "small_matrix_value": options.smallest,
            "primal_feasibility_tolerance": options.tolerance, "dual_feasibility_tolerance": options.tolerance,
        }  # fmt: skip
        if not options.presolve:
            settings["presolve"] = "off"
        if options.simplex:
            settings["solver"] = "simplex"
        if self._mixed:
            settings |= {"mip_feasibility_tolerance": options.tolerance, "mip_rel_gap": 0.0}
            settings["mip_abs_gap"] = options.tolerance
        taken = self._set(settings)
        count, rows = len(program.cost), program.rows
        sizes = count, len(program.row_lower), len(rows.values)
        kinds = int(highspy.MatrixFormat.kRowwise), int(highspy.ObjSense.kMinimize)
        limits = program.cost, program.lower, program.upper, program.row_lower, program.row_upper
        whole = np.zeros(count, dtype=np.int32) if program.integer is None else program.integer.astype(np.int32)
        loaded = self._highs.passModel(*sizes, *kinds, 0.0, *limits, *rows, whole)
        self.accepted = taken and loaded == highspy.HighsStatus.kOk

    def _set(self, settings: dict[str, Any]) -> bool:
        """Set options; whether HiGHS takes all of them."""
        taken = [self._highs.setOptionValue(name, value) for name, value in settings.items()]
        return all(status == highspy.HighsStatus.kOk for status in taken)

    # Changes.

    def change_bounds(self, columns: NDArray[np.integer], lower: Array, upper: Array) -> None:
        """Replace the bounds of some columns."""
        self._highs.changeColsBounds(len(columns), columns.astype(np.int32), lower, upper)

    def change_cost(self, column: int, cost: float) -> None:
        """Replace the cost of a column."""
        self._highs.changeColCost(column, cost)

    def add_rows(self, rows: SparseRows, lower: Array, upper: Array) -> None:
        """Add rows below those that the program has."""
        self._highs.addRows(len(lower), lower, upper, len(rows.values), rows.starts[:-1], rows.columns, rows.values)

    # Solutions.

    def solve(self, seconds: float = math.inf, cutoff: float = math.inf, target: float = -math.inf) -> Status:
        """Solve until the optimum, a point at the `target`, or the end of the time.

        With whole numbers, a proof that no point costs less than `cutoff` ends the search, too.
        """
        # The clock of HiGHS runs on from one run to the next.
        settings = {"time_limit": self._highs.getRunTime() + max(0.0, seconds), "objective_target": target}
        if self._mixed:
            settings["objective_bound"] = cutoff if math.isfinite(cutoff) else math.inf
        if not self._set(settings):
            return "failed"
        if self._highs.run() == highspy.HighsStatus.kError:
            # One scheduler of HiGHS serves the whole process; other code may have started it with more than one thread.
            highspy.Highs.resetGlobalScheduler(True)
            self._highs.run()
        return _STATUS.get(self._highs.getModelStatus(), "failed")

    def optimum(self, seconds: float = math.inf) -> Optimum | None:
        """Solve a linear program; None without an optimum.

        Without presolve HiGHS gives up on some degenerate programs: these are solved again with it.
        """
        status = self.solve(seconds)
        if status == "failed" and self._set({"presolve": "on"}):
            self._highs.clearSolver()  # from a basis HiGHS goes on without presolve
            status = self.solve(seconds)
        if status != "optimal":
            return None
        solution = self._highs.getSolution()
        return Optimum(np.array(solution.col_value), -np.array(solution.row_dual))

    def values(self) -> Array:
        """The columns where the last run ended, feasible or not; empty where HiGHS has none."""
        return np.array(self._highs.getSolution().col_value)

    def point(self) -> Array | None:
        """The best feasible point of the last run, as far as HiGHS can tell; None without one."""
        feasible = int(highspy.SolutionStatus.kSolutionStatusFeasible)
        return self.values() if self._highs.getInfo().primal_solution_status == feasible else None

    def multipliers(self) -> Array | None:
        """The multipliers of the rows of a linear program, positive where a lower limit binds; None without any."""
        solution = self._highs.getSolution()
        return np.array(solution.row_dual) if solution.dual_valid else None

    def ray(self) -> Array | None:
        """The multipliers (Farkas) that say that a linear program has no point; None without any."""
        if self._highs.getModelStatus() != highspy.HighsModelStatus.kInfeasible:
            return None
        _, exists, ray = self._highs.getDualRay()  # pyright: ignore[reportAttributeAccessIssue]
        return np.array(ray) if exists else None

    @property
    def bound(self) -> float:
        """What HiGHS claims that every point costs at least; of a linear program that was solved the optimum."""
        info = self._highs.getInfo()
        return float(info.mip_dual_bound if self._mixed else info.objective_function_value)

    @property
    def nodes(self) -> int:
        """The nodes of the search for whole numbers."""
        return max(0, int(self._highs.getInfo().mip_node_count)) if self._mixed else 0
