"""The affine map of a network once its activation pattern is fixed: f(z) = V z + a (section 2 of the paper).

With the pattern of x held fixed every node is an affine function of the input, on the region Q(x) the network's own. The
map is never written out: values go forward through the graph, rows of V go backward from any node to the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.rounding import gamma, unit_roundoff
from relucert.networks.affine_map import transpose_rows
from relucert.networks.nodes import Affine, Switching
from relucert.networks.traversal import (
    BackwardRule,
    ForwardRule,
    Graph,
    Node,
    affine_ancestors,
    propagate,
    propagate_back,
)

Patterns = list[Tensor]


@dataclass(frozen=True, eq=False)
class LinearMap:
    """The affine map of a graph under one pattern for each example; `patterns` has an entry for every switching node."""

    graph: Graph
    patterns: Patterns

    def __len__(self) -> int:
        return len(self.patterns[0]) if self.patterns else 1

    def restrict(self, index: Tensor) -> LinearMap:
        """The maps of some of the examples; an index may occur more than once."""
        return LinearMap(self.graph, [pattern[index] for pattern in self.patterns])

    def values(self, z: Float[Tensor, " batch *input"], keep: Sequence[int]) -> dict[int, Tensor]:
        """The values V z + a of the nodes in `keep`, at inputs that need not lie in the region."""
        return propagate(self.graph, _Values(self._by_node()), {0: z}, keep)

    def push(self, directions: Float[Tensor, " batch *input"], keep: Sequence[int]) -> dict[int, Tensor]:
        """How the nodes in `keep` change along a direction: V d."""
        return propagate(self.graph, _Directions(self._by_node()), {0: directions}, keep)

    def values_with_errors(
        self, z: Float[Tensor, " batch *input"], keep: Sequence[int]
    ) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """The values of nodes, and bounds on how far rounding has taken each of them from V z + a in real arithmetic.

        One operation of n rounded terms is off by at most `gamma_n (|A| |z| + |b|)`, `gamma_n = n u / (1 - n u)`, in any
        order of summation, and passes on `|A|` times the error it was given. The bound's own rounding is paid by doubling.
        """
        rule = _ValuesWithErrors(self._by_node(), z.dtype)
        pairs = propagate(self.graph, rule, {0: (z, torch.zeros_like(z))}, keep)
        return {i: value for i, (value, _) in pairs.items()}, {i: 2 * error for i, (_, error) in pairs.items()}

    def row_errors(self, keep: Sequence[int], like: Tensor) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Bounds on the l_1 rounding errors, and so on those in every l_q, of the rows of V that `pull_back` computes.

        Of the nodes in `keep`, (batch, *shape). Second, the sums of the absolute terms of the rows, of the same shape.

        With s_l = |A_l| s_(l-1) from ones at the input, the sums of the absolute terms of every row, a node's rows are off by
        at most e_l = |A_l| e_(l-1) + gamma_n |A_l| s_(l-1). Both run through the pattern, so that a row of dead units has no
        error. Doubled for the rounding of the bound itself. `like` has the batch, the dtype and the device.
        """
        ones = like.new_ones(len(like), *self.graph[0].shape)
        hazard = any(
            _vanishing(source.value) for node in self.graph.affine_nodes for source in node.op.sources().values()
        )
        rule = _RowErrors(self._by_node(), like.new_zeros(len(like)), hazard=hazard)
        pairs = propagate(self.graph, rule, {0: (ones, torch.zeros_like(ones))}, keep)
        return {i: 2 * error for i, (_, error) in pairs.items()}, {i: size for i, (size, _) in pairs.items()}

    def pull_back(
        self, node: int, functionals: Float[Tensor, " batch rows *shape"]
    ) -> Float[Tensor, " batch rows *input"]:
        """Rows of V: linear functionals on a node's value, as functionals on the input.

        `<pull_back(node, c), z> = <c, V_node z>`; with one-hot functionals these are rows of V themselves. Differentiable in
        the weights.
        """
        rows = propagate_back(self.graph, _Adjoint(self._by_node()), node, functionals)
        if rows is None:  # no node on the way depends on the input
            return functionals.new_zeros(*functionals.shape[:2], *self.graph[0].shape)
        return rows

    def depends_on_pattern(self, node: int) -> bool:
        """Whether a switching node lies between the input and this node; if none does, V is the same for all inputs."""
        return affine_ancestors(self.graph, node)[1] != [0]

    def _by_node(self) -> dict[int, Tensor]:
        """The pattern of every switching node by the node's index."""
        return {node.index: pattern for node, pattern in zip(self.graph.switches, self.patterns, strict=False)}


Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class _Directions(ForwardRule[Tensor]):
    """The linear part V d of every node's map."""

    patterns: dict[int, Tensor]

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        return node.op.linear(*inputs)

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor:
        return node.op.linear(value, self.patterns[node.index])


class _Values(_Directions):
    """The affine map V z + a of every node."""

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        return node.op.apply(*inputs)


@dataclass(frozen=True, eq=False)
class _ValuesWithErrors(ForwardRule[Pair]):
    """The affine map of every node, and half the bound on its rounding error."""

    patterns: dict[int, Tensor]
    dtype: torch.dtype

    def affine(self, node: Node[Affine], inputs: list[Pair]) -> Pair:
        given = [value for value, _ in inputs]
        value = node.op.apply(*given)
        offset = node.op.magnitude(*(torch.zeros_like(part) for part in given))
        error = node.op.magnitude(*(off for _, off in inputs)) - offset
        error = error + gamma(node.op.terms, self.dtype) * node.op.magnitude(*(part.abs() for part in given))
        return value, error.clamp_(min=0) + 4 * unit_roundoff(self.dtype) * offset + torch.finfo(self.dtype).tiny

    def switching(self, node: Node[Switching], value: Pair) -> Pair:
        z, error = (node.op.linear(part, self.patterns[node.index]) for part in value)
        return z, error + unit_roundoff(self.dtype) * z.abs()


class _RowErrors(ForwardRule[Pair]):
    """The sums of the absolute terms of every node's rows, and half the bound on the rounding errors of the rows.

    `copies` are nodes whose entries are copies of inputs: the rows of a layer behind them are its weights, without an error.
    `lost` adds up products that vanish below the smallest number of the dtype, each of them at most `tiny`. `hazard` says
    that weights are so small that whole products may vanish: then nothing is known of the rows.
    """

    def __init__(self, patterns: dict[int, Tensor], lost: Tensor, *, hazard: bool):
        self.patterns, self.lost, self.hazard, self.info = patterns, lost, hazard, torch.finfo(lost.dtype)
        self.copies = {0}

    def affine(self, node: Node[Affine], inputs: list[Pair]) -> Pair:
        count = max(node.op.terms, node.op.adjoint_terms)
        given = [size for size, _ in inputs]
        size, error = node.op.absolute(*given), node.op.absolute(*(off for _, off in inputs))
        of_copies = self.copies.issuperset(node.inputs)
        if node.op.permutes:  # not a gather, whose adjoint adds up repeated entries
            self.copies |= {node.index} if of_copies else set()
        elif not (of_copies and node.op.rows_are_weights):
            error = error + gamma(count, size.dtype) * size
        self.lost = self.lost + self.info.tiny * count * sum(part.flatten(1).sum(1) for part in given)
        return self._charged(size, error)

    def switching(self, node: Node[Switching], value: Pair) -> Pair:
        size, error = (node.op.linear(part, self.patterns[node.index]) for part in value)
        return self._charged(size, error + 2 * unit_roundoff(size.dtype) * size)

    def _charged(self, size: Tensor, error: Tensor) -> Pair:
        error = torch.where((size > 0) & (error > 0), error + _spread(self.lost, error), error)
        return size, error + math.inf if self.hazard else error


@dataclass(frozen=True, eq=False)
class _Adjoint(BackwardRule[Tensor]):
    """Functionals (batch, rows, *shape) of a node's value as functionals of its inputs."""

    patterns: dict[int, Tensor]

    def affine(self, node: Node[Affine], value: Tensor) -> tuple[Tensor, ...]:
        return transpose_rows(node.op, value)

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor:
        return node.op.transpose(value, self.patterns[node.index])


def _vanishing(value: Tensor) -> bool:
    """Whether weights are so small, and not zero, that their products may vanish altogether."""
    return value.is_floating_point() and bool(((value != 0) & (value.abs() < 1e-60)).any())


def _spread(numbers: Tensor, like: Tensor) -> Tensor:
    return numbers.reshape(-1, *(1,) * (like.dim() - 1))
