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

from relucert.networks.affine_map import Step
from relucert.networks.layers.linear import Conv2d


@dataclass(frozen=True)
class AxisFilter:
    """A convolution along one axis."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    def tap(self, seen: int, by: int) -> int:
        """The tap of the filter with which position `by` of the output sees position `seen` of the input, -1 for none."""
        tap, rest = divmod(seen - by * self.stride + self.padding, self.dilation)
        return tap if rest == 0 and 0 <= tap < self.kernel else -1


@dataclass(frozen=True)
class Axis:
    """Two convolutions along one axis: the numbers of pixels, units and positions, and both filters.

    The receptive field of position 0 begins at pixel `start`, which may lie in the padding, that of the next `step` pixels
    later, and each has `field` pixels.
    """

    sizes: tuple[int, int, int]
    first: AxisFilter
    second: AxisFilter

    @property
    def start(self) -> int:
        return -self.second.padding * self.first.stride - self.first.padding

    @property
    def step(self) -> int:
        return self.second.stride * self.first.stride

    @property
    def field(self) -> int:
        inner, outer = self.first, self.second
        return (inner.kernel - 1) * inner.dilation + 1 + (outer.kernel - 1) * outer.dilation * inner.stride

    def window(self, position: int) -> tuple[slice, slice]:
        """The pixels of a position's receptive field that exist, and which of the field's pixels these are."""
        begin = self.start + position * self.step
        low, high = max(0, begin), min(self.sizes[0], begin + self.field)
        high = max(low, high)
        return slice(low, high), slice(low - begin, high - begin)


def axes(first: Step, second: Step, input_shape: tuple[int, ...]) -> tuple[Axis, Axis]:
    """The geometry of a convolution behind a convolution on images (channels, height, width), down and across."""
    assert first.conv is not None
    assert second.conv is not None

    def along(conv: Conv2d, i: int) -> AxisFilter:
        return AxisFilter(conv.weight.value.shape[2 + i], conv.stride[i], conv.padding[i], conv.dilation[i])

    down, across = (
        Axis(
            (input_shape[1 + i], first.shape[1 + i], second.shape[1 + i]),
            along(first.conv, i),
            along(second.conv, i),
        )
        for i in (0, 1)
    )
    return down, across


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
    first: Step, second: Step, input_shape: tuple[int, ...], rising: Tensor, falling: Tensor | None = None
) -> Iterator[Patch]:
    """The patches of all positions, for images of shape (channels, height, width).

    `rising` (batch, units, ...) are the slopes of the first convolution's units where the second filter is positive,
    `falling` where it is negative (None: the same).
    """
    whole = Filters.of(second)
    down, across = axes(first, second, input_shape)
    if falling is None:
        filters, gates = [_filters(first.weight(), whole.weight, down, across)], [whole.seen(rising)]
    else:
        filters = [_filters(first.weight(), half.weight, down, across) for half in whole.parts()]
        gates = [whole.seen(slopes) for slopes in (rising, falling)]
    shape = (len(whole.weight), first.weight().shape[1], down.field, across.field)
    for place in range(gates[0].shape[0]):
        rows = gates[0][place] @ filters[0]
        if falling is not None:
            rows = rows + gates[1][place] @ filters[1]
        rows = rows.reshape(-1, *shape)
        row, column = divmod(place, second.shape[2])
        (top, cut_h), (left, cut_w) = down.window(row), across.window(column)
        yield Patch((row, column), (top, left), rows[:, :, :, cut_h, cut_w])


def _filters(
    inner: Float[Tensor, " units channels kh kw"], outer: Float[Tensor, " maps units lh lw"], down: Axis, across: Axis
) -> Float[Tensor, " taps maps_times_field"]:
    """Row (unit, i, j) of map m is outer[m, unit, i, j] times the unit's filter shifted to (i, j)."""
    return (outer.flatten(1).T[:, :, None] * _taps(inner, outer.shape[2:], down, across)[:, None]).flatten(1)


def _taps(
    inner: Float[Tensor, " units channels kh kw"], kernel: tuple[int, ...], down: Axis, across: Axis
) -> Float[Tensor, " taps channels_times_field"]:
    """Row (unit, i, j) is the unit's filter shifted to the tap (i, j) of the second filter."""
    spread = _dilated(inner, (down.first.dilation, across.first.dilation))
    shifted = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = (tap * axis.second.dilation * axis.first.stride for tap, axis in ((i, down), (j, across)))
            below, right = down.field - top - spread.shape[2], across.field - left - spread.shape[3]
            shifted.append(F.pad(spread, (left, right, top, below)))
    return torch.stack(shifted, 1).flatten(0, 1).flatten(1)


def _dilated(weight: Tensor, dilation: tuple[int, int]) -> Tensor:
    """A filter with zeros between its taps."""
    if dilation == (1, 1):
        return weight
    rows, columns = ((weight.shape[2 + i] - 1) * dilation[i] + 1 for i in (0, 1))
    wide = weight.new_zeros(*weight.shape[:2], rows, columns)
    wide[:, :, :: dilation[0], :: dilation[1]] = weight
    return wide
