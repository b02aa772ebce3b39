"""What rounding can do: to the network when it runs, and to the bounds when they are computed.

A verdict speaks of the network of real arithmetic and, besides, of the network as it runs in its own dtype. One operation of n
rounded terms is off by at most gamma_n (|A| |z| + |b|), gamma_n = n u / (1 - n u), in any order of summation, and passes on
|A| times the error that it was given. The absolute values of all nodes over the ball are known from interval bounds.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.intervals import Interval, through
from relucert.core.ball import Ball
from relucert.core.norms import dual
from relucert.core.properties import Property
from relucert.networks.affine import Affine
from relucert.networks.network import Network
from relucert.networks.switching import Switching


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

    `net` and `x` are in float64, `inputs` has known intervals of the inputs of switching nodes.
    """
    unit = torch.finfo(dtype).eps / 2
    sizes: dict[int, Interval] = {0: Interval(*ball.hull(x))}
    errors: dict[int, Tensor] = {0: torch.zeros_like(x)}
    for node in net.graph.nodes[1:]:
        given, off = [sizes[i] for i in node.inputs], [errors[i] for i in node.inputs]
        if isinstance(node.op, Switching):
            if node.index in inputs:
                given = [given[0].meet(inputs[node.index])]
            # A maximum moves no more than its entries do, a ReLU no more than its unit, but a leaky slope rounds once.
            relu = node.kind == "relu"
            error = off[0] + unit * _size(given[0], off[0]) if relu else node.op.apply(off[0])
        else:
            assert isinstance(node.op, Affine)
            gamma = node.op.terms * unit / (1 - node.op.terms * unit)
            reach = node.op.magnitude(*(_size(one, e) for one, e in zip(given, off, strict=True)))
            error = node.op.absolute(*off) + gamma * reach + torch.finfo(dtype).tiny
        sizes[node.index], errors[node.index] = through(node, given), error
        for source in set(node.inputs):
            if net.graph.last_use[source] <= node.index:
                del sizes[source], errors[source]
    last = len(net.graph) - 1
    weights = asked.rows.abs()
    logits = weights @ errors[last].unsqueeze(2)
    own = weights @ _size(sizes[last], errors[last]).unsqueeze(2)
    # The difference of two logits is compared with zero, not computed: its own rounding cannot change the sign; offsets can.
    return (2 * logits.squeeze(2)) + 4 * unit * (own.squeeze(2) * (asked.offsets != 0) + asked.offsets.abs())


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
    low, high = ball.hull(x)
    reach: dict[int, Tensor] = {0: torch.maximum(low.abs(), high.abs())}
    terms = x[0].numel() + 8
    for node in net.graph.nodes[1:]:
        given = [reach[i] for i in node.inputs]
        if isinstance(node.op, Switching):
            if node.index in inputs:
                known = inputs[node.index]
                given = [torch.maximum(given[0], torch.maximum(known.lower.abs(), known.upper.abs()))]
            reach[node.index] = 2 * node.op.apply(given[0])
            terms += 8
        else:
            assert isinstance(node.op, Affine)
            reach[node.index] = node.op.magnitude(*given)
            terms += node.op.terms + 8
        for source in set(node.inputs):
            if net.graph.last_use[source] <= node.index:
                del reach[source]
    total = (asked.rows.abs() @ reach[len(net.graph) - 1].unsqueeze(2)).squeeze(2) + asked.offsets.abs()
    # Minima over the ball take powers q - 1 for 1 < p < 2, which multiply relative errors.
    powers = dual(ball.p) if 1 < ball.p < 2 else 1.0
    times = 4 * powers * terms * (1 + len(net.switches))
    return times * (torch.finfo(torch.float64).eps / 2) * total


def _size(within: Interval, error: Tensor) -> Tensor:
    """The largest absolute value, with what rounding has added."""
    return torch.maximum(within.lower.abs(), within.upper.abs()) + error
