"""A mixed-integer program, and the answer of a solver.

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
    """The quadratic row sum_j x_j^2 <= limit over some columns; with `column` k: <= limit + x_k."""

    columns: NDArray[np.int64]
    limit: float
    column: int | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """A program with finite bounds of all columns; `rows` is (rows, columns), limits of rows may be infinite.

    `row_errors` (rows,) bound the error of a row, from rounded coefficients, at the points of the network that it encodes.
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
        """Whether no number is NaN or, limits of rows apart, infinite: solvers take NaN for zero and would prove anything."""
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
    """A claim of a solver: no point of the program costs less than `bound`, and `point` is the cheapest known, or None.

    `status`: `optimal`; `cutoff`, no point costs less than the cutoff, which is the bound then; `target`, the point is cheap
    enough; `time`, the time is up; `failed`, nothing is known. `warning` says why the tolerances of the solver make the bound
    meaningless; else empty. In any case the bound proves nothing.
    """

    status: Literal["optimal", "cutoff", "target", "time", "failed"]
    bound: float
    point: Array | None
    nodes: int = 0
    warning: str = ""
