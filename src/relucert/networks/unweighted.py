"""Affine nodes without weights: averages, padding, changes of shape, sums and concatenations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from relucert.networks.affine import Affine, Shape


class AvgPool2d(Affine):
    """Average pooling with any window."""

    kind = "avg_pool2d"

    def __init__(
        self,
        in_shape: Shape,
        *,
        kernel: tuple[int, int],
        stride: tuple[int, int],
        padding: tuple[int, int] = (0, 0),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
    ):
        self.in_shapes = (in_shape,)
        self.kernel, self.stride, self.padding = kernel, stride, padding
        self.ceil_mode, self.count_include_pad, self.divisor = ceil_mode, count_include_pad, divisor

    def linear(self, z: Tensor) -> Tensor:
        return F.avg_pool2d(
            z, self.kernel, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor
        )

    @property
    def terms(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.kernel[0] * self.kernel[1] + 2

    def settings(self) -> dict[str, object]:
        return {
            "kernel": self.kernel,
            "stride": self.stride,
            "padding": self.padding,
            "ceil_mode": self.ceil_mode,
            "count_include_pad": self.count_include_pad,
            "divisor": self.divisor,
        }


class AdaptiveAvgPool2d(Affine):
    """Average pooling to a given height and width; (1, 1) is global pooling."""

    kind = "adaptive_avg_pool2d"

    def __init__(self, in_shape: Shape, size: tuple[int, int]):
        self.in_shapes, self.size = (in_shape,), size

    def linear(self, z: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(z, self.size)

    @property
    def terms(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return math.prod(self.in_shapes[0][1:]) + 2

    def settings(self) -> dict[str, object]:
        return {"size": self.size}


class Mean(Affine):
    """The mean over some axes (counted without the batch)."""

    kind = "mean"

    def __init__(self, in_shape: Shape, axes: tuple[int, ...], keepdim: bool):
        self.in_shapes, self.axes, self.keepdim = (in_shape,), axes, keepdim

    def linear(self, z: Tensor) -> Tensor:
        return z.mean([axis + 1 for axis in self.axes], keepdim=self.keepdim)

    @property
    def terms(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return math.prod(self.in_shapes[0][axis] for axis in self.axes) + 2

    def settings(self) -> dict[str, object]:
        return {"axes": self.axes, "keepdim": self.keepdim}


class Pad(Affine):
    """Zero padding; the numbers are those of `torch.nn.functional.pad`, last axis first."""

    kind = "pad"
    elementwise = isometric = True

    def __init__(self, in_shape: Shape, padding: tuple[int, ...]):
        self.in_shapes, self.padding = (in_shape,), padding

    def linear(self, z: Tensor) -> Tensor:
        return F.pad(z, self.padding)

    def settings(self) -> dict[str, object]:
        return {"padding": self.padding}


class Reshape(Affine):
    """The same numbers in another shape: flatten, view, reshape, squeeze."""

    kind = "reshape"
    elementwise = isometric = True

    def __init__(self, in_shape: Shape, out_shape: Shape):
        assert math.prod(in_shape) == math.prod(out_shape), (in_shape, out_shape)
        self.in_shapes, self.out_shape = (in_shape,), out_shape

    def linear(self, z: Tensor) -> Tensor:
        return z.reshape(len(z), *self.out_shape)

    def transpose(self, output: Tensor) -> tuple[Tensor]:
        return (output.reshape(len(output), *self.in_shapes[0]),)

    def settings(self) -> dict[str, object]:
        return {"out_shape": self.out_shape}


class Permute(Affine):
    """The axes in another order (counted without the batch)."""

    kind = "permute"
    elementwise = isometric = True

    def __init__(self, in_shape: Shape, axes: tuple[int, ...]):
        self.in_shapes, self.axes = (in_shape,), axes

    def linear(self, z: Tensor) -> Tensor:
        return z.permute(0, *(axis + 1 for axis in self.axes))

    def settings(self) -> dict[str, object]:
        return {"axes": self.axes}


class Add(Affine):
    """`sum_i sign_i z_i` of nodes with one shape: what makes a network residual."""

    kind = "add"

    def __init__(self, in_shape: Shape, signs: Sequence[int]):
        self.signs = tuple(signs)
        self.in_shapes = (in_shape,) * len(self.signs)

    def linear(self, *inputs: Tensor) -> Tensor:
        total = inputs[0] if self.signs[0] > 0 else -inputs[0]
        for sign, z in zip(self.signs[1:], inputs[1:], strict=True):
            total = total + z if sign > 0 else total - z
        return total

    def transpose(self, output: Tensor) -> tuple[Tensor, ...]:
        return tuple(output if sign > 0 else -output for sign in self.signs)

    def absolute(self, *inputs: Tensor) -> Tensor:
        return sum(inputs[1:], inputs[0])

    def settings(self) -> dict[str, object]:
        return {"signs": self.signs}


class Concat(Affine):
    """Several nodes side by side along one axis (counted without the batch): what makes a network dense."""

    kind = "concat"
    elementwise = isometric = True

    def __init__(self, in_shapes: Sequence[Shape], axis: int):
        self.in_shapes, self.axis = tuple(in_shapes), axis

    def linear(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, self.axis + 1)

    def transpose(self, output: Tensor) -> tuple[Tensor, ...]:
        return torch.split(output, [shape[self.axis] for shape in self.in_shapes], self.axis + 1)

    def settings(self) -> dict[str, object]:
        return {"axis": self.axis}
