"""Some entries of a value: by a constant table of places, or by ranges along axes, as slices and splits take them."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from relucert.core.errors import InvalidInput
from relucert.networks.build.values import Held, Traced, axes_without_batch
from relucert.networks.layers.family import Family
from relucert.networks.layers.shapes import Reshape
from relucert.networks.nodes import Affine, Shape, Source

if TYPE_CHECKING:
    from relucert.networks.build.builder import Builder

Range = tuple[int, int, int]


class Slice(Affine):
    """The entries within one range (start, stop, step) for every axis behind the batch; steps are positive."""

    kind = "slice"
    elementwise = True

    def __init__(self, in_shape: Shape, ranges: Sequence[Range]):
        self.in_shapes, self.ranges = (in_shape,), tuple(ranges)

    def _key(self) -> tuple[slice, ...]:
        return (slice(None), *(slice(*one) for one in self.ranges))

    def linear(self, z: Tensor) -> Tensor:
        return z[self._key()]

    def fixed_norm(self) -> float:
        return 1.0

    def settings(self) -> dict[str, object]:
        starts, stops, steps = zip(*self.ranges, strict=True)
        return {"starts": starts, "stops": stops, "steps": steps}


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

    def fixed_norm(self) -> float:
        return math.sqrt(self.most())

    @property
    def adjoint_terms(self) -> int:
        return self.most() + 2

    def sources(self) -> dict[str, Source]:
        return {"index": self.index}


def _select(t: Builder, z: Traced, dim: int, index: Any) -> Traced:
    source = t.tensor(index, "index")
    if len(z.shape) != 1 or axes_without_batch(t, z, dim) != (0,):
        raise t.unsupported(f"it selects along one of several axes (flatten the value first), got shape {z.shape}")
    assert source is not None
    places, size = source.value, z.shape[0]
    if places.dtype not in (torch.int32, torch.int64):
        raise t.unsupported(f"its index must hold whole numbers, got dtype {places.dtype}")
    if places.numel() == 0 or not bool(((places >= -size) & (places < size)).all()):
        found = f"{int(places.min())}..{int(places.max())}" if places.numel() else "none"
        raise InvalidInput(f"{t.where()}: index must hold places in {-size}..{size - 1}, got {found}")
    return t.add(Gather(source, z.shape), z)


def _item(t: Builder, z: Any, key: Any) -> Any:
    if isinstance(z, list | tuple):  # the parts of a split
        return z[key]
    keys = list(key) if isinstance(key, tuple) else [key]
    if len(keys) == 2 and keys[0] == slice(None) and isinstance(keys[1], Held):
        return _select(t, z, 1, keys[1])
    kinds = (int, slice, type(None), type(Ellipsis))
    if not all(isinstance(one, kinds) and not isinstance(one, bool) for one in keys):
        raise t.unsupported(
            "entries are taken by numbers and slices, or by an index buffer, as z[:, index] of a flat value"
        )
    try:
        sample = z.sample[tuple(keys)]
    except (IndexError, ValueError) as error:
        raise InvalidInput(f"{t.where()}: the key must fit shape {z.shape}, got {key}: {error}") from error
    if Ellipsis in keys:
        place = keys.index(Ellipsis)
        missing = z.sample.dim() - sum(one is not None for one in keys) + 1
        keys[place : place + 1] = [slice(None)] * missing
    used = [one for one in keys if one is not None]
    used += [slice(None)] * (z.sample.dim() - len(used))
    first = used[0]
    if keys[0] is None or not isinstance(first, slice) or first.indices(len(z.sample)) != (0, len(z.sample), 1):
        raise t.unsupported("it takes entries along the batch axis: examples are not mixed")
    ranges = []
    for one, size in zip(used[1:], z.shape, strict=True):
        ranges.append(one.indices(size) if isinstance(one, slice) else (one % size, one % size + 1, 1))
    return _shaped(t, sliced(t, z, ranges), tuple(sample.shape[1:]))


def sliced(t: Builder, z: Traced, ranges: Sequence[Range]) -> Traced:
    """The entries of a value within ranges."""
    if all(one == (0, size, 1) for one, size in zip(ranges, z.shape, strict=True)):
        return z
    return t.add(Slice(z.shape, ranges), z)


def _shaped(t: Builder, z: Traced, shape: Shape) -> Traced:
    return z if z.shape == shape else t.add(Reshape(z.shape, shape), z)


def _along(t: Builder, z: Traced, axis: int, start: int, stop: int) -> Traced:
    return sliced(t, z, [(start, stop, 1) if i == axis else (0, size, 1) for i, size in enumerate(z.shape)])


def _split(t: Builder, z: Traced, sizes: Any, dim: int = 0) -> tuple[Traced, ...]:
    (axis,) = axes_without_batch(t, z, dim)
    parts = z.sample.split(sizes, dim)
    ends = torch.tensor([0] + [part.shape[axis + 1] for part in parts]).cumsum(0).tolist()
    return tuple(_along(t, z, axis, start, stop) for start, stop in itertools.pairwise(ends))


def _chunk(t: Builder, z: Traced, chunks: int, dim: int = 0) -> tuple[Traced, ...]:
    axes_without_batch(t, z, dim)
    return _split(t, z, [part.shape[dim] for part in z.sample.chunk(chunks, dim)], dim)


def _split_sizes(t: Builder, z: Traced, split_size_or_sections: Any, dim: int = 0) -> tuple[Traced, ...]:
    return _split(t, z, split_size_or_sections, dim)


def _split_size(t: Builder, z: Traced, split_size: Any, dim: int = 0) -> tuple[Traced, ...]:
    return _split(t, z, split_size, dim)


def _narrow(t: Builder, z: Traced, dim: int, start: int, length: int) -> Traced:
    (axis,) = axes_without_batch(t, z, dim)
    first = start % z.shape[axis]
    return _along(t, z, axis, first, first + length)


def _one(t: Builder, z: Traced, dim: int, index: int) -> Traced:
    (axis,) = axes_without_batch(t, z, dim)
    place = index % z.shape[axis]
    return _shaped(t, _along(t, z, axis, place, place + 1), (*z.shape[:axis], *z.shape[axis + 1 :]))


def _unbind(t: Builder, z: Traced, dim: int = 0) -> tuple[Traced, ...]:
    (axis,) = axes_without_batch(t, z, dim)
    return tuple(_one(t, z, dim, place) for place in range(z.shape[axis]))


class SliceLayer(nn.Module):
    """The entries within ranges."""

    def __init__(self, starts: list[int], stops: list[int], steps: list[int]):
        super().__init__()
        self.key = (slice(None), *(slice(*one) for one in zip(starts, stops, steps, strict=True)))

    def forward(self, z: Tensor) -> Tensor:
        return z[self.key]


class GatherLayer(nn.Module):
    """Some entries of the value."""

    index: Tensor

    def __init__(self, index: Tensor):
        super().__init__()
        self.register_buffer("index", index)

    def forward(self, z: Tensor) -> Tensor:
        return z.flatten(1)[:, self.index]


FAMILY = Family(
    functions={
        operator.getitem: _item,
        torch.index_select: _select,
        torch.split: _split_sizes,
        torch.chunk: _chunk,
        torch.narrow: _narrow,
        torch.select: _one,
        torch.unbind: _unbind,
    },
    methods={
        "index_select": _select,
        "split": _split_size,
        "chunk": _chunk,
        "narrow": _narrow,
        "select": _one,
        "unbind": _unbind,
    },
    restored={
        Slice.kind: lambda given: SliceLayer(*(given.settings[name] for name in ("starts", "stops", "steps"))),
        Gather.kind: lambda given: GatherLayer(given.tensors["index"]),
    },
    forms=("slices, splits and chunks behind the batch", "entries of a flat value by an index buffer"),
)
