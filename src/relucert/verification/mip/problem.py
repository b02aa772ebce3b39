"""A mixed-integer program, and what a solver may say about it.

min cost x  subject to  lower <= x <= upper,  row_lower <= rows x <= row_upper,  x_j whole where `integer`,
and perhaps  sum_j x_j^2 <= limit + x_k  over some columns j
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from relucert.polytopes.highs import LinearProgram, SparseRows

Array = NDArray[np.float64]
TOLERANCE = 1e-9  # of feasibility, primal, dual and integer, for every solver


@dataclass(frozen=True, eq=False)
class Squares:
    """The row `sum of x_j^2 over columns <= limit`, plus the value of another column where there is one."""

    columns: NDArray[np.int64]
    limit: float
    column: int | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """A program with finite bounds of all columns; `rows` is (rows, columns), limits of rows may be infinite.

    `row_errors` (rows,) bound what rounding of the coefficients can do to a row at points of the network that it stands for.
    """

    cost: Array
    lower: Array
    upper: Array
    integer: NDArray[np.bool_]
    rows: csr_array
    row_lower: Array
    row_upper: Array
    squares: Squares | None = None
    row_errors: Array | None = None

    @property
    def finite(self) -> bool:
        """Whether all numbers are numbers: solvers take NaN for zero and would prove anything."""
        every = self.cost, self.lower, self.upper, self.rows.data
        limits = self.row_lower, self.row_upper
        return all(np.isfinite(part).all() for part in every) and not any(np.isnan(part).any() for part in limits)

    @property
    def linear(self) -> LinearProgram:
        """The program without its quadratic row."""
        rows = self.rows
        matrix = SparseRows(rows.indptr.astype(np.int32), rows.indices.astype(np.int32), rows.data.astype(np.float64))
        return LinearProgram(self.cost, self.lower, self.upper, matrix, self.row_lower, self.row_upper, self.integer)


@dataclass(frozen=True, eq=False)
class Answer:
    """`bound`: no point of the program costs less (before the allowance); `point`: the cheapest that was found, or None.

    `status`: `optimal`; `cutoff`, nothing costs less than the cutoff, which is the bound then; `target`, a point cheap enough
    was found; `time`, and whatever is known by then; `failed`, and nothing is. `warning` says why the bound means nothing,
    though the solver claims it; else empty. In any case the bound is the solver's word and proves nothing.
    """

    status: Literal["optimal", "cutoff", "target", "time", "failed"]
    bound: float
    point: Array | None
    nodes: int = 0
    warning: str = ""
