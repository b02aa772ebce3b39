"""Affine nodes: each is a linear map plus an offset, and knows its adjoint.

Every map acts on `(n, *shape)` tensors, where `n` may be a batch or a batch of rows. Tensors are read from their owner
at every call (`Source`), so that a node always speaks of the current weights and gradients reach them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
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
    #: Whether ||A z||_2 = ||z||_2, with all inputs stacked.
    isometric: ClassVar[bool] = False

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


class Linear(Affine):
    """`W z + b` on the last axis."""

    kind = "linear"

    def __init__(self, weight: Source, bias: Source | None, in_shape: Shape):
        self.weight, self.bias, self.in_shapes = weight, bias, (in_shape,)

    def apply(self, z: Tensor) -> Tensor:
        return F.linear(z, self.weight.value, None if self.bias is None else self.bias.value)

    def linear(self, z: Tensor) -> Tensor:
        return F.linear(z, self.weight.value)

    def transpose(self, output: Tensor) -> tuple[Tensor]:
        return (output @ self.weight.value,)

    @property
    def terms(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.weight.value.shape[1] + 2

    @property
    def adjoint_terms(self) -> int:
        return self.weight.value.shape[0] + 2

    def absolute(self, z: Tensor) -> Tensor:
        return F.linear(z, self.weight.value.abs())

    def magnitude(self, z: Tensor) -> Tensor:
        return F.linear(z, self.weight.value.abs(), None if self.bias is None else self.bias.value.abs())

    def sources(self) -> dict[str, Source]:
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})


class Conv2d(Affine):
    """A convolution with any stride, zero padding, dilation and groups."""

    kind = "conv2d"

    def __init__(
        self,
        weight: Source,
        bias: Source | None,
        in_shape: Shape,
        *,
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] = (0, 0),
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
    ):
        self.weight, self.bias, self.in_shapes = weight, bias, (in_shape,)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups

    def apply(self, z: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.value
        return F.conv2d(z, self.weight.value, bias, self.stride, self.padding, self.dilation, self.groups)

    def linear(self, z: Tensor) -> Tensor:
        return F.conv2d(z, self.weight.value, None, self.stride, self.padding, self.dilation, self.groups)

    def transpose(self, output: Tensor) -> tuple[Tensor]:
        weight = self.weight.value
        # What the stride leaves over on the far side is reached by no window: the adjoint is zero there.
        spans = [self.dilation[i] * (weight.shape[2 + i] - 1) + 1 for i in (0, 1)]
        over = [(self.in_shapes[0][1 + i] + 2 * self.padding[i] - spans[i]) % self.stride[i] for i in (0, 1)]
        if output.device.type == "cpu" and output.dtype == torch.float32 and len(output) > 1:
            if self.in_shapes[0][0] == 1:  # to a grey image one product and a sum of its patches are faster
                taps = weight.flatten(1).T @ output.flatten(2)
                size, kernel = self.in_shapes[0][1:], tuple(weight.shape[2:])
                return (F.fold(taps, size, kernel, self.dilation, self.padding, self.stride),)
            # Many small images: on a CPU channels are best next to each other.
            output = output.contiguous(memory_format=torch.channels_last)
        back = F.conv_transpose2d(output, weight, None, self.stride, self.padding, over, self.groups, self.dilation)
        return (back.contiguous(),)

    @property
    def terms(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.weight.value[0].numel() + 2

    @property
    def adjoint_terms(self) -> int:
        return self.weight.value[:, 0].numel() + 2

    def absolute(self, z: Tensor) -> Tensor:
        return F.conv2d(z, self.weight.value.abs(), None, self.stride, self.padding, self.dilation, self.groups)

    def magnitude(self, z: Tensor) -> Tensor:
        weight, bias = self.weight.value.abs(), None if self.bias is None else self.bias.value.abs()
        return F.conv2d(z, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def sources(self) -> dict[str, Source]:
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})

    def settings(self) -> dict[str, object]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}


class BatchNorm(Affine):
    """Batch norm with its running statistics: `(z - mean) / sqrt(var + eps) * weight + bias`, channel by channel."""

    kind = "batch_norm"
    elementwise = True

    def __init__(
        self, mean: Source, var: Source, weight: Source | None, bias: Source | None, eps: float, in_shape: Shape
    ):
        self.mean, self.var, self.weight, self.bias, self.eps = mean, var, weight, bias, eps
        self.in_shapes = (in_shape,)

    def _channels(self, values: Tensor) -> Tensor:
        return values.reshape(-1, *(1,) * (len(self.in_shapes[0]) - 1))

    def scale(self) -> Tensor:
        """The factor of every channel, shaped to broadcast."""
        scale = torch.rsqrt(self.var.value + self.eps)
        return self._channels(scale if self.weight is None else scale * self.weight.value)

    def apply(self, z: Tensor) -> Tensor:
        shifted = (z - self._channels(self.mean.value)) * self.scale()
        return shifted if self.bias is None else shifted + self._channels(self.bias.value)

    def linear(self, z: Tensor) -> Tensor:
        return z * self.scale()

    def transpose(self, output: Tensor) -> tuple[Tensor]:
        return (output * self.scale(),)

    terms = 8

    def absolute(self, z: Tensor) -> Tensor:
        return z * self.scale().abs()

    def magnitude(self, z: Tensor) -> Tensor:
        total = (z + self._channels(self.mean.value).abs()) * self.scale().abs()
        return total if self.bias is None else total + self._channels(self.bias.value).abs()

    def sources(self) -> dict[str, Source]:
        named = {"mean": self.mean, "var": self.var, "weight": self.weight, "bias": self.bias}
        return {name: source for name, source in named.items() if source is not None}

    def settings(self) -> dict[str, object]:
        return {"eps": self.eps}


def _named(constant: Source | Literal) -> dict[str, Source]:
    return {"constant": constant} if isinstance(constant, Source) else {}


def _number(constant: Source | Literal) -> dict[str, object]:
    return {"number": constant.value} if isinstance(constant, Literal) else {}


class Shift(Affine):
    """`z + sign c` for a constant that broadcasts to the shape of z."""

    kind = "shift"
    elementwise = isometric = True

    def __init__(self, constant: Source | Literal, sign: int, in_shape: Shape):
        self.constant, self.sign, self.in_shapes = constant, sign, (in_shape,)

    def apply(self, z: Tensor) -> Tensor:
        return z + self.constant.value if self.sign > 0 else z - self.constant.value

    def linear(self, z: Tensor) -> Tensor:
        return z

    def transpose(self, output: Tensor) -> tuple[Tensor]:
        return (output,)

    def magnitude(self, z: Tensor) -> Tensor:
        return z + abs(self.constant.value)

    def sources(self) -> dict[str, Source]:
        return _named(self.constant)

    def settings(self) -> dict[str, object]:
        return {"sign": self.sign} | _number(self.constant)


class Scale(Affine):
    """`z c`, or `z / c`, for a constant that broadcasts to the shape of z."""

    kind = "scale"
    elementwise = True

    def __init__(self, constant: Source | Literal, divide: bool, in_shape: Shape):
        self.constant, self.divide, self.in_shapes = constant, divide, (in_shape,)

    def linear(self, z: Tensor) -> Tensor:
        return z / self.constant.value if self.divide else z * self.constant.value

    def transpose(self, output: Tensor) -> tuple[Tensor]:
        return (self.linear(output),)

    def absolute(self, z: Tensor) -> Tensor:
        size = abs(self.constant.value)
        return z / size if self.divide else z * size

    def sources(self) -> dict[str, Source]:
        return _named(self.constant)

    def settings(self) -> dict[str, object]:
        return {"divide": self.divide} | _number(self.constant)


class Gather(Affine):
    """Some entries of a value, by a constant table of their places in it: `out[o] = z[index[o]]`, in the table's shape.

    Places count through the flattened value, from its end where they are negative; an entry may be taken several times.
    """

    kind = "gather"

    def __init__(self, index: Source, in_shape: Shape):
        self.index, self.in_shapes = index, (in_shape,)

    def places(self) -> Tensor:
        """The places in a row, counted from the beginning."""
        return self.index.value.flatten().remainder(math.prod(self.in_shapes[0]))

    def linear(self, z: Tensor) -> Tensor:
        return z.flatten(1).index_select(1, self.places()).reshape(len(z), *self.index.value.shape)

    def transpose(self, output: Tensor) -> tuple[Tensor]:
        back = output.new_zeros(len(output), math.prod(self.in_shapes[0]))
        back = back.index_add(1, self.places(), output.reshape(len(output), self.index.value.numel()))
        return (back.reshape(len(output), *self.in_shapes[0]),)

    def most(self) -> int:
        """How often the entry is taken that is taken most often: the square of the map's spectral norm."""
        return int(self.places().bincount().max())

    @property
    def adjoint_terms(self) -> int:
        return self.most() + 2

    def sources(self) -> dict[str, Source]:
        return {"index": self.index}
