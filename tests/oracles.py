"""The distance to the nearest change of decision by brute force and by mixed-integer programs, from definitions alone.

Nothing here shares code with the library's geometry: networks enter through `node.op.apply`, the value of one node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp, minimize, nnls
from torch import Tensor, nn

from relucert.core.ball import Ball
from relucert.core.norms import norm
from relucert.core.properties import Property
from relucert.networks.architectures import cnn, mlp, resnet
from relucert.networks.network import Network
from relucert.networks.nodes import Affine, MaxPool2d, ReLU
from zoo import dead_windows, randomised, zero_bias

Array = NDArray[np.float64]
TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


# Distances to polytopes.


def polytope_distance(a: Array, b: Array, p: float) -> float:
    """min ||d||_p subject to a d >= b, inf if there is no d; for p = 2, 3 with a dual bound that agrees to 1e-8."""
    scale = np.linalg.norm(a, axis=1)
    if (b[scale < 1e-13] > 1e-12).any():
        return math.inf
    a, b = a[scale >= 1e-13] / scale[scale >= 1e-13, None], b[scale >= 1e-13] / scale[scale >= 1e-13]
    if (b <= 0).all():
        return 0.0
    if p in (1, math.inf):
        return _linear_distance(a, b, p)
    if not feasible(a, b):
        return math.inf
    step = _least_squares_distance(a, b)
    if p == 2:
        best = float(np.linalg.norm(step))
        assert best - _dual_bound(a, b, step, 2.0) <= 1e-8 * max(1.0, best), "the oracle is not accurate"
        return best
    size = max(1e-9, float(np.linalg.norm(step, p)))
    for tolerance in (1e-14, 1e-16, 1e-18):
        found = minimize(
            lambda d: float((np.abs(d) ** p).sum()),
            step / size,
            jac=lambda d: p * np.sign(d) * np.abs(d) ** (p - 1),
            constraints={"type": "ineq", "fun": lambda d: a @ d - b / size, "jac": lambda d: a},
            method="SLSQP",
            options={"ftol": tolerance, "maxiter": 1000},
        )
        d = found.x * size
        short = float((b - a @ d).max())
        best = float(np.linalg.norm(d, p))
        if short <= 1e-9 and best - _dual_bound(a, b, d, p) <= 1e-8 * max(1.0, best):
            return best
        step = d
    raise AssertionError("the oracle is not accurate")


def feasible(a: Array, b: Array) -> bool:
    """Whether a d >= b has a solution."""
    answer = linprog(np.zeros(a.shape[1]), -a, -b, bounds=(None, None), options=TIGHT)
    return answer.status == 0


def _linear_distance(a: Array, b: Array, p: float) -> float:
    """The distance for p = 1 or inf, by one linear program over (d, t)."""
    size = a.shape[1]
    extra = size if p == 1 else 1
    spread = np.eye(size) if p == 1 else np.ones((size, 1))
    rows = np.block([[-a, np.zeros((len(a), extra))], [np.eye(size), -spread], [-np.eye(size), -spread]])
    limits = np.concatenate([-b, np.zeros(2 * size)])
    cost = np.concatenate([np.zeros(size), np.ones(extra)])
    answer = linprog(cost, rows, limits, bounds=[(None, None)] * size + [(0, None)] * extra, options=TIGHT)
    if answer.status == 2:
        return math.inf
    assert answer.status == 0, answer.message
    return float(answer.fun)


def _least_squares_distance(a: Array, b: Array) -> Array:
    """The shortest d in l2: least distance programming by non-negative least squares."""
    target = np.zeros(a.shape[1] + 1)
    target[-1] = 1.0
    weights, _ = nnls(np.vstack([a.T, b[None]]), target, maxiter=100 * len(b))
    residual = np.vstack([a.T, b[None]]) @ weights - target
    if residual[-1] == 0.0:
        return np.full(a.shape[1], math.inf)
    step = -residual[:-1] / residual[-1]
    # The same once more from the rows that bind, which is accurate to the last digits where it is right at all.
    binding = np.flatnonzero(weights)
    again = np.asarray(np.linalg.lstsq(a[binding], b[binding], rcond=None)[0], dtype=np.float64)
    better = float((b - a @ again).max()) <= max(float((b - a @ step).max()), 1e-14)
    return again if better and np.linalg.norm(again - step) <= 1e-6 * np.linalg.norm(step) else step


def _dual_bound(a: Array, b: Array, d: Array, p: float) -> float:
    """b.m / ||a' m||_q for multipliers m >= 0 that make d stationary: a lower bound on every feasible norm."""
    active = np.flatnonzero(a @ d - b <= 1e-6)
    slope = np.sign(d) * np.abs(d) ** (p - 1)
    multipliers, _ = nnls(a[active].T, slope)
    bottom = np.linalg.norm(a[active].T @ multipliers, p / (p - 1))
    return float(b[active] @ multipliers / bottom) if bottom > 0 else 0.0


# All activation patterns of a small fully connected network.


def layers(net: Network) -> list[tuple[Array, Array]]:
    """The weights and biases of a chain of linear layers, normalisation folded in, found by probing the nodes."""
    found: list[tuple[Array, Array]] = []
    size = math.prod(net.input_shape)
    eye = torch.cat([torch.zeros(1, size), torch.eye(size)]).to(net._like).reshape(-1, *net.input_shape)
    value = eye
    for node in net.graph.nodes[1:]:
        assert node.inputs == (node.index - 1,)
        if isinstance(node.op, ReLU):
            assert node.op.slope == 0
            found.append(_read(value))
            size = math.prod(node.shape)
            value = torch.cat([torch.zeros(1, size), torch.eye(size)]).to(net._like).reshape(-1, *node.shape)
        else:
            assert isinstance(node.op, Affine)
            value = node.op.apply(value)
    return [*found, _read(value)]


def _read(value: Tensor) -> tuple[Array, Array]:
    flat = value.detach().double().flatten(1).numpy()
    return (flat[1:] - flat[0]).T, flat[0]


def regions(net: Network, centre: Array, sides: tuple[Array, Array]) -> Iterator[tuple[Array, Array, Array, Array]]:
    """All non-empty regions as (rows, limits, V, a): rows d >= limits, and V d + a are the logits, for steps d."""
    parts = layers(net)
    size = len(centre)
    low, high = sides
    box_rows = np.concatenate([np.eye(size)[np.isfinite(low)], -np.eye(size)[np.isfinite(high)]])
    box_limits = np.concatenate([(low - centre)[np.isfinite(low)], (centre - high)[np.isfinite(high)]])

    def down(index: int, v: Array, a: Array, rows: Array, limits: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
        weight, bias = parts[index]
        v, a = weight @ v, weight @ a + bias
        if index == len(parts) - 1:
            yield rows, limits, v, a
            return
        for signs, more_rows, more_limits in units(v, a, 0, (), rows, limits):
            gate = np.array(signs, dtype=float)
            yield from down(index + 1, gate[:, None] * v, gate * a, more_rows, more_limits)

    def units(
        v: Array, a: Array, unit: int, signs: tuple[int, ...], rows: Array, limits: Array
    ) -> Iterator[tuple[tuple[int, ...], Array, Array]]:
        if unit == len(a):
            yield signs, rows, limits
            return
        for on in (0, 1):
            side = 1.0 if on else -1.0
            more = np.vstack([rows, side * v[unit]]), np.append(limits, -side * a[unit])
            if feasible(*more):
                yield from units(v, a, unit + 1, (*signs, on), *more)

    yield from down(0, np.eye(size), centre.copy(), box_rows, box_limits)


def enumerate_distance(net: Network, x: Tensor, y: int, p: float, box: Any = None) -> float:
    """The smallest distance over all patterns to a point with f_s >= f_y; x (1, *input), a ReLU network of linear layers."""
    return enumerate_distances(net, x, y, [p], box)[0]


def enumerate_distances(net: Network, x: Tensor, y: int, ps: list[float], box: Any = None) -> list[float]:
    """The same for several norms with one enumeration."""
    centre = x.detach().double().flatten().numpy()
    best = [math.inf] * len(ps)
    for rows, limits, v, a in regions(net, centre, box_sides(box, x)):
        for s in range(len(a)):
            if s == y:
                continue
            every = np.vstack([rows, v[s] - v[y]]), np.append(limits, a[y] - a[s])
            for i, p in enumerate(ps):
                # A cheap bound first: one violated row alone is this far away.
                norms = np.linalg.norm(every[0], p / (p - 1) if p > 1 else math.inf, axis=1)
                apart = np.max(every[1][norms > 1e-13] / norms[norms > 1e-13], initial=0.0)
                if apart < best[i]:
                    best[i] = min(best[i], polytope_distance(*every, p))
    return best


def box_sides(box: Any, x: Tensor) -> tuple[Array, Array]:
    """A box as two flat arrays."""
    low, high = (-math.inf, math.inf) if box is None else box
    shape = x.shape[1:]
    ends = (torch.as_tensor(end, dtype=torch.float64).expand(shape).flatten().numpy().copy() for end in (low, high))
    return tuple(ends)  # type: ignore[return-value]


# The linear pieces of any network near a point.

#: (rows, limits, step, length): the cell rows d >= limits of steps d, with its shortest step in l2.
Cell = tuple[Array, Array, Array, float]
FARTHEST = 1e6


def _cut(cell: Cell, row: Array, limit: float, bound: float) -> Cell | None:
    """A cell with one row more, None if that leaves no step of at most `bound` in l2."""
    rows, limits, step, length = cell
    norm = float(np.linalg.norm(row))
    if norm < 1e-13:
        return cell if limit <= 1e-12 else None
    row, limit = row / norm, limit / norm
    if limit > bound:
        return None
    rows, limits = np.vstack([rows, row]), np.append(limits, limit)
    if row @ step >= limit:
        return rows, limits, step, length
    step = _least_squares_distance(rows, limits)
    length = float(np.linalg.norm(step))
    fits = bool(np.isfinite(step).all()) and float((limits - rows @ step).max()) <= 1e-7 * max(1.0, length)
    return (rows, limits, step, length) if fits and length <= bound * (1 + 1e-9) else None


def pieces(net: Network, centre: Array, cell: Cell, bound: float) -> Iterator[tuple[Array, Array, Array, Array]]:
    """All linear pieces within l2 distance `bound` of the centre, like `regions`, of a network with any layers.

    Every node's value is an affine function of the step as long as no unit on the way has more than one side left: units are
    decided one by one, each side that leaves something of the cell.
    """
    nodes = net.graph.nodes

    def down(index: int, values: dict[int, Tensor], cell: Cell) -> Iterator[tuple[Array, Array, Array, Array]]:
        if index == len(nodes):
            flat = values[index - 1].flatten(1).numpy()
            yield cell[0], cell[1], flat[1:].T, flat[0]
            return
        node = nodes[index]
        given = [values[i] for i in node.inputs]
        if isinstance(node.op, Affine):
            with torch.no_grad():
                zero = node.op.apply(*(torch.zeros_like(part[:1]) for part in given))
                constant = node.op.apply(*(part[:1] for part in given))
                value = torch.cat([constant, node.op.apply(*(part[1:] for part in given)) - zero])
            yield from down(index + 1, {**values, index: value}, cell)
            return
        flat = given[0].flatten(1).T.numpy()  # (units, 1 + inputs)
        if isinstance(node.op, ReLU):
            choices = [[(e, [e]), (node.op.slope * e, [-e])] for e in flat]
        else:
            assert isinstance(node.op, MaxPool2d)
            choices = [_winners([flat[i] for i in window]) for window in _windows(node.op)]
        for outputs, smaller in _decided(choices, cell, bound):
            value = torch.from_numpy(np.stack(outputs, 1)).reshape(-1, *node.shape)
            yield from down(index + 1, {**values, index: value}, smaller)

    start = np.concatenate([centre[None], np.eye(len(centre))])
    yield from down(1, {0: torch.from_numpy(start).reshape(-1, *net.input_shape)}, cell)


def _winners(window: list[Array]) -> list[tuple[Array, list[Array]]]:
    """The choices of a max pool: every different entry, where it is not below the others."""
    different: list[Array] = []
    for entry in window:
        if not any(np.abs(entry - other).max() < 1e-14 for other in different):
            different.append(entry)
    return [(best, [best - other for other in different if other is not best]) for best in different]


def _decided(
    choices: list[list[tuple[Array, list[Array]]]], cell: Cell, bound: float, unit: int = 0
) -> Iterator[tuple[list[Array], Cell]]:
    """All ways to decide the units of a node from one on: their outputs, and what is left of the cell."""
    if unit == len(choices):
        yield [], cell
        return
    before: list[Array] = []
    for output, conditions in choices[unit]:
        if any(np.abs(output - other).max() < 1e-14 for other in before):
            continue  # the same function: a dead unit is neither on nor off
        smaller: Cell | None = cell
        for condition in conditions:
            smaller = None if smaller is None else _cut(smaller, condition[1:], -condition[0], bound)
        if smaller is not None:
            if len(choices[unit]) > 1 and all(np.linalg.norm(c[1:]) < 1e-13 for c in conditions):
                before.append(output)
            for rest, last in _decided(choices, smaller, bound, unit + 1):
                yield [output, *rest], last


def box_cell(centre: Array, sides: tuple[Array, Array]) -> Cell:
    """The box as a cell."""
    low, high = sides
    size = len(centre)
    rows = np.concatenate([np.eye(size)[np.isfinite(low)], -np.eye(size)[np.isfinite(high)]])
    limits = np.concatenate([(low - centre)[np.isfinite(low)], (centre - high)[np.isfinite(high)]])
    return rows, limits, np.zeros(size), 0.0


def piecewise_distance(net: Network, x: Tensor, y: int, p: float, box: Any = None, near: Tensor | None = None) -> float:
    """The distance for any p and any network, by a program for each linear piece and class; x (1, *input).

    `near` (1, *input) is a point, believed only after the network was run on it: pieces farther away do not count.
    """
    centre = x.detach().double().flatten().numpy()
    size = len(centre)
    low, high = box_sides(box, x)
    reach = _reach(net, x, y, p, low, high)
    if near is not None and bool(near.isfinite().all()):
        apart = near.double().flatten().numpy() - centre
        with torch.no_grad():
            assert int(net(near).argmax(1)) != y
        reach = min(reach, float(np.linalg.norm(apart, p)))
    widest = reach * max(1.0, size ** (0.5 - 1 / p)) if math.isfinite(reach) else FARTHEST
    best = reach
    for rows, limits, v, a in pieces(net, centre, box_cell(centre, (low, high)), widest):
        for s in range(len(a)):
            if s == y:
                continue
            every = np.vstack([rows, v[s] - v[y]]), np.append(limits, a[y] - a[s])
            norms = np.linalg.norm(every[0], p / (p - 1) if p > 1 else math.inf, axis=1)
            real = norms > 1e-13
            if np.max(every[1][real] / norms[real], initial=0.0) < best * (1 + 1e-9):
                best = min(best, polytope_distance(*every, p))
    return best


def own_faces(net: Network, x: Tensor, box: Any = None) -> tuple[Array, Array, int, Array, Array]:
    """The piece that x lies in the interior of: rows d >= limits, how many of the first rows are the box's, V and a."""
    centre = x.detach().double().flatten().numpy()
    cell = box_cell(centre, box_sides(box, x))
    rows, limits, v, a = next(pieces(net, centre, cell, 1e-12))
    return rows, limits, len(cell[0]), v, a


# Mixed-integer programs over the graph.


class Program:
    """A network over a bounded box as a mixed-integer program; every node's value is an affine function of the variables."""

    def __init__(self, net: Network, low: Array, high: Array):
        self.net = net.double() if net.dtype != torch.float64 else net
        switches = net.graph.switches
        outputs = sum(math.prod(node.shape) for node in switches)
        choices = sum(_choices(node.op) for node in switches)
        size = len(low)
        self.size, self.count = size, size + outputs + choices
        self.low = np.concatenate([low, np.zeros(outputs + choices)])
        self.high = np.concatenate([high, np.zeros(outputs), np.ones(choices)])
        self.integer = np.zeros(self.count)
        self.integer[size + outputs :] = 1
        self.rows: list[Array] = []
        self.limits: list[float] = []  # rows v <= limits
        self.next_output, self.next_choice = size, size + outputs
        self._build()

    def _build(self) -> None:
        """Values as (1 + variables, *shape): the constant, then the coefficient of every variable."""
        start = torch.zeros(1 + self.count, self.size, dtype=torch.float64)
        start[1 : 1 + self.size] = torch.eye(self.size)
        values = {0: start.reshape(-1, *self.net.input_shape)}
        for node in self.net.graph.nodes[1:]:
            given = [values[i] for i in node.inputs]
            if isinstance(node.op, Affine):
                with torch.no_grad():
                    zero = node.op.apply(*(torch.zeros_like(part[:1]) for part in given))
                    constant = node.op.apply(*(part[:1] for part in given))
                    values[node.index] = torch.cat([constant, node.op.apply(*(part[1:] for part in given)) - zero])
                continue
            flat = given[0].flatten(1).T.numpy()  # (units, 1 + variables)
            if isinstance(node.op, ReLU):
                outputs = [self._relu(expression, node.op.slope) for expression in flat]
            else:
                assert isinstance(node.op, MaxPool2d)
                outputs = [self._maximum([flat[i] for i in window]) for window in _windows(node.op)]
            value = torch.zeros(1 + self.count, len(outputs), dtype=torch.float64)
            value[torch.tensor(outputs) + 1, torch.arange(len(outputs))] = 1.0
            values[node.index] = value.reshape(-1, *node.shape)
        self.logits = values[len(self.net.graph) - 1].T.numpy()

    def _range(self, expression: Array) -> tuple[float, float]:
        with np.errstate(invalid="ignore"):
            up, down = np.maximum(expression[1:], 0), np.minimum(expression[1:], 0)
        return (
            float(expression[0] + up @ self.low + down @ self.high),
            float(expression[0] + up @ self.high + down @ self.low),
        )

    def _add(self, expression: Array, more: dict[int, float], limit: float) -> None:
        """expression + sum of more <= limit."""
        row = expression[1:].copy()
        for place, factor in more.items():
            row[place] += factor
        self.rows.append(row)
        self.limits.append(limit - expression[0])

    def _output(self, low: float, high: float) -> int:
        place, self.next_output = self.next_output, self.next_output + 1
        self.low[place], self.high[place] = low, high
        return place

    def _choice(self) -> int:
        place, self.next_choice = self.next_choice, self.next_choice + 1
        return place

    def _relu(self, z: Array, slope: float) -> int:
        low, high = self._range(z)
        y, on = self._output(max(low, slope * low), max(high, slope * high)), self._choice()
        self._add(z, {y: -1.0}, 0.0)
        self._add(slope * z, {y: -1.0}, 0.0)
        self._add(-slope * z, {y: 1.0, on: -(1 - slope) * max(high, 0.0)}, 0.0)
        self._add(-z, {y: 1.0, on: -(1 - slope) * min(low, 0.0)}, -(1 - slope) * min(low, 0.0))
        return y

    def _maximum(self, candidates: list[Array]) -> int:
        ranges = [self._range(candidate) for candidate in candidates]
        top = max(high for _, high in ranges)
        y = self._output(max(low for low, _ in ranges), top)
        on = [self._choice() for _ in candidates]
        for candidate, (low, _), place in zip(candidates, ranges, on, strict=True):
            self._add(candidate, {y: -1.0}, 0.0)
            self._add(-candidate, {y: 1.0, place: top - low}, top - low)
        nothing = np.zeros(1 + self.count)
        self._add(nothing, dict.fromkeys(on, 1.0), 1.0)
        self._add(nothing, dict.fromkeys(on, -1.0), -1.0)
        return y

    def distance(self, x: Array, y: int, s: int, p: float) -> float:
        """The smallest ||z - x||_p with f_s(z) >= f_y(z), inf if there is none; the program's pattern is solved again
        as a linear program, whose tolerances are tighter.
        """
        extra = self.size if p == 1 else 1
        spread = np.eye(self.size) if p == 1 else np.ones((self.size, 1))
        lead = self.logits[y] - self.logits[s]
        rows = np.vstack([*self.rows, lead[1:]])
        limits = np.append(self.limits, -lead[0])
        pick = np.eye(self.size, self.count)
        rows = np.block(
            [[rows, np.zeros((len(rows), extra))], [pick, -spread], [-pick, -spread]],
        )
        limits = np.concatenate([limits, x, -x])
        cost = np.concatenate([np.zeros(self.count), np.ones(extra)])
        low, high = np.append(self.low, np.zeros(extra)), np.append(self.high, np.full(extra, np.inf))
        answer = milp(
            cost,
            constraints=LinearConstraint(rows, -np.inf, limits),  # type: ignore[arg-type]
            integrality=np.append(self.integer, np.zeros(extra)),
            bounds=Bounds(low, high),  # type: ignore[arg-type]
            options={"mip_rel_gap": 0.0, "time_limit": 60.0},
        )
        if answer.status == 2:
            return math.inf
        assert answer.status == 0, answer.message
        fixed = self.integer.astype(bool)
        low[: self.count][fixed] = high[: self.count][fixed] = np.round(answer.x[: self.count][fixed])
        again = linprog(cost, rows, limits, bounds=np.stack([low, high], 1), options=TIGHT)
        if again.status == 2:  # feasible within the loose tolerances alone
            return float(answer.fun)
        assert again.status == 0, again.message
        return float(again.fun)


def _choices(op: object) -> int:
    if isinstance(op, MaxPool2d):
        return sum(len(window) for window in _windows(op))
    assert isinstance(op, ReLU)
    return math.prod(op.in_shape)


def _windows(op: MaxPool2d) -> list[list[int]]:
    """The flat places that every output of a max pool sees, found by probing: it sees what can raise it."""
    size = math.prod(op.in_shape)
    probes = op.apply((2 * torch.eye(size, dtype=torch.float64)).reshape(size, *op.in_shape)).flatten(1)
    return [[int(i) for i in (column > 1).nonzero()[:, 0]] for column in probes.T]


def mip_distance(net: Network, x: Tensor, y: int, p: float, box: Any = None) -> float:
    """The distance for p = 1 or inf of any network, by one mixed-integer program for each class; x (1, *input)."""
    low, high = box_sides(box, x)
    centre = x.detach().double().flatten().numpy()
    reach = _reach(net, x, y, p, low, high)
    known = math.isfinite(reach)
    if not known:  # nothing found by chance: the whole box, or a wide one
        reach = 1e3 if np.isinf(low).any() or np.isinf(high).any() else float((high - low).max())
    for factor in (1.5, 4.0, 16.0):  # the solver has been seen to call a program infeasible that is not
        near = np.maximum(low, centre - factor * reach), np.minimum(high, centre + factor * reach)
        program = Program(net, *near)
        found = min(program.distance(centre, y, s, p) for s in range(net.classes) if s != y)
        if not known or found <= reach * (1 + 1e-9):
            return found
    raise AssertionError("the oracle misses a point of another class")


@torch.no_grad()
def _reach(net: Network, x: Tensor, y: int, p: float, low: Array, high: Array) -> float:
    """The distance of some point of another class, to keep the program's box small."""
    generator = torch.Generator().manual_seed(0)
    count = 4000
    sizes = torch.logspace(-3, 1.5, count, dtype=torch.float64)
    steps = torch.randn(count, *x.shape[1:], generator=generator, dtype=torch.float64)
    steps *= (sizes / torch.linalg.vector_norm(steps.flatten(1), p, dim=1)).reshape(-1, *(1,) * (x.dim() - 1))
    ends = (torch.from_numpy(end).reshape(x.shape) for end in (low, high))
    points = (x.double() + steps).clamp(*ends)
    wrong = net(points.to(net.dtype)).argmax(1) != y
    distance = torch.linalg.vector_norm((points - x.double()).flatten(1), p, dim=1)[wrong]
    return float(distance.min()) if len(distance) else math.inf


# Networks so small that the programs take a fraction of a second.


class TinyPool(nn.Module):
    """Convolution, ReLU, overlapping max pool with padding, a layer behind it."""

    def __init__(self):
        super().__init__()
        self.conv, self.mid, self.out = nn.Conv2d(1, 2, 2), nn.Linear(8, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = F.max_pool2d(F.relu(self.conv(x)), 2, 2, 1)
        return self.out(torch.relu(self.mid(z.flatten(1))))


class BarePool(nn.Module):
    """Max pool without a ReLU before it, ReLU behind it."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 2, 2), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(F.max_pool2d(self.conv(x), 2, 1)).flatten(1))


class TinyLeaky(nn.Module):
    """Leaky ReLU behind convolution and matrix, average pool."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc, self.out = nn.Conv2d(1, 2, 2), nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = F.avg_pool2d(F.leaky_relu(self.conv(x), 0.2), 3)
        return self.out(F.leaky_relu(self.fc(z.flatten(1)), 0.05))


class TinyDense(nn.Module):
    """Concatenation, difference, mean."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.fc = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(2, 1, 3, padding=1), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.first(x) * 1.5 - 0.1)
        b = torch.relu(self.second(torch.cat([x, a], dim=1)) - 0.5 * a)
        return 2 * self.fc(torch.cat((a, b, x), 1).mean((2, 3))) - 0.25


def tiny_dead() -> nn.Module:
    """Convolution, ReLU, max pool with dead windows, where winners have no sign of their own, and a layer behind."""
    module = nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)
    )
    randomised(module, 11)
    with torch.no_grad():
        module[0].bias[0] -= 1.0  # type: ignore[operator]
    return module


#: name -> (module, input shape, mean, std)
_TINY: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...], object, object]]] = {
    "fc": lambda: (randomised(mlp((2,), 3, [6]), 1), (2,), None, None),
    "fc deep": lambda: (randomised(mlp((1, 1, 3), 3, [4, 3, 3]), 22), (1, 1, 3), 0.3, 0.7),
    "zero bias": lambda: (zero_bias(), (4,), None, None),
    "cnn": lambda: (randomised(cnn((1, 4, 4), 3, filters=(2, 2), hidden=4), 4), (1, 4, 4), None, 0.5),
    "residual": lambda: (randomised(resnet((1, 3, 3), 3, channels=1), 5), (1, 3, 3), None, None),
    "max pool": lambda: (randomised(TinyPool(), 6), (1, 4, 4), None, 0.5),
    "bare pool": lambda: (randomised(BarePool(), 7), (1, 4, 4), None, None),
    "leaky": lambda: (randomised(TinyLeaky(), 8), (1, 4, 4), 0.1, None),
    "dense": lambda: (randomised(TinyDense(), 9), (1, 3, 3), None, None),
    "dead windows": lambda: (tiny_dead(), (1, 3, 3), None, None),
    "dead pool": lambda: (dead_windows(), (1, 5, 5), None, None),
}  # fmt: skip

TINY = tuple(_TINY)


def tiny(name: str, dtype: torch.dtype = torch.float64) -> Network:
    """A network of the table of tiny ones, in eval mode."""
    module, shape, mean, std = _TINY[name]()
    return Network(module.to(dtype), shape, mean, std).eval()  # type: ignore[arg-type]


def small_fc(shape: tuple[int, ...], widths: list[int], classes: int, seed: int, dtype: torch.dtype = torch.float64):
    """A random fully connected network."""
    return Network(randomised(mlp(shape, classes, widths), seed).to(dtype), shape).eval()


def least_margins(net: Network, x: Tensor, ball: Ball, prop: Property, starts: int = 8, steps: int = 8) -> Tensor:
    """The smallest margins (batch, specs) that sampling and projected gradient descent from many starts find in the ball."""
    generator, specs = torch.Generator().manual_seed(3), prop.rows.shape[1]
    points = ball.sample(x, generator, 300)
    logits = net(points.flatten(0, 1)).reshape(len(x), 300, -1)
    sampled = prop.margins(logits.transpose(0, 1)).detach()
    best = sampled.amin(0)
    first = sampled.topk(starts, dim=0, largest=False).indices  # the worst samples of every row are where it starts
    pick = first.permute(1, 2, 0)
    z = points[torch.arange(len(x))[:, None, None], pick].flatten(0, 2)
    owner = torch.arange(len(x)).repeat_interleave(specs * starts)
    rows = prop.rows[:, :, None].expand(-1, -1, starts, -1).flatten(0, 2)
    offsets = prop.offsets[:, :, None].expand(-1, -1, starts).flatten()
    centre, balls = x[owner], ball.restrict(owner)
    size = float(norm(z - centre, 2).amax())
    for step in range(steps):
        z = z.detach().requires_grad_()
        margins = (rows * net(z)).sum(1) + offsets
        best = torch.minimum(best, margins.detach().reshape(len(x), specs, starts).amin(2))
        (gradient,) = torch.autograd.grad(margins.sum(), z)
        length = norm(gradient, 2).clamp(min=1e-30).reshape(-1, *[1] * (x.dim() - 1))
        z = balls.project(centre, z.detach() - size * 0.8**step * gradient / length)
    return best
