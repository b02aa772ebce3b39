"""Bounds of all nodes over a ball: intervals node after node, and backward passes of linear functionals.

A backward pass starts from rows a on the value z of a node and ends with rows on the input. Behind every node it keeps

    a z + low - cost  <=  the functional  <=  a z + high + cost   on the whole set.

An affine node z = W y + b has a z = (a W) y + a b. A ReLU with l <= z <= u has, for slopes s and r in [leak, 1],

    s z  <=  relu(z)  <=  r z + t,   t = max((leak - r) l, (1 - r) u, 0),

so that positive entries of a are multiplied by s, negative ones by r. Any slopes give a bound. `cost` pays for rounding: node
for node |a| times what an entry of the node may be off, by the products of the pass and, where the certificate speaks of the
network as executed, by those of the network itself, gamma_n (|W| |y| + |b|). Nothing is multiplied through layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from relucert.checker.arithmetic import LARGEST, ROUNDOFF, SMALLEST, Array, Outward, require
from relucert.checker.ball import Ball
from relucert.checker.network import Network

RULES = ("interval", "parallel", "adaptive", "flat")
_CHUNK = 1024


class Passed(NamedTuple):
    """What a backward pass ends with: rows on the entries `units` of the input, both offsets, and the cost of rounding."""

    rows: Array
    units: Any
    low: Array
    high: Array
    cost: Array

    def pick(self, some: Array) -> Passed:
        """Some of the rows."""
        units = self.units if isinstance(self.units, slice) or self.units.ndim == 1 else self.units[some]
        return Passed(self.rows[some], units, self.low[some], self.high[some], self.cost[some])


class Lines(NamedTuple):
    """A layer of ReLUs: which are unstable, the upper slopes r (those of stable units too) with t, and the leak."""

    unstable: Array
    slope: Array
    offset: Array
    leak: Any


@dataclass(frozen=True, eq=False)
class Tile:
    """Some units of a convolution and all that they depend on: entries by node, and blocks of the matrices between them."""

    units: dict[int, Array]
    blocks: dict[int, Array]


#: From the position of a ReLU, its entries and rows behind it: rows before it, what both bounds add, and the cost.
Relax = Callable[[int, Any, Array], tuple[Array, Array, Array, Any]]


class Bounds:
    """Intervals `low` and `high` of every node over a ball, what backward passes pay at each, and the lines of the ReLUs."""

    def __init__(self, net: Network, ball: Ball, num: Outward, executed: str | None):
        self.net, self.ball, self.num, self.executed = net, ball, num, executed
        self.low: list[Array] = []
        self.high: list[Array] = []
        self.cost: list[Array | None] = []
        self.own: list[Array | None] = []
        self.lines: dict[int, Lines] = {}

    def derive(self, rules: dict[str, list[str]]) -> None:
        """Bound all nodes: by intervals, then by backward passes with the rules that are given for a node's position."""
        for place, node in enumerate(self.net.nodes):
            if node.kind == "input":
                self._add(*self.ball.hull, None, None)
            elif node.kind == "relu":
                self._relu(place)
            else:
                self._affine(place)
            for rule in rules.get(str(place), []):
                self._tighten(place, rule)
            sound = (self.low[place] <= self.high[place]).all() and (self.size(place) < LARGEST).all()
            require(sound, f"the bounds of node {place} are empty or no numbers below {LARGEST}")

    def size(self, place: int) -> Array:
        """The largest absolute values of a node."""
        return np.maximum(np.abs(self.low[place]), np.abs(self.high[place]))

    def margins(self, rows: Array, rule: str) -> Array:
        """Lower bounds of rows of the logits by one backward pass."""
        return self.least(self.descend(len(self.net.nodes) - 1, rows, self.relax(rule)))

    def least(self, found: Passed, boxed: bool = True) -> Array:
        """The smallest value over the ball."""
        return self.num.down(
            self.ball.minimum(found.rows, found.units, boxed) + found.low - self.num.raised(found.cost)
        )

    def descend(
        self, place: int, rows: Array, relax: Relax, start: Any = 0, cost: Any = 0, tile: Tile | None = None
    ) -> Passed:
        """A backward pass from a node to the input, with given offsets and cost to start from."""
        num, nodes = self.num, self.net.nodes
        zero = num.numbers(np.zeros(len(rows)))
        low, high, cost, size = zero + start, zero + start, zero + cost, zero + np.abs(start)
        coefficients = {place: rows}
        for at in range(place, 0, -1):
            if at not in coefficients:
                continue
            a, node, units = coefficients.pop(at), nodes[at], slice(None) if tile is None else tile.units[at]
            each = self.cost[at]
            if each is not None:
                cost = cost + np.abs(a) @ each[units]
            if node.kind == "relu":
                back, below, above, more = relax(at, units, a)
                low, high, cost, backs = low + below, high + above, cost + more, [back]
                size = size + np.abs(below) + np.abs(above)
            else:
                backs = node.back(a) if tile is None else [a @ tile.blocks[at]] if at in tile.blocks else [a]
                if node.bias is not None:
                    added = a @ node.bias[units]
                    low, high, size = low + added, high + added, size + np.abs(added)
            for source, part in zip(node.inputs, backs, strict=True):
                if source in coefficients:
                    part = coefficients[source] + part
                    if not num.exact:
                        cost = cost + num.gamma(1) * (np.abs(part) @ self.size(source))
                coefficients[source] = part
        if not num.exact:
            cost = cost + num.gamma(2 * len(nodes) + 8) * size
        everything = slice(None) if tile is None else tile.units[0]
        nothing = zero[:, None] * np.zeros((1, nodes[0].size), dtype=int)
        return Passed(coefficients.get(0, nothing), everything, low, high, cost)

    def relax(self, rule: str) -> Relax:
        """The relaxation of a rule: lower slopes as the upper ones, by the smaller triangle, or flat; or intervals alone."""
        require(rule in RULES, f"there is no rule {rule!r}")

        def by_rule(at: int, units: Any, a: Array) -> tuple[Array, Array, Array, Any]:
            lines = self.lines[at]
            above, offset = lines.slope[units], lines.offset[units]
            positive = np.maximum(a, 0)
            negative = a - positive
            if rule == "interval":
                low, high = self.low[at][units], self.high[at][units]
                return a * 0, positive @ low + negative @ high, positive @ high + negative @ low, 0
            if rule == "parallel":
                return a * above, negative @ offset, positive @ offset, 0
            below = self.slopes(at, rule)[units]
            return positive * below + negative * above, negative @ offset, positive @ offset, 0

        return by_rule

    def slopes(self, at: int, rule: str) -> Array:
        """The lower slopes of a rule for the units of a ReLU node."""
        lines, source = self.lines[at], self.net.nodes[at].inputs[0]
        if rule == "flat":
            return np.where(lines.unstable, lines.leak, lines.slope)
        larger = self.high[source] > -self.low[source]
        return np.where(lines.unstable, np.where(larger, lines.leak * 0 + 1, lines.leak), lines.slope)

    def _add(self, low: Array, high: Array, cost: Array | None, own: Array | None) -> None:
        for values, value in zip((self.low, self.high, self.cost, self.own), (low, high, cost, own), strict=True):
            values.append(value)  # type: ignore[arg-type]

    def _affine(self, place: int) -> None:
        """Intervals of an affine node, from midpoint and reach, and what it costs."""
        num, node = self.num, self.net.nodes[place]
        ends = [(self.low[source], self.high[source]) for source in node.inputs]
        if node.moves:
            self._add(*ends[0], None, None)
            return
        middles = [(low + high) / 2 for low, high in ends]
        reaches = [
            num.up(np.maximum(high - middle, middle - low)) for middle, (low, high) in zip(middles, ends, strict=True)
        ]
        bias = 0 if node.bias is None else node.bias
        size = node.apply(*(self.size(source)[None] for source in node.inputs), absolute=True)[0] + np.abs(bias)
        centre = node.apply(*(middle[None] for middle in middles))[0] + bias
        reach = node.apply(*(part[None] for part in reaches), absolute=True)[0]
        own = self._execution(node.terms + 4, size)
        cost = own
        if not num.exact:
            cost = num.raised(num.gamma(node.terms + 12) * size + (0 if own is None else own))
        lost = 0 if cost is None else cost
        self._add(num.down(centre - reach - lost), num.up(centre + reach + lost), cost, own)

    def _execution(self, terms: int, size: Array) -> Array | None:
        """What the network itself may be off at a node in its own dtype: sums of so many terms of this absolute size."""
        if self.executed is None:
            return None
        require(terms * ROUNDOFF[self.executed] < 0.01, "sums are too long for the network's dtype")
        unit, least = self.num.numbers([1.02 * terms * ROUNDOFF[self.executed], 2 * terms * SMALLEST[self.executed]])
        return self.num.raised(size * unit + (size + 1) * least)

    def _relu(self, place: int) -> None:
        """Intervals of a layer of ReLUs and its lines."""
        num, node = self.num, self.net.nodes[place]
        leak = num.numbers([node.leak])[0]
        low, high = self.low[node.inputs[0]], self.high[node.inputs[0]]
        unstable = (low < 0) & (high > 0)
        width = np.where(unstable, high - low, num.numbers([1])[0])
        chord = np.minimum(np.maximum((high - leak * low) / width, leak), leak * 0 + 1)
        slope = np.where(unstable, chord, np.where(low >= 0, leak * 0 + 1, leak))
        offset = np.where(unstable, np.maximum((leak - slope) * low, (1 - slope) * high), leak * 0)
        if not num.exact:
            offset = np.where(unstable, offset * (1 + 2.0**-49) + 1e-280, 0.0)
        self.lines[place] = Lines(unstable, slope, offset, leak)
        own = None if node.leak == 0 else self._execution(4, leak * self.size(node.inputs[0]))
        cost = own
        if not num.exact:  # products with slopes other than 0 and 1, sums of offsets
            rounded = (slope != 0) & (slope != 1) | unstable
            cost = num.gamma(4) * self.size(node.inputs[0]) * rounded + num.gamma(len(low) + 8) * offset
            cost = num.raised(cost + (0 if own is None else own))
        lost = 0 if own is None else own
        after = [
            np.maximum(end, end if node.leak == 0 else step(leak * end))
            for end, step in ((low, num.down), (high, num.up))
        ]
        if node.leak == 0:
            after = [np.maximum(end, leak) for end in (low, high)]
        self._add(after[0] - lost, after[1] + lost, cost, own)

    def _tighten(self, place: int, rule: str) -> None:
        """Replace the interval of every unit that is still unstable by what backward passes prove, where that is better."""
        groups: dict[Any, list[tuple[Array, Passed, Passed]]] = {}
        for some, tile in self._groups(place, self._unstable(place)):
            found = self._ends(place, some, tile, rule)
            groups.setdefault((tile is None, found[0].rows.shape[1]), []).append((some, *found))
        for parts in groups.values():
            some = np.concatenate([units for units, _, _ in parts])
            ends = _joined([low for _, low, _ in parts]), _joined([high for _, _, high in parts])
            for boxed in (False, True) if self.ball.p < math.inf else (True,):  # a box is cheap in l_inf alone
                open_ = np.isin(some, self._unstable(place))
                below, above = (self.least(end if open_.all() else end.pick(open_), boxed) for end in ends)
                self.low[place][some[open_]] = np.maximum(self.low[place][some[open_]], below)
                self.high[place][some[open_]] = np.minimum(self.high[place][some[open_]], -above)

    def _unstable(self, place: int) -> Array:
        return np.flatnonzero((self.low[place] < 0) & (self.high[place] > 0))

    def _ends(self, place: int, some: Array, tile: Tile | None, rule: str) -> tuple[Passed, Passed]:
        """Backward passes of some units and of minus these units; parallel lines give both ends in one pass."""
        node, own, num = self.net.nodes[place], self.own[place], self.num
        start = cost = num.numbers(np.zeros(len(some)))
        if tile is not None:
            rows = tile.blocks[place][np.searchsorted(tile.units[place], some)]
        elif node.matrix is not None:
            rows = node.matrix[some]
        else:
            rows = self._picked(some, node.size)
        if tile is not None or node.matrix is not None:  # rows of the matrix are known without a product
            start = start if node.bias is None else node.bias[some]
            cost = cost if own is None else own[some]
            place = node.inputs[0]
        found = self.descend(place, rows, self.relax(rule), start, cost, tile)
        if rule == "parallel":
            return found, found._replace(rows=-found.rows, low=-found.high)
        return found, self.descend(place, -rows, self.relax(rule), -start, cost, tile)

    def _groups(self, place: int, units: Array) -> Iterator[tuple[Array, Tile | None]]:
        """The units of a convolution by position, each position with its tile; other units in chunks."""
        node = self.net.nodes[place]
        tiled = len(node.shape) == 3 and self._narrow(place)
        if not tiled:
            for start in range(0, len(units), _CHUNK):
                yield units[start : start + _CHUNK], None
            return
        across = node.shape[1] * node.shape[2]
        position = units % across
        for at in np.unique(position).tolist():
            key = (place, at)
            if key not in self.net.tiles:
                self.net.tiles[key] = self._tile(place, np.arange(at, node.size, across))
            yield units[position == at], self.net.tiles[key]

    def _narrow(self, place: int) -> bool:
        """Whether a chain of nodes with at most one layer of ReLUs and nothing dense leads to a node."""
        relus = 0
        while place:
            node = self.net.nodes[place]
            if len(node.inputs) != 1 or not (node.window or node.moves or node.kind == "relu"):
                return False
            relus, place = relus + (node.kind == "relu"), node.inputs[0]
        return relus <= 1

    def _tile(self, place: int, units: Array) -> Tile:
        """The tile of some units: entries that blocks do not mention have no influence on them."""
        entries, blocks = {place: units}, {}
        while place:
            node, chosen = self.net.nodes[place], entries[place]
            place = node.inputs[0]
            if node.window is None:
                entries[place] = chosen
                continue
            reached, weights = node.window(chosen)  # an entry outside the image is -1
            entries[place], at = np.unique(np.maximum(reached, 0), return_inverse=True)
            block = self._zeros(len(chosen), len(entries[place]))
            inside = reached >= 0
            block[np.nonzero(inside)[0], at.reshape(reached.shape)[inside]] = weights[inside]
            blocks[self.net.nodes.index(node)] = block
        return Tile(entries, blocks)

    def _picked(self, units: Array, size: int) -> Array:
        """One row for each unit that picks it."""
        rows = self._zeros(len(units), size)
        rows[np.arange(len(units)), units] = 1
        return rows

    def _zeros(self, *shape: int) -> Array:
        return self.num.numbers(np.zeros(1)).repeat(math.prod(shape)).reshape(shape)


def _joined(parts: list[Passed]) -> Passed:
    """Several passes with rows of one length as one; entries then differ by row."""
    units: Any = slice(None)
    if not isinstance(parts[0].units, slice):
        units = np.concatenate([np.broadcast_to(part.units, part.rows.shape) for part in parts])
    rows, low, high, cost = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "low", "high", "cost")
    )
    return Passed(rows, units, low, high, cost)
