"""Averages and sums over windows or axes, and max pools."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relucert.networks.build.values import Traced, axes_without_batch
from relucert.networks.layers.family import Family, Restored, arguments, pair
from relucert.networks.layers.shapes import Reshape
from relucert.networks.nodes import Affine, MaxPool2d, Shape, Windowed

if TYPE_CHECKING:
    from relucert.networks.build.builder import Builder


SMALL = 256  # pixels of an image whose averages are one product with a matrix


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

    def linear_of_many(self, z: Tensor) -> Tensor:
        # Averages over small images are one product with a matrix, which is faster than going from window to window.
        pixels = math.prod(self.in_shapes[0][1:])
        if pixels > SMALL:
            return self.linear(z)
        every = torch.eye(pixels, dtype=z.dtype, device=z.device).reshape(1, pixels, *self.in_shapes[0][1:])
        made = self.linear(every)[0]
        return (z.flatten(-2) @ made.flatten(1)).unflatten(-1, made.shape[1:])

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


class Sum(Affine):
    """The sum over some axes (counted without the batch)."""

    kind = "sum"

    def __init__(self, in_shape: Shape, axes: tuple[int, ...], keepdim: bool):
        self.in_shapes, self.axes, self.keepdim = (in_shape,), axes, keepdim

    def linear(self, z: Tensor) -> Tensor:
        return z.sum([axis + 1 for axis in self.axes], keepdim=self.keepdim)

    def _count(self) -> int:
        return math.prod(self.in_shapes[0][axis] for axis in self.axes)

    def fixed_norm(self) -> float:
        return math.sqrt(self._count())

    @property
    def terms(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._count() + 2

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


def _sum(t: Builder, z: Traced, dim: Any = None, keepdim: bool = False, axis: Any = None) -> Traced:
    dim = axis if dim is None else dim
    if dim is None:
        raise t.unsupported("it adds up the batch")
    return t.add(Sum(z.shape, axes_without_batch(t, z, dim), keepdim), z)


def _adaptive_max_pool2d(t: Builder, z: Traced, output_size: Any, return_indices: bool = False) -> Traced:
    sizes = output_size if isinstance(output_size, list | tuple) else (output_size, output_size)
    height, width = (own if size is None else size for size, own in zip(sizes, z.shape[1:], strict=True))
    if z.shape[1] % height or z.shape[2] % width:
        raise t.unsupported(
            f"windows of an adaptive max pool must have one size: {z.shape[1:]} must be a multiple of {(height, width)}"
        )
    kernel = (z.shape[1] // height, z.shape[2] // width)
    return _max_pool2d(t, z, kernel, return_indices=return_indices)


def _in_a_row(pool: Callable[..., Traced], names: tuple[str, ...]) -> Callable[..., Traced]:
    """The reader of a pool of sequences (channels, length), as a pool of images of height 1."""

    def read(t: Builder, z: Traced, kernel_size: Any, *args: Any, **given: Any) -> Traced:
        if len(z.shape) != 2:
            raise t.unsupported(f"it needs an input (channels, length), got shape {z.shape}")
        options = arguments(dict.fromkeys(names), args, given)
        given = {name: options[name] for name in options if options[name] is not None}
        for name, neutral in (("stride", 1), ("padding", 0), ("dilation", 1)):
            if name in given and given[name] != []:
                given[name] = (neutral, pair(given[name])[0])
        row = t.add(Reshape(z.shape, (z.shape[0], 1, z.shape[1])), z)
        made = pool(t, row, (1, pair(kernel_size)[0]), **given)
        return t.add(Reshape(made.shape, (made.shape[0], made.shape[2])), made)

    return read


_AVERAGE_ROW = ("stride", "padding", "ceil_mode", "count_include_pad")
_MAXIMUM_ROW = tuple(_MAXIMUM)
_avg_pool1d = _in_a_row(_avg_pool2d, _AVERAGE_ROW)
_max_pool1d = _in_a_row(_max_pool2d, _MAXIMUM_ROW)


def _avg_pool_module(t: Builder, part: nn.AvgPool2d, z: Traced) -> Traced:
    return _avg_pool2d(t, z, part.kernel_size, **{name: getattr(part, name) for name in _AVERAGE})


def _max_pool_module(t: Builder, part: nn.MaxPool2d, z: Traced) -> Traced:
    return _max_pool2d(t, z, part.kernel_size, **{name: getattr(part, name) for name in _MAXIMUM})


class SumLayer(nn.Module):
    """The sum over some axes."""

    def __init__(self, axes: list[int], keepdim: bool):
        super().__init__()
        self.axes, self.keepdim = [axis + 1 for axis in axes], keepdim

    def forward(self, z: Tensor) -> Tensor:
        return z.sum(self.axes, keepdim=self.keepdim)


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
        nn.AdaptiveMaxPool2d: lambda t, part, z: _adaptive_max_pool2d(t, z, part.output_size, part.return_indices),
        nn.AvgPool1d: lambda t, part, z: _avg_pool1d(
            t, z, part.kernel_size, **{name: getattr(part, name) for name in _AVERAGE_ROW}
        ),
        nn.MaxPool1d: lambda t, part, z: _max_pool1d(
            t, z, part.kernel_size, **{name: getattr(part, name) for name in _MAXIMUM_ROW}
        ),
    },
    functions={
        F.avg_pool2d: _avg_pool2d,
        F.adaptive_avg_pool2d: _adaptive_avg_pool2d,
        F.max_pool2d: _max_pool2d,
        torch.max_pool2d: _max_pool2d,
        F.adaptive_max_pool2d: _adaptive_max_pool2d,
        F.avg_pool1d: _avg_pool1d,
        F.max_pool1d: _max_pool1d,
        torch.mean: _mean,
        torch.sum: _sum,
    },
    methods={"mean": _mean, "sum": _sum},
    restored={
        AvgPool2d.kind: _restored_avg_pool,
        AdaptiveAvgPool2d.kind: lambda given: nn.AdaptiveAvgPool2d(tuple(given.settings["size"])),
        Mean.kind: lambda given: MeanLayer(given.settings["axes"], given.settings["keepdim"]),
        Sum.kind: lambda given: SumLayer(given.settings["axes"], given.settings["keepdim"]),
        MaxPool2d.kind: _restored_max_pool,
    },
    forms=("mean and sum over the axes behind the batch",),
)
