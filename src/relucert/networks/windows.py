"""Rows of single units of a convolution, made on their receptive fields alone, for chains of any number of convolutions.

A unit at position i of convolution d reads the window of layer d - 1 that begins at i s - p, and through it a window of every
earlier layer. Its row of V is pulled back from window to window: the filter times the slopes of the units in the window, then
the adjoint of the next convolution, and so on to the pixels:

    row = A_1' diag(g_1) ... A_(d-1)' diag(g_(d-1)) filter_d,      all of them cut to the windows.

Units of all positions and examples are rows of the same few products. Slopes beyond the border of a layer are zero, and pixels
beyond the border of the image are left out. Differentiable in weights and slopes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from relucert.networks.affine_map import Step

LARGEST = 2**17  # entries of an adjoint that is applied as one matrix; larger ones are convolutions of small images


@dataclass(frozen=True)
class Window:
    """The windows of one layer: the size of a window, the distance of neighbours, and how far the first lies outside."""

    size: tuple[int, int]
    step: tuple[int, int]
    outside: tuple[int, int]

    def grid(self, size: tuple[int, ...]) -> tuple[int, int]:
        """The numbers of windows down and across, of a layer of this size."""
        down, across = ((size[i] + 2 * self.outside[i] - self.size[i]) // self.step[i] + 1 for i in (0, 1))
        return down, across

    def seen(self, values: Float[Tensor, " batch channels *area"]) -> Float[Tensor, " places entries"]:
        """What every position of every example sees, zero beyond the border."""
        found = F.unfold(values, self.size, 1, self.outside, self.step)
        return found.transpose(1, 2).reshape(-1, found.shape[1])

    def picked(self, values: Float[Tensor, " batch channels *area"], units: Units) -> Float[Tensor, " n entries"]:
        """What single units see, zero beyond the border."""
        padded = F.pad(values, (self.outside[1], self.outside[1], self.outside[0], self.outside[0]))
        channels, height, width = padded.shape[1:]
        inner = torch.arange(channels * height * width, device=values.device).view(channels, height, width)
        row, column = (units.places // units.shape[2]) % units.shape[1], units.places % units.shape[2]
        first = units.batch * inner.numel() + row * (self.step[0] * width) + column * self.step[1]
        place = first[:, None] + inner[:, : self.size[0], : self.size[1]].flatten()
        return padded.flatten().index_select(0, place.flatten()).view(place.shape)

    def before(self, step: Step) -> Window:
        """The windows of the layer before a convolution, from those of its values."""
        conv = step.conv
        assert conv is not None
        spans = [conv.dilation[i] * (conv.weight.value.shape[2 + i] - 1) + 1 for i in (0, 1)]
        size, across, outside = (
            tuple(make(i) for i in (0, 1))
            for make in (
                lambda i: (self.size[i] - 1) * conv.stride[i] + spans[i],
                lambda i: self.step[i] * conv.stride[i],
                lambda i: self.outside[i] * conv.stride[i] + conv.padding[i],
            )
        )
        return Window(size, across, outside)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Units:
    """Some units of a convolution: examples (n,), and flat numbers (n,) within a layer of shape (maps, height, width)."""

    batch: Int[Tensor, " n"]
    places: Int[Tensor, " n"]
    shape: tuple[int, int, int]

    def __len__(self) -> int:
        return len(self.batch)

    def maps(self) -> Int[Tensor, " n"]:
        """The channels of the units."""
        return self.places // (self.shape[1] * self.shape[2])

    def positions(self, grid: tuple[int, int]) -> Int[Tensor, " n"]:
        """The numbers of the units' windows among those of an image, which form a grid."""
        row, column = (self.places // self.shape[2]) % self.shape[1], self.places % self.shape[2]
        return row * grid[1] + column

    def restrict(self, index: Int[Tensor, " m"]) -> Units:
        """Some of the units."""
        return Units(self.batch[index], self.places[index], self.shape)

    def pick(self, table: Float[Tensor, " places entries"], grid: tuple[int, int]) -> Float[Tensor, " n entries"]:
        """What the units see, from what every position sees, of every example or the same of all examples."""
        place = self.positions(grid)
        one = len(table) == grid[0] * grid[1]
        return table.index_select(0, place if one else self.batch * (grid[0] * grid[1]) + place)


class WindowRows:
    """Rows of units of the last of some convolutions, on images of the given shape.

    A row is made of `factors`, tensors that depend on the weights alone, and of `tables`: the slopes that every position sees.
    """

    def __init__(self, steps: Sequence[Step], input_shape: tuple[int, ...]):
        self.steps, self.input_shape = list(steps), input_shape
        window = Window((1, 1), (1, 1), (0, 0))
        windows = []
        for step in reversed(self.steps):
            window = window.before(step)
            windows.append(window)
        #: Those of the input, of the first layer, of the second, ...
        self.windows = windows[::-1]
        sizes = [input_shape[1:], *(step.shape[1:] for step in self.steps[:-1])]
        self.grids = [window.grid(size) for window, size in zip(self.windows, sizes, strict=True)]

    @property
    def entries(self) -> int:
        """The numbers that the windows of a unit have in all layers."""
        channels = [self.input_shape[0], *(step.shape[0] for step in self.steps[:-1])]
        return sum(c * math.prod(window.size) for c, window in zip(channels, self.windows, strict=True))

    def factors(self) -> list[Tensor]:
        """The adjoints of all convolutions but the last, as matrices where these are small, and the last one's filters."""
        adjoints = [self._matrix(place) for place in range(len(self.steps) - 1)]
        return [*adjoints, _spread(self.steps[-1]).flatten(1)]

    def tables(self, slopes: Sequence[Tensor]) -> list[Tensor]:
        """What every position sees of the slopes (batch, *shape) of the layers before."""
        return [window.seen(given) for window, given in zip(self.windows[1:], slopes, strict=True)]

    def inside(self, like: Tensor) -> Float[Tensor, " places entries"]:
        """1 for the pixels of every position's window that exist, 0 for those beyond the border."""
        return self.windows[0].seen(like.new_ones(1, *self.input_shape))

    def rows(self, units: Units, factors: Sequence[Tensor], tables: Sequence[Tensor]) -> Float[Tensor, " n entries"]:
        """The rows of units on their windows of the input; pixels beyond the border are not left out yet."""
        return self.pulled(factors[-1].index_select(0, units.maps()), units, factors, tables)

    def pulled(
        self, rows: Float[Tensor, " n taps"], units: Units, factors: Sequence[Tensor], tables: Sequence[Tensor]
    ) -> Float[Tensor, " n entries"]:
        """Functionals of what units see of the layer before their own, as functionals of the pixels they see."""
        for place in range(len(self.steps) - 2, -1, -1):
            rows = self.adjoint(place, rows * units.pick(tables[place], self.grids[place + 1]), factors[place])
        return rows

    def adjoint(self, place: int, rows: Float[Tensor, " n taps"], factor: Tensor) -> Float[Tensor, " n entries"]:
        """Functionals of windows of a layer as functionals of windows of the layer before, by the factor of its step."""
        if factor.dim() == 2:
            return rows @ factor
        conv = self.steps[place].conv
        assert conv is not None
        small = rows.reshape(len(rows), len(factor), *self.windows[place + 1].size)
        return F.conv_transpose2d(small, factor, None, conv.stride, 0, 0, 1, conv.dilation).flatten(1)

    def _matrix(self, place: int) -> Tensor:
        """The adjoint of a convolution on windows of its values as a matrix, or its weight where that is too large."""
        step = self.steps[place]
        conv, weight = step.conv, step.weight()
        assert conv is not None
        size = self.windows[place + 1].size
        entries = len(weight) * math.prod(size)
        if entries * weight.shape[1] * math.prod(self.windows[place].size) > LARGEST:
            return weight
        every = torch.eye(entries, dtype=weight.dtype, device=weight.device).reshape(-1, len(weight), *size)
        return F.conv_transpose2d(every, weight, None, conv.stride, 0, 0, 1, conv.dilation).flatten(1)


def _spread(step: Step) -> Tensor:
    """A filter with zeros between its taps, where it is dilated."""
    conv, weight = step.conv, step.weight()
    assert conv is not None
    if conv.dilation == (1, 1):
        return weight
    size = [(weight.shape[2 + i] - 1) * conv.dilation[i] + 1 for i in (0, 1)]
    wide = weight.new_zeros(*weight.shape[:2], *size)
    wide[:, :, :: conv.dilation[0], :: conv.dilation[1]] = weight
    return wide
