"""The point of a polytope nearest to the origin in l_p for 1 < p < inf, by least distance problems with weights.

At the optimum the step d and the combined row v of all multipliers, those of the box included, determine each other:
v = -sign(d) |d|^(p-1), d = -sign(v) |v|^(q-1). A Newton step replaces the norm by sum_i H_i (d_i - a_i)^2 / 2. For p > 2 it is
taken in d: sum |d_i|^p / p has the curvature H = (p - 1) |d|^(p-2), and a = d - sign(d) |d|^(p-1) / H. For p < 2 that curvature
has no bound, but that of the dual has, sum |v_i|^q / q: 1 / H = (q - 1) |v|^(q-2), and a = v / H - sign(v) |v|^(q-1). The half
that is not differentiated only raises the curvature of entries that are about to grow, which would overshoot otherwise. A
search along the line to the new answer makes every step a descent: both ends are feasible, in the primal or the dual problem.
Exponents far from 2 are approached by doubling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from relucert.core.norms import dual
from relucert.polytopes._least_distance import Nearest, least_distance
from relucert.polytopes.certificates import Array, certified_distance

NEWTON_STEPS = 60  # for each exponent
COARSE = 1e-2  # the gap at which the next exponent may begin
FINE = 1e-10
FLAT = 1e-9  # the smallest curvature, in parts of the largest


@dataclass(frozen=True)
class _Answer:
    """A feasible step, multipliers of the rows, and a combined row v with its cost, <v, d> for the d that it came with."""

    step: Array
    multipliers: Array
    row: Array
    cost: float


@dataclass(frozen=True)
class _Problem:
    rows: Array
    limits: Array
    equal: int
    low: Array
    high: Array

    def weighted(self, curvature: Array, centre: Array) -> _Answer | None:
        """Return the d that minimises sum_i curvature_i (d_i - centre_i)^2 / 2."""
        root = np.sqrt(curvature)
        low, high = (self.low - centre) * root, (self.high - centre) * root
        found = least_distance(self.rows / root, self.limits - self.rows @ centre, self.equal, low, high)
        if found.step is None:
            return None
        row = -root * found.step
        step = (found.step / root + centre).clip(self.low, self.high)
        return _Answer(step, found.multipliers, row, float(row @ step))

    def bound(self, multipliers: Array, p: float) -> float:
        """Return what the multipliers prove about the distance."""
        clipped = multipliers.copy()
        clipped[self.equal :] = clipped[self.equal :].clip(min=0.0)
        zero = np.zeros(self.rows.shape[1])
        return certified_distance(self.rows, self.limits, clipped, zero, (-self.low, self.high), p)


def power_distance(rows: Array, limits: Array, equal: int, low: Array, high: Array, p: float) -> Nearest:
    """Return the smallest d in l_p with rows d <= limits (the first `equal` with equality) and low <= d <= high.

    0 must lie between low and high.

    >>> whole = np.full(2, np.inf)
    >>> found = power_distance(np.array([[-8.0, -1.0]]), np.array([-17.0]), 0, -whole, whole, 4.0)
    >>> found.step.round(6)
    array([2., 1.])
    """
    start = least_distance(rows, limits, equal, low, high)
    if start.step is None or not start.step.any():
        return start
    problem = _Problem(rows, limits, equal, low, high)
    answer = _Answer(start.step, start.multipliers, -start.step, -float(start.step @ start.step))
    best, goal, exponent = start, max(p, dual(p)), 2.0
    while exponent < goal:
        exponent = min(2.0 * exponent, goal)
        power = p if exponent == goal else (exponent if p > 2.0 else dual(exponent))
        answer, best = _newton(problem, power, answer, FINE if exponent == goal else COARSE)
    return best


def _newton(problem: _Problem, p: float, now: _Answer, gap: float) -> tuple[_Answer, Nearest]:
    """Take Newton steps from the answer for another exponent until the best step is as short as the best multipliers prove."""
    q = dual(p)
    # A combined row has a scale of its own: the one at which it and the step that it came with fit together.
    scale = (-now.cost / float((np.abs(now.row) ** q).sum())) ** (1.0 / (q - 1.0))
    now = _Answer(now.step, scale * now.multipliers, scale * now.row, scale * now.cost)
    step, multipliers = now.step, now.multipliers
    length, lower = _length(step, p), problem.bound(multipliers, p)
    for _ in range(NEWTON_STEPS):
        if length <= lower * (1.0 + gap):
            break
        found = problem.weighted(*_model(now, now.multipliers @ problem.rows, p))
        if found is None:
            break
        now, share = _search(now, found, p)
        for candidate in (found, now):
            bound = problem.bound(candidate.multipliers, p)
            if bound > lower:
                lower, multipliers = bound, candidate.multipliers
            if _length(candidate.step, p) < length:
                length, step = _length(candidate.step, p), candidate.step
        if share == 0.0:
            break
    return now, Nearest(step, multipliers)


def _model(now: _Answer, normal: Array, p: float) -> tuple[Array, Array]:
    """Return the curvature H and the centre a of the model around an answer; `normal` is the combined row without the box."""
    q = dual(p)
    if p > 2.0:
        size = np.maximum(np.abs(now.step), np.abs(normal) ** (q - 1.0))
        curvature = (p - 1.0) * size ** (p - 2.0)
        curvature = np.maximum(curvature, FLAT * curvature.max())
        return curvature, now.step - _signed_power(now.step, p - 1.0) / curvature
    size = np.maximum(np.abs(now.row), np.abs(now.step) ** (p - 1.0))
    curvature = (q - 1.0) * size ** (q - 2.0)
    curvature = np.maximum(curvature, FLAT * curvature.max())
    return 1.0 / curvature, curvature * now.row - _signed_power(now.row, q - 1.0)


def _search(now: _Answer, found: _Answer, p: float) -> tuple[_Answer, float]:
    """Return the best answer on the line to the one found, in the variable that is differentiated, and its place there."""
    if p > 2.0:
        move, top = found.step - now.step, np.abs(now.step).max()
        share = _zero(lambda t: float(move @ _signed_power((now.step + t * move) / top, p - 1.0)))
        return replace(found, step=now.step + share * move), share
    move, rise, exponent = found.row - now.row, found.cost - now.cost, dual(p) - 1.0
    share = _zero(lambda t: float(move @ _signed_power(now.row + t * move, exponent)) + rise)
    multipliers = now.multipliers + share * (found.multipliers - now.multipliers)
    return _Answer(found.step, multipliers, now.row + share * move, now.cost + share * rise), share


def _signed_power(v: Array, exponent: float) -> Array:
    """Return sign(v) |v|^exponent."""
    return np.copysign(np.abs(v) ** exponent, v)


def _length(step: Array, p: float) -> float:
    """Return the l_p norm of a step, without overflow."""
    top = float(np.abs(step).max())
    return top * float(((np.abs(step) / top) ** p).sum()) ** (1.0 / p) if 0.0 < top < math.inf else top


def _zero(slope: Callable[[float], float]) -> float:
    """Return the t in [0, 1] where an increasing slope is 0."""
    if slope(1.0) <= 0.0:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) < 0.0 else (low, middle)
    return low
