"""Half spaces, and lower bounds on the distance to them that are proved by multipliers, whatever solver these come from.

`half_spaces` checks rows and limits and scales rows by powers of two to norms from 1/2 to 1, which is exact.

Every z of {R z <= b} satisfies <v, z - x> <= -c for v = y R, c = y.(R x - b) and any y that is not negative on inequalities.
Inside the box a coordinate of the step z - x, in the direction against v, is at most the slack to the box there. It remains
a single row: the least t for which max { <|v|, a> : ||a||_p <= t, 0 <= a_i <= room_i } reaches c. Splitting |v| = keep + paid
proves
    t >= (c - <paid, room>) / ||keep||_q,
and the best split charges the excess over a common level to the coordinates whose slack, `room`, is used up.
Bounds are evaluated in float64 with a priori bounds on the rounding errors, for any order of summation, rounded down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from relucert.core.errors import InvalidInput
from relucert.core.norms import dual
from relucert.core.rounding import gamma_above

Array = NDArray[np.float64]

EPS = gamma_above(1)  # n EPS is at least gamma_n
LARGEST = float(np.finfo(np.float64).max)
UNDERFLOW = 1e-290  # more than all products that vanish below the smallest float can add up to


def certified_distance(
    rows: Array, limits: Array, multipliers: Array, x: Array, slacks: tuple[Array, Array], p: float
) -> float:
    """Return a proved lower bound on ||z - x||_p over all z with rows z <= limits in the box; inf if there are none.

    rows (n, d), limits (n,), x (d,). The multipliers (n,) must be at least 0 for inequalities, those of equalities may have any
    sign. `slacks` = (x - lower, upper - x), from 0 to inf. The rows should have norms of about 1, see `half_spaces`.

    >>> whole = np.full(2, math.inf)
    >>> bound = certified_distance(np.eye(2), np.array([-3.0, -4.0]), np.array([3.0, 4.0]), np.zeros(2), (whole, whole), 2.0)
    >>> 5.0 * (1.0 - 1e-12) < bound <= 5.0
    True
    """
    multipliers = multipliers / max(np.abs(multipliers).max(initial=0.0), UNDERFLOW)
    weights, room, gain = single_row(rows, limits, multipliers, x, slacks)
    if not gain > 0.0:  # NaN after an overflow proves nothing either
        return 0.0
    slop = (len(weights) + 16) * EPS
    if gain > float(weights @ room) * (1.0 + slop):
        return math.inf
    keep = _kept(weights, room, gain, p)
    paid = np.where(keep < weights, (weights - keep) + EPS * weights, 0.0)
    spent = float(np.multiply(paid, room, out=np.zeros_like(paid), where=paid > 0.0).sum())
    reached = gain - spent - slop * (gain + spent)
    if not reached > 0.0:
        return 0.0
    length = vector_norm(keep, dual(p)) * (1.0 + 4.0 * slop)
    with np.errstate(over="ignore", divide="ignore"):
        # inf would mean that no such point exists.
        return min(float(np.float64(reached) / length) * (1.0 - 4.0 * EPS), LARGEST)


def certified_distances(
    rows: Array, limits: Array, multipliers: Array, paid: Array, x: Array, slacks: tuple[Array, Array], p: float
) -> Array:
    """Return the bounds (n,) of many problems, rows (n, m, d), limits and multipliers (n, m), x and slacks (n, d).

    `paid` (n, d), at least 0, is the part of the combined row that is charged to the box; it is not optimised.

    >>> whole = np.full((1, 2), math.inf)
    >>> rows, limits, multipliers = -np.eye(2)[None], np.array([[-3.0, -4.0]]), np.array([[3.0, 4.0]])
    >>> certified_distances(rows, limits, multipliers, np.zeros((1, 2)), np.zeros((1, 2)), (whole, whole), 2.0).round(9)
    array([5.])
    """
    count, size = rows.shape[1:]
    scale = np.maximum(np.abs(multipliers).max(1, initial=0.0), UNDERFLOW)[:, None]
    # A row without a limit says nothing.
    multipliers, paid = np.where(np.isfinite(limits), multipliers / scale, 0.0), paid / scale
    row = (multipliers[:, None] @ rows)[:, 0]
    absolute = np.abs(multipliers)
    magnitude = (absolute[:, None] @ np.abs(rows))[:, 0]
    error = (count + 8) * EPS * magnitude + UNDERFLOW
    known = np.where(multipliers != 0.0, limits, 0.0)
    gain = (multipliers * ((rows @ x[..., None])[..., 0] - known)).sum(1)
    gain -= (count + size + 8) * EPS * ((magnitude * np.abs(x)).sum(1) + (absolute * np.abs(known)).sum(1)) + UNDERFLOW
    below, above = slacks
    room = np.where(row > error, below, np.where(row < -error, above, np.maximum(below, above))) * (1.0 + 2.0 * EPS)
    weights = (np.abs(row) + error) * (1.0 + 2.0 * EPS)
    slop = (size + 16) * EPS
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        never = gain > (weights * room).sum(1) * (1.0 + slop)
        keep = np.where(np.isfinite(room), np.maximum(weights - paid, 0.0), weights)
        cost = np.where(keep < weights, (weights - keep) + EPS * weights, 0.0)
        spent = np.where(cost > 0.0, cost * room, 0.0).sum(1)
        reached = gain - spent - slop * (np.abs(gain) + spent)
        top = np.maximum(keep.max(1, initial=0.0), UNDERFLOW)
        q = dual(p)
        length = top if math.isinf(q) else top * ((keep / top[:, None]) ** q).sum(1) ** (1.0 / q)
        bound = np.minimum(reached / (length * (1.0 + 4.0 * slop)) * (1.0 - 4.0 * EPS), LARGEST)
    bound = np.where(reached > 0.0, bound, 0.0)
    return np.where(never & (gain > 0.0), math.inf, np.nan_to_num(bound, nan=0.0))


def single_row(
    rows: Array, limits: Array, multipliers: Array, x: Array, slacks: tuple[Array, Array]
) -> tuple[Array, Array, float]:
    """The sum of the rows: (weights w, room, c) such that every feasible step d has sum_i w_i min(|d_i|, room_i) >= c."""
    count, size = rows.shape
    below, above = slacks
    row = multipliers @ rows
    magnitude = np.abs(multipliers) @ np.abs(rows)
    error = (count + 8) * EPS * magnitude + UNDERFLOW
    gain = float(multipliers @ (rows @ x - limits))
    gain -= (count + size + 8) * EPS * float(magnitude @ np.abs(x) + np.abs(multipliers) @ np.abs(limits)) + UNDERFLOW
    # Where the sign of an entry is lost in rounding the step may go to either side.
    room = np.where(row > error, below, np.where(row < -error, above, np.maximum(below, above)))
    return (np.abs(row) + error) * (1.0 + 2.0 * EPS), room * (1.0 + 2.0 * EPS), gain


def _kept(weights: Array, room: Array, gain: float, p: float) -> Array:
    """Return the part of the weights that is charged to the ball, the rest being charged to the box; any part is sound."""
    if p == 1.0:
        # The largest weights move first, each until its slack is used up; the last to move sets the level.
        order = np.argsort(-weights)
        last = int(np.searchsorted(np.cumsum(weights[order] * room[order]), gain))
        return np.minimum(weights, weights[order[min(last, len(order) - 1)]])
    q = dual(p)
    length = vector_norm(weights, q)
    if math.isinf(p):
        step = np.full_like(weights, gain / length)
    else:
        step = (gain / length) * (weights / length) ** (q - 1.0)
    if bool((step <= room).all()):
        return weights
    # |d_i| = min(s w_i^(q - 1), room_i): the coordinates are used up in the order of these ratios, in logarithms, since powers
    # overflow. With the first k used up the others reach the gain at the scale s_k; k is right once s_k fits the next ratio.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_weight, log_room = np.log(weights), np.log(room)
        ratio = log_room - (q - 1.0) * log_weight
        order = np.argsort(ratio)
        used = np.cumsum(weights[order] * room[order])
        left = np.log(gain - np.concatenate(([0.0], used[:-1])))
        rest = np.logaddexp.accumulate((q * log_weight[order])[::-1])[::-1]
        scale = left - rest
        fits = np.flatnonzero(~(scale > ratio[order]))
        count = int(fits[0]) if fits.size else len(order) - 1
        keep, full = weights.copy(), order[:count]
        if math.isinf(p):
            keep[full] = 0.0
        else:
            level = (p - 1.0) * (log_room[full] - scale[count])
            keep[full] = np.exp(np.minimum(level, log_weight[full]))
    return np.minimum(np.nan_to_num(keep, nan=0.0), weights)


def vector_norm(v: Array, q: float) -> float:
    """Return the l_q norm of a vector that is not negative, without overflow."""
    top = float(v.max(initial=0.0))
    if top == 0.0 or math.isinf(q):
        return top
    if q == 1.0:
        return float(v.sum())
    return top * float(((v / top) ** q).sum()) ** (1.0 / q)


@dataclass(frozen=True, kw_only=True)
class HalfSpaces:
    """Rows (n, d) that are not trivial, with limits (n,), Euclidean norms (n,) and positions among the given rows (n,).

    `contradictory`: a row of zeros cannot be satisfied. `exact`: scaling did not round, as it does for rows whose entries
    differ by three hundred orders of magnitude; a bound on rounding errors covers that, a proof of equality does not.
    """

    rows: Array
    limits: Array
    norms: Array
    places: NDArray[np.intp]
    count: int
    contradictory: bool
    exact: bool


def half_spaces(G: ArrayLike, h: ArrayLike) -> HalfSpaces:
    """Return the half spaces G z <= h; G (m, d), h (m,), which may be inf.

    >>> half_spaces([[0.0, 12.0], [0.0, 0.0], [1.0, 0.0]], [3.0, 1.0, np.inf])
    HalfSpaces(rows=array([[0.  , 0.75]]), limits=array([0.1875]), norms=array([0.75]), places=array([0]), count=3, contradictory=False, exact=True)
    """  # noqa: E501
    rows, limits = _checked(G, h, "G", "h")
    zero = ~rows.any(1)
    return _scaled(rows, limits, np.flatnonzero(~zero & (limits < np.inf)), bool((limits[zero] < 0.0).any()))


def hyperplanes(E: ArrayLike | None, e: ArrayLike | None, size: int) -> HalfSpaces:
    """Return the hyperplanes E z = e; E (k, d) or (d,), e (k,) or a number, both None for none.

    >>> hyperplanes([4.0, 0.0], 1.0, 2).limits
    array([0.125])
    """
    if (E is None) != (e is None):
        raise InvalidInput(f"E and e must be given together, got {'E' if e is None else 'e'} alone")
    if E is None or e is None:
        none = np.zeros(0)
        places = np.zeros(0, dtype=np.intp)
        rows = np.zeros((0, size))
        return HalfSpaces(rows=rows, limits=none, norms=none, places=places, count=0, contradictory=False, exact=True)
    rows, limits = _checked(np.atleast_2d(np.asarray(E, dtype=np.float64)), np.atleast_1d(e), "E", "e")
    if rows.shape[1] != size:
        raise InvalidInput(f"E must have {size} columns as G has, got {rows.shape[1]}")
    if not np.isfinite(limits).all():
        raise InvalidInput(f"e must be finite, got {limits}")
    zero = ~rows.any(1)
    return _scaled(rows, limits, np.flatnonzero(~zero), bool(limits[zero].any()))


def _checked(rows: ArrayLike, limits: ArrayLike, row_name: str, limit_name: str) -> tuple[Array, Array]:
    """Return both as float64 after checking shapes and values."""
    matrix, vector = np.asarray(rows, dtype=np.float64), np.asarray(limits, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise InvalidInput(f"{row_name} must be a matrix with at least one column, got the shape {matrix.shape}")
    if vector.shape != matrix.shape[:1]:
        raise InvalidInput(
            f"{limit_name} must have the shape {matrix.shape[:1]} as {row_name} has rows, got {vector.shape}"
        )
    if not np.isfinite(matrix).all():
        raise InvalidInput(f"{row_name} must be finite, got {matrix[~np.isfinite(matrix)][0]}")
    if bool((np.isnan(vector) | np.isneginf(vector)).any()):
        raise InvalidInput(f"{limit_name} must be numbers above -inf, got {vector[~(vector > -np.inf)][0]}")
    return matrix, vector


def _scaled(rows: Array, limits: Array, places: NDArray[np.intp], contradictory: bool) -> HalfSpaces:
    """Keep the rows at the places, scaled."""
    count = len(rows)
    if len(places) < count:
        rows, limits = rows[places], limits[places]
    size = np.abs(rows)
    top = size.max(1, initial=0.0)
    exact = not bool(((size < 1e-250 * top[:, None]) & (size > 0.0)).any())
    by = np.frexp(top)[1]
    by = by + np.frexp(row_norms(np.ldexp(rows, -by[:, None])))[1]
    with np.errstate(over="ignore"):
        limits = np.ldexp(limits, -by)
    if not np.isfinite(limits).all():  # beyond the range of floats: no lower bound needs such a row
        fits = np.isfinite(limits)
        rows, by, limits, places = rows[fits], by[fits], limits[fits], places[fits]
    rows = np.ldexp(rows, -by[:, None])
    return HalfSpaces(
        rows=rows,
        limits=limits,
        norms=row_norms(rows),
        places=places,
        count=count,
        contradictory=contradictory,
        exact=exact,
    )


def row_norms(rows: Array) -> Array:
    """Return the Euclidean norms of the rows."""
    return np.sqrt(np.einsum("ij,ij->i", rows, rows))
