"""Rounding errors over a ball: of the network when it runs in its dtype, and of bounds computed in float64.

A verdict speaks of the network of real arithmetic and, besides, of the network as it runs in its own dtype. One operation of n
rounded terms is off by at most gamma_n (|A| |z| + |b|), gamma_n = n u / (1 - n u), in any order of summation, and passes on
|A| times the error that it was given. The absolute values of all nodes over the ball are known from interval bounds.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.interval import Interval, IntervalPropagation
from relucert.core.ball import Ball
from relucert.core.norms import dual
from relucert.core.properties import Property
from relucert.core.rounding import gamma, unit_roundoff
from relucert.networks.affine_map import transpose_rows
from relucert.networks.network import Network
from relucert.networks.nodes import Affine, MaxPool2d, ReLU, Switching
from relucert.networks.traversal import BackwardRule, ForwardRule, Graph, Node, propagate, propagate_back


@torch.no_grad()
def evaluation_error(
    net: Network,
    x: Float[Tensor, " batch *input"],
    ball: Ball,
    inputs: dict[int, Interval],
    prop: Property,
    dtype: torch.dtype,
) -> Float[Tensor, " batch specs"]:
    """The evaluation error of the property's margins in `dtype`: the largest distance to their real values in the ball.

    With delta what a node itself rounds, the margin is off by the sum over nodes of J delta, where J is a product of matrices
    and of slopes between the two computations: 1 or s for a ReLU that is on or off in both, anything between otherwise. J is
    known as a centre and a radius, so signs cancel as far as units are stable. `net` and `x` are in float64, `inputs` has
    known intervals of the inputs of switching nodes.
    """
    sizes, _, relative = _sizes(net, x, ball, inputs)
    doubt = {index: relative * size for index, size in sizes.items()}
    forward = _OwnErrors(inputs, dtype, doubt)
    start = Interval(*ball.hull(x)), torch.zeros_like(x)
    within, error = propagate(net.graph, forward, {0: start})[len(net.graph) - 1]
    backward = _Amplification(net.graph, forward.own, forward.stable, x.new_zeros(prop.rows.shape[:2]))
    propagate_back(net.graph, backward, len(net.graph) - 1, (prop.rows, torch.zeros_like(prop.rows)))
    # The difference of two logits is compared with zero, not computed: its own rounding cannot change the sign; offsets can.
    sizes = (prop.rows.abs() @ _size(within, error).unsqueeze(2)).squeeze(2)
    compared = sizes * (prop.offsets != 0) + prop.offsets.abs()
    # One more per cent pays for the rounding of all this.
    return 1.01 * backward.total + 4 * unit_roundoff(dtype) * compared


class _OwnErrors(ForwardRule[tuple[Interval, Tensor]]):
    """The interval of every node, and how far its value may be off in a dtype.

    `own` has what every node itself rounds at most, `stable` which ReLUs are on and which are off in spite of rounding.
    """

    def __init__(self, inputs: dict[int, Interval], dtype: torch.dtype, doubt: dict[int, Tensor]):
        self.inputs, self.dtype, self.info, self.doubt = inputs, dtype, torch.finfo(dtype), doubt
        self.intervals = IntervalPropagation()
        self.own: dict[int, Tensor] = {}
        self.stable: dict[int, tuple[Tensor, Tensor]] = {}

    def affine(self, node: Node[Affine], inputs: list[tuple[Interval, Tensor]]) -> tuple[Interval, Tensor]:
        relative = gamma(node.op.terms, self.dtype)
        reach = node.op.magnitude(*(_size(*given) for given in inputs))
        # Beyond the range of the dtype nothing is known of the value.
        own = torch.where(reach * (1 + relative) < self.info.max, relative * reach + self.info.tiny, math.inf)
        self.own[node.index] = own
        error = node.op.absolute(*(off for _, off in inputs)) + own
        return self.intervals.affine(node, [within for within, _ in inputs]), error

    def relu(self, node: Node[ReLU], value: tuple[Interval, Tensor]) -> tuple[Interval, Tensor]:
        off, within = value[1], self._known(node, value[0])
        # A ReLU moves no more than its unit, but a leaky slope is rounded, and so is the product with it.
        rounded = gamma(2, self.dtype) * node.op.slope * _size(within, off) + self.info.tiny
        self.own[node.index] = rounded * (node.op.slope != 0)
        # The intervals were computed in float64 and have errors of their own.
        sure = off + self.doubt[node.index]
        self.stable[node.index] = within.lower > sure, within.upper < -sure
        return self.intervals.relu(node, within), off + self.own[node.index]

    def max_pool(self, node: Node[MaxPool2d], value: tuple[Interval, Tensor]) -> tuple[Interval, Tensor]:
        self.own[node.index] = value[1].new_zeros(1, *node.shape)  # a maximum moves no more than its entries do
        return self.intervals.max_pool(node, self._known(node, value[0])), node.op.apply(value[1])

    def _known(self, node: Node[Switching], within: Interval) -> Interval:
        return within.meet(self.inputs[node.index]) if node.index in self.inputs else within


class _Amplification(BackwardRule[tuple[Tensor, Tensor]]):
    """The factors J between a node's error and the margins' as centre and radius, (batch, specs, *shape) each.

    `total` adds up what the nodes' own errors make of the margins'.
    """

    def __init__(self, graph: Graph, own: dict[int, Tensor], stable: dict[int, tuple[Tensor, Tensor]], total: Tensor):
        self.graph, self.own, self.stable, self.total = graph, own, stable, total

    def affine(self, node: Node[Affine], value: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], ...]:
        self._count(node, value)
        shapes = [self.graph[source].shape for source in node.inputs]
        spread = _absolute_transpose(node.op, shapes, value[1])
        moved = transpose_rows(node.op, value[0])
        return tuple(zip(moved, (part.unflatten(0, value[1].shape[:2]) for part in spread), strict=True))

    def relu(self, node: Node[ReLU], value: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        self._count(node, value)
        (centre, radius), slope = value, node.op.slope
        on, off = (part.unsqueeze(1) for part in self.stable[node.index])
        between = centre.new_tensor((1 + slope) / 2)  # tensors: plain numbers would be rounded to float32
        middle = torch.where(on, centre.new_ones(()), torch.where(off, centre.new_tensor(slope), between))
        half = torch.where(on | off, centre.new_zeros(()), centre.new_tensor((1 - slope) / 2))
        return centre * middle, radius * (middle + half) + centre.abs() * half

    def max_pool(self, node: Node[MaxPool2d], value: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        self._count(node, value)  # every entry of a window may be the one that moves
        spread = _to_windows(node.op, value[0].abs() + value[1])
        return torch.zeros_like(spread), spread

    def add(self, one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return one[0] + other[0], one[1] + other[1]

    def _count(self, node: Node, value: tuple[Tensor, Tensor]) -> None:
        own = self.own[node.index].expand(len(self.total), *node.shape).flatten(1)
        self.total += ((value[0].abs() + value[1]).flatten(2) @ own.unsqueeze(2))[..., 0]


def _absolute_transpose(op: Affine, shapes: list[tuple[int, ...]], rows: Tensor) -> list[Tensor]:
    """|A|' rows, as the gradient of the linear map |A|; (batch * rows, *shape) for each input."""
    flat = rows.flatten(0, 1)
    with torch.enable_grad():
        given = [flat.new_zeros(len(flat), *shape).requires_grad_() for shape in shapes]
        return list(torch.autograd.grad(op.absolute(*given), given, flat))


def _to_windows(op: MaxPool2d, rows: Float[Tensor, " batch rows channels high wide"]) -> Tensor:
    """The values of all windows that see an entry, summed at the entry."""
    windows = op.windows().to(rows.device)
    height, width = op.in_shape[1:]
    spread = rows.new_zeros(*rows.shape[:3], height * width + 1)
    places = torch.where(windows < 0, height * width, windows)  # what lies in the padding is dropped
    for place in places.T:
        spread.index_add_(3, place, rows.flatten(3))
    return spread[..., :-1].unflatten(3, (height, width))


@torch.no_grad()
def bound_error(
    net: Network, x: Float[Tensor, " batch *input"], ball: Ball, inputs: dict[int, Interval], prop: Property
) -> Float[Tensor, " batch specs"]:
    """The rounding error of margins that backward propagation computes in float64.

    Every product of backward propagation is one of an affine node with functionals made of the property's rows by products with
    |A| and slopes of at most 1; offsets of relaxations are at most the upper bound of their unit. So the sum of the absolute
    values of all summands is at most the value of a forward pass of the largest inputs with |A|, |b| and doubled switching
    nodes; each summand takes part in as many roundings as there are terms between it and the input. The bounds of the units,
    which relaxations are made of, have errors of the same kind: once more for every switching node.
    """
    _, logits, relative = _sizes(net, x, ball, inputs)
    total = (prop.rows.abs() @ logits.unsqueeze(2)).squeeze(2) + prop.offsets.abs()
    return relative * total


@torch.no_grad()
def largest_inputs(
    net: Network, x: Float[Tensor, " batch *input"], ball: Ball, inputs: dict[int, Interval]
) -> tuple[dict[int, Tensor], Float[Tensor, " batch"]]:
    """The sums of absolute summands in the input of each switching node, and the relative error of backward propagation.

    A functional that is added at a unit with the weight beta, as for a split, adds at most error * beta * size to the error of
    the margin.
    """
    sizes, _, relative = _sizes(net, x, ball, inputs)
    return sizes, x.new_full((len(x),), relative)


def _sizes(net: Network, x: Tensor, ball: Ball, inputs: dict[int, Interval]) -> tuple[dict[int, Tensor], Tensor, float]:
    """The forward pass of absolute values: before every switching node, at the logits, and the relative error."""
    low, high = ball.hull(x)
    rule = _Sizes(inputs, math.prod(x.shape[1:]) + 8, x.new_zeros(len(x)))
    logits = propagate(net.graph, rule, {0: torch.maximum(low.abs(), high.abs())})[len(net.graph) - 1]
    # Minima over the ball take powers q - 1 for 1 < p < 2, which multiply relative errors.
    powers = dual(ball.p) if 1 < ball.p < 2 else 1.0
    times = 4 * powers * rule.terms * (1 + len(net.switches))
    relative = times * unit_roundoff()
    # In parts of the relative error, so that one number serves callers for both.
    lost = (1 + len(net.switches)) * rule.lost / relative
    before = {index: size + lost.reshape(-1, *(1,) * (size.dim() - 1)) for index, size in rule.before.items()}
    return before, logits + lost[:, None], relative


class _Sizes(ForwardRule[Tensor]):
    """Bounds on the sums of absolute summands in every node, with doubled switching nodes.

    `before` has those of the inputs of switching nodes, `terms` counts the roundings. `lost` bounds the effect of products
    that vanish below the smallest number of the dtype: each is at most `tiny`, times the value that it stands at.
    """

    def __init__(self, inputs: dict[int, Interval], terms: int, lost: Tensor):
        self.inputs, self.terms, self.lost = inputs, terms, lost
        self.before: dict[int, Tensor] = {}

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        count = max(node.op.terms, node.op.adjoint_terms)
        self._lose(count, inputs)
        self.terms += count + 8
        return node.op.magnitude(*inputs)

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor:
        self._lose(2, [value])
        self.terms += 8
        if node.index in self.inputs:
            known = self.inputs[node.index]
            value = torch.maximum(value, torch.maximum(known.lower.abs(), known.upper.abs()))
        self.before[node.index] = value
        return 2 * node.op.apply(value)

    def _lose(self, count: int, inputs: list[Tensor]) -> None:
        tiny = torch.finfo(self.lost.dtype).tiny
        self.lost = self.lost + tiny * count * sum(1.0 + part.flatten(1).sum(1) for part in inputs)


def _size(within: Interval, error: Tensor) -> Tensor:
    """The largest absolute value, with what rounding has added."""
    return torch.maximum(within.lower.abs(), within.upper.abs()) + error
