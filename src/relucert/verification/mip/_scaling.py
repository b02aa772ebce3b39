"""Scaling of programs: rows and columns by powers of two, so that a solver's tolerances mean the same everywhere.

A solver accepts rows that are violated by an absolute tolerance. Beside coefficients of 1e10 that is stricter than float64
can be, beside coefficients of 1e-10 it is no restriction at all. With x = C x' and rows scaled by R the program

    min k c' C x'   subject to   C^-1 l <= x' <= C^-1 u,   R row_lower <= R A C x' <= R row_upper

has the same points, and R, C and k are chosen so that the coefficients of every row and column are around 1. Powers of two
are multiplied without rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from relucert.verification.mip._problem import TOLERANCE, Answer, Problem

Array = NDArray[np.float64]
ROUNDS = 4  # of rows and columns in turn


@dataclass(frozen=True, eq=False)
class Scaling:
    """The factors of rows, columns and cost, all powers of two; columns of whole numbers and of squares keep their unit."""

    rows: Array
    columns: Array
    cost: float

    @staticmethod
    def of(problem: Problem) -> Scaling:
        """Geometric scaling: the largest times the smallest coefficient of every row and column is brought near 1."""
        matrix = abs(problem.rows)
        matrix.eliminate_zeros()
        logs = matrix.copy()
        logs.data = np.log2(matrix.data)
        row, column = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)), matrix.indices
        fixed = problem.integer.copy()
        if problem.squares is not None:
            fixed[problem.squares.columns] = True
            if problem.squares.column is not None:
                fixed[problem.squares.column] = True
        by_row, by_column = np.zeros(matrix.shape[0]), np.zeros(matrix.shape[1])
        for _ in range(ROUNDS):
            by_row = -_middle(logs.data + by_column[column], row, matrix.shape[0])
            by_column = np.where(fixed, 0.0, -_middle(logs.data + by_row[row], column, matrix.shape[1]))
        rows, columns = 2.0 ** np.round(by_row), 2.0 ** np.round(by_column)
        size = float(abs(problem.cost * columns).max(initial=0.0))
        return Scaling(rows, columns, 2.0 ** -round(np.log2(size)) if size > 0 else 1.0)

    def scaled(self, problem: Problem) -> Problem:
        """The program in scaled units."""
        rows = csr_array(problem.rows.copy())
        rows.data = rows.data * np.repeat(self.rows, np.diff(rows.indptr)) * self.columns[rows.indices]
        return replace(
            problem,
            cost=self.scaled_cost(problem.cost), lower=problem.lower / self.columns, upper=problem.upper / self.columns,
            rows=rows, row_lower=problem.row_lower * self.rows, row_upper=problem.row_upper * self.rows,
        )  # fmt: skip

    def scaled_cost(self, cost: Array) -> Array:
        """Costs of all columns in scaled units."""
        return cost * self.columns * self.cost

    def point(self, point: Array) -> Array:
        """A point of the scaled program in the units of the program."""
        return point * self.columns

    def multipliers(self, multipliers: Array) -> Array:
        """Multipliers of the scaled rows as multipliers of the rows of the program."""
        return multipliers * self.rows / self.cost


def solve_scaled(problem: Problem, solve: Callable[[Problem, float], Answer]) -> Answer:
    """The answer to a program in its own units; `solve(scaled, factor)` solves the scaled program, costs times `factor`."""
    if not problem.finite:
        return Answer("failed", -math.inf, None, warning="the program has coefficients that are not finite")
    scaling = Scaling.of(problem)
    scaled = scaling.scaled(problem)
    if not scaled.finite:
        return Answer("failed", -math.inf, None, warning="the program has coefficients beyond the range of float64")
    answer = solve(scaled, scaling.cost)
    point = None if answer.point is None else scaling.point(answer.point)
    return replace(answer, bound=answer.bound / scaling.cost, point=point, warning=answer.warning or warning(scaled))


def spread(problem: Problem) -> float:
    """The largest ratio of two coefficients of one row."""
    sizes, count = abs(problem.rows.data), len(problem.row_lower)
    if len(sizes) == 0:
        return 1.0
    row = np.repeat(np.arange(count), np.diff(problem.rows.indptr))
    kept = sizes > 0
    most, least = np.zeros(count), np.full(count, np.inf)
    np.maximum.at(most, row[kept], sizes[kept])
    np.minimum.at(least, row[kept], sizes[kept])
    return float((most[most > 0] / least[most > 0]).max(initial=1.0))


def warning(problem: Problem) -> str:
    """Why the tolerances of a solver are meaningless for a scaled program; empty where they are not."""
    ratio = spread(problem)
    if ratio * TOLERANCE > 1:
        return f"a row of the program has coefficients in the ratio {ratio:.0e}, so tolerances of {TOLERANCE:.0e} mean nothing"
    return ""


def _middle(logs: Array, group: NDArray[np.integer], count: int) -> Array:
    """The mean of the largest and the smallest number of every group, 0 for empty ones."""
    most, least = np.full(count, -np.inf), np.full(count, np.inf)
    np.maximum.at(most, group, logs)
    np.minimum.at(least, group, logs)
    found, filled = np.zeros(count), np.isfinite(most)
    found[filled] = (most[filled] + least[filled]) / 2
    return found
