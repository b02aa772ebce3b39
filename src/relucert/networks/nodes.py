"""The two kinds of nodes: affine nodes, and switching nodes, which are linear once their activation pattern is fixed.

An affine node is a linear map plus an offset, and knows its adjoint. Its maps act on `(n, *shape)` tensors, where `n` may be a
batch or a batch of rows. Tensors are read from their owner at every call (`Source`), so that a node always speaks of the
current weights and gradients reach them. Switching nodes are ReLUs and max pools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, ...]

#: Computed coefficients, as of a batch norm, count as larger by this in magnitudes: gamma_n times it exceeds the smallest
#: normal number of float32, so that the error of a coefficient that underflows is paid for.
SMALLEST = torch.finfo(torch.float32).tiny / torch.finfo(torch.float32).eps


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

    @property
    def identity(self) -> tuple[int, str, str]:
        """Equal for sources of the same numbers in the same order, also where two modules share a parameter."""
        for held in (self.owner._parameters, self.owner._buffers):
            if held.get(self.name) is not None:
                return id(held[self.name]), "", ""
        return id(self.owner), self.name, ""

    @property
    def trainable(self) -> bool:
        """Whether training may change the tensor."""
        tensor = getattr(self.owner, self.name)
        return isinstance(tensor, nn.Parameter) or tensor.requires_grad


@dataclass(frozen=True, eq=False)
class View(Source):
    """The numbers of a tensor in another shape: `view` is "transposed" (a matrix) or "row" (a 1-D filter as a 2-D one)."""

    view: str = "transposed"

    @property
    def value(self) -> Tensor:
        """The view of the tensor as it is now."""
        tensor = getattr(self.owner, self.name)
        return tensor.unsqueeze(2) if self.view == "row" else tensor.t()

    @property
    def identity(self) -> tuple[int, str, str]:
        """Equal for sources of the same numbers in the same order."""
        return (*super().identity[:2], self.view)


def transposed(source: Source) -> Source:
    """The transpose of a matrix, or the matrix whose transpose was given."""
    if isinstance(source, View) and source.view == "transposed":
        return Source(source.owner, source.name)
    return View(source.owner, source.name)


@dataclass(frozen=True)
class Literal:
    """A number written in the module's own code: exact in every dtype."""

    value: float


def adjoint(linear: Callable[..., Tensor], inputs: Sequence[Tensor], output: Tensor) -> tuple[Tensor, ...]:
    """`A' y` of a linear function, one tensor for each input: its gradient at `inputs`, differentiable where gradients are on.

    >>> adjoint(lambda z, w: 2 * z + 3 * w, [torch.zeros(1), torch.zeros(1)], torch.ones(1))
    (tensor([2.]), tensor([3.]))
    """
    outside = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [value.detach().requires_grad_() for value in inputs]
        value = linear(*leaves)
        if not value.requires_grad:  # nothing of the inputs enters
            return tuple(torch.zeros_like(leaf) for leaf in inputs)
        # As the gradient of a number: given `output` itself, torch imports its symbolic shapes first, which takes a second.
        found = torch.autograd.grad((value * output).sum(), leaves, create_graph=outside, materialize_grads=True)
    return tuple(found)


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

    def linear_of_many(self, *inputs: Tensor) -> Tensor:
        """`A z` of so many finite inputs that the fastest way counts; with its gradient."""
        return self.linear(*inputs)

    def transpose(self, output: Tensor) -> tuple[Tensor, ...]:
        """`A' y`, one tensor for each input: `<A z, y> = sum_i <z_i, (A' y)_i>`.

        The general case differentiates the linear map, which is exact; nodes with a faster adjoint override it.
        """
        zeros = [output.new_zeros(len(output), *shape) for shape in self.in_shapes]
        return adjoint(self.linear, zeros, output)

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

    @property
    def homogeneous(self) -> bool:
        """Whether b = 0, whatever the weights: the node has no `apply` of its own."""
        return type(self).apply is Affine.apply

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

    def support(self, *inputs: Tensor) -> Tensor:
        """Which entries of `A z` can be other than zero where entries of z >= 0 are, whatever the weights: not zero there.

        The general case has no weights.
        """
        return inputs[0] if self.diagonal else self.absolute(*inputs)

    def sources(self) -> dict[str, Source]:
        """The tensors of the node by the name they have in a checkpoint."""
        return {}

    def settings(self) -> dict[str, object]:
        """The numbers of the node, as JSON."""
        return {}


class Switching:
    """A node that chooses one of finitely many linear maps by the sign or the order of its inputs.

    With the pattern held fixed, `linear` and `transpose` act on tensors `(batch, *rows, *shape)` with any number of
    axes between batch and shape, so that one pattern serves all rows of an example.
    """

    kind: ClassVar[str]
    in_shape: Shape
    #: The method of a `networks.traversal` rule that handles the node.
    rule: ClassVar[str]
    #: Whether the sign of each entry decides its pattern, so that an entry of known sign is linear.
    decided_by_sign: ClassVar[bool] = False
    #: The factor of what is not passed on unchanged: the slope of a leaky ReLU, whose product with a value is rounded.
    slope: float = 0.0

    def apply(self, z: Tensor) -> Tensor:
        """The node's value."""
        raise NotImplementedError(self.kind)

    def most(self) -> int:
        """The number of values that the entry which makes most of them is in."""
        return 1

    def pattern(self, z: Tensor) -> Tensor:
        """Which linear map is chosen at z."""
        raise NotImplementedError(self.kind)

    def linear(self, z: Tensor, pattern: Tensor) -> Tensor:
        """The linear map of a pattern."""
        raise NotImplementedError(self.kind)

    def transpose(self, output: Tensor, pattern: Tensor) -> Tensor:
        """Its adjoint."""
        raise NotImplementedError(self.kind)

    def sources(self) -> dict[str, Source]:
        """The tensors of the node by the name they have in a checkpoint: none."""
        return {}

    def settings(self) -> dict[str, object]:
        """The numbers of the node, as JSON."""
        return {}


def _between(pattern: Tensor, rows: int) -> Tensor:
    """Insert `rows` axes of size one behind the batch axis."""
    return pattern.reshape(len(pattern), *(1,) * rows, *pattern.shape[1:])


class ReLU(Switching):
    """`max(z, slope z)` with 0 <= slope <= 1: ReLU, or leaky ReLU; the pattern is `z > 0`."""

    kind = rule = "relu"
    decided_by_sign = True

    def __init__(self, in_shape: Shape, slope: float = 0.0):
        self.in_shape, self.slope = in_shape, slope

    def apply(self, z: Tensor) -> Tensor:
        return F.relu(z) if self.slope == 0 else F.leaky_relu(z, self.slope)

    def pattern(self, z: Tensor) -> Tensor:
        return z > 0

    def gate(self, pattern: Tensor, dtype: torch.dtype) -> Tensor:
        """The diagonal of the linear map: 1 where active, the slope elsewhere."""
        gate = pattern.to(dtype)
        return gate if self.slope == 0 else gate + self.slope * (1 - gate)

    def linear(self, z: Tensor, pattern: Tensor) -> Tensor:
        rows = z.dim() - 1 - len(self.in_shape)
        return z * _between(self.gate(pattern, z.dtype), rows)

    def transpose(self, output: Tensor, pattern: Tensor) -> Tensor:
        return self.linear(output, pattern)

    def settings(self) -> dict[str, object]:
        return {"slope": self.slope}


class Windowed:
    """Windows that slide over an image; with `ceil_mode` the last ones may hang over the far edge."""

    def __init__(
        self,
        *,
        kernel: tuple[int, int],
        stride: tuple[int, int],
        padding: tuple[int, int] = (0, 0),
        ceil_mode: bool = False,
    ):
        self.kernel, self.stride, self.padding, self.ceil_mode = kernel, stride, padding, ceil_mode

    def windowing(self) -> dict[str, object]:
        """The numbers of the windows, as JSON."""
        return {"kernel": self.kernel, "stride": self.stride, "padding": self.padding, "ceil_mode": self.ceil_mode}


class MaxPool2d(Windowed, Switching):
    """Max pooling with any window; the pattern is the winner's place in its channel, `(batch, channels, *windows)`."""

    kind = "max_pool2d"
    rule = "max_pool"

    def __init__(self, in_shape: Shape, *, dilation: tuple[int, int] = (1, 1), **windows: Any):
        super().__init__(**windows)
        self.in_shape, self.dilation = in_shape, dilation

    def _pool(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return F.max_pool2d(  # type: ignore[return-value]
            z, self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode, return_indices=True
        )

    def apply(self, z: Tensor) -> Tensor:
        return F.max_pool2d(z, self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)

    def pattern(self, z: Tensor) -> Tensor:
        return self._pool(z)[1]

    def linear(self, z: Tensor, pattern: Tensor) -> Tensor:
        lead = z.shape[: z.dim() - 3]
        index = _between(pattern.flatten(2), len(lead) - 1).expand(*lead, *pattern.shape[1:2], -1)
        return z.flatten(-2).gather(-1, index).reshape(*lead, *pattern.shape[1:])

    def transpose(self, output: Tensor, pattern: Tensor) -> Tensor:
        lead = output.shape[: output.dim() - 3]
        index = _between(pattern.flatten(2), len(lead) - 1).expand(*lead, *pattern.shape[1:2], -1)
        channels, height, width = self.in_shape
        spread = output.new_zeros(*lead, channels, height * width)
        return spread.scatter_add(-1, index, output.flatten(-2)).reshape(*lead, channels, height, width)

    def windows(self) -> Tensor:
        """The places in a channel that every window sees, `(windows, size)`, with -1 for what lies in the padding."""
        _, height, width = self.in_shape
        places = torch.arange(1, height * width + 1, dtype=torch.float64).reshape(1, 1, height, width)
        top, left = self.padding
        # ceil_mode lets a window hang over the far edge: pad generously, then keep the windows that exist.
        pad_h = top + self.stride[0] + self.dilation[0] * self.kernel[0]
        pad_w = left + self.stride[1] + self.dilation[1] * self.kernel[1]
        wide = F.pad(places, (left, pad_w, top, pad_h))
        rows, cols = self.apply(places).shape[2:]
        span_h = self.dilation[0] * (self.kernel[0] - 1) + 1
        span_w = self.dilation[1] * (self.kernel[1] - 1) + 1
        seen = wide.unfold(2, span_h, self.stride[0]).unfold(3, span_w, self.stride[1])[0, 0, :rows, :cols]
        seen = seen[..., :: self.dilation[0], :: self.dilation[1]]
        return seen.reshape(rows * cols, -1).long() - 1

    def most(self) -> int:
        """The number of windows that the entry in most windows is in: the square of the Lipschitz constant in l2."""
        windows = self.windows()
        return int(windows[windows >= 0].bincount().max())

    def settings(self) -> dict[str, object]:
        return self.windowing() | {"dilation": self.dilation}
