"""Networks that are plain chains: affine steps with one weight each, ReLUs between them.

The paper's networks are chains. Nodes around a weight that mix no units (batch norm, scaling, reshapes) are folded into it, so
that a step is one convolution or one matrix, and rows of V can be made by a few large products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from relucert.networks.layers.arithmetic import Scale
from relucert.networks.layers.linear import Conv2d, Linear
from relucert.networks.layers.shapes import Reshape
from relucert.networks.nodes import Affine, ReLU
from relucert.networks.traversal import Graph, Node

Weighted = Conv2d | Linear


@dataclass(frozen=True, eq=False)
class Step:
    """One affine step of a chain: nodes before the weight, the weight, nodes behind it; then a ReLU, or the logits.

    `slope` is that of the ReLU for negative numbers, None for the logits; `shape` is that of the step's value.
    """

    before: tuple[Node[Affine], ...]
    core: Node[Weighted]
    behind: tuple[Node[Affine], ...]
    slope: float | None
    shape: tuple[int, ...]

    @property
    def conv(self) -> Conv2d | None:
        """The convolution, if the step is one."""
        return self.core.op if isinstance(self.core.op, Conv2d) else None

    @property
    def last(self) -> int:
        """The node with the step's value, before the ReLU."""
        return self.behind[-1].index if self.behind else self.core.index

    def weight(self) -> Tensor:
        """The weight with everything around it folded in: (out, in, height, width) or (out, in)."""
        like = self.core.op.weight.value
        return self.core.op.folded(_factors(self.before, like), _factors(self.behind, like))

    def offset(self, like: Tensor) -> Tensor:
        """The value that the step has where the input of its weight is zero: (1, *shape), in the dtype of `like`."""
        value = self.core.op.offset(like)
        for node in self.behind:
            value = node.op.apply(value)
        return value


def _factors(nodes: tuple[Node[Affine], ...], like: Tensor) -> Tensor | None:
    """The product of the factors of diagonal nodes, in the shape of their value; None where all factors are 1."""
    factors: Tensor | None = None
    for node in nodes:
        if not node.op.diagonal:
            factors = None if factors is None else factors.reshape(node.shape)
        elif not node.op.isometric:
            own = node.op.linear(torch.ones(1, *node.shape, dtype=like.dtype, device=like.device))[0]
            factors = own if factors is None else factors * own
    return factors


def chain(graph: Graph) -> list[Step] | None:
    """The steps of a network that is a plain chain, or None if it is not one."""
    steps: list[Step] = []
    before: list[Node[Affine]] = []
    core: Node[Weighted] | None = None
    behind: list[Node[Affine]] = []
    for node in graph.nodes[1:]:  # recognises a form, node by node; no value is propagated
        if node.inputs != (node.index - 1,):
            return None
        op = node.op
        if isinstance(op, ReLU):
            if core is None:
                return None
            steps.append(Step(tuple(before), core, tuple(behind), op.slope, node.shape))
            before, core, behind = [], None, []
        elif isinstance(op, Conv2d | Linear):
            if core is not None or not op.mixes_all:
                return None
            core = cast("Node[Weighted]", node)
        elif isinstance(op, Affine) and (op.diagonal or isinstance(op, Reshape)):
            (before if core is None else behind).append(cast("Node[Affine]", node))
        else:
            return None
    if core is None:
        return None
    steps.append(Step(tuple(before), core, tuple(behind), None, graph[-1].shape))
    return steps if all(_foldable(step) for step in steps) else None


def _foldable(step: Step) -> bool:
    """Whether factors around a convolution are the same all over a channel, and nothing changes its shape."""
    around = (*step.before, *step.behind)
    return step.conv is None or all(node.op.diagonal and _by_channel(node.op) for node in around)


def _by_channel(op: Affine) -> bool:
    """Whether a diagonal node multiplies all entries of a channel by the same factor."""
    constant = op.constant.value if isinstance(op, Scale) else None
    return not (isinstance(constant, Tensor) and constant.dim() and constant.shape[-2:].numel() > 1)
