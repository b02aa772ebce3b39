"""Bounds of all nodes over a ball: intervals node after node, and backward passes of linear functionals.

A backward pass starts from rows a on the value z of a node and ends with rows on the input. Behind every node it keeps
a z + low <= the functional on the whole set. An affine node z = W y + b has a z = (a W) y + a b. At a layer of ReLUs, for any
numbers g at all,

    c relu(z)  >=  g z + sum_i min over z_i in [l_i, u_i] of (c_i relu(z_i) - g_i z_i),

and the minimum is at an end or at the kink. Every method is a choice of g = c s with slopes s: those of CROWN, KW and IBP, or
those that alpha has optimised; in a leaf of a tree of splits, where [l_i, u_i] ends at 0, a multiplier of the split is taken
from g. Where ||z - z0||_2 <= r is known, lam / 2 (||z - z0||^2 - r^2) <= 0 may be added for any lam >= 0: that is `sdp`, and
with g = 0 `lipschitz`. Wrong slopes, multipliers or lam give worse bounds, no wrong ones.

Rounding: a node's value, and a pass through it, are off by at most gamma_n (|W| |y| + |b|) at each entry, and the network as
executed by that in its own dtype; a pass pays |a| times this at every node. Nothing is multiplied through layers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from relucert.checker.arithmetic import LARGEST, SMALLEST, Array, Outward, Refused, require
from relucert.checker.ball import Ball
from relucert.checker.network import Network, Node

RULES = ("interval", "parallel", "adaptive", "flat")
_CHUNK, _ROUNDS = 512, 8


class Piece(NamedTuple):
    """For a layer of ReLUs: slopes for positive and for negative entries, ends of the units, and what is taken from g."""

    lower: Array
    upper: Array
    low: Array
    high: Array
    push: Any = 0


class Step(NamedTuple):
    """How a pass chooses slopes: by a rule, or by pieces; whether the box counts in l_1 and l_2; whether radii count."""

    rule: str
    box: bool = True
    radii: bool = False
    pieces: dict[int, Piece] | None = None


class Bounds:
    """Intervals `low` and `high` of every node over a ball, what rounding costs there, and values at x with radii."""

    def __init__(self, net: Network, ball: Ball, num: Outward, executed: str | None):
        self.net, self.ball, self.num, self.executed = net, ball, num, executed
        none, corner = ball.x * 0, num.length(np.maximum(ball.below, ball.above))
        self.low, self.high = ([side] for side in ball.hull())
        self.cost, self.own, self.centre = [none], [none], [ball.x]  # own: of the network as executed alone
        self.radius = [np.minimum(corner, ball.eps) if ball.p <= 2 else corner]

    def derive(self, steps: dict[str, list[Step]], norms: dict[str, float]) -> None:
        """Bound all nodes: by intervals, then by the steps for a node's position; claimed norms give radii."""
        for place, node in enumerate(self.net.nodes[1:], 1):
            ends = self._relu(node) if node.kind == "relu" else self._affine(node)
            for values, value in zip((self.low, self.high, self.cost, self.own), ends, strict=True):
                values.append(value)
            for step in steps.get(str(place), []):
                self._tighten(place, step)
            sound = (self.low[place] <= self.high[place]).all() and (self.size(place) < LARGEST).all()
            require(sound, f"the bounds of node {place} are empty or no numbers below {LARGEST}")
            if norms:
                self._move(place, node, norms)

    def size(self, place: int) -> Array:
        """The largest absolute values of a node."""
        return np.maximum(np.abs(self.low[place]), np.abs(self.high[place]))

    def margins(self, rows: Array, step: Step) -> Array:
        """Lower bounds of rows of the logits by one backward pass."""
        return self._descend(len(self.net.nodes) - 1, rows, step, rows[:, 0] * 0, rows[:, 0] * 0)

    def unstable(self, place: int) -> Array:
        """Which entries of a node can have either sign."""
        return (self.low[place] < 0) & (self.high[place] > 0)

    def _affine(self, node: Node) -> tuple[Array, Array, Array, Array]:
        """Intervals of an affine node, from midpoint and reach, and what it costs; a reshaping costs nothing."""
        ends = [(self.low[source], self.high[source]) for source in node.inputs]
        sizes = [np.stack([np.maximum(np.abs(low), np.abs(high)), (high - low) / 2]) for low, high in ends]
        size, reach = node.sizes[0](*sizes)
        size = size + node.bias_size
        if node.kind == "reshape":
            return *ends[0], size * 0, size * 0
        centre = node.map[0](*((low + high)[None] / 2 for low, high in ends))[0] + node.bias
        own = self._execution(node.terms + 4, size)
        cost = own + self.num.charge(node.terms + node.size + 16, size)
        return centre - reach - cost, centre + reach + cost, cost, own

    def _relu(self, node: Node) -> tuple[Array, Array, Array, Array]:
        """Intervals of a layer of ReLUs; the products of a leaky one are rounded."""
        low, high, leak = self.low[node.inputs[0]], self.high[node.inputs[0]], self.num.numbers(node.leak)
        own = cost = low * 0
        if node.leak not in (0, 1):
            size = leak * self.size(node.inputs[0])
            own = self._execution(4, size)
            cost = own + self.num.charge(4, size)
        return np.maximum(low, leak * low) - cost, np.maximum(high, leak * high) + cost, cost, own

    def _execution(self, terms: int, size: Array) -> Array:
        """What the network itself may be off at a node in its own dtype: sums of so many terms of this absolute size."""
        if self.executed is None:
            return size * 0
        unit, least = Outward().charge(terms, 1.0, self.executed), 2 * terms * SMALLEST[self.executed]
        return self.num.numbers(unit) * size + (size + 1) * self.num.numbers(least)

    def _tighten(self, place: int, step: Step) -> None:
        """Replace the interval of every unstable unit by what backward passes prove, where that is better."""
        node, every = self.net.nodes[place], np.flatnonzero(self.unstable(place))
        for units in (every[start : start + _CHUNK] for start in range(0, len(every), _CHUNK)):
            start, rows, bias, cost = (
                place,
                self.num.numbers(units[:, None] == np.arange(node.size)),
                0 * units,
                0 * units,
            )
            if node.rows is not None:  # the matrix, without a product
                start, rows, bias, cost = node.inputs[0], node.rows(units), node.bias[units], self.own[place][units]
            below = self._descend(start, rows, step, bias, cost)
            above = self._descend(start, -rows, step, -bias, cost)
            self.low[place][units] = np.maximum(self.low[place][units], below)
            self.high[place][units] = np.minimum(self.high[place][units], -above)

    def _descend(self, place: int, rows: Array, step: Step, low: Array, cost: Array) -> Array:
        """Lower bounds of functionals a z + low of a node, which cost something before they start."""
        num, nodes, size, coefficients = self.num, self.net.nodes, np.abs(low), {place: rows}
        for at in range(place, 0, -1):
            if at not in coefficients:
                continue
            a, node = coefficients.pop(at), nodes[at]
            cost = cost + np.abs(a) @ self.cost[at]
            if node.kind == "relu":
                back, added = self._relax(at, a, step)
                backs = [back]
            else:
                backs, added = node.map[1](a), a @ node.bias if np.ndim(node.bias) else low * 0
            low, size = low + added, size + np.abs(added)
            for source, part in zip(node.inputs, backs, strict=True):
                if source in coefficients:
                    part = coefficients[source] + part
                    cost = cost + num.charge(1, np.abs(part) @ self.size(source))
                coefficients[source] = part
        least = self.ball.minimum(coefficients[0] if 0 in coefficients else rows[:, :1] * self.ball.x * 0, step.box)
        cost = cost + num.charge(2**20, cost) + num.charge(2 * len(nodes) + 8, size + np.abs(least))
        require((cost < LARGEST**2).all(), "a backward pass leaves the range of numbers")
        return least + low - cost

    def _relax(self, at: int, a: Array, step: Step) -> tuple[Array, Array]:
        """Rows behind a layer of ReLUs as rows before it, and what that adds to the lower bounds."""
        source, leak = self.net.nodes[at].inputs[0], self.num.numbers(self.net.nodes[at].leak)
        piece = self.piece(at, step.rule) if step.pieces is None else step.pieces[at]
        g = np.where(a > 0, a * piece.lower, a * piece.upper) - piece.push
        every = step.rule == "interval" or step.pieces is not None or leak not in (0, 1)
        inside = self.unstable(source) | every  # elsewhere the functional before is the one behind, exactly
        c, g_inside, low, high = a[:, inside], g[:, inside], piece.low[..., inside], piece.high[..., inside]
        up, down = c - g_inside, leak * c - g_inside
        lost = np.sum(np.abs(c) * np.maximum(np.abs(low), np.abs(high)), axis=1) if leak else 0
        gap = self._gap(up, down, low, high) - self.num.charge(2, lost)
        if not step.radii:
            return g, gap
        radius, z0 = self.radius[source], self.centre[source][inside]
        if step.pieces is None:
            corner = self.num.length(np.maximum(np.abs(high - z0), np.abs(z0 - low)))
            radius = np.minimum(radius, corner + self.num.charge(64, corner))
        return g, np.maximum(gap, self._ball_gap(up, down, low - z0, high - z0, z0, radius) - self.num.charge(2, lost))

    def piece(self, at: int, rule: str) -> Piece:
        """The slopes of a rule: chords, lower slopes of 0 or 1 by the smaller triangle, flat ones, or none at all."""
        require(rule in RULES, f"there is no rule {rule!r}")
        source, leak = self.net.nodes[at].inputs[0], self.num.numbers(self.net.nodes[at].leak)
        low, high, unstable = self.low[source], self.high[source], self.unstable(source)
        one = low * 0 + 1
        steep = (high - leak * low) / np.where(unstable, high - low, one)
        chord = np.where(unstable, steep, np.where(low >= 0, one, leak))
        flat = np.where((rule == "adaptive") & (high > -low), one, leak)
        lower = chord if rule == "parallel" else np.where(unstable, flat, chord)
        return Piece(lower, chord, low, high) if rule != "interval" else Piece(0 * one, 0 * one, low, high)

    def _gap(self, up: Array, down: Array, low: Array, high: Array) -> Array:
        """Sums of the minima over the intervals of up z where z > 0 and down z where z < 0."""
        at_low, at_high = np.where(low >= 0, up, down) * low, np.where(high > 0, up, down) * high
        least, size = np.minimum(at_low, at_high), np.sum(np.abs(at_low) + np.abs(at_high), axis=1)
        least = np.where((low < 0) & (high > 0), np.minimum(least, 0), least)
        return np.sum(least, axis=1) - self.num.charge(up.shape[1] + 8, size)

    def _ball_gap(self, up: Array, down: Array, first: Array, last: Array, z0: Array, radius: Any) -> Array:
        """The same with lam / 2 (||d||^2 - radius^2) added, where d = z - z0 lies between first and last: the best of some lam.

        Either side of the kink at d = -z0 has a parabola k (z0 + d) + lam / 2 d^2, which is least at d = -k / lam or at an end.
        """
        num, best, far = self.num, self.num.numbers(np.full(len(up), -LARGEST)), max(float(radius), 1e-30)
        kink = np.minimum(np.maximum(-z0, first), last)
        lam = np.sqrt(np.sum(np.maximum(np.abs(up), np.abs(down)).astype(float) ** 2, axis=1)) / far
        for _ in range(_ROUNDS):
            lam = np.clip(lam, 1e-30, 1e30)
            weight = num.numbers(lam)[:, None]
            right, left = np.clip(-up / weight, kink, last), np.clip(-down / weight, first, kink)
            ends = [k * (z0 + d) + weight / 2 * d * d for k, d in ((up, right), (down, left))]
            upper = (first >= -z0) | (last > -z0) & (ends[0] < ends[1])
            d, value, away = np.where(upper, right, left), np.where(upper, *ends), weight[:, 0] / 2 * radius * radius
            reach = np.maximum(np.abs(right), np.abs(left))
            size = np.sum((np.abs(up) + np.abs(down) + weight * reach) * (np.abs(z0) + reach), axis=1) + away
            best = np.maximum(best, np.sum(value, axis=1) - away - num.charge(up.shape[1] + 16, size))
            length = np.sqrt(np.sum(d.astype(float) ** 2, axis=1))
            lam = np.clip(lam * length / far, 1e-3 * lam, 1e3 * lam)
        return best

    def _move(self, place: int, node: Node, norms: dict[str, float]) -> None:
        """The value of a node at x as computed, and how far its values over the ball can be from it in l_2.

        That is the radius before times the spectral norm of the layer, and what rounding does to the value here or as executed.
        """
        given, num = [self.centre[source][None] for source in node.inputs], self.num
        value = node.map[0](*given)[0] + node.bias
        size = node.sizes[0](*(np.abs(part) for part in given))[0] + node.bias_size
        self.centre.append(np.maximum(value, num.numbers(node.leak) * value) if node.kind == "relu" else value)
        radius = sum(self.radius[source] for source in node.inputs)
        if node.kind in ("scale", "batch_norm"):
            radius = radius * np.max(node.sizes[0](num.numbers(np.ones((1, node.size)))))
        elif node.rows is not None:  # a matrix; ReLUs, shifts, reshapings and sums need no norm
            claimed: Any = norms.get(str(place))
            require(type(claimed) is float, f"the spectral norm of node {place} is missing")
            if (place, claimed) not in self.net.norms:
                self.net.norms[place, claimed] = self._norm(node, claimed)
            radius = self.net.norms[place, claimed] * radius
        radius = radius + num.length(self.own[place]) + num.length(num.charge(node.terms + 16, size))
        self.radius.append(radius + num.charge(64, radius))

    def _norm(self, node: Node, claimed: float) -> Any:
        """At least the spectral norm, and near a claim s: if s^2 I - A A' = L L' + E, the square is at most s^2 + |E|."""
        require(0 < claimed < LARGEST, f"{claimed} is no spectral norm")
        num, square = self.num, self.num.numbers(claimed) ** 2
        matrix = node.map[1](num.numbers(np.eye(node.size)))[0]
        matrix = matrix if len(matrix) <= matrix.shape[1] else matrix.T
        gap = square * num.numbers(np.eye(len(matrix))) - matrix @ matrix.T
        try:
            lower = num.numbers(np.linalg.cholesky(gap.astype(float)))
        except np.linalg.LinAlgError:
            raise Refused(f"a spectral norm is larger than {claimed}") from None
        left, sums = gap - lower @ lower.T, np.sum(matrix * matrix) + np.sum(lower * lower) + len(matrix) * square
        found = num.root(square + num.length(left) + num.charge(2 * sum(matrix.shape) + 32, sums))
        return found + num.charge(node.terms, num.length(matrix))
