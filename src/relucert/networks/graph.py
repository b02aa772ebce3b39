"""The graph of a network: nodes in topological order, input first, logits last."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from relucert.networks.affine import Affine, Shape
from relucert.networks.switching import ReLU, Switching


@dataclass(frozen=True, eq=False)
class Node:
    """One value of the network: an operation, the nodes it reads and the shape it makes (without the batch).

    `name` is where it stands in the module, for messages; `op` is None for the input alone.
    """

    index: int
    name: str
    op: Affine | Switching | None
    inputs: tuple[int, ...]
    shape: Shape

    @property
    def kind(self) -> str:
        """The operation's word: linear, conv2d, relu, ..."""
        return "input" if self.op is None else self.op.kind


@dataclass(frozen=True, eq=False)
class Graph:
    """The nodes of a network, and how to run through them."""

    nodes: tuple[Node, ...]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, index: int) -> Node:
        return self.nodes[index]

    @cached_property
    def switches(self) -> tuple[Node, ...]:
        """The switching nodes, in order."""
        return tuple(node for node in self.nodes if isinstance(node.op, Switching))

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        """For every node, the last node that reads it: beyond that its value need not be kept."""
        last = list(range(len(self.nodes)))
        for node in self.nodes:
            for source in node.inputs:
                last[source] = max(last[source], node.index)
        return tuple(last)

    def values(self, x: Tensor, keep: Sequence[int]) -> dict[int, Tensor]:
        """The values of the nodes in `keep` at inputs `(batch, *input)`; everything else is dropped when used up."""
        live: dict[int, Tensor] = {0: x}
        wanted = set(keep)
        for node in self.nodes[1:]:
            assert node.op is not None
            live[node.index] = node.op.apply(*(live[i] for i in node.inputs))
            for source in set(node.inputs):
                if self.last_use[source] == node.index and source not in wanted:
                    del live[source]
        return {index: live[index] for index in keep}

    def hidden_units(self) -> int:
        """The number of units that switch: every ReLU, and every window of a max pool."""
        return sum(math.prod(node.shape) for node in self.switches)

    def relus(self) -> tuple[Node, ...]:
        """The ReLU and leaky ReLU nodes, in order."""
        return tuple(node for node in self.switches if isinstance(node.op, ReLU))
