"""A network over a ball as a mixed-integer program (Tjeng, Xiao and Tedrake 2019).

Every unit is an affine function of one column, or a constant: the input; the input z of a switching unit, defined by an
equation; its output y. Only unstable units need more. With z in [l, u], l < 0 < u, a ReLU of slope s is

    y >= z,   y >= s z,   y <= s z + (1 - s) u a,   y <= z - (1 - s) l (1 - a),   a in {0, 1},

and a maximum over candidates z_i that may win is y >= z_i, y <= z_i + (u - l_i) (1 - a_i), sum a_i = 1.

The program contains the network strictly. Every bound l, u and every inequality is widened by the `slack` of its unit, ten
times the tolerance of the solvers plus the rounding error in float64, so that the true values of an input are no border case:
a solver that claims them infeasible is wrong by more than its tolerance. A unit whose range hardly crosses zero is relaxed to
a triangle instead: big-M coefficients of the size of the tolerance mean nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from relucert.networks.layers.arithmetic import Shift
from relucert.networks.nodes import MaxPool2d
from relucert.networks.sparse_maps import SparseMap
from relucert.networks.traversal import Graph, affine_ancestors, look
from relucert.verification.mip._problem import TOLERANCE, Problem, Squares

Array = NDArray[np.float64]
Places = NDArray[np.int64]
SLACK = 10 * TOLERANCE  # rows and bounds are widened by this at least
SMALLEST = 1e-11  # smaller entries of rows are removed, and the limits of the row widened by their range


@dataclass(eq=False)
class Units:
    """Values `factor x_column + constant`, one for each unit; column -1 for a constant."""

    column: Places
    factor: Array
    constant: Array

    def scaled(self, by: float) -> Units:
        """The values times a number."""
        return Units(self.column, self.factor * by, self.constant * by)

    def pick(self, at: NDArray) -> Units:
        """Some of the units."""
        return Units(self.column[at], self.factor[at], self.constant[at])


@dataclass(frozen=True, eq=False)
class Ranges:
    """Pre-activation bounds of a switching node, flat, and the slack of all rows and bounds of a unit.

    `rounding` bounds the error of an input that is computed in float64.
    """

    lower: Array
    upper: Array
    slack: Array
    rounding: Array


#: Better bounds of some units (z, lower, upper, which) from the program so far.
Tighten = Callable[["Program", Units, Array, Array, NDArray[np.bool_]], tuple[Array, Array]]


def _copied(graph: Graph, node: int) -> bool:
    """Whether every entry of a node is an entry of a root, or zero: rounding cannot change it."""
    return all(inner.op.isometric and not isinstance(inner.op, Shift) for inner in affine_ancestors(graph, node)[0])


class Program:
    """Columns and rows, growing; `inputs` are the columns of the step from the centre, in units of `scale`."""

    def __init__(self, centre: Array, below: Array, above: Array, scale: float = 1.0):
        self.lower, self.upper = np.zeros(0), np.zeros(0)
        self.integer = np.zeros(0, dtype=bool)
        self.columns = self.rows = 0
        self._entries: list[tuple[Places, Places, Array]] = []
        self._limits: list[tuple[Array, Array]] = []
        self._errors: list[Array] = []
        self.squares: Squares | None = None
        self.inputs = self.add_columns(-below / scale, above / scale)
        self.values: dict[int, Units] = {0: Units(self.inputs, np.full(len(centre), scale), centre)}

    def add_columns(self, lower: Array, upper: Array, integer: bool = False) -> Places:
        """Add columns; returns their numbers."""
        self.lower, self.upper = np.append(self.lower, lower), np.append(self.upper, upper)
        self.integer = np.append(self.integer, np.full(len(lower), integer))
        self.columns += len(lower)
        return np.arange(self.columns - len(lower), self.columns)

    def add_rows(
        self, terms: list[tuple[Places, Places, Array]], lower: Array, upper: Array, errors: Array | None = None
    ) -> None:
        """Add rows, `lower <= sum of value x_column <= upper`; terms are (row among the new rows, column, value).

        `errors` bound the error of each row that rounded values cause.
        """
        self._errors.append(np.zeros(len(lower)) if errors is None else errors)
        self._entries += [(row + self.rows, column, value) for row, column, value in terms]
        self._limits.append((np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)))
        self.rows += len(lower)

    # The set of inputs.

    def bound_norm(self, p: float, radius: float | None) -> int | None:
        """The step's l_p norm, in units of `scale`, is at most the radius, or (None) at most a new column, which is returned.

        The column has values up to 1; in l2 it has the square of the norm.
        """
        count, own = len(self.inputs), np.zeros(0, dtype=np.int64)
        if radius is None:
            own = self.add_columns(np.zeros(1), np.full(1, 1.0 + SLACK))
        limit = 0.0 if radius is None else radius * (1 + SLACK)
        here, ones = np.arange(count), np.ones(count)
        if math.isinf(p):
            for sign in (1.0, -1.0) if len(own) else ():
                terms = [(here, self.inputs, sign * ones), (here, own.repeat(count), -ones)]
                self.add_rows(terms, np.full(count, -math.inf), np.zeros(count))
        elif p == 1:
            reach = np.maximum(abs(self.lower), abs(self.upper))[self.inputs]
            up, down = self.add_columns(0 * reach, reach), self.add_columns(0 * reach, reach)
            self.add_rows([(here, self.inputs, ones), (here, up, -ones), (here, down, ones)], 0 * ones, 0 * ones)
            every = np.concatenate([up, down, own])
            signs = np.concatenate([ones, ones, -np.ones(len(own))])
            self.add_rows([(np.zeros_like(every), every, signs)], np.full(1, -math.inf), np.full(1, limit))
        else:
            self.squares = Squares(self.inputs, limit**2, int(own[0]) if len(own) else None)
        return int(own[0]) if len(own) else None

    # The network.

    def build(
        self, graph: Graph, wires: dict[int, SparseMap], known: dict[int, Ranges], tighten: Tighten | None = None
    ) -> None:
        """Columns and rows for every switching node, in order; bounds are improved on the way by `tighten`."""
        pools = {node.index: node.op for node in graph.max_pools}
        for node in graph.switches:
            look()
            within = known[node.index]
            low, high = within.lower - within.slack, within.upper + within.slack
            # A leak is rounded, and so is the product with it.
            copied = _copied(graph, node.inputs[0]) and node.op.slope == 0
            if (pool := pools.get(node.index)) is not None:
                z = self._read(wires[node.index], low, high, np.ones(len(low), dtype=bool), within.rounding, copied)
                self.values[node.index] = self._maximum(z, pool, low, high, within.slack)
            else:
                # An inactive unit without a leak is a constant: it needs no input.
                z = self._read(wires[node.index], low, high, (high > 0) | (node.op.slope > 0), within.rounding, copied)
                if tighten is not None:
                    better = tighten(self, z, low, high, (low < 0) & (high > 0))
                    low, high = np.maximum(low, better[0] - within.slack), np.minimum(high, better[1] + within.slack)
                    own = (z.column >= 0) & (z.factor == 1) & (z.constant == 0) & (low <= high)
                    np.maximum.at(self.lower, z.column[own], low[own])
                    np.minimum.at(self.upper, z.column[own], high[own])
                self.values[node.index] = self._relu(z, node.op.slope, low, high, within.slack)
        self.logits = self._expressions(wires[len(graph)])

    def _expressions(self, wire: SparseMap) -> tuple[csr_array, Array]:
        """What a wire carries, as rows over the columns and constants."""
        offset, terms = wire.offset.copy(), []
        for source, matrix in wire.matrices.items():
            units, entries = self.values[source], coo_array(matrix)
            offset += matrix @ units.constant
            row, unit = entries.coords
            moving = units.column[unit] >= 0
            terms.append((row[moving], units.column[unit[moving]], entries.data[moving] * units.factor[unit[moving]]))
        row, column, value = (np.concatenate(part) for part in zip(*terms, strict=True))
        rows = csr_array((value, (row, column)), shape=(len(offset), self.columns))
        rows.sum_duplicates()
        rows.eliminate_zeros()
        return rows, offset

    def _read(
        self, wire: SparseMap, low: Array, high: Array, needed: NDArray[np.bool_], rounding: Array, copied: bool
    ) -> Units:
        """The units that a wire carries: if all are `copied`, what is one column is that column, else a new column.

        A unit with a column of its own has a row, whose error covers what rounding does to the unit.
        """
        rows, offset = self._expressions(wire)
        count = np.diff(rows.indptr)
        found = Units(np.full(len(offset), -1), np.zeros(len(offset)), offset)
        one = (count == 1) & needed & (offset == 0) & copied
        one[one] = rows.data[rows.indptr[:-1][one]] == 1
        found.column[one], found.factor[one] = rows.indices[rows.indptr[:-1][one]], 1.0
        many = np.flatnonzero(~one & needed)
        if len(many):
            columns = self.add_columns(low[many], high[many])
            part, here = coo_array(rows[many]), np.arange(len(many))
            terms = [(part.coords[0], part.coords[1], part.data), (here, columns, np.full(len(many), -1.0))]
            self.add_rows(terms, -offset[many], -offset[many], rounding[many])
            found.column[many], found.factor[many], found.constant[many] = columns, 1.0, 0.0
        return found

    def _inequality(
        self, y: Places, z: Units, slope: Array, more: list[tuple[Places, Array]], sign: int, limit: Array
    ) -> None:
        """Sign (y - slope z + sum of factor x_column) <= limit, row by row."""
        here = np.arange(len(y))
        moving = z.column >= 0
        terms = [(here, y, np.full(len(y), float(sign)))]
        terms.append((here[moving], z.column[moving], -sign * (slope * z.factor)[moving]))
        terms += [(here, column, sign * factor) for column, factor in more]
        self.add_rows(terms, np.full(len(y), -math.inf), limit + sign * slope * z.constant)

    def _relu(self, z: Units, slope: float, low: Array, high: Array, slack: Array) -> Units:
        on, off = low >= 0, high <= 0
        found = Units(
            np.where(off & (slope == 0), -1, z.column),
            np.where(on, z.factor, slope * z.factor),
            np.where(on, z.constant, slope * z.constant),
        )
        open_ = np.flatnonzero(~on & ~off)
        if len(open_) == 0:
            return found
        z, low, high, slack = z.pick(open_), low[open_], high[open_], slack[open_]
        # Of a unit without a finite bound nothing is known: 0 * inf and inf / inf are NaN, which no solver accepts.
        with np.errstate(invalid="ignore"):
            least, chord = slope * low, (high - slope * low) / (high - low)
        y, ones = self.add_columns(least, high), np.ones(len(open_))
        self._inequality(y, z, ones, [], -1, slack)
        if slope > 0:
            self._inequality(y, z, slope * ones, [], -1, slack)
        free = np.minimum(high, -low) > 10 * slack
        at = np.flatnonzero(~free)
        self._inequality(y[at], z.pick(at), chord[at], [], 1, (high * (1 - chord) + slack)[at])
        at = np.flatnonzero(free)
        choice = self.add_columns(np.zeros(len(at)), np.ones(len(at)), integer=True)
        top, bottom = (1 - slope) * high[at], -(1 - slope) * low[at]
        self._inequality(y[at], z.pick(at), slope * ones[at], [(choice, -top)], 1, slack[at])
        self._inequality(y[at], z.pick(at), ones[at], [(choice, bottom)], 1, bottom + slack[at])
        found.column[open_], found.factor[open_], found.constant[open_] = y, 1.0, 0.0
        return found

    def _maximum(self, z: Units, op: MaxPool2d, low: Array, high: Array, slack: Array) -> Units:
        """A window with a single candidate is that candidate; other windows get a column and a choice for each candidate."""
        places, size = op.windows().numpy(), math.prod(op.in_shape[1:])
        seen = np.concatenate([np.where(places < 0, -1, places + size * channel) for channel in range(op.in_shape[0])])
        here = np.maximum(seen, 0)
        lows, highs = np.where(seen < 0, -math.inf, low[here]), np.where(seen < 0, -math.inf, high[here])
        best, floor = lows.argmax(1), lows.max(1)
        wins = highs > floor[:, None]
        wins[np.arange(len(seen)), best] = True
        spare, top = np.where(wins, slack[here], 0.0).max(1), np.where(wins, highs, -math.inf).max(1)
        # Of several constants among the candidates the largest is enough.
        fixed = wins & (z.column[here] < 0)
        level = np.where(fixed, z.constant[here], -math.inf)
        wins &= ~fixed
        wins[np.arange(len(seen)), level.argmax(1)] |= fixed.any(1)
        found = z.pick(seen[np.arange(len(seen)), wins.argmax(1)])
        several = np.flatnonzero(wins.sum(1) > 1)
        if len(several) == 0:
            return found
        spare, top = spare[several], top[several]
        y = self.add_columns(floor[several], top)
        window, entry = np.nonzero(wins[several])
        units = seen[several][window, entry]
        choice = self.add_columns(np.zeros(len(units)), np.ones(len(units)), integer=True)
        candidates, ones = z.pick(units), np.ones(len(units))
        room = (top[window] - low[units]).clip(min=0.0)
        self._inequality(y[window], candidates, ones, [], -1, spare[window])
        self._inequality(y[window], candidates, ones, [(choice, room)], 1, room + spare[window])
        one = np.ones(len(several))
        self.add_rows([(window, choice, ones)], one, one)
        found.column[several], found.factor[several], found.constant[several] = y, 1.0, 0.0
        return found

    # Programs to solve.

    def problem(self, cost: Array, *, integer: bool = True) -> Problem:
        """The program with a cost for every column, or its relaxation without whole numbers."""
        lower, upper = self.lower, self.upper
        none = np.zeros(0)
        row_lower, row_upper = (np.concatenate([none, *(pair[side] for pair in self._limits)]) for side in (0, 1))
        row, column = (
            np.concatenate([none.astype(np.int64), *(entry[side] for entry in self._entries)]) for side in (0, 1)
        )
        value = np.concatenate([none, *(entry[2] for entry in self._entries)])
        rows = csr_array((value, (row, column)), shape=(self.rows, self.columns))
        rows.sum_duplicates()
        tiny = abs(rows.data) < SMALLEST
        if tiny.any():
            at = np.repeat(np.arange(self.rows), np.diff(rows.indptr))[tiny]
            ends = rows.data[tiny] * lower[rows.indices[tiny]], rows.data[tiny] * upper[rows.indices[tiny]]
            np.subtract.at(row_lower, at, np.maximum(*ends))
            np.subtract.at(row_upper, at, np.minimum(*ends))
            rows.data[tiny] = 0.0
            rows.eliminate_zeros()
        whole = self.integer.copy() if integer else np.zeros(self.columns, dtype=bool)
        return Problem(
            cost,
            lower.copy(),
            upper.copy(),
            whole,
            rows,
            row_lower,
            row_upper,
            self.squares if integer else None,
            np.concatenate([none, *self._errors]),
        )

    def margin(self, row: Array, offset: float) -> tuple[Array, float]:
        """A row of a property as a cost for every column, and a constant."""
        matrix, constant = self.logits
        cost = np.zeros(self.columns)
        found = row @ matrix
        cost[: len(found)] = found
        return cost, float(row @ constant) + offset
