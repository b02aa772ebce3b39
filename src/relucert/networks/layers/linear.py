"""Linear maps with weights: a matrix, a convolution."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relucert.core.errors import InvalidInput
from relucert.networks.build.values import Held, Traced
from relucert.networks.layers.convolution import Geometry, adjoint, convolved, suits
from relucert.networks.layers.family import Family, Restored, arguments, held, pair, with_tensors
from relucert.networks.layers.shapes import Pad, Reshape
from relucert.networks.nodes import Affine, Shape, Source, View, transposed

if TYPE_CHECKING:
    from relucert.networks.build.builder import Builder


class Linear(Affine):
    """`W z + b` on the last axis."""

    kind = "linear"
    rows_are_weights = True
    unit_axis = -1  # of a batch of values: one weight row for each entry along it

    def __init__(self, weight: Source, bias: Source | None, in_shape: Shape):
        self.weight, self.bias, self.in_shapes = weight, bias, (in_shape,)

    def apply(self, z: Tensor) -> Tensor:
        return F.linear(z, self.weight.value, None if self.bias is None else self.bias.value)

    def linear(self, z: Tensor) -> Tensor:
        return F.linear(z, self.weight.value)

    def transpose(self, output: Tensor) -> tuple[Tensor]:
        return (output @ self.weight.value,)

    def offset(self, like: Tensor) -> Tensor:
        if len(self.in_shapes[0]) != 1 or self.bias is None:
            return super().offset(like)
        return self.bias.value.to(like)[None]

    def matrix(self) -> Tensor:
        return self.weight.value

    @property
    def mixes_all(self) -> bool:
        """Whether every entry of the value reads the whole input: the input has one axis."""
        return len(self.in_shapes[0]) == 1

    def folded(self, before: Tensor | None, behind: Tensor | None) -> Tensor:
        """The weight with factors of the input, and of the value, multiplied into it: (out, in)."""
        weight = self.weight.value
        if before is not None:
            weight = weight * before.flatten()
        return weight if behind is None else weight * behind.flatten()[:, None]

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

    def support(self, z: Tensor) -> Tensor:
        return z.sum(-1, keepdim=True).expand(*z.shape[:-1], len(self.weight.value))

    def sources(self) -> dict[str, Source]:
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})


class Conv2d(Affine):
    """A convolution with any stride, zero padding, dilation and groups."""

    kind = "conv2d"
    rows_are_weights = True
    unit_axis = 1  # of a batch of values: one filter for each entry along it

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

    def linear_of_many(self, z: Tensor) -> Tensor:
        return convolved(z, self.weight.value, self._geometry) if suits(z, self.groups) else self.linear(z)

    def transpose(self, output: Tensor) -> tuple[Tensor]:
        weight = self.weight.value
        if suits(output, self.groups):
            return (adjoint(output, weight, self._geometry).contiguous(),)
        # What the stride leaves over on the far side is reached by no window: the adjoint is zero there.
        spans = [self.dilation[i] * (weight.shape[2 + i] - 1) + 1 for i in (0, 1)]
        over = [(self.in_shapes[0][1 + i] + 2 * self.padding[i] - spans[i]) % self.stride[i] for i in (0, 1)]
        back = F.conv_transpose2d(output, weight, None, self.stride, self.padding, over, self.groups, self.dilation)
        return (back.contiguous(),)

    @property
    def _geometry(self) -> Geometry:
        return Geometry(self.in_shapes[0], self.stride, self.padding, self.dilation)

    def offset(self, like: Tensor) -> Tensor:
        spans = [self.dilation[i] * (self.weight.value.shape[2 + i] - 1) + 1 for i in (0, 1)]
        size = [(self.in_shapes[0][1 + i] + 2 * self.padding[i] - spans[i]) // self.stride[i] + 1 for i in (0, 1)]
        bias = like.new_zeros(len(self.weight.value)) if self.bias is None else self.bias.value.to(like)
        return bias[None, :, None, None].expand(1, -1, *size)

    #: A convolution is one weight, whatever the shape of the input.
    mixes_all = True

    def folded(self, before: Tensor | None, behind: Tensor | None) -> Tensor:
        """The weight without groups, with a factor of every input and output channel multiplied into it: (out, in, *kernel).

        Factors have the shape of a value and are the same all over a channel.
        """
        weight = self.weight.value if self.groups == 1 else _ungrouped(self.weight.value, self.groups)
        if before is not None:
            weight = weight * before[:, 0, 0][None, :, None, None]
        return weight if behind is None else weight * behind[:, 0, 0][:, None, None, None]

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

    def support(self, z: Tensor) -> Tensor:
        weight = z.new_ones(self.weight.value.shape)
        return F.conv2d(z, weight, None, self.stride, self.padding, self.dilation, self.groups)

    def sources(self) -> dict[str, Source]:
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})

    def settings(self) -> dict[str, object]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}


def _ungrouped(weight: Tensor, groups: int) -> Tensor:
    """The weight of a grouped convolution as that of an ordinary one, with zeros."""
    rows, columns = len(weight) // groups, weight.shape[1]
    whole = weight.new_zeros(len(weight), columns * groups, *weight.shape[2:])
    for i, group in enumerate(weight.chunk(groups)):
        whole[i * rows : (i + 1) * rows, i * columns : (i + 1) * columns] = group
    return whole


def _linear(t: Builder, z: Traced, weight: Any, bias: Any = None) -> Traced:
    source = t.tensor(weight, "weight")
    assert source is not None
    return t.add(Linear(source, t.tensor(bias, "bias"), z.shape), z)


def _conv2d(t: Builder, z: Traced, weight: Any, bias: Any = None, *args: Any, **given: Any) -> Traced:
    options = arguments({"stride": 1, "padding": 0, "dilation": 1, "groups": 1}, args, given)
    source = t.tensor(weight, "weight")
    assert source is not None
    if len(z.shape) != 3:
        raise InvalidInput(f"{t.where()} (conv2d) needs an input (channels, height, width), got shape {z.shape}")
    dilation, padding = pair(options["dilation"]), options["padding"]
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [step * (size - 1) for step, size in zip(dilation, source.value.shape[2:], strict=True)]
        padding = (total[0] // 2, total[1] // 2)
        if total[0] % 2 or total[1] % 2:  # torch puts the odd one at the far side
            z = t.add(Pad(z.shape, (0, total[1] % 2, 0, total[0] % 2)), z)
    op = Conv2d(
        source,
        t.tensor(bias, "bias"),
        z.shape,
        stride=pair(options["stride"]),
        padding=pair(padding),
        dilation=dilation,
        groups=options["groups"],
    )
    return t.add(op, z)


def _conv1d(t: Builder, z: Traced, weight: Any, bias: Any = None, *args: Any, **given: Any) -> Traced:
    """A convolution of sequences (channels, length), as one of images of height 1."""
    options = arguments({"stride": 1, "padding": 0, "dilation": 1, "groups": 1}, args, given)
    source = t.tensor(weight, "weight")
    assert source is not None
    if len(z.shape) != 2:
        raise InvalidInput(f"{t.where()} (conv1d) needs an input (channels, length), got shape {z.shape}")
    for name, neutral in (("stride", 1), ("padding", 0), ("dilation", 1)):
        if not isinstance(options[name], str):
            options[name] = (neutral, pair(options[name])[0])
    row = t.add(Reshape(z.shape, (z.shape[0], 1, z.shape[1])), z)
    made = _conv2d(t, row, Held(View(source.owner, source.name, "row")), bias, **options)
    return t.add(Reshape(made.shape, (made.shape[0], made.shape[2])), made)


def _matmul(t: Builder, z: Any, weight: Any) -> Traced:
    if not isinstance(z, Traced) or not isinstance(weight, Held):
        raise t.unsupported("one factor must be the value, on the left, the other a matrix of the module, on the right")
    if weight.source.value.dim() != 2:
        raise t.unsupported(f"the right factor must be a matrix, got shape {tuple(weight.source.value.shape)}")
    return t.add(Linear(transposed(weight.source), None, z.shape), z)


def _addmm(t: Builder, bias: Any, z: Any, weight: Any, *, beta: Any = 1, alpha: Any = 1) -> Traced:
    if beta != 1 or alpha != 1 or not isinstance(z, Traced) or not isinstance(weight, Held):
        raise t.unsupported("it must be bias + z @ matrix, with a matrix of the module and factors 1")
    return t.add(Linear(transposed(weight.source), t.tensor(bias, "bias"), z.shape), z)


def _conv_module(t: Builder, part: nn.Conv1d | nn.Conv2d, z: Traced) -> Traced:
    if part.padding_mode != "zeros":
        raise t.unsupported(f"padding_mode must be 'zeros', got {part.padding_mode!r}")
    weight, bias = held(part, "weight"), held(part, "bias")
    read = _conv1d if isinstance(part, nn.Conv1d) else _conv2d
    return read(t, z, weight, bias, part.stride, part.padding, part.dilation, part.groups)


def _restored_linear(given: Restored) -> nn.Module:
    rows, columns = given.tensors["weight"].shape
    return with_tensors(nn.Linear(columns, rows, bias="bias" in given.tensors, device="meta"), given.tensors)


def _restored_conv2d(given: Restored) -> nn.Module:
    rows, columns, *kernel = given.tensors["weight"].shape
    groups = given.settings["groups"]
    conv = nn.Conv2d(
        columns * groups,
        rows,
        (kernel[0], kernel[1]),
        stride=tuple(given.settings["stride"]),
        padding=tuple(given.settings["padding"]),
        dilation=tuple(given.settings["dilation"]),
        groups=groups,
        bias="bias" in given.tensors,
        device="meta",
    )
    return with_tensors(conv, given.tensors)


FAMILY = Family(
    modules={
        nn.Linear: lambda t, part, z: _linear(t, z, held(part, "weight"), held(part, "bias")),
        nn.Conv1d: _conv_module,
        nn.Conv2d: _conv_module,
    },
    functions={
        F.linear: _linear,
        F.conv1d: _conv1d,
        F.conv2d: _conv2d,
        torch.conv1d: _conv1d,
        torch.conv2d: _conv2d,
        torch.matmul: _matmul,
        torch.mm: _matmul,
        operator.matmul: _matmul,
        torch.addmm: _addmm,
    },
    methods={"matmul": _matmul, "mm": _matmul},
    restored={Linear.kind: _restored_linear, Conv2d.kind: _restored_conv2d},
    forms=("products with matrices",),
)
