"""The same numbers in another shape or order: reshapes, permutations, zero padding, concatenation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relucert.networks.build.values import BATCH, Traced, axes_without_batch
from relucert.networks.layers.family import Family
from relucert.networks.nodes import Affine, Shape

if TYPE_CHECKING:
    from relucert.networks.build.builder import Builder


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
    elementwise = isometric = permutes = True

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
    elementwise = isometric = permutes = True

    def __init__(self, in_shape: Shape, axes: tuple[int, ...]):
        self.in_shapes, self.axes = (in_shape,), axes

    def linear(self, z: Tensor) -> Tensor:
        return z.permute(0, *(axis + 1 for axis in self.axes))

    def settings(self) -> dict[str, object]:
        return {"axes": self.axes}


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


def _reshaped(t: Builder, z: Traced, sample: Tensor) -> Traced:
    if sample.shape[:1] != (BATCH,):
        raise t.unsupported("it mixes the examples of a batch")
    shape = tuple(sample.shape[1:])
    return z if shape == z.shape else t.add(Reshape(z.shape, shape), z)


def _view(t: Builder, z: Traced, *shape: Any, **kwargs: Any) -> Traced:
    sizes = kwargs.get("shape", shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape)
    return _reshaped(t, z, z.sample.reshape(*sizes))


def _flatten(t: Builder, z: Traced, start_dim: int = 0, end_dim: int = -1) -> Traced:
    return _reshaped(t, z, z.sample.flatten(start_dim, end_dim))


def _squeeze(t: Builder, z: Traced, *dim: Any, **kwargs: Any) -> Traced:
    return _reshaped(t, z, z.sample.squeeze(*dim, **kwargs))


def _unsqueeze(t: Builder, z: Traced, dim: int) -> Traced:
    return _reshaped(t, z, z.sample.unsqueeze(dim))


def _permute(t: Builder, z: Traced, *dims: Any) -> Traced:
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], list | tuple) else dims
    if int(order[0]) % z.sample.dim() != 0:
        raise t.unsupported("it moves the batch axis")
    return t.add(Permute(z.shape, axes_without_batch(t, z, tuple(order[1:]))), z)


def _transpose(t: Builder, z: Traced, dim0: int, dim1: int) -> Traced:
    first, second = axes_without_batch(t, z, (dim0, dim1))
    order = list(range(len(z.shape)))
    order[first], order[second] = order[second], order[first]
    return t.add(Permute(z.shape, tuple(order)), z)


def _pad(t: Builder, z: Traced, pad: Any, mode: str = "constant", value: Any = None) -> Traced:
    if mode != "constant" or value not in (None, 0):
        raise t.unsupported(f"only zero padding is, got mode={mode!r}, value={value}")
    if len(pad) > 2 * len(z.shape):
        raise t.unsupported("it pads the batch axis")
    return t.add(Pad(z.shape, tuple(int(side) for side in pad)), z)


def _cat(t: Builder, tensors: Any, dim: int = 0, axis: int | None = None) -> Traced:
    if not all(isinstance(part, Traced) for part in tensors):
        raise t.unsupported("it joins the input with a constant")
    (place,) = axes_without_batch(t, tensors[0], dim if axis is None else axis)
    return t.add(Concat([part.shape for part in tensors], place), *tensors)


def _attribute(t: Builder, z: Traced, name: str) -> Any:
    if name in ("shape", "ndim", "dtype", "device"):
        return getattr(z.sample, name)
    raise t.unsupported(f"it reads the attribute {name!r}")


def _nothing(t: Builder, z: Traced, *args: Any, **kwargs: Any) -> Traced:
    return z


class PadLayer(nn.Module):
    """Zero padding."""

    def __init__(self, padding: list[int]):
        super().__init__()
        self.padding = padding

    def forward(self, z: Tensor) -> Tensor:
        return F.pad(z, self.padding)


class ReshapeLayer(nn.Module):
    """The same numbers in another shape."""

    def __init__(self, shape: list[int]):
        super().__init__()
        self.shape = shape

    def forward(self, z: Tensor) -> Tensor:
        return z.reshape(z.size(0), *self.shape)


class PermuteLayer(nn.Module):
    """The axes in another order."""

    def __init__(self, axes: list[int]):
        super().__init__()
        self.axes = [axis + 1 for axis in axes]

    def forward(self, z: Tensor) -> Tensor:
        return z.permute(0, *self.axes)


class ConcatLayer(nn.Module):
    """Values side by side."""

    def __init__(self, axis: int):
        super().__init__()
        self.axis = axis + 1

    def forward(self, *values: Tensor) -> Tensor:
        return torch.cat(values, self.axis)


FAMILY = Family(
    modules={
        nn.Flatten: lambda t, part, z: _flatten(t, z, part.start_dim, part.end_dim),
        nn.Unflatten: lambda t, part, z: _reshaped(t, z, part(z.sample)),
        nn.ZeroPad2d: lambda t, part, z: _pad(t, z, part.padding),
    },
    functions={
        F.pad: _pad,
        torch.flatten: _flatten,
        torch.reshape: _view,
        torch.squeeze: _squeeze,
        torch.unsqueeze: _unsqueeze,
        torch.permute: _permute,
        torch.transpose: _transpose,
        torch.cat: _cat,
        torch.concat: _cat,
        torch.concatenate: _cat,
        getattr: _attribute,
    },
    methods={
        "view": _view,
        "reshape": _view,
        "flatten": _flatten,
        "squeeze": _squeeze,
        "unsqueeze": _unsqueeze,
        "permute": _permute,
        "transpose": _transpose,
        "contiguous": _nothing,
        "clone": _nothing,
        "size": lambda t, z, *dim: z.sample.size(*dim),
        "dim": lambda t, z: z.sample.dim(),
    },
    restored={
        Pad.kind: lambda given: PadLayer(given.settings["padding"]),
        Reshape.kind: lambda given: ReshapeLayer(given.settings["out_shape"]),
        Permute.kind: lambda given: PermuteLayer(given.settings["axes"]),
        Concat.kind: lambda given: ConcatLayer(given.settings["axis"]),
    },
    forms=(
        "reshapes and permutations of the axes behind the batch",
        "zero padding",
        "concatenations of values",
    ),
)
