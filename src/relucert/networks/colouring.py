"""Columns of V that no unit reads together, added up: all rows of a layer from few columns, in any graph.

A unit of a convolution reads a window of the image, however many layers lie between. Two pixels that are at least a window
apart enter no common row, so their columns of V can be pushed forward as one: with windows of k x k pixels all rows come from
k k columns for each channel instead of one for each pixel (Curtis, Powell and Reid, "On the estimation of sparse Jacobian
matrices", 1974). Every entry of a row of V is in one of these columns, and all else in the row of a column is zero:

    ||V_j||_q = ||(V s_1)_j, ..., (V s_k)_j||_q,      s_i = sum of the unit vectors of colour i.

How far apart entries must lie is found by marking entries of the input and following the marks through the graph, along each
axis on its own: nothing has to be known of layers, strides, sums or pools.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.networks.linear_map import LinearMap
from relucert.networks.nodes import Affine, Switching
from relucert.networks.traversal import ForwardRule, Graph, Node, propagate

MARKED = 2**24  # numbers of the widest value while marks are followed


@dataclass(frozen=True)
class Colouring:
    """Colours of the entries of an input that repeat along each axis after so many entries."""

    input_shape: tuple[int, ...]
    periods: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of colours."""
        return math.prod(self.periods)

    @cached_property
    def colours(self) -> Int[Tensor, " *input"]:
        """The colour of every entry.

        >>> Colouring((1, 2, 5), (1, 1, 3)).colours.tolist()
        [[[0, 1, 2, 0, 1], [0, 1, 2, 0, 1]]]
        """
        total = torch.zeros(self.input_shape, dtype=torch.long)
        for axis, (size, period) in enumerate(zip(self.input_shape, self.periods, strict=True)):
            place = torch.arange(size).remainder(period)
            total = total * period + place.reshape(-1, *(1,) * (len(self.input_shape) - axis - 1))
        return total

    def columns(self, start: int, stop: int, like: Tensor) -> Float[Tensor, " 1 colours *input"]:
        """The sums of the unit vectors of some colours."""
        chosen = torch.arange(start, min(stop, self.count)).reshape(-1, *(1,) * len(self.input_shape))
        return (self.colours == chosen).to(like.device, like.dtype).unsqueeze(0)


def push_columns(
    linear: LinearMap, columns: Float[Tensor, " 1 n *input"], keep: Collection[int]
) -> dict[int, Float[Tensor, " batch n *shape"]]:
    """How the values of some nodes change along directions that are the same for all examples.

    Before the first switching node the batch has size 1. Differentiable in the weights.
    """
    patterns = {node.index: pattern for node, pattern in zip(linear.graph.switches, linear.patterns, strict=True)}
    return propagate(linear.graph, _Columns(patterns), {0: columns}, keep)


@dataclass(frozen=True, eq=False)
class _Columns(ForwardRule[Tensor]):
    """The linear part of every node under its pattern, for values (1 or batch, n, *shape)."""

    patterns: dict[int, Tensor]

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        batch = max(len(value) for value in inputs)
        flat = [value.expand(batch, *value.shape[1:]).flatten(0, 1) for value in inputs]
        return node.op.linear(*flat).unflatten(0, (batch, -1))

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor:
        pattern = self.patterns[node.index]
        return node.op.linear(value.expand(len(pattern), *value.shape[1:]), pattern)


@torch.no_grad()
def reach(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """The widths of the windows of the input that units of each switching node read, along each axis of the input.

    The window of a max pool's unit is that of all its entries. Whatever the weights are, no unit reads entries further apart.
    """
    held = [source for node in graph.affine_nodes for source in node.op.sources().values()]
    device = held[0].value.device if held else torch.device("cpu")
    keep = [node.index for node in graph.switches]
    found: list[list[int]] = [[] for _ in keep]
    shape, widest = graph[0].shape, max(math.prod(node.shape) for node in graph)
    for axis, size in enumerate(shape):
        ends = [_Ends() for _ in keep]
        for places in torch.arange(size, device=device).split(max(1, MARKED // widest)):
            marks = torch.zeros(len(places), *shape, device=device)
            marks.movedim(axis + 1, 1)[torch.arange(len(places), device=device), places] = 1.0
            values = propagate(graph, _Marks(), {0: marks}, keep)
            for end, index in zip(ends, keep, strict=True):
                end.add(values[index].flatten(1) != 0, places)
        for widths, end in zip(found, ends, strict=True):
            widths.append(end.width())
    return tuple(tuple(widths) for widths in found)


class _Marks(ForwardRule[Tensor]):
    """1 for the entries of every node that may depend on marked entries of the input, 0 for all others."""

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        return (node.op.support(*inputs) != 0).to(inputs[0].dtype)

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor:
        return node.op.apply(value)


class _Ends:
    """The first and the last place along an axis that every unit reads."""

    def __init__(self):
        self.first: Tensor | None = None
        self.last: Tensor | None = None

    def add(self, marked: Tensor, places: Tensor) -> None:
        """What units read of some places."""
        most = torch.iinfo(torch.long).max // 4
        first = torch.where(marked, places[:, None], most).amin(0)
        last = torch.where(marked, places[:, None], -most).amax(0)
        self.first = first if self.first is None else torch.minimum(self.first, first)
        self.last = last if self.last is None else torch.maximum(self.last, last)

    def width(self) -> int:
        """The widest window, at least 1."""
        if self.first is None or self.last is None or self.first.numel() == 0:
            return 1
        return max(1, int((self.last - self.first).max()) + 1)
