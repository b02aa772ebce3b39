"""Averages over windows or axes, and max pools."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relucert.networks.build.values import Traced, axes_without_batch
from relucert.networks.layers.family import Family, Restored, arguments, pair
from relucert.networks.nodes import Affine, MaxPool2d, Shape, Windowed

if TYPE_CHECKING:
    from relucert.networks.build.builder import Builder


class AvgPool2d(Windowed, Affine):
    """Average pooling with any window."""

    kind = "avg_pool2d"

    def __init__(self, in_shape: Shape, *, count_include_pad: bool = True, divisor: int | None = None, **windows: Any):
        super().__init__(**windows)
        self.in_shapes, self.count_include_pad, self.divisor = (in_shape,), count_include_pad, divisor

    def linear(self, z: Tensor) -> Tensor:
        return F.avg_pool2d(
            z, self.kernel, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor
        )

    @property
    def terms(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.kernel[0] * self.kernel[1] + 2

    def settings(self) -> dict[str, object]:
        return self.windowing() | {"count_include_pad": self.count_include_pad, "divisor": self.divisor}


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

    @property
    def adjoint_terms(self) -> int:
        # Along an axis from n to m entries an entry is in at most ceil(m / n) + 1 windows.
        return math.prod(-(-m // n) + 1 for m, n in zip(self.size, self.in_shapes[0][1:], strict=True)) + 2

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


_AVERAGE = {"stride": None, "padding": 0, "ceil_mode": False, "count_include_pad": True, "divisor_override": None}
_MAXIMUM = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}


def _stride(kernel: Any, stride: Any) -> tuple[int, int]:
    """The stride of a pool: by default the size of its window."""
    return pair(kernel if stride is None or stride == [] else stride)


def _avg_pool2d(t: Builder, z: Traced, kernel_size: Any, *args: Any, **given: Any) -> Traced:
    options = arguments(_AVERAGE, args, given)
    op = AvgPool2d(
        z.shape,
        kernel=pair(kernel_size),
        stride=_stride(kernel_size, options["stride"]),
        padding=pair(options["padding"]),
        ceil_mode=options["ceil_mode"],
        count_include_pad=options["count_include_pad"],
        divisor=options["divisor_override"],
    )
    return t.add(op, z)


def _adaptive_avg_pool2d(t: Builder, z: Traced, output_size: Any) -> Traced:
    sizes = output_size if isinstance(output_size, list | tuple) else (output_size, output_size)
    height, width = (own if size is None else size for size, own in zip(sizes, z.shape[1:], strict=True))
    return t.add(AdaptiveAvgPool2d(z.shape, (height, width)), z)


def _max_pool2d(t: Builder, z: Traced, kernel_size: Any, *args: Any, **given: Any) -> Traced:
    options = arguments(_MAXIMUM, args, given)
    if options["return_indices"]:
        raise t.unsupported("return_indices=True")
    op = MaxPool2d(
        z.shape,
        kernel=pair(kernel_size),
        stride=_stride(kernel_size, options["stride"]),
        padding=pair(options["padding"]),
        dilation=pair(options["dilation"]),
        ceil_mode=options["ceil_mode"],
    )
    return t.add(op, z)


def _mean(t: Builder, z: Traced, dim: Any = None, keepdim: bool = False, axis: Any = None) -> Traced:
    dim = axis if dim is None else dim
    if dim is None:
        raise t.unsupported("it averages over the batch")
    return t.add(Mean(z.shape, axes_without_batch(t, z, dim), keepdim), z)


def _avg_pool_module(t: Builder, part: nn.AvgPool2d, z: Traced) -> Traced:
    return _avg_pool2d(t, z, part.kernel_size, **{name: getattr(part, name) for name in _AVERAGE})


def _max_pool_module(t: Builder, part: nn.MaxPool2d, z: Traced) -> Traced:
    return _max_pool2d(t, z, part.kernel_size, **{name: getattr(part, name) for name in _MAXIMUM})


class MeanLayer(nn.Module):
    """The mean over some axes."""

    def __init__(self, axes: list[int], keepdim: bool):
        super().__init__()
        self.axes, self.keepdim = [axis + 1 for axis in axes], keepdim

    def forward(self, z: Tensor) -> Tensor:
        return z.mean(self.axes, keepdim=self.keepdim)


def _restored_avg_pool(given: Restored) -> nn.Module:
    settings = given.settings
    return nn.AvgPool2d(
        tuple(settings["kernel"]),
        tuple(settings["stride"]),
        tuple(settings["padding"]),
        settings["ceil_mode"],
        settings["count_include_pad"],
        settings["divisor"],
    )


def _restored_max_pool(given: Restored) -> nn.Module:
    settings = given.settings
    return nn.MaxPool2d(
        tuple(settings["kernel"]),
        tuple(settings["stride"]),
        tuple(settings["padding"]),
        tuple(settings["dilation"]),
        ceil_mode=settings["ceil_mode"],
    )


FAMILY = Family(
    modules={
        nn.AvgPool2d: _avg_pool_module,
        nn.AdaptiveAvgPool2d: lambda t, part, z: _adaptive_avg_pool2d(t, z, part.output_size),
        nn.MaxPool2d: _max_pool_module,
    },
    functions={
        F.avg_pool2d: _avg_pool2d,
        F.adaptive_avg_pool2d: _adaptive_avg_pool2d,
        F.max_pool2d: _max_pool2d,
        torch.max_pool2d: _max_pool2d,
        torch.mean: _mean,
    },
    methods={"mean": _mean},
    restored={
        AvgPool2d.kind: _restored_avg_pool,
        AdaptiveAvgPool2d.kind: lambda given: nn.AdaptiveAvgPool2d(tuple(given.settings["size"])),
        Mean.kind: lambda given: MeanLayer(given.settings["axes"], given.settings["keepdim"]),
        MaxPool2d.kind: _restored_max_pool,
    },
    forms=("mean over the axes behind the batch",),
)
