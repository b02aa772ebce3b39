"""Bounds of all nodes over a ball: intervals node after node, and backward passes of linear functionals.

A backward pass starts from rows a on the value z of a node and ends with rows on the input. Behind every node it keeps
a z + low <= the functional on the whole set. An affine node z = W y + b has a z = (a W) y + a b. At a layer of ReLUs, for any
numbers g at all,

    c relu(z)  >=  g z + the least value of c relu(z) - g z where z can be,

that is in the units' intervals, and in an l2 ball around their values at x if radii count. Every method is a choice of g = c s
with slopes s: those of CROWN, KW and IBP, or those that alpha has optimised; with radii `sdp`, and for s = 0 `lipschitz`. In a
leaf of a tree of splits intervals end at 0, and a multiplier of the split is taken from g. Wrong slopes and multipliers give
worse bounds, no wrong ones.

Rounding: a node's value, and a pass through it, are off by at most gamma_n (|W| |y| + |b|) at each entry, and the network as
executed by that in its own dtype; a pass pays |a| times this at every node. Nothing is multiplied through layers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from relucert.checker.arithmetic import LARGEST, Array, Outward, require
from relucert.checker.minima import Ball, over_ball, over_box
from relucert.checker.network import Network, Node

_CHUNK = 512


class Step(NamedTuple):
    """How a pass chooses slopes: by a rule; whether the box counts in l_1 and l_2; whether radii count.

    The rule `leaf` takes three numbers for every unit: the sign of its split or 0, a slope, and what is taken from g.
    """

    rule: str
    box: bool = True
    radii: bool = False
    leaf: Any = None


class Bounds:
    """Intervals `low` and `high` of every node over a ball, what rounding costs there, and values at x with radii."""

    def __init__(self, net: Network, ball: Ball, num: Outward, executed: str | None):
        self.net, self.ball, self.num, self.executed = net, ball, num, executed
        corner = num.length(np.maximum(ball.below, ball.above))
        self.low, self.high, self.cost, self.centre = [ball.low], [ball.high], [ball.x * 0], [ball.x]
        self.radius = [np.minimum(corner, ball.eps) if ball.p <= 2 else corner]

    def derive(self, steps: dict[str, list[Step]], radii: bool = False) -> None:
        """Bound all nodes: by intervals, then by the steps for a node's position, which may need radii."""
        for place, node in enumerate(self.net.nodes[1:], 1):
            for values, value in zip((self.low, self.high, self.cost), self._forward(node), strict=True):
                values.append(value)
            for step in steps.get(str(place), []):
                self._tighten(place, step)
            sound = (self.low[place] <= self.high[place]).all() and (self.size(place) < LARGEST).all()
            require(sound, f"the bounds of node {place} are empty or no numbers below {LARGEST}")
            if radii:
                self._move(place, node)

    def size(self, place: int) -> Array:
        """The largest absolute values of a node."""
        return np.maximum(np.abs(self.low[place]), np.abs(self.high[place]))

    def margins(self, rows: Array, step: Step, place: int = -1, low: Any = 0, cost: Any = 0) -> Array:
        """Lower bounds of rows z + low by one backward pass, z the logits or another node, which cost something before."""
        num, nodes, place = self.num, self.net.nodes, place % len(self.net.nodes)
        low, cost, coefficients = low + rows[:, 0] * 0, cost + rows[:, 0] * 0, {place: rows}
        size = np.abs(low)
        for at in range(place, 0, -1):
            if at not in coefficients:
                continue
            a, node = coefficients.pop(at), nodes[at]
            if node.relu:
                back, added = self._relax(at, a, step)
                backs = [back]
            else:
                backs, added = node.adjoint(a), 0 if node.exact else a @ node.bias
            cost = cost if node.exact else cost + np.abs(a) @ self.cost[at]
            low, size = low + added, size + np.abs(added)
            for source, part in zip(node.inputs, backs, strict=True):
                if source in coefficients:
                    part = coefficients[source] + part
                    cost = cost + num.charge(1, np.abs(part) @ self.size(source))
                coefficients[source] = part
        least = self.ball.minimum(coefficients.get(0, rows[:, :1] * self.ball.x * 0), step.box)
        cost = cost + num.charge(2**20, cost) + num.charge(2 * len(nodes) + 8, size + np.abs(least))
        require((cost < LARGEST**2).all(), "a backward pass leaves the range of numbers")
        return least + low - cost

    def _forward(self, node: Node) -> tuple[Array, Array, Array]:
        """The interval of a node from those of its inputs, and what rounding costs, here and in the network as executed."""
        lows, highs = ([side[source] for source in node.inputs] for side in (self.low, self.high))
        sizes = [self.size(source) for source in node.inputs]
        if node.relu or node.kind == "reshape":
            low, high, size = node.value(*lows), node.value(*highs), node.value(*sizes, sizes=True)
        else:
            ends = [*zip(lows, highs, strict=True)]
            size = node.value(*(part[None] for part in sizes), sizes=True)[0]
            reach = node.value(*((high - low)[None] / 2 for low, high in ends), sizes=True)[0]
            middle = node.value(*((low + high)[None] / 2 for low, high in ends))[0]
            low, high, size = middle - reach, middle + reach, size + node.bias_size
        if node.exact:
            return low, high, low * 0
        cost = self.num.charge(node.terms + node.size + 16, size)
        if self.executed is not None:  # in its own dtype, where a product may be flushed to zero
            unit, tiny = Outward().charge(node.terms, 1.0, self.executed), float(np.finfo(self.executed).tiny)
            cost = cost + self.num.numbers(unit) * size + (size + 1) * self.num.numbers(2 * node.terms * tiny)
        return low - cost, high + cost, cost

    def _tighten(self, place: int, step: Step) -> None:
        """Replace the interval of every unstable unit by what backward passes prove, where that is better."""
        node, every = self.net.nodes[place], np.flatnonzero((self.low[place] < 0) & (self.high[place] > 0))
        for units in (every[start : start + _CHUNK] for start in range(0, len(every), _CHUNK)):
            rows, begin = node.rows(units), (node.inputs[0], node.bias[units], self.cost[place][units])
            if rows is None:  # the pass goes through this node, too
                rows, begin = self.num.numbers(units[:, None] == np.arange(node.size)), (place, 0, 0)
            below = self.margins(rows, step, *begin)
            above = self.margins(-rows, step, begin[0], -begin[1], begin[2])
            self.low[place][units] = np.maximum(self.low[place][units], below)
            self.high[place][units] = np.minimum(self.high[place][units], -above)

    def _relax(self, at: int, c: Array, step: Step) -> tuple[Array, Array]:
        """Rows behind a layer of ReLUs as rows before it, and what that adds to the lower bounds."""
        num, source, leak = self.num, self.net.nodes[at].inputs[0], self.net.nodes[at].leak
        sign, slope, push = num.numbers(np.zeros((3, 1))) if step.leaf is None else step.leaf[at]
        low, high = self.low[source], self.high[source]
        low, high = np.where(sign > 0, np.maximum(low, 0), low), np.where(sign < 0, np.minimum(high, 0), high)
        unstable, line = (low < 0) & (high > 0), np.where(low >= 0, 0 * low + 1, leak)
        chord = np.where(unstable, (high - leak * low) / np.where(unstable, high - low, 1), line)
        steep = np.where(high > -low, 0 * low + 1, leak)
        rules = {"interval": 0 * low, "parallel": chord, "adaptive": steep, "flat": leak, "leaf": slope}
        require(step.rule in rules, f"there is no rule {step.rule!r}")
        if step.rule in ("interval", "parallel"):
            g = c * rules[step.rule]
        else:
            g = np.where(c > 0, c * np.where(unstable, rules[step.rule], line), c * chord) - push
        every = step.rule in ("interval", "leaf") or leak not in (0, 1)
        inside = unstable | every  # elsewhere the functional before is the one behind, exactly
        terms, low, high = (num, c[:, inside], g[:, inside], leak), low[inside], high[inside]
        least = over_box(*terms, low, high)
        if step.radii:
            radius, z0 = self.radius[source], self.centre[source][inside]
            if not every:
                corner = num.length(np.maximum(np.abs(high - z0), np.abs(z0 - low)))
                radius = np.minimum(radius, corner + num.charge(64, corner))
            least = np.maximum(least, over_ball(*terms, z0, (low - z0, high - z0), radius))
        return g, least

    def _move(self, place: int, node: Node) -> None:
        """The value of a node at x as computed, and how far its values over the ball can be from it in l_2.

        That is the radius before times the stretch of the layer, and what rounding does to the value here or as executed.
        """
        num, norms = self.num, self.net.norms
        if place not in norms:
            norms[place] = stretch(num, node)
        given, radius = [self.centre[source][None] for source in node.inputs], sum(self.radius[s] for s in node.inputs)
        size = node.value(*map(np.abs, given), sizes=True)[0] + node.bias_size
        lost = num.length(self.cost[place]) + num.length(num.charge(node.terms + 16, size))
        radius = norms[place] * radius + lost
        self.centre.append(node.value(*given)[0])
        self.radius.append(radius + num.charge(64, radius))


def stretch(num: Outward, node: Node) -> Any:
    """At least the spectral norm of a node as a map, for a sum that of each part.

    Of a matrix: if s^2 I - A A' = L L' + E, the square is at most s^2 + |E|. Here s is a little more than the norm as computed.
    """
    if node.filters is None:
        return np.max(np.abs(node.factor)) if node.factor is not None else num.numbers(1)
    whole = node.adjoint(num.numbers(np.eye(node.size)))[0]
    matrix = whole if len(whole) <= whole.shape[1] else whole.T
    product, one = matrix @ matrix.T, num.numbers(np.eye(len(matrix)))
    square = num.numbers(np.linalg.eigvalsh(product.astype(float))[-1] * (1 + 2e-7) + 1e-24)
    lower = num.numbers(np.linalg.cholesky((square * one - product).astype(float)))
    left, sums = square * one - product - lower @ lower.T, np.sum(matrix * matrix) + np.sum(lower * lower)
    away = num.length(left) + num.charge(2 * sum(matrix.shape) + 32, sums + len(matrix) * square)
    return num.root(square + away) + num.charge(node.terms, num.length(matrix))
