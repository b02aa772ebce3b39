"""What a tiny network does, in exact rational arithmetic: margins over balls, distances and logits without any rounding.

Every weight is a whole number times a power of two, so that a network of one to three inputs can be taken apart into its
linear pieces with whole numbers alone. A piece is a polytope, given by its corners in homogeneous coordinates
`(X_1, ..., X_d, W)` with W > 0, each with the set of constraints that hold there with equality. Nothing is shared with the
library's geometry: networks enter through the values of single nodes, `node.op.linear` and `node.op.apply`.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from relucert.networks.network import Network
from relucert.networks.nodes import Affine, MaxPool2d, ReLU

#: Affine nodes whose float64 matrix, found by probing, is the matrix itself: nothing is divided or summed up.
EXACT = {
    "linear", "conv2d", "conv_transpose2d", "reshape", "permute", "add", "concat", "pad", "shift", "slice", "gather", "sum",
}  # fmt: skip


def is_exact(op: Affine) -> bool:
    """Whether the matrix of a node in float64 is the matrix itself."""
    if op.kind == "scale":
        return not op.settings()["divide"]
    if op.kind == "avg_pool2d":
        return op.settings()["divisor"] == 1
    if op.kind == "leak":
        slopes = [value for source in op.sources().values() for value in source.value.double().flatten().tolist()]
        slopes += [float(str(value)) for value in op.settings().values()]
        return all(Fraction(1 - slope) == 1 - Fraction(slope) for slope in slopes)
    return op.kind in EXACT


Form = tuple[int, ...]  # coefficients of the inputs, then the constant
Point = Sequence[Any]  # numbers: floats or Fractions


class Polytope:
    """The convex hull of corners in homogeneous whole coordinates, with the constraints that are tight at each."""

    __slots__ = ("bits", "corners", "tight")

    def __init__(self, corners: list[Form], tight: list[int], bits: int):
        self.corners, self.tight, self.bits = corners, tight, bits

    def values(self, form: Form) -> list[int]:
        """A form at every corner, times the corner's W, which is positive."""
        return [sum(map(int.__mul__, form, corner)) for corner in self.corners]

    def cut(self, form: Form, values: list[int] | None = None) -> Polytope | None:
        """What lies in `form >= 0`, None if that is nothing."""
        values = self.values(form) if values is None else values
        if min(values) >= 0:
            return self
        if max(values) < 0:
            return None
        size, bit = len(form) - 2, 1 << self.bits
        corners, tight = [], []
        for corner, mask, value in zip(self.corners, self.tight, values, strict=True):
            if value >= 0:
                corners.append(corner)
                tight.append(mask | bit if value == 0 else mask)
        for i, a in enumerate(values):
            if a <= 0:
                continue
            for j, b in enumerate(values):
                if b >= 0:
                    continue
                common = self.tight[i] & self.tight[j]
                # An edge: the smallest face that holds both corners holds no third one.
                if common.bit_count() < size or any(
                    common & mask == common for k, mask in enumerate(self.tight) if k != i and k != j
                ):
                    continue
                new = [a * v - b * u for u, v in zip(self.corners[i], self.corners[j], strict=True)]
                shared = math.gcd(*new)
                corners.append(tuple(part // shared for part in new))
                tight.append(common | bit)
        return Polytope(corners, tight, self.bits + 1)

    def split(self, form: Form) -> tuple[Polytope | None, Polytope | None]:
        """The parts where the form is at least zero and at most zero; only one of them if its sign does not change."""
        values = self.values(form)
        if min(values) >= 0:
            return self, None
        if max(values) <= 0:
            return None, self
        return self.cut(form, values), self.cut(tuple(-part for part in form), [-value for value in values])


def negative(form: Form) -> Form:
    """The form with the other sign."""
    return tuple(-part for part in form)


def whole(numbers: Sequence[Fraction]) -> Form:
    """Whole numbers in the same proportion, by a positive factor."""
    factor = math.lcm(*(number.denominator for number in numbers))
    return tuple(int(number * factor) for number in numbers)


def fractions(point: Any) -> list[Fraction]:
    """The numbers of a tensor or a sequence, exactly."""
    numbers = point.detach().double().flatten().tolist() if isinstance(point, Tensor) else point
    return [Fraction(number) for number in numbers]


def sides(box: Any, x: Tensor) -> tuple[list[float], list[float]]:
    """The box of one input x (*input) as numbers of its dtype, infinite without a box."""
    low, high = (-math.inf, math.inf) if box is None else box
    ends = (torch.as_tensor(end, dtype=x.dtype).expand(x.shape).double().flatten().tolist() for end in (low, high))
    return tuple(ends)  # type: ignore[return-value]


# Networks in whole numbers.


class _Node:
    """One node: `kind`, what it reads, and for an affine one its whole matrix rows `((source, place), factor)` and offset."""

    def __init__(self, kind: str, inputs: tuple[int, ...]):
        self.kind, self.inputs = kind, inputs
        self.rows: list[list[tuple[int, int, int]]] = []
        self.offsets: list[int] = []
        self.slope = (0, 0)
        self.windows: list[list[int]] = []


class Exact:
    """A network in whole numbers: the value of node i is a form with whole coefficients times 2 ** -exponents[i]."""

    def __init__(self, net: Network):
        double = copy.deepcopy(net).double()
        self.size, self.classes = math.prod(net.input_shape), net.classes
        self.nodes: list[_Node] = [_Node("input", ())]
        self.exponents = [0]
        for node in double.graph.nodes[1:]:
            if isinstance(node.op, ReLU):
                self._relu(node.op, node.inputs)
            elif isinstance(node.op, MaxPool2d):
                made = _Node("pool", node.inputs)
                made.windows = windows(node.op)
                self.nodes.append(made)
                self.exponents.append(self.exponents[node.inputs[0]])
            else:
                assert isinstance(node.op, Affine)
                assert is_exact(node.op), f"{node.op.kind} is not known to be exact"
                self._affine(node.op, node.inputs)

    def _relu(self, op: ReLU, inputs: tuple[int, ...]) -> None:
        made, slope = _Node("relu", inputs), Fraction(op.slope)
        shift = slope.denominator.bit_length() - 1
        assert slope.denominator == 1 << shift
        made.slope = (slope.numerator, 1 << shift)
        self.nodes.append(made)
        self.exponents.append(self.exponents[inputs[0]] + shift)

    @torch.no_grad()
    def _affine(self, op: Affine, inputs: tuple[int, ...]) -> None:
        made = _Node("affine", inputs)
        zeros = [torch.zeros(1, *shape, dtype=torch.float64) for shape in op.in_shapes]
        offsets = [Fraction(number) for number in op.apply(*zeros).flatten().tolist()]
        terms: list[list[tuple[int, int, Fraction]]] = [[] for _ in offsets]
        for i, shape in enumerate(op.in_shapes):
            count = math.prod(shape)
            probes = [zero.expand(count, *zero.shape[1:]) for zero in zeros]
            probes[i] = torch.eye(count, dtype=torch.float64).reshape(count, *shape)
            scale = Fraction(1, 1 << self.exponents[inputs[i]])
            for place, column in enumerate(op.linear(*probes).flatten(1).tolist()):
                for output, number in enumerate(column):
                    if number:
                        terms[output].append((i, place, Fraction(number) * scale))
        every = [number for row in terms for _, _, number in row] + offsets
        exponent = max((number.denominator.bit_length() - 1 for number in every), default=0)
        power = 1 << exponent
        made.rows = [[(i, place, int(number * power)) for i, place, number in row] for row in terms]
        made.offsets = [int(number * power) for number in offsets]
        self.nodes.append(made)
        self.exponents.append(exponent)

    def logits(self, point: Sequence[Fraction]) -> list[Fraction]:
        """The logits at one point."""
        values: list[list[Fraction]] = [list(point)]
        for node in self.nodes[1:]:
            given = [values[i] for i in node.inputs]
            if node.kind == "relu":
                off, on = node.slope
                values.append([value * (on if value > 0 else off) for value in given[0]])
            elif node.kind == "pool":
                values.append([max(given[0][i] for i in window) for window in node.windows])
            else:
                values.append([
                    offset + sum(factor * given[i][place] for i, place, factor in row)
                    for row, offset in zip(node.rows, node.offsets, strict=True)
                ])  # fmt: skip
        scale = Fraction(1, 1 << self.exponents[-1])
        return [value * scale for value in values[-1]]

    def cells(self, start: Polytope) -> Iterator[tuple[Polytope, list[Form]]]:
        """The linear pieces of the network within a polytope, each with the forms of its logits (times 2 ** exponent)."""
        unit = [tuple(int(i == j) for j in range(self.size + 1)) for i in range(self.size)]
        yield from self._down(1, start, [unit])

    def _down(self, index: int, cell: Polytope, values: list[list[Form]]) -> Iterator[tuple[Polytope, list[Form]]]:
        if index == len(self.nodes):
            yield cell, values[-1]
            return
        node = self.nodes[index]
        given = [values[i] for i in node.inputs]
        if node.kind == "affine":
            made = []
            for row, offset in zip(node.rows, node.offsets, strict=True):
                total = [0] * self.size + [offset]
                for i, place, factor in row:
                    total = [t + factor * v for t, v in zip(total, given[i][place], strict=True)]
                made.append(tuple(total))
            yield from self._down(index + 1, cell, [*values, made])
        elif node.kind == "relu":
            for part, made in self._relus(cell, given[0], node.slope, 0, []):
                yield from self._down(index + 1, part, [*values, made])
        else:
            for part, made in self._pools(cell, given[0], node.windows, 0, []):
                yield from self._down(index + 1, part, [*values, made])

    def _relus(
        self, cell: Polytope, forms: list[Form], slope: tuple[int, int], unit: int, made: list[Form]
    ) -> Iterator[tuple[Polytope, list[Form]]]:
        if unit == len(forms):
            yield cell, made
            return
        for part, factor in zip(cell.split(forms[unit]), reversed(slope), strict=True):
            if part is not None:
                value = tuple(factor * number for number in forms[unit])
                yield from self._relus(part, forms, slope, unit + 1, [*made, value])

    def _pools(
        self, cell: Polytope, forms: list[Form], places: list[list[int]], unit: int, made: list[Form]
    ) -> Iterator[tuple[Polytope, list[Form]]]:
        if unit == len(places):
            yield cell, made
            return
        for part, value in _largest(cell, [forms[i] for i in places[unit]]):
            yield from self._pools(part, forms, places, unit + 1, [*made, value])


def _largest(cell: Polytope, forms: list[Form]) -> Iterator[tuple[Polytope, Form]]:
    """The parts of a cell on which one of the forms is the largest."""
    if len(forms) == 1:
        yield cell, forms[0]
        return
    first, second, *rest = forms
    lead = tuple(a - b for a, b in zip(first, second, strict=True))
    for part, best in zip(cell.split(lead), (first, second), strict=True):
        if part is not None:
            yield from _largest(part, [best, *rest])


def windows(op: MaxPool2d) -> list[list[int]]:
    """The flat places that every output of a max pool sees, found by probing: it sees what can raise it."""
    size = math.prod(op.in_shape)
    low = torch.full((size, size), -1.0, dtype=torch.float64) + 2 * torch.eye(size, dtype=torch.float64)
    probes = op.apply(low.reshape(size, *op.in_shape)).flatten(1)
    return [[int(i) for i in (column > 0).nonzero()[:, 0]] for column in probes.T]


_KNOWN: WeakKeyDictionary[Network, Exact] = WeakKeyDictionary()


def exact(net: Network) -> Exact:
    """The network in whole numbers; kept as long as the network, whose weights must not change meanwhile."""
    if net not in _KNOWN:
        _KNOWN[net] = Exact(net)
    return _KNOWN[net]


# Where to look.


def block(low: Sequence[Fraction], high: Sequence[Fraction]) -> Polytope:
    """The box between two corners as a polytope."""
    corners: dict[Form, int] = {}
    for choice in itertools.product((0, 1), repeat=len(low)):
        point = [(low, high)[side][i] for i, side in enumerate(choice)]
        mask = sum(1 << (2 * i + side) for i, side in enumerate(choice))
        key = whole([*point, Fraction(1)])
        corners[key] = corners.get(key, 0) | mask
    return Polytope(list(corners), list(corners.values()), 2 * len(low))


def hull(x: Sequence[Fraction], radius: Any, low: Sequence[float], high: Sequence[float]) -> Polytope:
    """The points of the box whose coordinates differ from those of x by at most the radius."""
    lower = [Fraction(end) if math.isfinite(end) else None for end in low]
    upper = [Fraction(end) if math.isfinite(end) else None for end in high]
    if not (isinstance(radius, float) and math.isinf(radius)):
        r = Fraction(radius)
        lower = [c - r if end is None else max(end, c - r) for c, end in zip(x, lower, strict=True)]
        upper = [c + r if end is None else min(end, c + r) for c, end in zip(x, upper, strict=True)]
    assert None not in [*lower, *upper], "an infinite radius needs a finite box"
    return block(lower, upper)  # type: ignore[arg-type]


def _limits(x: Sequence[Fraction], p: float) -> Iterator[tuple[list[int], None]]:
    """The rows c with ||z - x||_p = max over c of <c, z - x>, for p = 1 and inf."""
    if p == 1:
        for signs in itertools.product((1, -1), repeat=len(x)):
            yield list(signs), None
    else:
        for i in range(len(x)):
            for sign in (1, -1):
                yield [sign * (i == j) for j in range(len(x))], None


def ball(x: Sequence[Fraction], p: float, eps: Any, low: Sequence[float], high: Sequence[float]) -> Polytope:
    """The ball of l_1 or l_inf inside the box as a polytope."""
    found: Polytope | None = hull(x, eps, low, high)
    if p == 1 and not math.isinf(eps):
        for row, _ in _limits(x, 1):
            constant = Fraction(eps) + sum(s * c for s, c in zip(row, x, strict=True))
            assert found is not None
            found = found.cut(whole([*(Fraction(-s) for s in row), constant]))
    assert found is not None, "x must lie in the box"
    return found


# The questions.


def logits(net: Network, point: Any) -> list[Fraction]:
    """The logits of the network of real arithmetic at one point, exactly; any number of inputs."""
    return exact(net).logits(fractions(point))


def margin(net: Network, point: Any, y: int) -> Fraction:
    """How far the logit of y is above the largest other one, exactly."""
    found = logits(net, point)
    return found[y] - max(value for s, value in enumerate(found) if s != y)


def least_margin(net: Network, x: Tensor, y: int, p: float, eps: float, box: Any) -> Fraction:
    """The smallest lead of y over another class in the ball of l_1 or l_inf around x (*input) inside the box, exactly."""
    assert p in (1, math.inf)
    model, centre = exact(net), fractions(x)
    best: Fraction | None = None
    for cell, forms in model.cells(ball(centre, p, eps, *sides(box, x))):
        for s, form in enumerate(forms):
            if s != y:
                lead = tuple(a - b for a, b in zip(forms[y], form, strict=True))
                for value, corner in zip(cell.values(lead), cell.corners, strict=True):
                    if best is None or value * best.denominator < best.numerator * corner[-1]:
                        best = Fraction(value, corner[-1])
    assert best is not None
    return best / (1 << model.exponents[-1])


class Changes:
    """Where the decision of a network is not y by more than `lead`, within a polytope: pieces that distances are taken to.

    With `strict` only pieces that hold a point with a smaller margin than `lead` count.
    """

    def __init__(self, net: Network, y: int, start: Polytope, lead: Fraction = Fraction(0), *, strict: bool = False):
        model = exact(net)
        prop = lead * (1 << model.exponents[-1])
        self.pieces: list[Polytope] = []
        for cell, forms in model.cells(start):
            for s, form in enumerate(forms):
                if s != y:
                    behind = [Fraction(b - a) for a, b in zip(forms[y], form, strict=True)]
                    behind[-1] += prop
                    row = whole(behind)
                    part = cell.cut(row)
                    if part is not None and not (strict and max(part.values(row)) <= 0):
                        self.pieces.append(part)

    def distance(self, x: Sequence[Fraction], p: float) -> Fraction | float:
        """The distance of x to the nearest piece, inf if there is none.

        For p = 1 and inf it is exact; for p = 2 it is the square, exact; for others a float, right to about 1e-14.
        """
        best: Fraction | float = math.inf
        near: list[tuple[float, int, list[list[Fraction]]]] = []
        for place, piece in enumerate(self.pieces):
            steps = [[Fraction(part, c[-1]) - at for part, at in zip(c, x, strict=False)] for c in piece.corners]
            ends = [(min(column), max(column)) for column in zip(*steps, strict=True)]
            # The distance in l_inf to the box around the piece: no norm of a step into it is smaller.
            least = max(max(low, -high, Fraction(0)) for low, high in ends)
            near.append((float(least) * (1 - 1e-9), place, steps))
        near.sort(key=lambda entry: entry[:2])
        measure = _MEASURES.get(p, _power)
        for bound, place, steps in near:
            if bound * bound > best if p == 2 else bound > best:
                break
            best = min(best, measure(self.pieces[place], steps, x, p, best))
        return best


def _linear(
    piece: Polytope, steps: list[list[Fraction]], x: Sequence[Fraction], p: float, best: Fraction | float
) -> Fraction:
    """The exact distance in l_1 or l_inf: the norm is linear on the parts between some planes, so corners are enough."""
    size = len(x)
    planes: list[list[int]] = [[int(i == j) for j in range(size)] for i in range(size)]
    if p != 1:
        for i, j in itertools.combinations(range(size), 2):
            planes += [[int(k == i) + sign * int(k == j) for k in range(size)] for sign in (1, -1)]
    parts = [piece]
    for plane in planes:
        form = whole([*map(Fraction, plane), -sum((f * c for f, c in zip(plane, x, strict=True)), Fraction(0))])
        parts = [part for cell in parts for part in cell.split(form) if part is not None]
    known = set(piece.corners)
    steps = steps + [
        [Fraction(part, c[-1]) - at for part, at in zip(c, x, strict=False)]
        for cell in parts for c in cell.corners if c not in known
    ]  # fmt: skip
    norm = sum if p == 1 else max
    return min(norm(abs(part) for part in step) for step in steps)  # type: ignore[operator]


def _square(
    piece: Polytope, steps: list[list[Fraction]], x: Sequence[Fraction], p: float, best: Fraction | float
) -> Fraction | float:
    """The exact squared distance in l_2 to the convex hull of the steps, for up to three inputs.

    The nearest point lies in a corner, on a line between two corners or in a triangle of three, or x itself lies inside.
    """
    if _holds(piece, x):
        return Fraction(0)
    flat = [[float(part) for part in step] for step in steps]
    size = len(x)
    found: list[tuple[float, tuple[int, ...]]] = []
    for count in range(1, size + 1):
        for chosen in itertools.combinations(range(len(steps)), count):
            value = _simplex([flat[i] for i in chosen], float)
            if value is not None:
                found.append((value, chosen))
    reach = max(max(map(abs, step)) for step in flat)
    limit = min(min(value for value, _ in found if value >= 0), float(best)) + 1e-9 * reach * reach
    result: Fraction | float = math.inf
    for value, chosen in sorted(found):
        if value > limit:
            break
        again = _simplex([steps[i] for i in chosen], Fraction)
        if again is not None:
            result = min(result, again)  # type: ignore[type-var]
    return result


def _holds(piece: Polytope, x: Sequence[Fraction]) -> bool:
    """Whether x lies in a piece: no direction of the piece's own box excludes it and cutting it to x leaves something."""
    part: Polytope | None = piece
    for i, at in enumerate(x):
        for sign in (1, -1):
            row = [Fraction(sign * (i == j)) for j in range(len(x))]
            part = None if part is None else part.cut(whole([*row, -sign * at]))
    return part is not None


def _simplex(points: list[list[Any]], kind: Callable[[Any], Any]) -> Any:
    """The squared distance of the origin to the plane through some points, None if its nearest point is not between them.

    In floats a little outside counts as between, and -1 stands for what floats do not tell, so that nothing near is lost.
    """
    first, *rest = points
    if not rest:
        return sum(part * part for part in first)
    edges = [[a - b for a, b in zip(point, first, strict=True)] for point in rest]
    gram = [[sum(a * b for a, b in zip(one, two, strict=True)) for two in edges] for one in edges]
    right = [-sum(a * b for a, b in zip(edge, first, strict=True)) for edge in edges]
    if len(edges) == 1:
        bottom, weights = gram[0][0], [right[0]]
    else:
        bottom = gram[0][0] * gram[1][1] - gram[0][1] * gram[1][0]
        weights = [right[0] * gram[1][1] - right[1] * gram[0][1], right[1] * gram[0][0] - right[0] * gram[1][0]]
    if kind is float:
        if bottom <= 1e-9 * math.prod(gram[i][i] for i in range(len(edges))):
            return -1.0  # too flat for floats
        shares = [weight / bottom for weight in weights]
        if min(shares) < -1e-5 or sum(shares) > 1 + 1e-5:
            return None
    else:
        if bottom <= 0 or min(weights) < 0 or sum(weights) > bottom:
            return None
        shares = [weight / bottom for weight in weights]
    nearest = [part + sum(s * e[i] for s, e in zip(shares, edges, strict=True)) for i, part in enumerate(first)]
    return sum(part * part for part in nearest)


def _power(
    piece: Polytope, steps: list[list[Fraction]], x: Sequence[Fraction], p: float, best: Fraction | float
) -> float:
    """The distance in any l_p for one or two inputs, in floats: corners and the lines between them."""
    assert len(x) <= 2, "norms other than 1, 2 and inf are for one or two inputs"
    if _holds(piece, x):
        return 0.0
    flat = [[float(part) for part in step] for step in steps]

    def norm(step: list[float]) -> float:
        top = max(map(abs, step))
        return top * sum((abs(part) / top) ** p for part in step) ** (1 / p) if top else 0.0

    result = min(map(norm, flat))
    for one, two in itertools.combinations(flat, 2):
        low, high = 0.0, 1.0
        for _ in range(90):
            a, b = low + (high - low) / 3, high - (high - low) / 3
            at_a, at_b = (norm([u + t * (v - u) for u, v in zip(one, two, strict=True)]) for t in (a, b))
            result = min(result, at_a, at_b)
            if at_a <= at_b:
                high = b
            else:
                low = a
    return result


_MEASURES: dict[float, Callable[..., Any]] = {1: _linear, math.inf: _linear, 2: _square}


def distance(net: Network, x: Tensor, y: int, p: float, box: Any, within: float = math.inf) -> Fraction | float:
    """The distance from x (*input) to the nearest point of the box that is not y's alone (a tie is a change), inf if none.

    Points whose coordinates differ by more than `within` do not count. For p = 2 it is the square of the distance.
    """
    centre = fractions(x)
    return Changes(net, y, hull(centre, within, *sides(box, x))).distance(centre, p)


def reached(found: Fraction | float, p: float, r: Any) -> bool:
    """Whether a distance (for p = 2 its square) is at most r; for p other than 1, 2, inf up to 1e-12 beyond doubt."""
    if isinstance(found, float) and math.isinf(found):
        return False
    if isinstance(r, float) and math.isinf(r):
        return True
    if p in (1, math.inf):
        return found <= Fraction(r)
    return found <= Fraction(r) ** 2 if p == 2 else found <= float(r) * (1 - 1e-12)


def changes_within(
    net: Network, x: Tensor, y: int, p: float, r: Any, box: Any, lead: Any = 0, *, strict: bool = False
) -> bool:
    """Whether some z of the box with ||z - x||_p <= r has a margin of at most `lead` (by default: a tie is a change).

    With `strict`: whether some z has a smaller one, or lies on the border of where it is smaller.
    """
    centre = fractions(x)
    pieces = Changes(net, y, hull(centre, r, *sides(box, x)), Fraction(lead), strict=strict)
    return reached(pieces.distance(centre, p), p, r)


def inside(x: Any, z: Any, p: float, eps: Any, box: Any, dtype: torch.dtype | None = None) -> bool:
    """Whether z lies in the ball around x and in the box, exactly (for p that are no whole numbers: up to 1e-12).

    `dtype` is that of the box where x is no tensor.
    """
    numbers, centre = fractions(z), fractions(x)
    like = x if isinstance(x, Tensor) else torch.zeros(len(centre), dtype=dtype or torch.float64)
    low, high = sides(box, like)
    if any(not a <= number <= b for a, number, b in zip(low, numbers, high, strict=True)):
        return False
    return excess(centre, numbers, p, eps) <= 0


def excess(x: Sequence[Fraction], z: Sequence[Fraction], p: float, eps: Any) -> Fraction | float:
    """By how much ||z - x||_p exceeds eps, in any unit: its sign is exact, see `inside`."""
    steps = [abs(a - b) for a, b in zip(x, z, strict=True)]
    if isinstance(eps, float) and math.isinf(eps):
        return Fraction(-1)
    if math.isinf(p):
        return max(steps) - Fraction(eps)
    if float(p).is_integer():
        return sum((step ** int(p) for step in steps), Fraction(0)) - Fraction(eps) ** int(p)
    top = max(steps)
    length = float(top) * sum(float(step / top) ** p for step in steps) ** (1 / p) if top else 0.0
    return length - float(eps) * (1 + 1e-12)


def length_at_most(x: Tensor, z: Tensor, p: float, eps: float) -> bool:
    """Whether ||z - x||_p <= eps for one point in exact arithmetic; p is infinite, a whole number or half of one."""
    steps = [abs(Fraction(a) - Fraction(b)) for a, b in zip(z.flatten().tolist(), x.flatten().tolist(), strict=True)]
    if math.isinf(p):
        return max(steps) <= Fraction(eps)
    power = round(2 * p)
    assert power == 2 * p
    if power % 2 == 0:
        return sum((step ** (power // 2) for step in steps), Fraction(0)) <= Fraction(eps) ** (power // 2)
    # Roots of the powers, enclosed to 2^-bits: where the enclosures overlap, they are made smaller.
    for bits in (2000, 8000):
        below = [_root(step**power, bits) for step in steps if step]
        most, unit = _root(Fraction(eps) ** power, bits), Fraction(1, 2**bits)
        if sum(below, Fraction(0)) + len(below) * unit <= most:
            return True
        if sum(below, Fraction(0)) > most + unit:
            return False
        if len(below) <= 1:
            return max(steps) <= Fraction(eps)
    raise AssertionError("the length and the radius are too near to each other")


def _root(value: Fraction, bits: int) -> Fraction:
    """The square root, rounded down to a multiple of 2^-bits."""
    return Fraction(math.isqrt((value.numerator << (2 * bits)) // value.denominator), 1 << bits)
