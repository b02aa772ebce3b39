"""The graph of a network: nodes in topological order, input first, logits last."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar, cast

from torch import Tensor

from relucert.networks.affine import Affine, Shape
from relucert.networks.switching import MaxPool2d, ReLU, Switching
from relucert.networks.traversal import ForwardRule, propagate

Op = TypeVar("Op", bound=Affine | Switching | None, covariant=True)


@dataclass(frozen=True, eq=False)
class Node(Generic[Op]):
    """One value of the network: an operation, the nodes it reads and the shape it makes (without the batch).

    `name` is where it stands in the module, for messages; `op` is None for the input alone.
    """

    index: int
    name: str
    op: Op
    inputs: tuple[int, ...]
    shape: Shape

    @property
    def kind(self) -> str:
        """The operation's word: linear, conv2d, relu, ..."""
        return "input" if self.op is None else self.op.kind


AnyNode = Node[Affine | Switching | None]


class Evaluation(ForwardRule[Tensor]):
    """The value of every node, (batch, *shape)."""

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        return node.op.apply(*inputs)

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor:
        return node.op.apply(value)


@dataclass(frozen=True, eq=False)
class Graph:
    """The nodes of a network."""

    nodes: tuple[AnyNode, ...]

    def __iter__(self) -> Iterator[AnyNode]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, index: int) -> AnyNode:
        return self.nodes[index]

    @cached_property
    def switches(self) -> tuple[Node[Switching], ...]:
        """The switching nodes, in order."""
        return tuple(cast(Node[Switching], node) for node in self.nodes if isinstance(node.op, Switching))

    @cached_property
    def affine_nodes(self) -> tuple[Node[Affine], ...]:
        """The affine nodes, in order."""
        return tuple(cast(Node[Affine], node) for node in self.nodes if isinstance(node.op, Affine))

    def values(self, x: Tensor, keep: Sequence[int]) -> dict[int, Tensor]:
        """The values of the nodes in `keep` at inputs `(batch, *input)`."""
        return propagate(self, Evaluation(), {0: x}, keep)

    def hidden_units(self) -> int:
        """The number of piecewise linear units: every ReLU, and every window of a max pool."""
        return sum(math.prod(node.shape) for node in self.switches)

    @cached_property
    def max_pools(self) -> tuple[Node[MaxPool2d], ...]:
        """The max pools, in order."""
        return tuple(cast(Node[MaxPool2d], node) for node in self.switches if isinstance(node.op, MaxPool2d))

    @cached_property
    def relus(self) -> tuple[Node[ReLU], ...]:
        """The ReLU and leaky ReLU nodes, in order."""
        return tuple(cast(Node[ReLU], node) for node in self.switches if isinstance(node.op, ReLU))
