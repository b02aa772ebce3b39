"""Bounds of all nodes over a ball: intervals node after node, and backward passes of linear functionals.

A backward pass starts from rows a on the value z of a node and ends with rows on the input. Behind every node it keeps
a z + low <= the functional on the whole set. An affine node z = W y + b has a z = (a W) y + a b. At a layer of ReLUs, for any
numbers g at all,

    c relu(z)  >=  g z + sum_i min over z_i in [l_i, u_i] of (c_i relu(z_i) - g_i z_i),

and the minimum is at an end or at the kink. Every method is a choice of g = c s with slopes s: those of CROWN, KW and IBP, those
that alpha has optimised, and in a leaf of a tree of splits, where [l_i, u_i] ends at 0, a multiplier of the split is taken from
g. Where ||z - z0||_2 <= r is known, lam / 2 (||z - z0||^2 - r^2) <= 0 may be added for any lam >= 0: that is `sdp`, and with
g = 0 `lipschitz`. Wrong slopes, multipliers or lam give worse bounds, no wrong ones.

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
    """How a pass chooses slopes: by a rule, or by pieces; whether the box counts in l_1 and l_2; whether known radii count."""

    rule: str
    box: bool = True
    radii: bool = False
    pieces: dict[int, Piece] | None = None


class Bounds:
    """Intervals `low` and `high` of every node over a ball, what rounding costs there, and radii of layers of ReLUs."""

    def __init__(self, net: Network, ball: Ball, num: Outward, executed: str | None):
        self.net, self.ball, self.num, self.executed = net, ball, num, executed
        self.low, self.high, self.cost, self.own = [], [], [], []  # type: ignore[var-annotated]
        self.centre, self.off = (
            [ball.x],
            [ball.x * 0],
        )  # values at x as computed, and how far true ones can be from them
        corner = self._length(np.maximum(ball.below, ball.above))
        self.radii: dict[int, list[Any]] = {0: [np.minimum(corner, ball.eps) if ball.p <= 2 else corner] * 2}

    def derive(self, steps: dict[str, list[Step]], norms: dict[str, dict[str, list[float]]]) -> None:
        """Bound all nodes: by intervals, then by the steps for a node's position; and radii where norms are claimed."""
        for place, node in enumerate(self.net.nodes):
            none = self.ball.x * 0
            ends = (
                self._relu(node)
                if node.kind == "relu"
                else self._affine(node)
                if place
                else (*self.ball.hull(), none, none)
            )
            for values, value in zip((self.low, self.high, self.cost, self.own), ends, strict=True):
                values.append(value)
            for step in steps.get(str(place), []):
                self._tighten(place, step)
            sound = (self.low[place] <= self.high[place]).all() and (self.size(place) < LARGEST).all()
            require(sound, f"the bounds of node {place} are empty or no numbers below {LARGEST}")
            if norms and place:
                self._centre(node)
            if str(place) in norms:
                self.radii[place] = self._radii(node.inputs[0], norms[str(place)])

    def size(self, place: int) -> Array:
        """The largest absolute values of a node."""
        return np.maximum(np.abs(self.low[place]), np.abs(self.high[place]))

    def margins(self, rows: Array, step: Step) -> Array:
        """Lower bounds of rows of the logits by one backward pass."""
        none = np.zeros(len(rows), dtype=int)
        return self._descend(len(self.net.nodes) - 1, rows, step, none, none)[0]

    def _affine(self, node: Node) -> tuple[Array, Array, Array, Array]:
        """Intervals of an affine node, from midpoint and reach, and what it costs; a reshaping costs nothing."""
        ends = [(self.low[source], self.high[source]) for source in node.inputs]
        size = node.sizes[0](*(self.size(source)[None] for source in node.inputs))[0] + node.bias_size
        if node.kind == "reshape":
            return *ends[0], size * 0, size * 0
        centre = node.map[0](*((low + high)[None] / 2 for low, high in ends))[0] + node.bias
        reach = node.sizes[0](*((high - low)[None] / 2 for low, high in ends))[0]
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
        return np.maximum(low, leak * low) - cost, np.maximum(high, leak * high) + cost, own, own

    def _execution(self, terms: int, size: Array) -> Array:
        """What the network itself may be off at a node in its own dtype: sums of so many terms of this absolute size."""
        if self.executed is None:
            return size * 0
        unit, least = Outward().charge(terms, 1.0, self.executed), 2 * terms * SMALLEST[self.executed]
        return self.num.numbers(unit) * size + (size + 1) * self.num.numbers(least)

    def _tighten(self, place: int, step: Step) -> None:
        """Replace the interval of every unstable unit by what backward passes prove, where that is better."""
        node, every = self.net.nodes[place], np.flatnonzero(self._sets(place)[0])
        for units in np.split(every, range(_CHUNK, len(every), _CHUNK)):
            if node.rows is not None:  # the matrix, without a product
                start, rows, given = node.inputs[0], node.rows(units), (node.bias[units], self.own[place][units])
            else:
                start, rows, given = place, self._picked(units, node.size), (units * 0, units * 0)
            below, above = self._descend(start, rows, step, *given)
            if above is None:
                above = self._descend(start, -rows, step, -given[0], given[1])[0]
            self.low[place][units] = np.maximum(self.low[place][units], below)
            self.high[place][units] = np.minimum(self.high[place][units], -above)

    def _picked(self, units: Array, size: int) -> Array:
        return self.num.numbers(units[:, None] == np.arange(size))

    def _descend(self, place: int, rows: Array, step: Step, start: Any, cost: Any) -> tuple[Array, Array | None]:
        """Lower bounds of functionals of a node, and of minus these functionals where the same pass gives them."""
        num, nodes, both = self.num, self.net.nodes, step.rule in ("interval", "parallel") and not step.pieces
        low = self.num.numbers(np.zeros((1 + both, len(rows)))) + np.stack([start, -start][: 1 + both])
        size, coefficients = np.abs(low[0]), {place: rows}
        for at in range(place, 0, -1):
            if at not in coefficients:
                continue
            a, node = coefficients.pop(at), nodes[at]
            cost = cost + np.abs(a) @ self.cost[at]
            if node.kind == "relu":
                back, least = self._relax(at, a, step, both)
                low, size, backs = low + least, size + np.abs(least).max(0), [back]
            else:
                added, backs = a @ (node.bias + np.zeros(node.size, dtype=int)), node.map[1](a)
                low, size = low + np.stack([added, -added][: 1 + both]), size + np.abs(added)
            for source, part in zip(node.inputs, backs, strict=True):
                if source in coefficients:
                    part = coefficients[source] + part
                    cost = cost + num.charge(1, np.abs(part) @ self.size(source))
                coefficients[source] = part
        rows = coefficients.get(0, rows[:, :1] * self.ball.x * 0)
        cost = cost + num.charge(2**20, cost) + num.charge(2 * len(nodes) + 8, size)
        require((cost < LARGEST**2).all(), "a backward pass leaves the range of numbers")
        ends = [self.ball.minimum(side, step.box) for side in (rows, -rows)[: 1 + both]]
        ends = [
            end + part - cost - num.charge(4, np.abs(end) + size + cost) for end, part in zip(ends, low, strict=True)
        ]
        return ends[0], ends[1] if both else None

    def _relax(self, at: int, a: Array, step: Step, both: bool) -> tuple[Array, Array]:
        """Rows behind a layer of ReLUs as rows before it, and what that adds to the bounds of these rows, and of minus them."""
        source, leak = self.net.nodes[at].inputs[0], self.net.nodes[at].leak
        piece = self.piece(at, step.rule) if step.pieces is None else step.pieces[at]
        g = np.where(a > 0, a * piece.lower, a * piece.upper) - piece.push
        sets = self._sets(source)
        inside = sets[step.rule == "interval"] & bool(step.radii and at in self.radii)
        plain = (sets[0] | (leak not in (0, 1)) | (step.rule == "interval" or step.pieces is not None)) & ~inside
        least = []
        for sign in (1, -1)[: 1 + both]:
            parts = [(sign * a[:, u], sign * g[:, u], piece.low[..., u], piece.high[..., u]) for u in (plain, inside)]
            value = self._gap(*parts[0], leak)
            if inside.any():
                radius = self.radii[at][step.rule == "interval"]
                value = value + self._ball_gap(*parts[1], self.centre[source][inside], radius)
            least.append(value)
        return g, np.stack(least)

    def piece(self, at: int, rule: str) -> Piece:
        """The slopes of a rule: chords, lower slopes of 0 or 1 by the smaller triangle, flat ones, or none at all."""
        require(rule in RULES, f"there is no rule {rule!r}")
        source, leak = self.net.nodes[at].inputs[0], self.num.numbers(self.net.nodes[at].leak)
        low, high, unstable = self.low[source], self.high[source], self._sets(source)[0]
        one = low * 0 + 1
        steep = (high - leak * low) / np.where(unstable, high - low, one)
        chord = np.where(unstable, steep, np.where(low >= 0, one, leak))
        flat = np.where((rule == "adaptive") & (high > -low), one, leak)
        lower = chord if rule == "parallel" else np.where(unstable, flat, chord)
        return Piece(lower, chord, low, high) if rule != "interval" else Piece(0 * one, 0 * one, low, high)

    def _gap(self, c: Array, g: Array, low: Array, high: Array, leak: float) -> Array:
        """Sums of the minima of c relu(z) - g z over the intervals."""
        up, down, side = c - g, self.num.numbers(leak) * c - g, np.maximum(np.abs(low), np.abs(high))
        at_low, at_high = np.where(low >= 0, up, down) * low, np.where(high > 0, up, down) * high
        least, kink = np.minimum(at_low, at_high), (low < 0) & (high > 0)
        size = np.sum(np.abs(at_low) + np.abs(at_high) + (np.abs(c) * side if leak else 0), axis=1)
        return np.sum(np.where(kink, np.minimum(least, 0), least), axis=1) - self.num.charge(c.shape[1] + 8, size)

    def _ball_gap(self, c: Array, g: Array, low: Array, high: Array, z0: Array, radius: Any) -> Array:
        """Minima of c relu(z) - g z + lam / 2 (||z - z0||^2 - radius^2) over the intervals, for the best of some lam.

        In d = z - z0 either side of the kink has a parabola k (z0 + d) + lam / 2 d^2, least at -k / lam or at an end.
        """
        num, up, kinds = self.num, low >= 0, high <= 0
        sides = [(k, np.minimum(np.maximum(low, 0), high) - z0, high - z0) for k in (c - g,)]
        sides += [(-g, low - z0, np.maximum(np.minimum(high, 0), low) - z0)]
        far = max(float(radius), 1e-30)
        lam = np.sqrt(np.sum(np.maximum(np.abs(c - g), np.abs(g)).astype(float) ** 2, axis=1)) / far
        best = num.numbers(np.full(len(c), -LARGEST))
        for _ in range(_ROUNDS):
            lam = np.clip(lam, 1e-30, 1e30)
            weight, terms, steps, size = num.numbers(lam)[:, None], [], [], 0
            for k, first, last in sides:
                d = np.minimum(np.maximum(-k / weight, first), last)
                terms.append(k * (z0 + d) + weight / 2 * d * d)
                size = size + (np.abs(k) + weight * np.abs(d)) * (np.abs(z0) + np.abs(d))
                steps.append(d)
            right = up | ~kinds & (terms[0] < terms[1])
            away = weight[:, 0] / 2 * radius * radius
            value = np.sum(np.where(right, *terms), axis=1) - away
            best = np.maximum(best, value - num.charge(c.shape[1] + 16, np.sum(size, axis=1) + away))
            length = np.sqrt(np.sum(np.where(right, *steps).astype(float) ** 2, axis=1))
            lam = np.clip(lam * length / far, 1e-3 * lam, 1e3 * lam)
        return best

    def _sets(self, place: int) -> tuple[Array, Array]:
        """Which entries of a node are unstable, and which can be positive, at x as computed or elsewhere."""
        positive, known = self.high[place] > 0, len(self.centre) > place
        return (self.low[place] < 0) & positive, positive | (self.centre[place] > 0) if known else positive

    def _centre(self, node: Node) -> None:
        """The value of a node at x as computed, and how far the values of its inputs' values there can be from it."""
        given, place = [self.centre[source][None] for source in node.inputs], len(self.centre)
        require(node.leak == 0, "radii are known for ReLUs without a leak alone")
        off = node.sizes[0](*(self.off[source][None] for source in node.inputs))[0]
        self.centre.append(np.maximum(given[0][0], 0) if node.kind == "relu" else node.map[0](*given)[0] + node.bias)
        self.off.append(0 * off if node.kind == "relu" else off + self.num.charge(2**20, off) + self.cost[place])

    def _radii(self, source: int, norms: dict[str, list[float]]) -> list[Any]:
        """Radii of balls around the centre of a node, of its unstable entries and of those that can be positive.

        `norms` claims for the input or a layer of ReLUs before it the spectral norms of the matrices from there to these.
        """
        sets, found = self._sets(source), []
        matrices = self._matrices(source)
        away = np.maximum(
            np.abs(self.high[source] - self.centre[source]), np.abs(self.centre[source] - self.low[source])
        )
        for which, units in enumerate(sets):
            radius = self._length(self.off[source][units])
            for root, (matrix, size) in matrices.items():
                moves = self._sets(self.net.nodes[root].inputs[0])[1] if root else self.ball.below + self.ball.above > 0
                require(root in self.radii, f"no radius of node {root} is known")
                part = np.ix_(units, moves)
                radius = radius + self._norm(matrix[part], size[part], norms[str(root)][which]) * self.radii[root][1]
            corner = self._length(away[units])
            found.append(np.minimum(radius + self.num.charge(64, radius), corner + self.num.charge(64, corner)))
        return found

    def _matrices(self, place: int) -> dict[int, tuple[Array, Array]]:
        """The matrices of a node as a function of the input and the ReLUs before it, and bounds of their terms."""
        if place in self.net.matrices:
            return self.net.matrices[place]
        every = self._picked(np.arange(self.net.nodes[place].size), self.net.nodes[place].size)
        found = self.net.matrices[place] = {place: (every, every)}
        for at in range(place, 0, -1):
            node = self.net.nodes[at]
            if at in found and node.kind != "relu":
                rows, size = found.pop(at)
                for source, *parts in zip(node.inputs, node.map[1](rows), node.sizes[1](size), strict=True):
                    known = found.get(source, (0, 0))
                    found[source] = (known[0] + parts[0], known[1] + parts[1])
        return found

    def _norm(self, matrix: Array, size: Array, claimed: float) -> Any:
        """At least the spectral norm, and near a claim s: if s^2 I - A A' = L L' + E, the square is at most s^2 + |E|."""
        num, square = self.num, self.num.numbers(float(claimed)) ** 2
        matrix = matrix if len(matrix) <= matrix.shape[1] else matrix.T
        gap = square * num.numbers(np.eye(len(matrix))) - matrix @ matrix.T
        try:
            lower = num.numbers(np.linalg.cholesky(gap.astype(float)))
        except np.linalg.LinAlgError:
            raise Refused(f"a spectral norm is larger than {claimed}") from None
        left, sums = gap - lower @ lower.T, np.sum(matrix * matrix) + np.sum(lower * lower) + len(matrix) * square
        wrong = self._length(left) + num.charge(2 * sum(matrix.shape) + 32, sums)
        terms = sum(node.terms + node.size for node in self.net.nodes)
        return num.root(square + wrong) + num.charge(terms, self._length(size))

    def _length(self, values: Array) -> Any:
        """At least the l2 norm."""
        square = np.sum(values * values)
        return self.num.root(square + self.num.charge(values.size + 4, square))
