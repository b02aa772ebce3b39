"""Columns of V that no unit reads together, added up: all rows of a layer from few columns, in any graph.

A unit of a convolution reads a window of the image, however many layers lie between. Two pixels that are at least a window
apart enter no common row, so their columns of V can be pushed forward as one: with windows of k x k pixels all rows come from
k k columns for each channel instead of one for each pixel (Curtis, Powell and Reid, "On the estimation of sparse Jacobian
matrices", 1974). Every entry of a row of V is in one of these columns, and all else in the row of a column is zero:

    ||V_j||_q = ||(V s_1)_j, ..., (V s_k)_j||_q,      s_i = sum of the unit vectors of colour i.

How far apart entries must lie is found by marking entries of the input and following the marks through the graph, along each
axis on its own: nothing has to be known of layers, strides, sums or pools. Windows grow from layer to layer: between two
switching nodes columns have as many colours as the next ones need, and behind each their entries are dealt out anew.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.networks.linear_map import LinearMap
from relucert.networks.nodes import Affine, ReLU, Switching
from relucert.networks.traversal import ForwardRule, Graph, Node, affine_ancestors, propagate

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


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of the input that the units of a switching node read: along each axis the widest, and where each begins."""

    widths: tuple[int, ...]
    begins: tuple[Int[Tensor, " units"], ...]

    def moves(self, old: Colouring, new: Colouring, like: Tensor) -> Moves | None:
        """Where values of the units go in the columns of other colours; None if nothing changes.

        Both colourings tell apart the entries of a window. A new colour is that of one place within its period behind the
        beginning of the window; in the old period at most.
        """
        if old.periods == new.periods:
            return None
        key = old.periods, new.periods, like.device, like.dtype
        if key not in self._moves:
            place, back, kept = (table.to(like.device) for table in self._places(old.periods, new.periods))
            units = torch.arange(place.shape[1], device=like.device)
            flat = (place * len(units) + units).clamp(max=back.numel()), back * len(units) + units
            self._moves[key] = Moves(flat[0].flatten(), flat[1].flatten(), kept.to(like.dtype), len(place))
        return self._moves[key]

    @cached_property
    def _moves(self) -> dict[tuple[Any, ...], Moves]:
        """What `_places` has made: the same for all examples."""
        return {}

    def _places(
        self, old: tuple[int, ...], new: tuple[int, ...]
    ) -> tuple[Int[Tensor, " m units"], Int[Tensor, " n units"], Bool[Tensor, " n units"]]:
        """The old colour that every new one of a unit is, or the number n of old colours if it is none of them.

        Then the new colour that every old one is, and whether there is one.
        """
        units = len(self.begins[0])
        place = torch.zeros(1, units, dtype=torch.long)
        inside = torch.ones(1, units, dtype=torch.bool)
        for begin, before, behind in zip(self.begins, old, new, strict=True):
            ahead = (torch.arange(behind)[:, None] - begin).remainder(behind)
            along, within = (begin + ahead).remainder(before), ahead < before
            place = (place[:, None] * before + along[None]).flatten(0, 1)
            inside = (inside[:, None] & within[None]).flatten(0, 1)
        count = math.prod(old)
        place = place.masked_fill(~inside, count)
        back = torch.full((count + 1, units), -1)
        back.scatter_(0, place, torch.arange(len(place))[:, None].expand_as(place))
        return place, back[:-1].clamp(min=0), back[:-1] >= 0


@dataclass(frozen=True, eq=False)
class Moves:
    """Moves of values (n, units) to `colours` colours (m, units): where every new value comes from, n units for none.

    Then where every old one goes, and 1 for those that go anywhere.
    """

    place: Int[Tensor, " m_times_units"]
    back: Int[Tensor, " n_times_units"]
    kept: Float[Tensor, " n units"]
    colours: int


class _Moved(torch.autograd.Function):
    """`apply(values, slopes, moves)`: values (1 or batch, n, units) times slopes (batch, units), if any, at other places.

    Where nothing goes there are zeros. No place is taken twice, so the gradient goes back by the inverse places: nothing is
    added up. Slopes have no gradient.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, slopes: Tensor | None, moves: Moves) -> Tensor:
        ctx.work = slopes, moves, len(values)
        batch, (count, units) = len(values if slopes is None else slopes), values.shape[1:]
        padded = values.new_empty(batch, count * units + 1)
        padded[:, -1] = 0.0
        filled = padded[:, :-1].unflatten(1, (count, units))
        if slopes is None:
            filled.copy_(values)
        else:
            torch.mul(values, slopes[:, None], out=filled)
        return padded.index_select(1, moves.place).unflatten(1, (moves.colours, units))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        slopes, moves, count = ctx.work
        found = gradients[0].flatten(1).index_select(1, moves.back).unflatten(1, moves.kept.shape).mul_(moves.kept)
        if slopes is not None:
            found *= slopes[:, None]
        return found.sum(0, keepdim=True) if count < len(found) else found, None, None


@dataclass(frozen=True)
class Stages:
    """The colours that values have from each root to the next switching nodes: as few as these need, by the root's index."""

    colourings: dict[int, Colouring]

    @staticmethod
    def of(graph: Graph, places: Collection[int]) -> Stages:
        """Those for the rows of some switching nodes."""
        needed = _needed(graph, places, (1,) * len(graph[0].shape))
        # Up to the first switching nodes columns are the same for all examples: they have the colours of what follows at once.
        first = [
            node for node in graph.switches[: max(places) + 1] if affine_ancestors(graph, node.inputs[0])[1] == [0]
        ]
        needed = _needed(graph, places, _larger(needed[0], *(needed[node.index] for node in first)))
        return Stages({root: Colouring(graph[0].shape, periods) for root, periods in needed.items()})

    def at(self, graph: Graph, node: int) -> Colouring:
        """The colours of the columns of an affine node."""
        return self.colourings[affine_ancestors(graph, node)[1][0]]

    def numbers(self, graph: Graph) -> list[int]:
        """How many numbers the columns of every node have that these stages reach."""
        known = [node for node in graph if set(affine_ancestors(graph, node.index)[1]) <= set(self.colourings)]
        return [self.at(graph, node.index).count * math.prod(node.shape) for node in known]


def _needed(graph: Graph, places: Collection[int], least: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """The periods of the colours behind the input, `least` or more, and behind switching nodes, as some of these need them."""
    none = (1,) * len(graph[0].shape)
    own = {node.index: windows.widths for node, windows in zip(graph.switches, graph.windows, strict=True)}
    needed: dict[int, tuple[int, ...]] = {0: least}
    needed.update((graph.switches[place].index, none) for place in range(max(places) + 1))
    # Roots that one node reads meet in its value, so they need the same colours: until nothing changes any more.
    reads = [affine_ancestors(graph, node.inputs[0])[1] for node in graph.switches[: max(places) + 1]]
    before: dict[int, tuple[int, ...]] | None = None
    while needed != before:
        before = dict(needed)
        for node, roots in zip(graph.switches, reads, strict=False):
            most = _larger(own[node.index], *(needed[root] for root in roots), *(own.get(root, none) for root in roots))
            needed.update(dict.fromkeys(roots, most))
    return needed


def _larger(*periods: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(sizes) for sizes in zip(*periods, strict=True))


Coloured = tuple[Tensor, Colouring]


def push_columns(
    linear: LinearMap, columns: Float[Tensor, " 1 n *input"], keep: Collection[int], stages: Stages | None = None
) -> dict[int, Tensor]:
    """How the values of some nodes change along directions that are the same for all examples: (batch, columns, *shape).

    Before the first switching node the batch has size 1. With `stages` the directions are the columns of the input's colours
    there, and further nodes have columns of their own. Differentiable in the weights.
    """
    patterns = {node.index: pattern for node, pattern in zip(linear.graph.switches, linear.patterns, strict=True)}
    if stages is None:
        return propagate(linear.graph, _Columns(patterns), {0: columns}, keep)
    windows = {node.index: each for node, each in zip(linear.graph.switches, linear.graph.windows, strict=True)}
    pairs = propagate(
        linear.graph, _StagedColumns(patterns, windows, stages), {0: (columns, stages.colourings[0])}, keep
    )
    return {index: value for index, (value, _) in pairs.items()}


def _linear(node: Node[Affine], inputs: list[Tensor]) -> Tensor:
    lead = next((len(value) for value in inputs if len(value) != 1), 1), inputs[0].shape[1]
    flat = [value.expand(*lead, *value.shape[2:]).flatten(0, 1) for value in inputs]
    return node.op.linear_of_many(*flat).unflatten(0, lead)


@dataclass(frozen=True, eq=False)
class _Columns(ForwardRule[Tensor]):
    """The linear part of every node under its pattern, for values (1 or batch, n, *shape)."""

    patterns: dict[int, Tensor]

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        return _linear(node, inputs)

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor:
        pattern = self.patterns[node.index]
        return node.op.linear(value.expand(len(pattern), *value.shape[1:]), pattern)


@dataclass(frozen=True, eq=False)
class _StagedColumns(ForwardRule[Coloured]):
    """The same for columns whose colours change behind switching nodes; sums have the colours that all their inputs know."""

    patterns: dict[int, Tensor]
    windows: dict[int, Windows]
    stages: Stages

    def affine(self, node: Node[Affine], inputs: list[Coloured]) -> Coloured:
        return _linear(node, [value for value, _ in inputs]), inputs[0][1]

    def relu(self, node: Node[ReLU], value: Coloured) -> Coloured:
        pattern, (columns, old) = self.patterns[node.index], value
        new = self.stages.colourings[node.index]
        moves = self.windows[node.index].moves(old, new, columns)
        if moves is None:
            return node.op.linear(columns, pattern), new
        slopes = node.op.gate(pattern, columns.dtype).flatten(1)
        return self._moved(columns, slopes, moves), new

    def switching(self, node: Node[Switching], value: Coloured) -> Coloured:
        pattern, (columns, old) = self.patterns[node.index], value
        new = self.stages.colourings[node.index]
        made = node.op.linear(columns.expand(len(pattern), *columns.shape[1:]), pattern)
        moves = self.windows[node.index].moves(old, new, made)
        return made if moves is None else self._moved(made, None, moves), new

    @staticmethod
    def _moved(columns: Tensor, slopes: Tensor | None, moves: Moves) -> Tensor:
        return cast(Tensor, _Moved.apply(columns.flatten(2), slopes, moves)).unflatten(2, columns.shape[2:])


@torch.no_grad()
def windows(graph: Graph) -> tuple[Windows, ...]:
    """The windows of the input that units of each switching node read.

    The window of a max pool's unit is that of all its entries. Whatever the weights are, no unit reads entries further apart.
    """
    held = [source for node in graph.affine_nodes for source in node.op.sources().values()]
    device = held[0].value.device if held else torch.device("cpu")
    keep = [node.index for node in graph.switches]
    shape, widest = graph[0].shape, max(math.prod(node.shape) for node in graph)
    found: list[list[_Ends]] = []
    for axis, size in enumerate(shape):
        ends = [_Ends() for _ in keep]
        for places in torch.arange(size, device=device).split(max(1, MARKED // widest)):
            marks = torch.zeros(len(places), *shape, device=device)
            marks.movedim(axis + 1, 1)[torch.arange(len(places), device=device), places] = 1.0
            values = propagate(graph, _Marks(), {0: marks}, keep)
            for end, index in zip(ends, keep, strict=True):
                end.add(values[index].flatten(1) != 0, places)
        found.append(ends)
    return tuple(
        Windows(tuple(end.width() for end in ends), tuple(end.begin() for end in ends))
        for ends in zip(*found, strict=True)
    )


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

    def begin(self) -> Tensor:
        """Where the window of every unit begins, 0 for units that read nothing."""
        assert self.first is not None
        assert self.last is not None
        return torch.where(self.first <= self.last, self.first, 0).cpu()
