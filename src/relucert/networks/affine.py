"""Affine nodes: each is a linear map plus an offset, and knows its adjoint.

Every map acts on `(n, *shape)` tensors, where `n` may be a batch or a batch of rows. Tensors are read from their owner
at every call (`Source`), so that a node always speaks of the current weights and gradients reach them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Source:
    """Where a tensor lives: an attribute of a module.

    Holding the owner instead of the tensor keeps a node right after `.double()`, `load_state_dict(assign=True)`,
    `copy.deepcopy` and under parametrisations such as weight norm.
    """

    owner: nn.Module
    name: str

    @property
    def value(self) -> Tensor:
        """The tensor as it is now."""
        return getattr(self.owner, self.name)


@dataclass(frozen=True)
class Literal:
    """A number written in the module's own code: exact in every dtype."""

    value: float


class Affine:
    """A node `z -> A z + b` of one or more inputs."""

    kind: ClassVar[str]
    in_shapes: tuple[Shape, ...]

    def apply(self, *inputs: Tensor) -> Tensor:
        """`A z + b`."""
        return self.linear(*inputs)

    def linear(self, *inputs: Tensor) -> Tensor:
        """`A z`, without the offset."""
        raise NotImplementedError(self.kind)

    def transpose(self, output: Tensor) -> tuple[Tensor, ...]:
        """`A' y`, one tensor for each input: `<A z, y> = sum_i <z_i, (A' y)_i>`.

        The general case differentiates the linear map, which is exact; nodes with a faster adjoint override it.
        """
        zeros = [output.new_zeros(len(output), *shape) for shape in self.in_shapes]
        return torch.func.vjp(self.linear, *zeros)[1](output)

    #: Whether every entry of the value is made of one entry of the inputs, and no entry of the inputs makes two of them.
    elementwise: ClassVar[bool] = False
    #: Whether A is diagonal: the value has the shape of the one input, and each entry is made of the same entry of the input.
    diagonal: ClassVar[bool] = False
    #: Whether ||A z||_2 = ||z||_2, with all inputs stacked.
    isometric: ClassVar[bool] = False
    #: Whether A is a permutation matrix: the value has the entries of the input, each once.
    permutes: ClassVar[bool] = False
    #: Whether the value is a sum of the inputs with signs, so that ||A z||_2 <= sum_i ||z_i||_2.
    sums: ClassVar[bool] = False
    #: Whether every row of A consists of entries of a weight, so that rows are known without a rounding error.
    rows_are_weights: ClassVar[bool] = False

    def fixed_norm(self) -> float | None:
        """||A||_2 with all inputs stacked, up to its own rounding, where no weight decides about it; else None."""
        return 1.0 if self.isometric else None

    def matrix(self) -> Tensor | None:
        """The matrix W that is applied along the last axis, where the node is one; else None."""
        return None

    def offset(self, like: Tensor) -> Tensor:
        """`b` as (1, *shape), in the dtype and on the device of `like`."""
        return self.apply(*(like.new_zeros(1, *shape) for shape in self.in_shapes))

    #: How many rounded operations one entry of the value takes at most, whatever their order.
    terms: int = 2

    @property
    def adjoint_terms(self) -> int:
        """How many rounded operations one entry of the adjoint takes at most; as many as the map itself in the general case."""
        return self.terms

    def absolute(self, *inputs: Tensor) -> Tensor:
        """`|A| z`: how far the value goes when the inputs go as far as z. The general case has no negative weight."""
        return self.linear(*inputs)

    def magnitude(self, *inputs: Tensor) -> Tensor:
        """`|A| z + |b|` for z >= 0: what rounding errors are measured against. The general case has no offset."""
        return self.absolute(*inputs)

    def sources(self) -> dict[str, Source]:
        """The tensors of the node by the name they have in a checkpoint."""
        return {}

    def settings(self) -> dict[str, object]:
        """The numbers of the node, as JSON."""
        return {}
