"""What the steps of a trace work on: values that depend on the input, and tensors that the module holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from relucert.networks.nodes import Shape, Source

if TYPE_CHECKING:
    from relucert.networks.build.builder import Builder

BATCH = 3  # an odd size that reshapes are unlikely to produce by chance: it shows when a layer mixes examples


@dataclass(frozen=True)
class Traced:
    """A tensor that depends on the input: its node and its value on a small batch."""

    index: int
    sample: Tensor

    @property
    def shape(self) -> Shape:
        """The shape without the batch."""
        return tuple(self.sample.shape[1:])


@dataclass(frozen=True)
class Held:
    """A tensor that the module holds: a parameter or a buffer."""

    source: Source


def axes_without_batch(t: Builder, z: Traced, dims: Any) -> tuple[int, ...]:
    """Axes of a value as torch counts them, counted without the batch."""
    given = dims if isinstance(dims, list | tuple) else (dims,)
    axes = tuple(int(dim) % z.sample.dim() - 1 for dim in given)
    if -1 in axes:
        raise t.unsupported("it works along the batch axis")
    return axes
