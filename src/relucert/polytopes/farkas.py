"""Proofs that a polytope is empty, by Farkas' lemma: multipliers whose combined row cannot be satisfied in the box.

Where the box is unbounded the combined row must vanish exactly, which fails for rounded multipliers. So multipliers near the
given ones are shown to exist, or are computed in rational arithmetic.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from relucert.polytopes.certificates import EPS, UNDERFLOW, Array, single_row

NOISE = 1e-11  # multipliers below this part of the largest are dropped
EXACT_ROWS = 16  # more multipliers than this are not worth rational arithmetic


def certified_empty(
    rows: Array, limits: Array, multipliers: Array, equal: int, x: Array, slacks: tuple[Array, Array]
) -> bool:
    """Return whether multipliers near the given ones prove that no z of the box has rows z <= limits (Farkas' lemma).

    The first `equal` rows are equalities; shapes as in `certified_distance`. If the rows span the coordinates without a bound,
    multipliers with which these vanish lie within a known distance; else, if there are few, they are solved for exactly.

    >>> line = np.array([[1.0], [-1.0]])
    >>> whole = np.full(1, math.inf)
    >>> certified_empty(line, np.array([0.0, -1.0]), np.ones(2), 0, np.zeros(1), (whole, whole))
    True
    """
    # Small multipliers are noise of the solver, and would spoil the signs after a correction.
    size = np.abs(multipliers)
    support = np.flatnonzero(size > NOISE * size.max(initial=0.0))
    rows, limits, multipliers = (
        rows[support],
        limits[support],
        multipliers[support] / max(size.max(initial=0.0), UNDERFLOW),
    )
    weights, room, gain = single_row(rows, limits, multipliers, x, slacks)
    if not gain > 0.0:
        return False
    if gain > float(weights @ room) * (1.0 + (len(x) + 16) * EPS):
        return True
    open_columns = np.isinf(np.maximum(*slacks)) & rows.any(0)
    signed = support >= equal
    change = _correction(rows[:, open_columns].T, weights[open_columns])
    if math.isfinite(change) and not bool((multipliers[signed] <= change).any()):
        closed = ~open_columns & rows.any(0)
        # The change may turn the sign of an entry, and with it the side of the box that counts.
        most = (weights + change * np.abs(rows).sum(0))[closed] @ np.maximum(*slacks)[closed]
        lost = change * (np.abs(rows) @ np.abs(x) + np.abs(limits)).sum()
        if gain > float(most + lost) * (1.0 + (len(x) + len(rows) + 16) * EPS):
            return True
    return _empty_exactly(rows, limits, multipliers, signed, open_columns, x, slacks)


def certified_empties(
    rows: Array, limits: Array, multipliers: Array, equal: NDArray[np.intp], x: Array
) -> NDArray[np.bool_]:
    """Return for many problems (n,) without a box whether multipliers near the given ones prove that there is no point.

    rows (n, m, d), limits and multipliers (n, m), x (n, d); row `equal` (n,) is an equality. Only the d + 1 largest multipliers
    are used, the number that a proof needs in general; where it needs fewer, use `certified_empty`.

    >>> line = np.array([[[1.0], [-1.0]]])
    >>> certified_empties(line, np.array([[0.0, -1.0]]), np.ones((1, 2)), np.array([1]), np.zeros((1, 1)))
    array([ True])
    """
    count, many, size = rows.shape
    chosen = np.argsort(-np.abs(multipliers), axis=1)[:, : size + 1]
    if many <= size:
        return np.zeros(count, dtype=bool)
    rows = np.take_along_axis(rows, chosen[..., None], 1)
    y, known = np.take_along_axis(multipliers, chosen, 1), np.take_along_axis(limits, chosen, 1)
    usable = np.isfinite(known).all(1) & np.isfinite(y).all(1) & y.any(1)
    rows, y, known, x, free = (part[usable] for part in (rows, y, known, x, chosen == equal[:, None]))
    y = y / np.abs(y).max(1, initial=UNDERFLOW)[:, None]
    row, absolute = (y[:, None] @ rows)[:, 0], np.abs(y)
    magnitude = (absolute[:, None] @ np.abs(rows))[:, 0]
    off = np.abs(row) + (size + 9) * EPS * magnitude + UNDERFLOW
    sizes = (np.abs(rows) @ np.abs(x)[..., None])[..., 0] + np.abs(known)
    gain = (y * ((rows @ x[..., None])[..., 0] - known)).sum(1)
    gain -= (2 * size + 9) * EPS * (absolute * sizes).sum(1) + UNDERFLOW
    columns = rows.transpose(0, 2, 1)
    inverse = np.linalg.pinv(columns)
    defect = np.abs(columns @ inverse - np.eye(size)) + (size + 9) * EPS * (np.abs(columns) @ np.abs(inverse))
    worst = defect.sum(2).max(1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        change = np.abs(inverse).sum(2).max(1) * off.max(1) / (1.0 - worst) * (1.0 + 8.0 * (size + 2) * EPS)
        signs = (free | (y > change[:, None])).all(1)
        proved = (worst < 0.5) & signs & (gain > change * sizes.sum(1) * (1.0 + (2 * size + 17) * EPS))
    out = np.zeros(count, dtype=bool)
    out[usable] = proved
    return out


def _correction(columns: Array, errors: Array) -> float:
    """Bound some change of the multipliers y (n,) after which columns (k, n) times y vanishes; now it is at most `errors` (k,).

    With a Y for which D = columns Y - 1 is small, the change -Y (1 + D)^-1 v has entries of at most |Y| |v| / (1 - |D|), with
    row sums for norms; inf if the rows do not span those coordinates well.
    """
    count, size = columns.shape
    if not 0 < count <= size:
        return math.inf
    q, r = np.linalg.qr(columns.T)
    try:
        inverse = q @ np.linalg.inv(r).T
    except np.linalg.LinAlgError:
        return math.inf
    rounding = (size + 8) * EPS
    defect = np.abs(columns @ inverse - np.eye(count)) + rounding * (np.abs(columns) @ np.abs(inverse))
    worst = float(defect.sum(1).max())
    if not worst < 0.5:
        return math.inf
    return float(np.abs(inverse).sum(1).max() * errors.max()) / (1.0 - worst) * (1.0 + 4.0 * (count + size) * EPS)


def _empty_exactly(
    rows: Array,
    limits: Array,
    multipliers: Array,
    signed: NDArray[np.bool_],
    open_columns: NDArray[np.bool_],
    x: Array,
    slacks: tuple[Array, Array],
) -> bool:
    """Keep as many multipliers as are free, solve for the others in rational arithmetic, and check signs and gain there."""
    count, size = rows.shape
    if count > EXACT_ROWS or int(open_columns.sum()) > EXACT_ROWS:
        return False
    exact = [[Fraction(value) for value in row] for row in rows.tolist()]
    y = _null_vector([[row[j] for row in exact] for j in np.flatnonzero(open_columns)], multipliers)
    if y is None or any(value < 0 for value, bounded in zip(y, signed, strict=True) if bounded):
        return False
    point = [Fraction(value) for value in x.tolist()]
    gain = -sum(a * Fraction(b) for a, b in zip(y, limits.tolist(), strict=True))
    for j in range(size):
        entry = sum(a * row[j] for a, row in zip(y, exact, strict=True))
        if entry != 0:  # then the column has a bound on both sides
            gain += entry * point[j] - abs(entry) * Fraction(float(slacks[0][j] if entry > 0 else slacks[1][j]))
    return gain > 0


def _null_vector(matrix: list[list[Fraction]], near: Array) -> list[Fraction] | None:
    """Return an exact solution of matrix y = 0 with the entries of `near` at all columns without a pivot, if there are any."""
    size = len(near)
    pivots: list[int] = []
    for column in np.argsort(-np.abs(near)):
        done = len(pivots)
        pivot = next((i for i in range(done, len(matrix)) if matrix[i][column] != 0), None)
        if pivot is None:
            continue
        matrix[done], matrix[pivot] = matrix[pivot], matrix[done]
        inverse = 1 / matrix[done][column]
        matrix[done] = [value * inverse for value in matrix[done]]
        for i, row in enumerate(matrix):
            if i != done and row[column] != 0:
                factor = row[column]
                matrix[i] = [a - factor * b for a, b in zip(row, matrix[done], strict=True)]
        pivots.append(int(column))
    free = [j for j in range(size) if j not in pivots]
    if not free:
        return None
    y = [Fraction(0)] * size
    for j in free:
        y[j] = Fraction(float(near[j]))
    for i, column in enumerate(pivots):
        y[column] = -sum((matrix[i][j] * y[j] for j in free), Fraction(0))
    return y
