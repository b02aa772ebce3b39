"""The point of a polytope nearest to the origin in l2, by non-negative least squares.

min ||d||_2 subject to R d <= b, the first rows being equalities, and low <= d <= high: least distance programming (Lawson and
Hanson, Solving Least Squares Problems). With the non-negative u that comes nearest to [R'; b'] u = -(0, .., 0, 1),
d = -R'u / (1 + b.u); if u gets there, it proves that no d exists. Few coordinates: the sides of the box are rows like all
others. Many: the box is eliminated, d(y) = clip(-R'y), and Newton's method maximises the dual, concave and piecewise
quadratic in y; each step is a least distance problem in the coordinates that are not clipped.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from relucert.polytopes.certificates import Array

MANY_COORDINATES = 32  # from here on the box is eliminated
NEWTON_STEPS = 100
EMPTY = 1e-20  # 1 / (1 + distance^2), in units of the farthest row: beyond, the polytope passes for empty
RELAXED = (0.0, 1e-9, 1e-7)  # by what parts of the distance of the farthest row the limits are relaxed, in turn
VIOLATED = 1e-11  # the violation of a row, in parts of the distance, that is rounding
FAR = 1e-5  # from here on the problem is solved again in better units


class Nearest(NamedTuple):
    """The step to the nearest point, None if there is none, and the multipliers of the rows that prove either."""

    step: Array | None
    multipliers: Array


def least_distance(rows: Array, limits: Array, equal: int, low: Array, high: Array) -> Nearest:
    """Return the smallest d in l2 with rows d <= limits (the first `equal` with equality) and low <= d <= high.

    rows (n, d), limits (n,), low and high (d,), which may be infinite and need not have 0 between them.

    >>> whole = np.full(2, np.inf)
    >>> least_distance(np.array([[-1.0, -1.0]]), np.array([-2.0]), 0, -whole, whole)
    Nearest(step=array([1., 1.]), multipliers=array([1.]))
    """
    bounded = np.isfinite(low) | np.isfinite(high)
    if not bool(bounded.any()):
        return _unboxed(rows, limits, equal)
    if rows.shape[1] < MANY_COORDINATES:
        return _with_sides(rows, limits, equal, low, high)
    return _newton(rows, limits, equal, low, high)


def _unboxed(rows: Array, limits: Array, equal: int) -> Nearest:
    """Solve without a box; again with limits relaxed by a little where multipliers without bound spoilt the answer."""
    # An equality is two inequalities, of which one at most has a multiplier.
    every = np.concatenate((rows, -rows[:equal]))
    bounds = np.concatenate((limits, -limits[:equal]))
    norms = np.sqrt(np.einsum("ij,ij->i", every, every))
    norms[norms == 0.0] = 1.0
    every, bounds = every / norms[:, None], bounds / norms
    unit = -float(bounds.min(initial=0.0))
    if unit == 0.0:
        return Nearest(np.zeros(rows.shape[1]), np.zeros(len(rows)))
    best, least = Nearest(None, np.zeros(len(rows))), math.inf
    for relaxed in RELAXED:
        step, multipliers = _non_negative(every, bounds + relaxed * unit, unit)
        multipliers /= norms
        multipliers[:equal] -= multipliers[len(rows) :]
        found = Nearest(step, multipliers[: len(rows)])
        if found.step is None:
            return found if best.step is None else best
        step, multipliers = _polished(rows, limits, equal, found.step, found.multipliers)
        violation = float((every @ step - bounds).max())
        if violation < least:
            best, least = Nearest(step, multipliers), violation
        if least <= VIOLATED * max(unit, float(np.abs(step).max())):
            break
    return best


def _non_negative(rows: Array, limits: Array, unit: float) -> Nearest:
    """Solve for rows of norm 1 and inequalities alone, in the given unit of length or a better one."""
    from scipy.optimize import nnls  # takes long to import, and only exploration comes here

    target = np.zeros(rows.shape[1] + 1)
    target[-1] = -1.0
    while True:
        system = np.concatenate((rows.T, limits[None] / unit))
        found = nnls(system, target)[0]
        rest = system @ found - target
        gap = float(rest @ rest)
        if gap < EMPTY:
            return Nearest(None, found)
        if gap > FAR:
            return Nearest(rest[:-1] * (-unit / gap), found * (unit / gap))
        unit /= math.sqrt(gap)


def _polished(rows: Array, limits: Array, equal: int, step: Array, multipliers: Array) -> tuple[Array, Array]:
    """Solve again for the rows with multipliers, as equations; what is given stands if that does not help."""
    active = np.flatnonzero(multipliers)
    q, r = np.linalg.qr(rows[active].T)
    diagonal = np.abs(np.diagonal(r))
    if len(active) > rows.shape[1] or not diagonal.min(initial=1.0) > 1e-12 * diagonal.max(initial=0.0):
        return step, multipliers
    within = np.linalg.solve(r.T, limits[active])
    solved = np.zeros(len(rows))
    solved[active] = -np.linalg.solve(r, within)
    if solved[equal:].min(initial=0.0) < 0.0:
        return step, multipliers
    return np.asarray(q @ within, dtype=np.float64), solved


def _with_sides(rows: Array, limits: Array, equal: int, low: Array, high: Array) -> Nearest:
    """Solve with the sides of the box as rows."""
    up, down = np.flatnonzero(np.isfinite(high)), np.flatnonzero(np.isfinite(low))
    sides = np.zeros((len(up) + len(down), rows.shape[1]))
    sides[np.arange(len(up)), up] = 1.0
    sides[np.arange(len(up), len(sides)), down] = -1.0
    found = _unboxed(np.concatenate((rows, sides)), np.concatenate((limits, high[up], -low[down])), equal)
    step = None if found.step is None else found.step.clip(low, high)
    return Nearest(step, found.multipliers[: len(rows)])


def _newton(rows: Array, limits: Array, equal: int, low: Array, high: Array) -> Nearest:
    """Maximise the dual: while the same coordinates are clipped, its maximum is a least distance problem in the others."""
    multipliers = np.zeros(len(rows))
    combined = np.zeros(rows.shape[1])
    step = combined.clip(low, high)
    for _ in range(NEWTON_STEPS):
        free = step == -combined
        inner = _unboxed(rows[:, free], limits - rows[:, ~free] @ step[~free], equal)
        if inner.step is None:
            # No point has these coordinates clipped: along the ray that proves it the dual grows until others come free.
            direction, end = inner.multipliers, math.inf
        else:
            direction, end = inner.multipliers - multipliers, 1.0
            inside = step.copy()
            inside[free] = inner.step
            aimed = (-(inner.multipliers @ rows)).clip(low, high)
            if bool((np.abs(aimed - inside) <= 1e-13 * np.abs(aimed).max()).all()):
                return Nearest(inside.clip(low, high), inner.multipliers)
        slope = direction @ rows
        slope[np.abs(slope) < 1e-13 * (np.abs(direction) @ np.abs(rows))] = (
            0.0  # rounding, which would pass for a way out
        )
        length = _ascend(combined, slope, float(direction @ limits), low, high, end)
        if math.isinf(length):
            return Nearest(None, direction)
        if length == 0.0:
            break
        multipliers = inner.multipliers if length == end else multipliers + length * direction
        combined = multipliers @ rows
        step = (-combined).clip(low, high)
    return _with_sides(rows, limits, equal, low, high)  # rounding stopped the ascent: slower, but always ends


def _ascend(combined: Array, slope: Array, cost: float, low: Array, high: Array, end: float) -> float:
    """Return the t in [0, end] with <slope, clip(-combined - t slope)> = cost, where the dual is largest on the ray.

    The left side falls with t and is linear between the breaks at which a coordinate meets a side.
    """

    def excess(t: float) -> float:
        return float(slope @ (-combined - t * slope).clip(low, high)) - cost

    if end < math.inf and excess(end) >= 0.0:
        return end
    moving = slope != 0.0
    breaks = np.concatenate([(-side[moving] - combined[moving]) / slope[moving] for side in (low, high)])
    breaks = np.concatenate(([0.0], np.sort(breaks[(breaks > 0.0) & (breaks < end)])))
    first, last = 0, len(breaks)
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if excess(breaks[middle]) >= 0.0 else (first, middle)
    start = float(breaks[first])
    value = excess(start)
    following = breaks[last] if last < len(breaks) else min(end, 2.0 * start + 1.0)
    fall = value - excess(float(following))
    if value <= 0.0:
        return start
    if not fall > 1e-14 * (abs(cost) + abs(value)):
        return math.inf if end == math.inf and last == len(breaks) else float(min(following, end))
    return min(start + value * float(following - start) / fall, end)
