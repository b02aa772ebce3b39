"""Affine parts of a network: the map from roots to a node as an operator or a matrix, and the steps of plain chains.

Between switching nodes a network is affine, whatever lies there: convolutions, normalisations, residual sums. The roots of a
node are the input and the switching nodes that it reads through affine nodes alone:

    z_node = sum over roots r of A_r z_r + b.

`to_roots` applies the adjoints to functionals, `root_matrices` writes the A_r out in rows; `networks/sparse_maps.py` has them
as sparse matrices. Units of ReLUs whose slope is known count as affine where `slopes` says so. Rows of two convolutions on
their receptive fields are in `networks/patches.py`.

The paper's networks are plain chains (`chain`): affine steps with one weight each, ReLUs between them. Nodes around a weight
that mix no units (batch norm, scaling, reshapes) are folded into it, so that a step is one convolution or one matrix, and rows
of V can be made by a few large products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from relucert.networks.layers.arithmetic import Scale
from relucert.networks.layers.linear import Conv2d, Linear
from relucert.networks.layers.shapes import Reshape
from relucert.networks.nodes import Affine, ReLU, Switching
from relucert.networks.traversal import (
    BackwardRule,
    Graph,
    Node,
    affine_ancestors,
    propagate_back,
)

Weighted = Conv2d | Linear
Array = NDArray[np.float64]
PIECE = 2**27  # bytes of the rows that are made at once


@dataclass(frozen=True, eq=False)
class Functionals:
    """Functionals of a node's value as functionals of the roots: `sum over roots r of rows[r] z_r + offset`.

    Rows are (batch, rows, *shape of the root), by the root's index, 0 for the input.
    """

    rows: dict[int, Tensor]
    offset: Float[Tensor, " batch rows"]


def to_roots(
    graph: Graph, node: int, rows: Float[Tensor, " batch rows *shape"], slopes: Mapping[int, Tensor] | None = None
) -> Functionals:
    """Functionals of a node's value as functionals of the roots before it; of a root, its own.

    `slopes` (batch, *shape) of ReLUs, by index: a unit with a slope other than zero is linear, and functionals go on through
    it to the roots before. All functionals of the ReLU are in `rows` nevertheless.
    """
    rule = _ToRoots(slopes or {}, rows.new_zeros(rows.shape[:2]))
    direct = propagate_back(graph, rule, node, rows)
    return Functionals(rule.rows if direct is None else rule.rows | {0: direct}, rule.offset)


class _ToRoots(BackwardRule[Tensor]):
    """The adjoint of affine nodes; the functionals of switching nodes are kept in `rows`, and end there without a slope."""

    def __init__(self, slopes: Mapping[int, Tensor], offset: Tensor):
        self.slopes, self.offset = slopes, offset
        self.rows: dict[int, Tensor] = {}

    def affine(self, node: Node[Affine], value: Tensor) -> tuple[Tensor, ...]:
        self.offset = self.offset + offset_of_rows(node.op, value)
        return transpose_rows(node.op, value)

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor | None:
        self.rows[node.index] = value
        slopes = self.slopes.get(node.index)
        return None if slopes is None else value * slopes.unsqueeze(1)


def transpose_rows(op: Affine, rows: Tensor) -> tuple[Tensor, ...]:
    """The adjoint of an affine node applied to functionals (batch, rows, *shape): A' c, one tensor for each input."""
    return tuple(part.reshape(*rows.shape[:2], *part.shape[1:]) for part in op.transpose(rows.flatten(0, 1)))


def offset_of_rows(op: Affine, rows: Float[Tensor, " batch rows *shape"]) -> Float[Tensor, " batch rows"]:
    """The values `<c, b>` of functionals c at the offset of an affine node."""
    if op.homogeneous:
        return rows.new_zeros(rows.shape[:2])
    return (rows.flatten(2) @ op.offset(rows).flatten()).reshape(rows.shape[:2])


def one_hot(places: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Functionals `(*places.shape, *shape)` that pick out the entries at flat `places`."""
    size = 1
    for axis in shape:
        size *= axis
    picked = torch.zeros(*places.shape, size, dtype=dtype, device=places.device)
    return picked.scatter_(-1, places.unsqueeze(-1), 1.0).reshape(*places.shape, *shape)


def matrix_rows(
    graph: Graph, node: int, units: Int[Tensor, " batch units"]
) -> tuple[Float[Tensor, " batch units size"], Float[Tensor, " batch units"]] | None:
    """The rows and offsets of units of a node that is one matrix behind an input with one axis; None of other nodes."""
    op = graph[node].op
    if not isinstance(op, Affine) or len(op.in_shapes[0]) != 1:
        return None
    matrix = op.matrix()
    return None if matrix is None else (matrix[units], op.offset(matrix).flatten()[units])


@torch.no_grad()
def root_matrices(graph: Graph, node: int) -> dict[int, Float[Tensor, " units size"]]:
    """The matrices A_r of an affine node of a float64 graph, everything between multiplied out, by the root's index."""
    inside, roots = affine_ancestors(graph, node)
    shape = graph[node].shape
    widest = max(math.prod(graph[index].shape) for index in [*(inner.index for inner in inside), *roots])
    device = next((source.value.device for inner in inside for source in inner.op.sources().values()), None)
    pieces: dict[int, list[Tensor]] = {root: [] for root in roots}
    for units in torch.arange(math.prod(shape), device=device).split(max(1, PIECE // (48 * widest))):
        for root, rows in to_roots(graph, node, one_hot(units[None], shape, torch.float64)).rows.items():
            pieces[root].append(rows[0].flatten(1))
    return {root: torch.cat(rows) for root, rows in pieces.items()}


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


def leading_convolution(graph: Graph, node: int) -> Step | None:
    """The nodes from the input to a node as one step, if they are a plain chain with one convolution; else None."""
    nodes, place = [], node
    while place != 0:
        if len(graph[place].inputs) != 1:
            return None
        nodes.append(graph[place])
        place = graph[place].inputs[0]
    nodes.reverse()
    cores = [place for place, each in enumerate(nodes) if isinstance(each.op, Conv2d)]
    if len(cores) != 1 or not all(each.is_affine for each in nodes):
        return None
    before, core, behind = nodes[: cores[0]], nodes[cores[0]], nodes[cores[0] + 1 :]
    step = Step(tuple(before), core, tuple(behind), None, graph[node].shape)
    return step if _foldable(step) else None


def _foldable(step: Step) -> bool:
    """Whether factors around a convolution are the same all over a channel, and nothing changes its shape."""
    around = (*step.before, *step.behind)
    return step.conv is None or all(node.op.diagonal and _by_channel(node.op) for node in around)


def _by_channel(op: Affine) -> bool:
    """Whether a diagonal node multiplies all entries of a channel by the same factor."""
    constant = op.constant.value if isinstance(op, Scale) else None
    return not (isinstance(constant, Tensor) and constant.dim() and constant.shape[-2:].numel() > 1)
