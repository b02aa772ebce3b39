"""The inputs of a certificate, { z : ||z - x||_p <= eps, lower <= z <= upper }, and minima of linear functions over them.

With slacks a = x - lower and b = upper - x, a step d lies in [-a, b]. For every t >= 0, by duality,

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

_ROUNDS = 20


@dataclass(frozen=True, eq=False)
class Ball:
    """Vectors x, lower and upper (infinite: no bound), the norm p and the radius."""

    num: Outward
    p: float
    eps: Any
    x: Array
    slacks: tuple[Array, Array]

    @classmethod
    def of(cls, num: Outward, p: float, eps: float, x: Array, lower: Array, upper: Array) -> Ball:
        """From numbers as stored; x must lie in the box."""
        require(p in (1, 2, math.inf), f"the norm must be 1, 2 or inf, got {p}")
        require(0 <= eps < LARGEST, f"eps must be finite and not negative, got {eps}")
        require(np.isfinite(x).all() and (lower <= x).all() and (x <= upper).all(), "the input lies outside its box")
        radius, centre = num.numbers([eps])[0], num.numbers(x)
        below, above = (np.full(centre.shape, radius) for _ in range(2))
        for slack, side, sign in ((below, lower, 1), (above, upper, -1)):
            known = np.isfinite(side)
            slack[known] = np.minimum(slack[known], num.up(sign * (centre[known] - num.numbers(side[known]))))
        return cls(num, p, radius, centre, (below, above))

    @property
    def hull(self) -> tuple[Array, Array]:
        """The smallest box around the set, rounded outwards."""
        return self.num.down(self.x - self.slacks[0]), self.num.up(self.x + self.slacks[1])

    def minimum(self, rows: Array, units: Any = slice(None), boxed: bool = True) -> Array:
        """Lower bounds of rows z over the set, each a sum over the inputs `units` (n,), or (rows, n) if they differ by row.

        Without `boxed` the box counts in l_inf alone, which is quicker.
        """
        num, x = self.num, self.x[units]
        below, above = (side[units] for side in self.slacks)
        if self.p == 2 and not boxed:
            value = -num.root_up(np.sum(rows * rows, axis=1)) * self.eps
            size = np.abs(value)
        elif self.p == 2:
            value, size = self._round(rows, below, above)
        else:
            positive = np.maximum(rows, 0)
            size = _dot(positive, below) + _dot(positive - rows, above)
            value = -size
            if self.p == 1 and not boxed:
                value = -np.max(np.abs(rows), axis=1) * self.eps
            elif self.p == 1:
                slack = np.where(rows > 0, below, above)
                t = self._level(np.abs(rows), slack)
                value = -np.sum(np.maximum(np.abs(rows) - t[:, None], 0) * slack, axis=1) - t * self.eps
        at = _dot(rows, x)
        if num.exact:
            return at + value
        size = size + _dot(np.abs(rows), np.abs(x)) + np.abs(value)
        return at + value - num.raised(num.gamma(rows.shape[1] + 16) * size)

    def _round(self, rows: Array, below: Array, above: Array) -> tuple[Array, Array]:
        """The bound for p = 2, and the sum of the absolute values of its terms."""
        c, a, b = (np.asarray(part, dtype=np.float64) for part in (rows, below, above))
        eps = float(self.eps)
        length = np.maximum(np.sqrt(np.sum(c * c, axis=1)), 1e-150)
        t = length / max(eps, 1e-150)
        for _ in range(_ROUNDS):  # fixed point: the free entries use up what the entries at the box leave of eps^2
            d = -c / t[:, None]
            free = (d > -a) & (d < b)
            left = eps * eps - np.sum(np.where(free, 0.0, np.clip(d, -a, b)) ** 2, axis=1)
            rest = np.sqrt(np.sum(np.where(free, c * c, 0.0), axis=1))
            last, t = t, np.where(left > 0, np.maximum(rest / np.sqrt(np.maximum(left, 1e-300)), 1e-9 * t), t)
            if (np.abs(last - t) <= 1e-6 * last).all():
                break
        weight = self.num.numbers(np.maximum(t, 1e-150))
        half = (weight / 2)[:, None]
        d = np.minimum(np.maximum(-rows / weight[:, None], -below), above)
        linear, square = rows * d, half * d * d
        last = weight / 2 * self.eps * self.eps
        return np.sum(linear + square, axis=1) - last, np.sum(np.abs(linear) + square, axis=1) + last

    def _level(self, size: Array, slack: Array) -> Array:
        """For p = 1 the best t: the largest entries use up eps, and t is the first entry that is not used up."""
        order = np.argsort(-size.astype(np.float64), axis=1)
        spent = np.cumsum(np.take_along_axis(np.broadcast_to(slack, size.shape), order, 1).astype(np.float64), axis=1)
        place = np.minimum(np.sum(spent < float(self.eps), axis=1), size.shape[1] - 1)
        t = np.take_along_axis(np.take_along_axis(size, order, 1), place[:, None], 1)[:, 0]
        return np.where(spent[:, -1] < float(self.eps), self.num.numbers(np.zeros(len(t))), t)

    def contains(self, z: Array, num: Outward) -> bool:
        """Whether a point lies in the set, decided in exact arithmetic."""
        require(num.exact, "membership is decided in exact arithmetic")
        d = num.numbers(z) - num.numbers(self.x)
        radius = num.numbers([float(self.eps)])[0]
        if self.p == 2:
            return bool(np.sum(d * d) <= radius * radius)
        return bool((np.sum(np.abs(d)) if self.p == 1 else np.max(np.abs(d))) <= radius)


def _dot(rows: Array, values: Array) -> Array:
    """The products of rows with one vector, or with one each."""
    return rows @ values if values.ndim == 1 else np.sum(rows * values, axis=1)
