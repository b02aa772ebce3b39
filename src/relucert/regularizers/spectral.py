"""An estimate of the network's Lipschitz constant in l2, the product of spectral norms, for training.

Power iteration approaches a norm from below, so the estimate proves nothing; `relucert.certify(..., "lipschitz")` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.networks.network import Network
from relucert.networks.nodes import Affine, MaxPool2d, ReLU
from relucert.networks.traversal import ForwardRule, Node, propagate

ITERATIONS = 10


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
    rule = _LipschitzRule(net, generator, iterations, first)
    return propagate(net.graph, rule, {0: first.new_ones(())})[len(net.graph) - 1]


@dataclass(frozen=True, eq=False)
class _LipschitzRule(ForwardRule[Tensor]):
    """Estimate of the Lipschitz constant of every node in l2."""

    net: Network
    generator: torch.Generator
    iterations: int
    like: Tensor

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        if node.op.sums:
            return torch.stack(inputs).sum()
        together = inputs[0] if len(inputs) == 1 else torch.stack(inputs).square().sum().sqrt()
        fixed = node.op.fixed_norm()
        if fixed is not None:
            return together * fixed
        return together * _estimate(self.net, node, self.generator, self.iterations, self.like)

    def relu(self, node: Node[ReLU], value: Tensor) -> Tensor:
        return value

    def max_pool(self, node: Node[MaxPool2d], value: Tensor) -> Tensor:
        return value * math.sqrt(node.op.most())


def _estimate(net: Network, node: Node[Affine], generator: torch.Generator, iterations: int, like: Tensor) -> Tensor:
    """The spectral norm of one affine node from below: ||A v|| for a unit vector v from power iteration."""
    op = node.op
    vectors = [torch.randn(1, *net.graph[i].shape, generator=generator).to(like) for i in node.inputs]
    zeros = [torch.zeros_like(vector) for vector in vectors]
    with torch.no_grad():
        for _ in range(iterations):
            back = op.transpose(op.apply(*vectors) - op.apply(*zeros))
            length = torch.stack([part.norm() for part in back]).norm().clamp(min=torch.finfo(like.dtype).tiny)
            vectors = [part / length for part in back]
    return (op.apply(*vectors) - op.apply(*zeros)).norm()
