"""`lipschitz`: bounds on the l2 distance that every node moves over a ball, by proved spectral norms of the affine parts.

A root is the input or a switching node. The input of a switching node is sum_r A_r z_r + b over the roots r before it, with
everything affine between them multiplied out, so it moves by at most sum_r ||A_r||_2 rho_r, where rho_r says how far root r
moves. A unit that is off all over the ball moves by nothing (a leaky one by its slope): its row and, for the next part, its
column leave the matrix, which makes the bound local. A max pool moves by at most the root of the largest number of windows
that a pixel is in. Where a part is too large to be written out, its nodes follow one another: the norm of each, the sum of
the branches for an addition, the root of the sum of squares for a concatenation. A row a of the property's last affine part
then has the margin a z(x) + min { <a, d> : ||d||_2 <= rho, d within the box of what the root can be }.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.bounding._spectral import (
    AffinePart,
    affine_part,
    conv_bound,
    local_norm_bounds,
    node_bound,
    row_norm_bounds,
)
from relucert.bounding.backward_bounds import BUDGET
from relucert.bounding.interval import Interval
from relucert.bounding.methods.crown import CROWN
from relucert.bounding.methods.ibp import IBP
from relucert.bounding.preactivations import Bounding, UnitBounds
from relucert.bounding.rounding import Accuracy, Charge, ChargedIntervals, Margins, Rounding, State, absolute
from relucert.core.ball import Ball
from relucert.core.linear_minimum import linear_minimum
from relucert.core.norms import norm
from relucert.core.properties import Property
from relucert.core.rounding import RAISED, cast_up, gamma, gamma_above, relative_rounding
from relucert.networks.affine_map import to_roots
from relucert.networks.layers.linear import Conv2d
from relucert.networks.layers.normalisation import BatchNorm
from relucert.networks.network import Network
from relucert.networks.nodes import Affine, MaxPool2d, ReLU, Switching
from relucert.networks.traversal import ForwardRule, Node, propagate


@dataclass(frozen=True, kw_only=True)
class Lipschitz(Bounding):
    """Products of spectral norms, local to the ball: `inner` says whose bounds of the units tell which of them are off.

    For balls of l2; others are put into the smallest ball of l2 that holds them. No gradient in the weights.
    """

    name = "lipschitz"
    inner: Literal["ibp", "crown"] = "crown"
    budget: int = BUDGET

    def units(self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball) -> UnitBounds:
        """Bounds of all units."""
        return deviations(net, x, ball, self.start(net, x, ball)).bounds()

    @torch.no_grad()
    def start(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, executed: torch.dtype | None = None
    ) -> UnitBounds:
        """The `inner` bounds of the units."""
        return (IBP() if self.inner == "ibp" else CROWN(budget=self.budget)).start(net, x, ball, executed)

    def prove(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Margins]:
        """The bounds of the units by how far they move, and the margins by how far the last ones do."""
        moved = deviations(net, x, ball, known)
        return moved.bounds(), lipschitz_margins(net, moved, x, ball, prop)


@dataclass(frozen=True, eq=False)
class Deviations:
    """How far nodes move over the ball; lengths are float64 (batch,), by the index of a switching node, 0 for the input.

    `inputs` has the intervals of the inputs of switching nodes, `outputs` those of the roots; `centres` and `values` have the
    values of both at x as computed. `before` bounds the distance of the unstable units of a ReLU from the computed centre,
    `after` that of a root from its computed value: in real arithmetic and for the executed network, since every node adds
    what rounding does to it, and earlier errors count as moves. `rounding` is what rounding does to the nodes.
    """

    rounding: Rounding
    inputs: dict[int, Interval] = field(default_factory=dict)
    outputs: dict[int, Interval] = field(default_factory=dict)
    centres: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    before: dict[int, Tensor] = field(default_factory=dict)
    after: dict[int, Tensor] = field(default_factory=dict)
    logits: list[Interval] = field(default_factory=list)

    def bounds(self) -> UnitBounds:
        """The bounds of all units."""
        return UnitBounds(dict(self.inputs), self.logits[0], self.rounding)


#: Tightens the interval of a switching node's input: what is known of earlier nodes, the node, its interval and charge.
Refine = Callable[[Deviations, Node, Interval, Charge], Interval]


@torch.no_grad()
def deviations(
    net: Network, x: Tensor, ball: Ball, known: UnitBounds, refine: Refine | None = None, parts: Parts | None = None
) -> Deviations:
    """How far every node moves, with known bounds of the units; `refine` may tighten those of one node further.

    `parts` are those of this network with the weights it has now, where they have been looked at before. Where the known
    bounds do not charge for rounding, the network is taken to run in the dtype of x.
    """
    executed = x.dtype if known.rounding is None else known.rounding.executed
    moved = Deviations(Rounding.over(x, ball, executed))
    start = _State(State(Interval(*ball.hull(x)).known()), x)
    moved.outputs[0], moved.values[0] = start.state.within, x
    moved.after[0] = input_radius(x, ball)
    intervals = ChargedIntervals(Accuracy(net.graph, moved.rounding))
    rule = _Movement(parts or Parts(net), known, refine, intervals, moved)
    logits = propagate(net.graph, rule, {0: start})[len(net.graph) - 1].state
    moved.rounding.finish(logits)
    moved.logits.append(logits.within.meet(known.logits))
    return moved


class _Units(NamedTuple):
    """How a switching node passes on the moves of its input: by at most `growth` times the l2 norm of slopes times moves.

    `slopes` (batch, units) lie between 0 and 1. `counted` (batch, units) is 1 for the entries that `Deviations.before` bounds.
    A growth of None is 1.
    """

    slopes: Tensor
    counted: Tensor
    growth: float | None = None


class _State(NamedTuple):
    """The interval of a node over the ball with its drift, and the node's computed value at x."""

    state: State
    value: Tensor


@dataclass(frozen=True, eq=False)
class _Movement(ForwardRule[_State]):
    """Intervals and values at x; how far switching nodes move is written into `moved`."""

    parts: Parts
    known: UnitBounds
    refine: Refine | None
    intervals: ChargedIntervals
    moved: Deviations

    def affine(self, node: Node[Affine], inputs: list[_State]) -> _State:
        state = self.intervals.affine(node, [given.state for given in inputs])
        return _State(state, node.op.apply(*(given.value for given in inputs)))

    def preactivation(self, node: Node[Switching], value: _State) -> _State:
        (within, drift), centre, rounding = value.state, value.value, self.moved.rounding
        if drift is None:
            drift = centre.new_zeros(len(centre), 2, *centre.shape[1:])
        within = within.meet(self.known.inputs[node.index])
        within = within.meet(_around(centre, self.parts.reaches(node.inputs[0], self.moved), drift.sum(1)))
        if self.refine is not None:
            within = within.meet(self.refine(self.moved, node, within, rounding.carrying(drift)))
        return _State(self.intervals.preactivation(node, State(within.known(), value.state.drift)), centre)

    def relu(self, node: Node[ReLU], value: _State) -> _State:
        within = value.state.within
        on = torch.ones_like(within.lower).flatten(1).double()
        slopes = torch.where(within.upper.flatten(1) <= 0, node.op.slope, on)
        return self._recorded(node, value, _Units(slopes, within.unstable.flatten(1).double()))

    def max_pool(self, node: Node[MaxPool2d], value: _State) -> _State:
        every = torch.ones_like(value.state.within.lower).flatten(1).double()
        return self._recorded(node, value, _Units(every, every, math.sqrt(node.op.most())))

    def _recorded(self, node: Node[Switching], before: _State, units: _Units) -> _State:
        within = self.intervals.switching(node, before.state).within.known()
        moved, index = self.moved, node.index
        moved.inputs[index], moved.centres[index] = before.state.within, before.value
        moved.outputs[index], moved.values[index] = within, node.op.apply(before.value)
        self.parts.measure(node, moved, units)
        return _State(State(within), moved.values[index])


@torch.no_grad()
def lipschitz_margins(net: Network, moved: Deviations, x: Tensor, ball: Ball, prop: Property) -> Margins:
    """The margins: the property's rows as functionals of the roots, each over a ball of l2 cut with a box."""
    last, rounding = len(net.graph) - 1, moved.rounding
    found = to_roots(net.graph, last, prop.rows)
    total, cost = found.offset, prop.rows.abs() @ rounding.at_logits().drift.mT
    cost[..., 0] += gamma(8, x.dtype) * found.offset.abs() + rounding.lost[:, None]
    for root, rows in found.rows.items():
        flat, centre = rows.flatten(2), moved.values[root].flatten(1)
        size, count = absolute(moved.outputs[root]).flatten(1), math.prod(rows.shape[2:])
        if root == 0:
            least, size = ball.minimum(x, rows).value, rounding.largest
        else:
            below, above = _rooms(moved.values[root], moved.outputs[root])
            least = linear_minimum(rows, 2, cast_up(moved.after[root], x.dtype), below, above)[0]
            least = least * (1 + 2 * relative_rounding(count, x.dtype))
        total = total + (flat @ centre.unsqueeze(2)).squeeze(2) + least
        size = torch.maximum(size, centre.abs())
        # Slacks, no longer than twice these, are lost where they underflow in units of the ball (`Rounding.over`).
        size = size + 2 * count * torch.finfo(x.dtype).tiny * size.amax(1, keepdim=True)
        reach = (flat.abs() @ size.unsqueeze(2)).squeeze(2)
        cost[..., 0] += (rounding.steps + gamma(count + 16, x.dtype)) * reach + gamma(8, x.dtype) * least.abs()
    total = total.nan_to_num(-math.inf, math.inf, -math.inf)
    return Margins.charged(total, cost.nan_to_num(math.inf, math.inf)).plus(prop.offsets)


def input_radius(x: Tensor, ball: Ball) -> Float[Tensor, " batch"]:
    """The radius of a ball of l2 around x that holds the set: from eps, and from the corner of its hull."""
    size = math.prod(x.shape[1:])
    wider = 1.0 if ball.p <= 2 else size ** (0.5 - (0.0 if math.isinf(ball.p) else 1 / ball.p))
    low, high = (side.double() for side in ball.hull(x))
    corner = norm(torch.maximum(high - x.double(), x.double() - low).flatten(1), 2)
    up = 1 + 4 * relative_rounding(size, torch.float64)
    return _least(ball.radii(x.double()) * wider, corner) * up


class Maps:
    """The affine parts of a network in float64, with the weights it had when this was made; each is computed when needed."""

    def __init__(self, net: Network):
        self.graph = copy.deepcopy(net).double().graph
        self.parts: dict[int, AffinePart | None] = {}
        self.nodes: dict[int, float] = {}

    @classmethod
    def of(cls, net: Network) -> Maps:
        """The affine parts of the network with its current weights; computed once as long as the weights stay the same."""
        maps = _MAPS.get(net)
        if maps is None or not maps.holds(net):
            maps = _MAPS[net] = cls(net)
        return maps

    def holds(self, net: Network) -> bool:
        """Whether the weights are still the same, by their values."""
        pairs = zip(self.graph.affine_nodes, net.graph.affine_nodes, strict=True)
        return all(
            own.value.device == now.op.sources()[name].value.device
            and torch.equal(own.value, now.op.sources()[name].value.to(own.value.dtype))
            for kept, now in pairs
            for name, own in kept.op.sources().items()
        )

    def part(self, node: int) -> AffinePart | None:
        """The matrices of a node, or None where they are too large or the node is a root itself."""
        if node not in self.parts:
            self.parts[node] = affine_part(self.graph, node)
        return self.parts[node]


_MAPS: WeakKeyDictionary[Network, Maps] = WeakKeyDictionary()


class Parts:
    """How far the nodes of a network move, by its affine parts; for one batch, whose local norms are remembered."""

    def __init__(self, net: Network):
        self.maps = Maps.of(net)
        self.graph, self.part, self.nodes = self.maps.graph, self.maps.part, self.maps.nodes
        self.local: dict[tuple[int, int, bool], tuple[Tensor, Tensor, Tensor]] = {}

    def reaches(self, node: int, moved: Deviations) -> Tensor:
        """How far every unit of a node can go, (batch, *shape): by the norms of its rows."""
        part, shape = self.part(node), self.graph[node].shape
        if part is None:
            return self.along(node, moved.after).reshape(-1, *[1] * len(shape))
        total = torch.zeros((), dtype=torch.float64)
        for root, matrix in part.matrices.items():
            rows = row_norm_bounds(matrix, _moving(moved.outputs[root])) + part.hidden[root]
            total = total + _times(rows, moved.after[root][:, None])
        return total.reshape(-1, *shape)

    def measure(self, node: Node, moved: Deviations, units: _Units) -> None:
        """Compute `before` and `after` of a switching node whose intervals are known."""
        within, source = moved.inputs[node.index], node.inputs[0]
        part = self.part(source)
        if part is None:
            after = before = self.along(source, moved.after)
        else:
            after = self._across(part, units.slopes, moved, (source, True))
            before = self._across(part, units.counted, moved, (source, units.counted is units.slopes))
            before = torch.minimum(before, after)
        # What rounding does to the node, of the computed centre and of the executed network, is a move of its own.
        drift = moved.rounding.before[node.index].sum(1).double()
        before = before + norm(drift * units.counted, 2)
        after = after + norm(drift * torch.maximum(units.slopes, units.counted), 2)
        if units.growth is not None:
            after = after * units.growth * RAISED
        low, high = _rooms(moved.centres[node.index], within)
        corner = norm(torch.maximum(low, high).flatten(1).double() * units.counted, 2)
        up = 1 + 4 * relative_rounding(corner.numel() + units.slopes.shape[1], torch.float64)
        moved.before[node.index] = _least(before, corner) * up
        low, high = _rooms(moved.values[node.index], moved.outputs[node.index])
        corner = norm(torch.maximum(low, high).flatten(1).double(), 2)
        moved.after[node.index] = _least(after, corner) * up

    def along(self, node: int, after: dict[int, Tensor]) -> Tensor:
        """How far a node moves, from node to node."""
        start = {root: _Move(length) for root, length in after.items()}
        return propagate(self.graph, _NodeByNode(self.nodes), start, [node])[node].length

    def _across(self, part: AffinePart, rows: Tensor, moved: Deviations, key: tuple[int, bool]) -> Tensor:
        """How far the units move together, each times its weight in `rows` (batch, units), between 0 and 1."""
        total = torch.zeros((), dtype=torch.float64)
        for root, matrix in part.matrices.items():
            local = self._local(matrix, part.hidden[root], rows, _moving(moved.outputs[root]), (key[0], root, key[1]))
            total = total + _times(local.clamp(max=part.norms[root]), moved.after[root])
        together = reduce(torch.hypot, [moved.after[root] for root in part.matrices])  # whose squares cannot vanish
        return torch.minimum(total, _times(together, part.joint)) * (1 + gamma(4 * len(part.matrices) + 8))

    def _local(
        self, matrix: Tensor, hidden: float, rows: Tensor, moving: Tensor, key: tuple[int, int, bool]
    ) -> Float[Tensor, " batch"]:
        """Norms local to every example; norms of the same units are computed once."""
        if key not in self.local:
            found = local_norm_bounds(matrix, hidden, rows, moving)
        else:
            old_rows, old_moving, old = self.local[key]
            new = ((rows != old_rows).any(1) | (moving != old_moving).any(1)).nonzero()[:, 0]
            found = old.index_copy(0, new, local_norm_bounds(matrix, hidden, rows[new], moving[new]))
        self.local[key] = rows, moving, found
        return found


class _Move(NamedTuple):
    """How far a node moves in l2 (batch,); behind a convolution also the convolution, and how far its input moves."""

    length: Tensor
    conv: Conv2d | None = None
    before_conv: Tensor | None = None


@dataclass(frozen=True, eq=False)
class _NodeByNode(ForwardRule[_Move]):
    """How far nodes move by the spectral norm of each: the sum over branches for an addition, else
    the norm times the root of the sum of squares.

    `norms` remembers norms by the index of a node, and at minus the index of a batch norm that of convolution and batch norm.
    """

    norms: dict[int, float]

    def affine(self, node: Node[Affine], inputs: list[_Move]) -> _Move:
        lengths = [given.length for given in inputs]
        up = 1 + gamma(4 * len(lengths) + 8)
        if node.op.sums:
            return _Move(torch.stack(lengths).sum(0) * up)
        if node.index not in self.norms:
            self.norms[node.index] = node_bound(node.op, node.shape)
        length = _times(reduce(torch.hypot, lengths), self.norms[node.index]) * up
        if isinstance(node.op, Conv2d):
            return _Move(length, node.op, lengths[0])
        inner = inputs[0]
        if inner.conv is not None and inner.before_conv is not None and isinstance(node.op, BatchNorm):
            if -node.index not in self.norms:
                self.norms[-node.index] = conv_bound(inner.conv, node.op.scale()) * (1 + gamma(node.op.terms))
            length = torch.minimum(length, _times(inner.before_conv, self.norms[-node.index]) * up)
        return _Move(length)


def _moving(within: Interval) -> Bool[Tensor, " batch size"]:
    """The entries that are not known to stay where they are."""
    return (within.upper > within.lower).flatten(1)


def _around(value: Tensor, reach: Tensor, off: Tensor) -> Interval:
    """An interval around a computed value, rounded outwards."""
    wide = (reach + off.double()) * RAISED
    up = cast_up((value.double() + wide).nextafter(torch.full_like(wide, math.inf)), value.dtype)
    return Interval(-cast_up((wide - value.double()).nextafter(torch.full_like(wide, math.inf)), value.dtype), up)


def _rooms(value: Tensor, within: Interval) -> tuple[Tensor, Tensor]:
    """How far below and above a computed value the true ones can be."""
    up = 1 + gamma_above(2, value.dtype)
    return ((value - within.lower) * up).clamp(min=0), ((within.upper - value) * up).clamp(min=0)


def _least(a: Tensor, b: Tensor) -> Tensor:
    """The smaller of two radii; one that is not a number says nothing."""
    return torch.fmin(a, b).nan_to_num(math.inf, math.inf, -math.inf)


def _times(a: Tensor, b: Tensor | float) -> Tensor:
    """A product in which 0 times infinity is 0, as what does not move does not move; what moves is not rounded to 0."""
    nothing = (a == 0) | (torch.as_tensor(b, dtype=a.dtype, device=a.device) == 0)
    return torch.where(nothing, 0.0, (a * b).nan_to_num(nan=math.inf, posinf=math.inf).clamp(min=math.ulp(0.0)))
