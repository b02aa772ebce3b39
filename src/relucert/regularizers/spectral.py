"""How far the logits can move for an input that moves by one in l2, from spectral norms: an estimate to train with.

Power iteration approaches a norm from below, so nothing is proved here: `relucert.certify(..., "lipschitz")` proves.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.networks.affine import Affine, Gather
from relucert.networks.graph import Node
from relucert.networks.network import Network
from relucert.networks.switching import MaxPool2d
from relucert.networks.unweighted import Add, Concat

ITERATIONS = 10
_ISOMETRIC = ("shift", "reshape", "permute", "pad")


def lipschitz_estimate(
    net: Network, generator: torch.Generator | None = None, iterations: int = ITERATIONS
) -> Float[Tensor, ""]:
    """The product of the layers' spectral norms (sums at additions), differentiable in the weights.

    >>> import relucert as rc
    >>> net = rc.build("fc1", (1, 8, 8), 10, seed=0).eval()
    >>> exact = math.prod(float(torch.linalg.matrix_norm(w.detach(), 2)) for w in net.parameters() if w.dim() == 2)
    >>> 0.98 < float(lipschitz_estimate(net, iterations=200).detach()) / exact < 1.0001
    True
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    first = next(net.parameters())
    moves: dict[int, Tensor] = {0: first.new_ones(())}
    for node in net.graph.nodes[1:]:
        given = [moves[i] for i in node.inputs]
        if isinstance(node.op, Add):
            moves[node.index] = torch.stack(given).sum()
        elif isinstance(node.op, Concat):
            moves[node.index] = torch.stack(given).square().sum().sqrt()
        elif isinstance(node.op, MaxPool2d):
            windows = node.op.windows()
            moves[node.index] = given[0] * math.sqrt(int(windows[windows >= 0].bincount().max()))
        elif isinstance(node.op, Gather):
            moves[node.index] = given[0] * math.sqrt(node.op.most())
        elif not isinstance(node.op, Affine) or node.kind in _ISOMETRIC:
            moves[node.index] = given[0]
        else:
            moves[node.index] = given[0] * _estimate(net, node, generator, iterations, first)
    return moves[len(net.graph) - 1]


def _estimate(net: Network, node: Node, generator: torch.Generator, iterations: int, like: Tensor) -> Tensor:
    """The spectral norm of one affine node from below: the length of the image of a vector found by power iteration."""
    op = node.op
    assert isinstance(op, Affine)
    shape = net.graph[node.inputs[0]].shape
    vector = torch.randn(1, *shape, generator=generator).to(like)
    zero = torch.zeros_like(vector)
    with torch.no_grad():
        for _ in range(iterations):
            back = op.transpose(op.apply(vector) - op.apply(zero))[0]
            vector = back / back.norm().clamp(min=torch.finfo(like.dtype).tiny)
    return (op.apply(vector) - op.apply(zero)).norm()
