"""The inputs of a certificate, { z : ||z - x||_p <= eps, lower <= z <= upper }, and minima of linear functions over them.

With slacks a = x - lower and b = upper - x, at most eps, a step d lies in [-a, b]. For every t >= 0, by duality,

    p = 1:  min <c, d>  >=  -t eps - sum_i max(|c_i| - t, 0) slack_i,   the slack on the side where c_i d_i < 0;
    p = 2:  min <c, d>  >=  sum_i min over d_i in [-a_i, b_i] of (c_i d_i + t / 2 d_i^2) - t / 2 eps^2.

Any t gives a bound, so the search for a good t needs no trust. For p = inf the set is a box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from relucert.checker.arithmetic import LARGEST, Array, Outward, require

_ROUNDS = 12


@dataclass(frozen=True, eq=False)
class Ball:
    """The input x, the norm p, the radius, and the slacks below and above x."""

    num: Outward
    p: float
    eps: Any
    x: Array
    below: Array
    above: Array

    @classmethod
    def of(cls, num: Outward, p: float, eps: float, x: Array, lower: Array, upper: Array) -> Ball:
        """From numbers as stored (the box may be infinite); x must lie in the box."""
        require(p in (1, 2, math.inf), f"the norm must be 1, 2 or inf, got {p}")
        require(0 <= eps < LARGEST**0.5, f"eps must be finite and not negative, got {eps}")
        require(
            (np.abs(x) < LARGEST**0.5).all() and (lower <= x).all() and (x <= upper).all(),
            "the input lies outside its box",
        )
        centre, slacks = num.numbers(x), []
        for side in (np.maximum(lower, -LARGEST), np.minimum(upper, LARGEST)):
            slack = np.abs(centre - num.numbers(side))
            slacks.append(np.minimum(slack + num.charge(2, slack), num.numbers([eps])))
        return cls(num, p, num.numbers([eps])[0], centre, *slacks)

    def hull(self) -> tuple[Array, Array]:
        """The smallest box around the set, rounded outwards."""
        lost = self.num.charge(2, np.abs(self.x) + self.eps)
        return self.x - self.below - lost, self.x + self.above + lost

    def minimum(self, rows: Array, box: bool = True) -> Array:
        """Lower bounds of rows z over the set; without `box` it counts in l_inf alone, which is quicker."""
        num, eps = self.num, self.eps
        if self.p == 2 and box:
            t = num.numbers(self._weight(*(np.asarray(part, dtype=float) for part in (rows, self.below, self.above))))
            d = np.minimum(np.maximum(-rows / t[:, None], -self.below), self.above)
            linear, square, last = rows * d, t[:, None] / 2 * d * d, t / 2 * eps * eps
            value, size = last - np.sum(linear + square, axis=1), last + np.sum(np.abs(linear) + square, axis=1)
        elif self.p == 2:
            value = size = num.root(np.sum(rows * rows, axis=1)) * eps
        elif self.p == 1:
            length, slack = np.abs(rows), np.where(rows > 0, self.below, self.above)
            t = num.numbers(self._level(length.astype(float), slack.astype(float))) if box else length.max(1)
            value = size = t * eps + np.sum(np.maximum(length - t[:, None], 0) * slack, axis=1)
        else:
            value = size = np.maximum(rows, 0) @ self.below + np.maximum(-rows, 0) @ self.above
        size = size + np.abs(value) + np.abs(rows) @ np.abs(self.x)
        return rows @ self.x - value - num.charge(rows.shape[1] + 20, size)

    def _weight(self, rows: Array, below: Array, above: Array) -> Array:
        """For p = 2 a good t: steps -c / t that stay inside the box use up what the others leave of eps^2."""
        square, eps = rows * rows, float(self.eps)
        t = np.clip(np.sqrt(np.sum(square, axis=1)) / max(eps, 1e-100), 1e-100, 1e100)
        for _ in range(_ROUNDS):
            d = np.clip(-rows / t[:, None], -below, above)
            free = (d > -below) & (d < above)
            left = eps * eps - np.sum(np.where(free, 0, d * d), axis=1)
            better = np.sqrt(np.sum(np.where(free, square, 0), axis=1) / np.where(left > 0, left, 1))
            t = np.where(left > 0, np.clip(better, 1e-6 * t + 1e-100, t), t)
        return t

    def _level(self, length: Array, slack: Array) -> Array:
        """For p = 1 the best t: the largest entries use up eps, and t is the first entry that is not used up."""
        order = np.argsort(-length, axis=1)
        spent = np.cumsum(np.take_along_axis(slack, order, 1), axis=1)
        place = np.minimum(np.sum(spent < float(self.eps), axis=1), length.shape[1] - 1)[:, None]
        t = np.take_along_axis(np.take_along_axis(length, order, 1), place, 1)[:, 0]
        return np.where(spent[:, -1] < float(self.eps), 0.0, t)
