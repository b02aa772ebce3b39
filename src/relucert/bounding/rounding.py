"""What rounding can do: to the network when it runs, and to the bounds when they are computed.

A verdict speaks of the network of real arithmetic and, besides, of the network as it runs in its own dtype. One operation of n
rounded terms is off by at most gamma_n (|A| |z| + |b|), gamma_n = n u / (1 - n u), in any order of summation, and passes on
|A| times the error that it was given. The absolute values of all nodes over the ball are known from interval bounds.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.interval import Interval, through
from relucert.core.ball import Ball
from relucert.core.norms import dual
from relucert.core.properties import Property
from relucert.networks.affine import Affine
from relucert.networks.network import Network
from relucert.networks.switching import MaxPool2d, ReLU, Switching


@torch.no_grad()
def evaluation_error(
    net: Network,
    x: Float[Tensor, " batch *input"],
    ball: Ball,
    inputs: dict[int, Interval],
    asked: Property,
    dtype: torch.dtype,
) -> Float[Tensor, " batch specs"]:
    """How far the property's margins, evaluated in `dtype` anywhere in the ball, can be from their real values.

    With delta what a node itself rounds, the margin is off by the sum over nodes of J delta, where J is a product of matrices
    and of slopes between the two computations: 1 or s for a ReLU that is on or off in both, anything between otherwise. J is
    known as a centre and a radius, so signs cancel as far as units are stable. `net` and `x` are in float64, `inputs` has
    known intervals of the inputs of switching nodes.
    """
    walked, _, relative = _sizes(net, x, ball, inputs)
    doubt = {index: relative * size for index, size in walked.items()}
    own, stable = _forward(net, x, ball, inputs, torch.finfo(dtype), doubt)
    count, specs = asked.rows.shape[:2]
    centres, radii = {len(net.graph) - 1: asked.rows}, {len(net.graph) - 1: torch.zeros_like(asked.rows)}
    total = x.new_zeros(count, specs)
    for index in range(len(net.graph) - 1, 0, -1):
        if index not in centres:
            continue
        node, centre, radius = net.graph[index], centres.pop(index), radii.pop(index)
        total += ((centre.abs() + radius).flatten(2) @ own[index].expand(count, *node.shape).flatten(1).unsqueeze(2))[
            ..., 0
        ]
        if isinstance(node.op, Affine):
            shapes = [net.graph[source].shape for source in node.inputs]
            moved = [part.unflatten(0, (count, specs)) for part in node.op.transpose(centre.flatten(0, 1))]
            spread = [part.unflatten(0, (count, specs)) for part in _absolute_transpose(node.op, shapes, radius)]
        elif isinstance(node.op, ReLU):
            on, off = (part.unsqueeze(1) for part in stable[index])
            between = x.new_tensor((1 + node.op.slope) / 2)  # tensors: plain numbers would be rounded to float32
            middle = torch.where(on, x.new_ones(()), torch.where(off, x.new_tensor(node.op.slope), between))
            half = torch.where(on | off, x.new_zeros(()), x.new_tensor((1 - node.op.slope) / 2))
            moved, spread = [centre * middle], [radius * (middle + half) + centre.abs() * half]
        else:  # of a maximum every entry may be the one that moves
            assert isinstance(node.op, MaxPool2d)
            moved = [x.new_zeros(count, specs, *net.graph[node.inputs[0]].shape)]
            spread = [_to_windows(node.op, centre.abs() + radius)]
        for source, one, other in zip(node.inputs, moved, spread, strict=True):
            centres[source] = centres[source] + one if source in centres else one
            radii[source] = radii[source] + other if source in radii else other
    sizes = own[-1].unsqueeze(2)
    # The difference of two logits is compared with zero, not computed: its own rounding cannot change the sign; offsets can.
    unit = torch.finfo(dtype).eps / 2
    compared = (asked.rows.abs() @ sizes).squeeze(2) * (asked.offsets != 0) + asked.offsets.abs()
    # One more per cent pays for the rounding of all this.
    return 1.01 * total + 4 * unit * compared


def _forward(
    net: Network, x: Tensor, ball: Ball, inputs: dict[int, Interval], info: torch.finfo, doubt: dict[int, Tensor]
) -> tuple[dict[int, Tensor], dict[int, tuple[Tensor, Tensor]]]:
    """What every node itself rounds at most, at -1 the sizes of the logits; which ReLUs are on and off in spite of rounding."""
    unit = info.eps / 2
    sizes: dict[int, Interval] = {0: Interval(*ball.hull(x))}
    errors: dict[int, Tensor] = {0: torch.zeros_like(x)}
    own: dict[int, Tensor] = {}
    stable: dict[int, tuple[Tensor, Tensor]] = {}
    for node in net.graph.nodes[1:]:
        given, off = [sizes[i] for i in node.inputs], [errors[i] for i in node.inputs]
        if isinstance(node.op, Switching):
            if node.index in inputs:
                given = [given[0].meet(inputs[node.index])]
            if isinstance(node.op, ReLU):
                # A maximum moves no more than its entries do, a ReLU no more than its unit, but a leaky slope is rounded,
                # and so is the product with it.
                rounded = 2 * unit / (1 - 2 * unit) * node.op.slope * _size(given[0], off[0]) + info.tiny
                own[node.index] = rounded * (node.op.slope != 0)
                # The intervals were computed in float64 and have errors of their own.
                sure = off[0] + doubt[node.index]
                stable[node.index] = given[0].lower > sure, given[0].upper < -sure
                error = off[0] + own[node.index]
            else:
                own[node.index] = x.new_zeros(1, *node.shape)
                error = node.op.apply(off[0])
        else:
            assert isinstance(node.op, Affine)
            gamma = node.op.terms * unit / (1 - node.op.terms * unit)
            reach = node.op.magnitude(*(_size(one, e) for one, e in zip(given, off, strict=True)))
            # Beyond the range of the dtype nothing is known of the value.
            own[node.index] = torch.where(reach * (1 + gamma) < info.max, gamma * reach + info.tiny, math.inf)
            error = node.op.absolute(*off) + own[node.index]
        sizes[node.index], errors[node.index] = through(node, given), error
    last = len(net.graph) - 1
    own[-1] = _size(sizes[last], errors[last])
    return own, stable


def _absolute_transpose(op: Affine, shapes: list[tuple[int, ...]], rows: Tensor) -> list[Tensor]:
    """|A|' rows, as the gradient of the linear map |A|; (batch * rows, *shape) for each input."""
    flat = rows.flatten(0, 1)
    with torch.enable_grad():
        given = [flat.new_zeros(len(flat), *shape).requires_grad_() for shape in shapes]
        found = torch.autograd.grad(op.absolute(*given), given, flat)
    return list(found)


def _to_windows(op: MaxPool2d, rows: Float[Tensor, " batch rows channels high wide"]) -> Tensor:
    """What stands at every window, added up at all entries that the window sees."""
    windows = op.windows().to(rows.device)
    height, width = op.in_shape[1:]
    spread = rows.new_zeros(*rows.shape[:3], height * width + 1)
    places = torch.where(windows < 0, height * width, windows)  # what lies in the padding is dropped
    for place in places.T:
        spread.index_add_(3, place, rows.flatten(3))
    return spread[..., :-1].unflatten(3, (height, width))


@torch.no_grad()
def bound_error(
    net: Network, x: Float[Tensor, " batch *input"], ball: Ball, inputs: dict[int, Interval], asked: Property
) -> Float[Tensor, " batch specs"]:
    """How far a margin computed by a walk in float64 can be from what the same walk gives in real arithmetic.

    Every product on the walk is one of an affine node with functionals that grew out of the property's rows by products
    with |A| and slopes of at most 1; offsets of relaxations are at most the upper end of their unit. So the sum of the
    absolute values of everything that is added up is at most what a forward pass with |A|, |b| and doubled
    switches makes of the largest inputs; each takes part in as many roundings as there are terms on its way. The bounds of
    the units, with which lines are drawn, have errors of the same kind: once more for every switching node.
    """
    _, logits, relative = _sizes(net, x, ball, inputs)
    total = (asked.rows.abs() @ logits.unsqueeze(2)).squeeze(2) + asked.offsets.abs()
    return relative * total


@torch.no_grad()
def largest_inputs(
    net: Network, x: Float[Tensor, " batch *input"], ball: Ball, inputs: dict[int, Interval]
) -> tuple[dict[int, Tensor], Float[Tensor, " batch"]]:
    """Sizes of everything that is added up in the input of each switching node, and the relative error of a walk.

    A functional that enters a walk at a unit, with the weight beta, adds at most error * beta * size to the error of the
    margin.
    """
    sizes, _, relative = _sizes(net, x, ball, inputs)
    return sizes, x.new_full((len(x),), relative)


def _sizes(net: Network, x: Tensor, ball: Ball, inputs: dict[int, Interval]) -> tuple[dict[int, Tensor], Tensor, float]:
    """The forward pass of absolute values: before every switching node, at the logits, and the relative error."""
    low, high = ball.hull(x)
    reach: dict[int, Tensor] = {0: torch.maximum(low.abs(), high.abs())}
    before: dict[int, Tensor] = {}
    terms, tiny = math.prod(x.shape[1:]) + 8, torch.finfo(x.dtype).tiny
    # What products that vanish below the smallest number can do: each is at most `tiny`, times the value that it stands at.
    lost = x.new_zeros(len(x))
    for node in net.graph.nodes[1:]:
        given = [reach[i] for i in node.inputs]
        count = max(node.op.terms, node.op.adjoint_terms) if isinstance(node.op, Affine) else 2
        lost = lost + tiny * count * sum(1.0 + part.flatten(1).sum(1) for part in given)
        if isinstance(node.op, Switching):
            if node.index in inputs:
                known = inputs[node.index]
                given = [torch.maximum(given[0], torch.maximum(known.lower.abs(), known.upper.abs()))]
            before[node.index] = given[0]
            reach[node.index] = 2 * node.op.apply(given[0])
            terms += 8
        else:
            assert isinstance(node.op, Affine)
            reach[node.index] = node.op.magnitude(*given)
            terms += count + 8
        for source in set(node.inputs):
            if net.graph.last_use[source] <= node.index:
                del reach[source]
    # Minima over the ball take powers q - 1 for 1 < p < 2, which multiply relative errors.
    powers = dual(ball.p) if 1 < ball.p < 2 else 1.0
    times = 4 * powers * terms * (1 + len(net.switches))
    relative = times * (torch.finfo(torch.float64).eps / 2)
    # In parts of the relative error, so that one number serves callers for both.
    lost = (1 + len(net.switches)) * lost / relative
    before = {index: size + lost.reshape(-1, *(1,) * (size.dim() - 1)) for index, size in before.items()}
    return before, reach[len(net.graph) - 1] + lost[:, None], relative


def _size(within: Interval, error: Tensor) -> Tensor:
    """The largest absolute value, with what rounding has added."""
    return torch.maximum(within.lower.abs(), within.upper.abs()) + error
