"""Larger and smaller images without arithmetic: repeated entries, pixels as channels and back, values stacked on a new axis.

All of it is made of reshapes, permutations and concatenations: nearest neighbours are copies side by side.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from relucert.networks.build.values import Traced, axes_without_batch
from relucert.networks.layers.family import Family, arguments
from relucert.networks.layers.shapes import Concat, Permute, Reshape

if TYPE_CHECKING:
    from relucert.networks.build.builder import Builder

MOST = 64  # copies of an entry along one axis


def _reshaped(t: Builder, z: Traced, *shape: int) -> Traced:
    return z if z.shape == shape else t.add(Reshape(z.shape, shape), z)


def _joined(t: Builder, parts: list[Traced], axis: int) -> Traced:
    return parts[0] if len(parts) == 1 else t.add(Concat([part.shape for part in parts], axis), *parts)


def _repeated(t: Builder, z: Traced, axis: int, count: int) -> Traced:
    """Every entry along an axis (counted without the batch) so many times, one behind the other."""
    if not 1 <= count <= MOST:
        raise t.unsupported(f"entries are repeated 1 to {MOST} times, got {count}")
    before, size, behind = math.prod(z.shape[:axis]), z.shape[axis], math.prod(z.shape[axis + 1 :])
    column = _reshaped(t, z, before * size, 1, behind)
    copies = _joined(t, [column] * count, 1)
    return _reshaped(t, copies, *z.shape[:axis], size * count, *z.shape[axis + 1 :])


_ENLARGED = {"size": None, "scale_factor": None, "mode": "nearest", "align_corners": None}


def _interpolate(t: Builder, z: Traced, *args: Any, **given: Any) -> Traced:
    """Nearest neighbours by whole factors; with these all rules of rounding agree."""
    known = {name: given.pop(name) for name in ("recompute_scale_factor", "antialias") if name in given}
    options = arguments(_ENLARGED, args, given)
    if options["mode"] not in ("nearest", "nearest-exact") or known.get("antialias"):
        raise t.unsupported(f"only the mode 'nearest' is, got {options['mode']!r}: it is affine, but has no reader")
    sizes = z.shape[1:]
    made = tuple(F.interpolate(z.sample, **options).shape[2:])
    factors = [new // old for old, new in zip(sizes, made, strict=True)]
    if any(old * factor != new for old, factor, new in zip(sizes, factors, made, strict=True)):
        raise t.unsupported(f"sizes must become multiples of themselves, got {tuple(sizes)} and {made}")
    for axis, factor in enumerate(factors, 1):
        z = _repeated(t, z, axis, factor)
    return z


def _upsample_module(t: Builder, part: nn.Upsample, z: Traced) -> Traced:
    return _interpolate(t, z, part.size, part.scale_factor, part.mode, part.align_corners)


def _repeat_interleave(t: Builder, z: Traced, repeats: Any, dim: int | None = None) -> Traced:
    if not isinstance(repeats, int) or dim is None:
        raise t.unsupported("it must repeat all entries along one axis equally often")
    (axis,) = axes_without_batch(t, z, dim)
    return _repeated(t, z, axis, repeats)


def _pixel_shuffle(t: Builder, z: Traced, upscale_factor: int) -> Traced:
    """Channels (c r r, h, w) as pixels (c, h r, w r)."""
    r = int(upscale_factor)
    if len(z.shape) != 3 or r < 1 or z.shape[0] % (r * r):
        raise t.unsupported(f"it needs images with a multiple of {r} * {r} channels, got shape {z.shape}")
    channels, height, width = z.shape
    parts = _reshaped(t, z, channels // (r * r), r, r, height, width)
    turned = t.add(Permute(parts.shape, (0, 3, 1, 4, 2)), parts)
    return _reshaped(t, turned, channels // (r * r), height * r, width * r)


def _pixel_unshuffle(t: Builder, z: Traced, downscale_factor: int) -> Traced:
    """Pixels (c, h r, w r) as channels (c r r, h, w)."""
    r = int(downscale_factor)
    if len(z.shape) != 3 or r < 1 or z.shape[1] % r or z.shape[2] % r:
        raise t.unsupported(f"it needs images with sizes that are multiples of {r}, got shape {z.shape}")
    channels, height, width = z.shape[0], z.shape[1] // r, z.shape[2] // r
    parts = _reshaped(t, z, channels, height, r, width, r)
    turned = t.add(Permute(parts.shape, (0, 2, 4, 1, 3)), parts)
    return _reshaped(t, turned, channels * r * r, height, width)


def _stack(t: Builder, tensors: Any, dim: int = 0) -> Traced:
    """Values of one shape side by side along a new axis."""
    if not all(isinstance(part, Traced) for part in tensors):
        raise t.unsupported("it joins the input with a constant")
    shape, rank = tensors[0].shape, len(tensors[0].shape) + 2
    if not -rank <= dim < rank or dim % rank == 0 or any(part.shape != shape for part in tensors):
        raise t.unsupported(f"it must stack values of one shape along an axis behind the batch, got dim={dim}")
    axis = dim % rank - 1
    return _joined(t, [_reshaped(t, part, *shape[:axis], 1, *shape[axis:]) for part in tensors], axis)


FAMILY = Family(
    modules={
        nn.Upsample: _upsample_module,
        nn.PixelShuffle: lambda t, part, z: _pixel_shuffle(t, z, part.upscale_factor),
        nn.PixelUnshuffle: lambda t, part, z: _pixel_unshuffle(t, z, part.downscale_factor),
    },
    functions={
        F.interpolate: _interpolate,
        F.upsample: _interpolate,
        F.pixel_shuffle: _pixel_shuffle,
        F.pixel_unshuffle: _pixel_unshuffle,
        torch.pixel_shuffle: _pixel_shuffle,
        torch.pixel_unshuffle: _pixel_unshuffle,
        torch.repeat_interleave: _repeat_interleave,
        torch.stack: _stack,
    },
    methods={"repeat_interleave": _repeat_interleave},
    forms=("nearest neighbours by whole factors", "values stacked on a new axis"),
)
