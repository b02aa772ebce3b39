"""Linear programs for HiGHS, without the overhead of modelling layers: most of them here are tiny."""

from __future__ import annotations

from typing import NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

from relucert.polytopes.certificates import Array

TOLERANCE = 1e-10  # of feasibility, primal and dual; the smallest that HiGHS takes


class Optimum(NamedTuple):
    """A minimiser and the multipliers of the rows, which are not negative where only the upper limit of a row binds."""

    x: Array
    multipliers: Array


class LinearProgram:
    """Minimise cost.x subject to low <= x <= high and row_low <= rows x <= row_high; dense arrays, limits may be infinite.

    >>> one = np.ones(1)
    >>> program = LinearProgram(one, -5.0 * one, 5.0 * one, rows=-np.ones((1, 1)), row_low=-np.inf * one, row_high=2.0 * one)
    >>> program.solve()
    Optimum(x=array([-2.]), multipliers=array([1.]))
    """

    def __init__(self, cost: Array, low: Array, high: Array, *, rows: Array, row_low: Array, row_high: Array) -> None:
        self._columns = np.arange(len(cost), dtype=np.int32)
        self._highs = highspy.Highs()
        for option, value in (
            ("output_flag", False),
            ("presolve", "off"),
            ("solver", "simplex"),
            ("primal_feasibility_tolerance", TOLERANCE),
            ("dual_feasibility_tolerance", TOLERANCE),
        ):
            self._highs.setOptionValue(option, value)
        start, column, value = _sparse(rows)
        sizes = len(cost), len(rows), len(value), int(highspy.MatrixFormat.kRowwise), int(highspy.ObjSense.kMinimize)
        continuous = np.zeros(len(cost), dtype=np.int32)
        limits = cost, low, high, row_low, row_high
        self._highs.passModel(*sizes, 0.0, *limits, start, column, value, continuous)

    def change_bounds(self, low: Array, high: Array) -> None:
        """Replace the bounds of x; the next solution starts from the last one."""
        self._highs.changeColsBounds(len(self._columns), self._columns, low, high)

    def add_rows(self, rows: Array, row_low: Array, row_high: Array) -> None:
        """Add rows; the next solution starts from the last one."""
        start, column, value = _sparse(rows)
        self._highs.addRows(len(rows), row_low, row_high, len(value), start[:-1], column, value)

    def solve(self) -> Optimum | None:
        """Return an optimum, or None if HiGHS does not report one."""
        self._highs.run()
        if self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = self._highs.getSolution()
        return Optimum(np.array(solution.col_value), -np.array(solution.row_dual))


def _sparse(rows: Array) -> tuple[NDArray[np.int32], NDArray[np.int32], Array]:
    """Return the rows in compressed form: starts, columns and values."""
    row, column = np.nonzero(rows)
    start = np.searchsorted(row, np.arange(len(rows) + 1))
    return start.astype(np.int32), column.astype(np.int32), rows[row, column]
