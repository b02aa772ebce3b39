"""Rows of a convolution behind a convolution as patches: what lies on the receptive field, position by position.

With g the slopes of the units that a window sees, the rows of all maps at a position are `g F'`: F has the second filter times
the first, shifted to each tap, and is the same for all positions and examples. Slopes may differ by the sign of the second
filter's weights, as they do in linear relaxations: then F is split in two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from relucert.networks.chains import Step


@dataclass(frozen=True, eq=False)
class Filters:
    """The linear part of a convolution, everything around it folded in."""

    weight: Float[Tensor, " maps units height width"]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @classmethod
    def of(cls, step: Step) -> Filters:
        """Those of a step that is a convolution."""
        conv = step.conv
        assert conv is not None
        return cls(step.weight(), conv.stride, conv.padding, conv.dilation)

    def parts(self) -> tuple[Filters, Filters]:
        """What is positive of the weights, and what is negative."""
        return replace(self, weight=self.weight.clamp(min=0)), replace(self, weight=self.weight.clamp(max=0))

    def apply(self, values: Float[Tensor, " batch units *size"]) -> Float[Tensor, " batch maps *positions"]:
        """The values of all maps."""
        return F.conv2d(values, self.weight, None, self.stride, self.padding, self.dilation)

    def seen(self, values: Float[Tensor, " batch units *size"]) -> Float[Tensor, " positions batch taps"]:
        """What every position sees; zero beyond the border."""
        found = F.unfold(values, self.weight.shape[2:], self.dilation, self.padding, self.stride)  # type: ignore[arg-type]
        return found.permute(2, 0, 1).contiguous()


@dataclass(frozen=True, eq=False)
class Patch:
    """The rows (batch, maps, channels, height, width) of one position, and the window of the image they belong to."""

    place: tuple[int, int]
    window: tuple[slice, slice]
    rows: Float[Tensor, " batch maps channels height width"]

    def cut(self, image: Tensor) -> Tensor:
        """The window of images (batch, channels, height, width)."""
        return image[:, :, self.window[0], self.window[1]]


def patches(
    first: Step, second: Step, size: tuple[int, int], rising: Tensor, falling: Tensor | None = None
) -> Iterator[Patch]:
    """The patches of all positions, for images of a size (height, width).

    `rising` (batch, units, ...) are the slopes of the first convolution's units where the second filter is positive,
    `falling` where it is negative (None: the same).
    """
    whole = Filters.of(second)
    field = _fields(first, second)
    if falling is None:
        filters, gates = [_filters(first, second, whole.weight, field)], [whole.seen(rising)]
    else:
        filters = [_filters(first, second, half.weight, field) for half in whole.parts()]
        gates = [whole.seen(slopes) for slopes in (rising, falling)]
    columns = second.shape[2]
    shape = (len(whole.weight), first.weight().shape[1], field[0].size, field[1].size)
    for place in range(gates[0].shape[0]):
        rows = gates[0][place] @ filters[0]
        if falling is not None:
            rows = rows + gates[1][place] @ filters[1]
        rows = rows.reshape(-1, *shape)
        down, across = divmod(place, columns)
        (top, cut_h), (left, cut_w) = field[0].window(down, size[0]), field[1].window(across, size[1])
        yield Patch((down, across), (top, left), rows[:, :, :, cut_h, cut_w])


@dataclass(frozen=True)
class _Field:
    """Receptive fields along one axis: where the first begins, how far the next is, how many pixels each has."""

    start: int
    step: int
    size: int

    def window(self, place: int, pixels: int) -> tuple[slice, slice]:
        """The pixels of a position's field that exist, and which part of the field they are."""
        begin = self.start + place * self.step
        low, high = max(0, begin), min(pixels, begin + self.size)
        high = max(low, high)
        return slice(low, high), slice(low - begin, high - begin)


def _fields(first: Step, second: Step) -> tuple[_Field, _Field]:
    a, b = first.conv, second.conv
    assert a is not None
    assert b is not None
    kernels = a.weight.value.shape[2:], b.weight.value.shape[2:]
    down, across = (
        _Field(
            -b.padding[i] * a.stride[i] - a.padding[i],
            b.stride[i] * a.stride[i],
            (kernels[0][i] - 1) * a.dilation[i] + 1 + (kernels[1][i] - 1) * b.dilation[i] * a.stride[i],
        )
        for i in (0, 1)
    )
    return down, across


def _filters(
    first: Step, second: Step, outer: Tensor, field: tuple[_Field, _Field]
) -> Float[Tensor, " taps maps_times_field"]:
    """Row (unit, i, j) of map m is outer[m, unit, i, j] times the unit's filter shifted to (i, j)."""
    inner, a, b = first.weight(), first.conv, second.conv
    assert a is not None
    assert b is not None
    rows, columns = outer.shape[2:]
    high, wide = (inner.shape[2] - 1) * a.dilation[0], (inner.shape[3] - 1) * a.dilation[1]
    spread = _dilated(inner, a.dilation)
    shifted = []
    for i in range(rows):
        for j in range(columns):
            top, left = i * b.dilation[0] * a.stride[0], j * b.dilation[1] * a.stride[1]
            below, right = field[0].size - top - high - 1, field[1].size - left - wide - 1
            shifted.append(F.pad(spread, (left, right, top, below)))
    taps = torch.stack(shifted, 1).flatten(0, 1).flatten(1)  # (units * rows * columns, channels * field)
    return (outer.flatten(1).T[:, :, None] * taps[:, None]).flatten(1)


def _dilated(weight: Tensor, dilation: tuple[int, int]) -> Tensor:
    """A filter with zeros between its taps."""
    if dilation == (1, 1):
        return weight
    rows, columns = ((weight.shape[2 + i] - 1) * dilation[i] + 1 for i in (0, 1))
    wide = weight.new_zeros(*weight.shape[:2], rows, columns)
    wide[:, :, :: dilation[0], :: dilation[1]] = weight
    return wide
