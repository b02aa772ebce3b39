"""Convolutions of many small float32 images, their adjoints and their gradients, all of them as forward convolutions.

    A z,        A' y,        d<y, A z>/dz = A' y,        d<g, A' y>/dy = A g,        d<y, A z>/dW

On a CPU the backward pass of a convolution to few channels takes three to six times what a forward pass takes for as many
multiplications, and so does a transposed convolution. Without a stride the adjoint is a convolution with the flipped filter;
with a stride it is one convolution for all phases of the stride, woven into the image (`phased_adjoint`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

PHASED = 16  # channels of the image up to which the phases of a stride are faster as one convolution


@dataclass(frozen=True)
class Geometry:
    """The shape of a convolution's images (channels, height, width), its stride, zero padding and dilation."""

    size: tuple[int, ...]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def span(self, weight: Tensor, axis: int) -> int:
        """How many entries of the image a window spans along an axis."""
        return self.dilation[axis] * (weight.shape[2 + axis] - 1) + 1

    def convolved(
        self, z: Float[Tensor, " batch channels *area"], weight: Tensor
    ) -> Float[Tensor, " batch maps *places"]:
        """`A z`."""
        return F.conv2d(z, weight, None, self.stride, self.padding, self.dilation)

    def adjoint(
        self, y: Float[Tensor, " batch maps *places"], weight: Tensor
    ) -> Float[Tensor, " batch channels *area"]:
        """`A' y`."""
        spans = [self.span(weight, axis) for axis in (0, 1)]
        outside = [span - 1 - padding for span, padding in zip(spans, self.padding, strict=True)]
        if self.stride == (1, 1) and min(outside) >= 0:
            flipped = weight.flip(2, 3).transpose(0, 1)
            return F.conv2d(y, flipped, None, 1, outside, self.dilation)  # type: ignore[arg-type]
        if self.dilation == (1, 1) and min(self.stride) > 1 and self.size[0] <= PHASED:
            return phased_adjoint(y, weight, self.stride, self.padding, self.size)
        # What the stride leaves over on the far side is reached by no window: the adjoint is zero there.
        over = [(self.size[1 + i] + 2 * self.padding[i] - spans[i]) % self.stride[i] for i in (0, 1)]
        near = y.contiguous(memory_format=torch.channels_last)
        return F.conv_transpose2d(near, weight, None, self.stride, self.padding, over, 1, self.dilation)  # type: ignore[arg-type]

    def weight_slope(self, y: Tensor, z: Tensor, weight: Tensor) -> Tensor:
        """The gradient of `<y, A z>` with respect to the weight."""
        _, found, _ = torch.ops.aten.convolution_backward(
            y, z, weight, None, self.stride, self.padding, self.dilation, False, (0, 0), 1, (False, True, False)
        )
        return found


def suits(z: Tensor, groups: int) -> bool:
    """Whether a convolution of these images belongs here: many images of float32 on a CPU, without groups."""
    return z.device.type == "cpu" and z.dtype == torch.float32 and len(z) > 1 and groups == 1


def convolved(z: Float[Tensor, " batch channels *area"], weight: Tensor, geometry: Geometry) -> Tensor:
    """`A z`, differentiable in both."""
    return cast(Tensor, _Convolution.apply(z, weight, geometry))


def adjoint(y: Float[Tensor, " batch maps *places"], weight: Tensor, geometry: Geometry) -> Tensor:
    """`A' y`, differentiable in both."""
    return cast(Tensor, _Adjoint.apply(y, weight, geometry))


class _Convolution(torch.autograd.Function):
    """`apply(z, weight, geometry)`: A z."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        ctx.geometry = geometry
        ctx.save_for_backward(z, weight)
        return geometry.convolved(z, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (y,), (z, weight), wanted = gradients, ctx.saved_tensors, ctx.needs_input_grad
        back = adjoint(y, weight, ctx.geometry) if wanted[0] else None
        return back, ctx.geometry.weight_slope(y, z, weight) if wanted[1] else None, None


class _Adjoint(torch.autograd.Function):
    """`apply(y, weight, geometry)`: A' y."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        ctx.geometry = geometry
        ctx.save_for_backward(y, weight)
        return geometry.adjoint(y, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (z,), (y, weight), wanted = gradients, ctx.saved_tensors, ctx.needs_input_grad
        ahead = convolved(z, weight, ctx.geometry) if wanted[0] else None
        return ahead, ctx.geometry.weight_slope(y, z, weight) if wanted[1] else None, None


def phased_adjoint(
    value: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int], size: tuple[int, ...]
) -> Tensor:
    """The adjoint of a convolution as a convolution without stride, for all phases of the stride at once.

    Tap t = a s + r of a window at u adds to pixel u s + t of the padded image: to phase r of the coarse pixel u + a. So the
    taps of each phase r are a small filter of their own, flipped, and the phases are woven into the image, of shape `size`.
    """
    (high, wide), (channels, height, width) = stride, size
    rows, columns = (-(-weight.shape[2 + i] // stride[i]) for i in (0, 1))
    taps = F.pad(weight, (0, columns * wide - weight.shape[3], 0, rows * high - weight.shape[2]))
    taps = taps.reshape(len(weight), channels, rows, high, columns, wide).flip(2, 4)
    taps = taps.permute(3, 5, 1, 0, 2, 4).reshape(-1, len(weight), rows, columns)
    coarse = F.conv2d(value, taps, None, 1, (rows - 1, columns - 1)).permute(0, 2, 3, 1)
    woven = coarse.unflatten(3, (high, wide, channels)).transpose(2, 3)
    image = woven.reshape(len(value), coarse.shape[1] * high, coarse.shape[2] * wide, channels)
    top, left = padding
    image = image[:, top : top + height, left : left + width].permute(0, 3, 1, 2)
    # What the stride leaves over on the far side is reached by no window: the adjoint is zero there.
    missing = (height - image.shape[2], width - image.shape[3])
    return F.pad(image, (0, missing[1], 0, missing[0])) if any(missing) else image
