"""Networks that are plain chains: affine steps with one weight each, ReLUs between them.

The paper's networks are of this kind. What stands around a weight without mixing units (batch norm, scaling, reshapes)
is folded into it, so that a step is one convolution or one matrix, and rows of V can be made by a few large products.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relucert.networks.affine import Affine, BatchNorm, Conv2d, Linear, Scale, Shift
from relucert.networks.graph import Graph, Node
from relucert.networks.switching import ReLU
from relucert.networks.unweighted import Reshape

Elementwise = BatchNorm | Scale | Shift


@dataclass(frozen=True, eq=False)
class Step:
    """One affine step of a chain: nodes before the weight, the weight, nodes behind it; then a ReLU, or the logits."""

    before: tuple[Node, ...]
    core: Node
    behind: tuple[Node, ...]
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
        op = self.core.op
        assert isinstance(op, Conv2d | Linear)
        weight = op.weight.value
        pre = _factors(self.before, weight)
        post = _factors(self.behind, weight)
        if isinstance(op, Linear):
            if pre is not None:
                weight = weight * pre.flatten()
            return weight if post is None else weight * post.flatten()[:, None]
        if op.groups > 1:
            weight = _ungrouped(weight, op.groups)
        if pre is not None:
            weight = weight * pre[:, 0, 0][None, :, None, None]
        return weight if post is None else weight * post[:, 0, 0][:, None, None, None]


def _factors(nodes: tuple[Node, ...], like: Tensor) -> Tensor | None:
    """The product of what elementwise nodes multiply with, in the shape of their value; None if that is nothing."""
    factors: Tensor | None = None
    for node in nodes:
        if isinstance(node.op, Reshape):
            factors = None if factors is None else factors.reshape(node.shape)
        elif isinstance(node.op, BatchNorm | Scale):
            ones = torch.ones(1, *node.shape, dtype=like.dtype, device=like.device)
            here = node.op.linear(ones)[0]
            factors = here if factors is None else factors * here
    return factors


def _ungrouped(weight: Tensor, groups: int) -> Tensor:
    """A grouped convolution as an ordinary one with zeros."""
    rows, columns = len(weight) // groups, weight.shape[1]
    whole = weight.new_zeros(len(weight), columns * groups, *weight.shape[2:])
    for i, part in enumerate(weight.chunk(groups)):
        whole[i * rows : (i + 1) * rows, i * columns : (i + 1) * columns] = part
    return whole


def chain(graph: Graph) -> list[Step] | None:
    """The steps of a network that is a plain chain, or None if it is not one."""
    steps: list[Step] = []
    before: list[Node] = []
    core: Node | None = None
    behind: list[Node] = []
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
            if core is not None or (isinstance(op, Linear) and len(op.in_shapes[0]) != 1):
                return None
            core = node
        elif isinstance(op, Elementwise | Reshape):
            (before if core is None else behind).append(node)
        else:
            return None
    if core is None:
        return None
    steps.append(Step(tuple(before), core, tuple(behind), None, graph[-1].shape))
    return steps if all(_foldable(step) for step in steps) else None


def _foldable(step: Step) -> bool:
    """Whether what stands around a convolution is the same all over a channel, and nothing changes its shape."""
    if step.conv is None:
        return True
    for node in (*step.before, *step.behind):
        op = node.op
        assert isinstance(op, Affine)
        if isinstance(op, Reshape):
            return False
        if isinstance(op, Scale):
            constant = op.constant.value
            if isinstance(constant, Tensor) and constant.dim() and constant.shape[-2:].numel() > 1:
                return False
    return True
