"""The point of a polytope nearest to the origin in l1 or l_inf, by linear programs.

A program with more rows is solved again from its last basis.
"""

from __future__ import annotations

import math

import numpy as np

from relucert.polytopes._least_distance import MANY_COORDINATES, Nearest
from relucert.polytopes.certificates import Array, certified_distance
from relucert.polytopes.highs import TINY, Highs, LinearProgram, Optimum, SparseRows

ROUNDS = 60
REACHED = 1e-11  # a violation that rounding explains, of rows of norm about 1 and distances of about 1


class TaxicabSolver:
    """Computes the smallest d in l1 with rows d <= limits (the first `equal` with equality) and low <= d <= high.

    d = d_up - d_down, both from 0 to the slack on their side: one linear program with twice as many variables.

    >>> whole = np.full(2, np.inf)
    >>> TaxicabSolver()(np.array([[-1.0, -2.0]]), np.array([-2.0]), 0, -whole, whole)
    Nearest(step=array([0., 1.]), multipliers=array([0.5]))
    """

    def __init__(self) -> None:
        self._program = _Growing()

    def __call__(self, rows: Array, limits: Array, equal: int, low: Array, high: Array) -> Nearest | None:
        size = rows.shape[1]
        doubled = np.concatenate((rows, -rows), axis=1)
        bounds = np.zeros(2 * size), np.concatenate((high, -low))
        best = self._program.solve(np.ones(2 * size), *bounds, doubled, _row_low(limits, equal), limits)
        return None if best is None else Nearest(best.x[:size] - best.x[size:], best.multipliers)


class MaximumSolver:
    """Computes the smallest d in l_inf with rows d <= limits (the first `equal` with equality) and low <= d <= high.

    Few coordinates: one linear program, with the rows -t <= d_i <= t. Many: for a given t, the least violation of the rows by a
    d of the box with ||d||_inf <= t is a linear program with bounds alone beside the rows. Its multipliers prove a larger t,
    and so on: Newton's method from below on a convex, piecewise linear function, which ends. `least` is a lower bound to start
    from.

    >>> whole = np.full(2, np.inf)
    >>> MaximumSolver(0.5)(np.array([[-1.0, -2.0]]), np.array([-3.0]), 0, -whole, whole).step
    array([1., 1.])
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._program = _Growing()

    def __call__(self, rows: Array, limits: Array, equal: int, low: Array, high: Array) -> Nearest | None:
        search = self._direct if rows.shape[1] < MANY_COORDINATES else self._newton
        return search(rows, limits, equal, low, high)

    def _direct(self, rows: Array, limits: Array, equal: int, low: Array, high: Array) -> Nearest | None:
        count, size = rows.shape
        norm = np.concatenate((np.eye(size), -np.eye(size)))[np.concatenate((high > 0.0, low < 0.0))]
        known, free = len(norm), np.full(len(norm), -np.inf)
        columns = np.zeros((known + count, size + 1))
        columns[:known, :size], columns[known:, :size], columns[:known, size] = norm, rows, -1.0
        best = self._program.solve(
            _last(size + 1),
            np.append(low, 0.0),
            np.append(high, np.inf),
            columns,
            np.concatenate((free, _row_low(limits, equal))),
            np.concatenate((np.zeros(known), limits)),
        )
        return None if best is None else Nearest(best.x[:-1], best.multipliers[known:])

    def _newton(self, rows: Array, limits: Array, equal: int, low: Array, high: Array) -> Nearest | None:
        size = rows.shape[1]
        both = np.concatenate((-rows[:equal], rows))
        columns = np.concatenate((both, np.full((len(both), 1), -1.0)), axis=1)
        ends = np.concatenate((-limits[:equal], limits))
        proof = None
        for _ in range(ROUNDS):
            bounds = np.append(np.maximum(low, -self._least), 0.0), np.append(np.minimum(high, self._least), np.inf)
            best = self._program.solve(_last(size + 1), *bounds, columns, np.full(len(both), -np.inf), ends)
            if best is None:
                return None
            every = best.multipliers.clip(min=0.0)
            multipliers = every[equal:]
            multipliers[:equal] -= every[:equal]
            farther = certified_distance(rows, limits, multipliers, np.zeros(size), (-low, high), math.inf)
            if best.x[-1] <= REACHED * max(self._least, 1.0) or not farther > self._least:
                return Nearest(best.x[:-1], multipliers if proof is None else proof)
            self._least, proof = farther, multipliers
        return None


class _Growing:
    """A linear program that is solved with other bounds and with more rows than before."""

    def __init__(self) -> None:
        self._highs: Highs | None = None
        self._count = 0

    def solve(
        self, cost: Array, low: Array, high: Array, rows: Array, row_low: Array, row_high: Array
    ) -> Optimum | None:
        if self._highs is None:
            self._highs = Highs(LinearProgram(cost, low, high, SparseRows.of(rows), row_low, row_high), TINY)
        else:
            self._highs.change_bounds(np.arange(len(cost)), low, high)
            new = slice(self._count, None)
            if self._count < len(rows):
                self._highs.add_rows(SparseRows.of(rows[new]), row_low[new], row_high[new])
        self._count = len(rows)
        return self._highs.optimum()


def _row_low(limits: Array, equal: int) -> Array:
    """Return the lower limits of rows of which the first `equal` are equalities."""
    return np.where(np.arange(len(limits)) < equal, limits, -np.inf)


def _last(size: int) -> Array:
    """Return the cost of the last variable alone."""
    cost = np.zeros(size)
    cost[-1] = 1.0
    return cost
