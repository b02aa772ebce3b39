"""Least values of layers of ReLUs minus linear functions, and of linear functions over the inputs of a certificate.

The terms are c relu(z) - g z, with relu(z) = max(z, leak z): they are least at an end of an interval or at the kink. Where also
||d||_2 <= r for d = z - z0, their sum plus t / 2 (||d||^2 - r^2) is below them for every t > 0, and again least term by term.
For inputs in l_1, in the same way, min <c, d> >= -t eps - sum_i max(|c_i| - t, 0) slack_i for every t >= 0, where slack_i is
the room of d_i on the side where c_i d_i < 0. Any t gives a bound, so that the search for a good one needs no trust.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from relucert.checker.arithmetic import LARGEST, Array, Outward, require

_ROUNDS = 12


def over_box(num: Outward, c: Array, g: Any, leak: Any, low: Array, high: Array) -> Array:
    """Lower bounds of sums of c relu(z) - g z over low <= z <= high."""
    up, down = c - g, leak * c - g
    least = np.minimum(np.where(low >= 0, up, down) * low, np.where(high > 0, up, down) * high)
    least = np.where((low < 0) & (high > 0), np.minimum(least, 0), least)
    size = (np.abs(c) + np.abs(g)) * np.maximum(np.abs(low), np.abs(high))
    return np.sum(least, axis=1) - num.charge(c.shape[1] + 16, np.sum(size, axis=1))


def over_ball(num: Outward, c: Array, g: Any, leak: Any, z0: Array, box: tuple[Array, Array], radius: Any) -> Array:
    """Lower bounds of the same sums over z = z0 + d, with d in a box and ||d||_2 <= radius."""
    parts = c - g, leak * c - g, z0, box[0], np.minimum(np.maximum(-z0, box[0]), box[1]), box[1]
    floats, far = [np.asarray(part, dtype=float) for part in parts], max(float(radius), 1e-30)
    t = best = np.sqrt(np.sum(np.maximum(floats[0] ** 2, floats[1] ** 2), axis=1)) / far
    highest = np.full(len(c), -math.inf)
    for _ in range(_ROUNDS):  # terms whose d is at no end use up what the others leave of the radius
        t = np.clip(t, 1e-30, 1e30)
        k, d, value, _ = _terms(t[:, None], *floats)
        total = np.sum(value, axis=1) - t / 2 * far**2
        best, highest = np.where(total > highest, t, best), np.maximum(total, highest)
        free = (d != floats[3]) & (d != floats[4]) & (d != floats[5])
        left = far**2 - np.sum(np.where(free, 0, d * d), axis=1)
        t = np.where(left > 0, np.sqrt(np.sum(np.where(free, k * k, 0), axis=1) / np.where(left > 0, left, 1)), 2 * t)
    weight = num.numbers(np.clip(best, 1e-30, 1e30))[:, None]
    _, _, value, reach = _terms(weight, *parts)
    away = weight[:, 0] / 2 * radius * radius
    size = np.sum((np.abs(c) + np.abs(g) + weight * reach) * (np.abs(z0) + reach), axis=1)
    return np.sum(value, axis=1) - away - num.charge(c.shape[1] + 16, size + away)


def _terms(t: Array, up: Array, down: Array, z0: Array, first: Array, kink: Array, last: Array) -> tuple[Array, ...]:
    """The k and d in [first, last] for which k (z0 + d) + t / 2 d^2 is least, that value, and how large d is on either side.

    Either side of the kink has a parabola, which is least at d = -k / t or at an end of the side.
    """
    right, left = np.minimum(np.maximum(-up / t, kink), last), np.minimum(np.maximum(-down / t, first), kink)
    ends = [k * (z0 + d) + t / 2 * d * d for k, d in ((up, right), (down, left))]
    above, reach = (first >= -z0) | (last > -z0) & (ends[0] < ends[1]), np.maximum(np.abs(right), np.abs(left))
    return np.where(above, up, down), np.where(above, right, left), np.where(above, *ends), reach


class Ball:
    """The inputs { z : ||z - x||_p <= eps, lower <= z <= upper }: the box around them, and how far they reach beside x.

    The numbers are those that are stored; the box may be infinite, and x must lie in it.
    """

    def __init__(self, num: Outward, p: float, eps: float, x: Array, lower: Array, upper: Array):
        require(p in (1, 2, math.inf), f"the norm must be 1, 2 or inf, got {p}")
        require(0 <= eps < LARGEST**0.5, f"eps must be finite and not negative, got {eps}")
        inside = (np.abs(x) < LARGEST**0.5) & (lower <= x) & (x <= upper)
        require(inside.all(), "the input lies outside its box")
        self.num, self.p, self.eps, self.x = num, p, num.numbers([eps])[0], num.numbers(x)
        sides = (np.abs(self.x - num.numbers(np.clip(side, -LARGEST, LARGEST))) for side in (lower, upper))
        self.below, self.above = (np.minimum(slack + num.charge(2, slack), self.eps) for slack in sides)
        lost = num.charge(2, np.abs(self.x) + self.eps)
        self.low, self.high = self.x - self.below - lost, self.x + self.above + lost

    def minimum(self, rows: Array, box: bool = True) -> Array:
        """Lower bounds of rows z over the set; without `box` it counts in l_inf alone, which is quicker."""
        num, eps, length = self.num, self.eps, np.abs(rows)
        if self.p == math.inf:
            fall = np.maximum(rows, 0) @ self.below + np.maximum(-rows, 0) @ self.above
        elif not box:
            fall = eps * (num.root(np.sum(rows * rows, axis=1)) if self.p == 2 else length.max(1))
        elif self.p == 2:
            fall = -over_ball(num, rows, 0, 1, 0 * self.x, (-self.below, self.above), eps)
        else:
            slack = np.where(rows > 0, self.below, self.above)
            t = num.numbers(self._level(length.astype(float), slack.astype(float)))
            fall = t * eps + np.sum(np.maximum(length - t[:, None], 0) * slack, axis=1)
        size = np.abs(fall) + length @ np.abs(self.x)
        return rows @ self.x - fall - num.charge(rows.shape[1] + 20, size)

    def _level(self, length: Array, slack: Array) -> Array:
        """For l_1 the best t: the largest entries use up eps, and t is the first entry that is not used up."""
        order = np.argsort(-length, axis=1)
        length, spent = np.take_along_axis(length, order, 1), np.cumsum(np.take_along_axis(slack, order, 1), axis=1)
        place = np.sum(spent < float(self.eps), axis=1)[:, None]
        return np.take_along_axis(np.hstack([length, 0 * length[:, :1]]), place, 1)[:, 0]
