"""The norms of all hyperplanes of the layers of any graph that see windows of the input, from few columns of V.

Rows can be made in two ways: pulled back one by one, which costs a pass through the layers before for each row, or read from
columns that are pushed forward, a pass for each colour (`networks.colouring`). `plan` chooses by the number of
multiplications which layers take their norms from columns. The gradient goes back through the columns, or, where it needs few
rows, through these rows alone: again what costs less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.norms import norm, norm_slope
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms.chosen_norms import chosen_norms
from relucert.networks.affine_map import Step
from relucert.networks.colouring import Colouring, Stages, push_columns
from relucert.networks.nodes import Affine, Switching
from relucert.networks.traversal import ForwardRule, Graph, Node, affine_ancestors, propagate

PIECE = 2**23  # bytes of the widest value of some examples: they stay in the cache
PULLED = 2  # times what a multiplication takes in columns, it takes in rows that are pulled back


#: Numbers of examples, and what some columns have of their rows.
Piece = tuple[Tensor, list[Tensor]]


@dataclass(frozen=True)
class Plan:
    """The switching nodes whose norms come from columns, and the multiplications of an example: in all, and of a row of each.

    `stages` have the colours of columns from layer to layer, `colouring` those that serve all layers.
    """

    places: tuple[int, ...]
    colouring: Colouring
    stages: Stages
    cost: int
    rows: tuple[int, ...]


def with_column_norms(
    region: LinearRegion, known: Sequence[Tensor | None], steps: list[Step] | None, q: float, budget: int
) -> list[Tensor | None]:
    """The norms of all switching nodes, with those that columns give at less cost than rows where they are not known.

    `steps` are those of a plain chain: with fewer than three convolutions it has ways of its own. All norms are differentiable
    in the weights.
    """
    found = list(known)
    missing = [place for place, norms in enumerate(known) if norms is None]
    if not missing or (steps is not None and not (len(steps) > 3 and all(step.conv for step in steps[:3]))):
        return found
    for place, norms in column_norms(region, missing, q, budget).items():
        found[place] = norms
    return found


def column_norms(
    region: LinearRegion, places: Sequence[int], q: float, budget: int
) -> dict[int, Float[Tensor, " batch hyperplanes"]]:
    """The norms of those of the switching nodes for which columns cost less than rows."""
    chosen = plan(region, places)
    if chosen is None:
        return {}
    weights = [weight for weight in region.net.parameters() if weight.requires_grad]
    norms = ColumnNorms.apply(region, chosen, q, budget, *weights)
    counts = [region.hyperplanes[place].count for place in chosen.places]
    return dict(zip(chosen.places, norms.split(counts, 1), strict=True))  # type: ignore[union-attr]


def plan(region: LinearRegion, missing: Sequence[int]) -> Plan | None:
    """Which of the nodes take their norms from columns at the least cost; None if rows are cheaper for all of them."""
    graph, shape = region.net.graph, region.net.input_shape
    windows, before = [each.widths for each in graph.windows], _multiplications(graph)
    rows = {place: sum(before[place].values()) for place in missing}
    pulled = {place: PULLED * region.hyperplanes[place].count * rows[place] for place in missing}
    best, least = None, sum(pulled.values())
    order = sorted(missing, key=lambda place: math.prod(windows[place]))
    for number in range(1, len(order) + 1):
        places = sorted(order[:number])
        colouring = Colouring(shape, tuple(max(sizes) for sizes in zip(*(windows[i] for i in places), strict=True)))
        stages = Stages.of(graph, places)
        nodes = {node: cost for place in places for node, cost in before[place].items()}
        cost = sum(_columns(graph, stages, node, len(region)) * each for node, each in nodes.items())
        chosen = Plan(tuple(places), colouring, stages, cost, tuple(rows[place] for place in places))
        cost = chosen.cost + sum(pulled[place] for place in order[number:])
        if cost < least:
            best, least = chosen, cost
    return best


def _columns(graph: Graph, stages: Stages, node: int, batch: int) -> int:
    """The columns of a node for one example; where no pattern decides about them the examples share them."""
    count = stages.at(graph, node).count
    return -(-count // max(1, batch)) if affine_ancestors(graph, node)[1] == [0] else count


class ColumnNorms(torch.autograd.Function):
    """`apply(region, plan, q, budget, *weights)`: the norms (batch, hyperplanes) of the nodes of a plan, node after node."""

    @staticmethod
    def forward(
        ctx: Any, region: LinearRegion, plan: Plan, q: float, budget: int, *weights: Tensor
    ) -> Float[Tensor, " batch hyperplanes"]:
        pieces = _Pieces(region, plan, budget)
        left = budget if any(ctx.needs_input_grad) else 0
        ctx.kept = []
        found = []
        for some in pieces.examples():
            part, partial = region.restrict(some), []
            left -= pieces.kept(len(some))
            keep = left >= 0
            for start in pieces.starts():
                with torch.set_grad_enabled(keep):
                    rows = pieces.rows(part, start)
                with torch.no_grad():
                    partial.append(torch.cat([norm(one.detach().transpose(1, 2), q, 2) for one in rows], 1))
                if keep:
                    ctx.kept.append((some, rows))
            found.append(partial[0] if len(partial) == 1 else norm(torch.stack(partial, 2), q, 2))
        norms = torch.cat(found)
        ctx.work = pieces, q, weights
        ctx.save_for_backward(norms)
        return norms

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        pieces, q, weights = ctx.work
        (norms,) = ctx.saved_tensors
        gradient = gradients[0]
        totals = [torch.zeros_like(weight) for weight in weights]
        wanted = (gradient != 0).any(1)
        examples = int(wanted.sum())
        kept, ctx.kept = ctx.kept, []  # the gradient uses up what is kept: a second one makes it again
        ready = torch.zeros_like(wanted)
        for some, _ in kept:
            ready[some] = True
        passes = 3 - int((ready & wanted).sum()) / max(1, examples)
        counts = [pieces.region.hyperplanes[place].count for place in pieces.plan.places]
        single = sum(
            int((part != 0).sum()) * cost
            for part, cost in zip(gradient.split(counts, 1), pieces.plan.rows, strict=True)
        )
        if 3 * PULLED * single < passes * examples * pieces.plan.cost:
            for place, part in zip(pieces.plan.places, gradient.split(counts, 1), strict=True):
                batch, units = part.nonzero(as_tuple=True)
                if len(batch):
                    with torch.enable_grad():
                        lengths = chosen_norms(pieces.region, place, batch, units, q)
                    _add(totals, [lengths], weights, [part[batch, units]])
            return None, None, None, None, *totals
        for some, rows in chain(_emptied(kept), pieces.again((wanted & ~ready).nonzero()[:, 0])):
            if not bool(gradient[some].any()):
                continue
            if math.isinf(q):
                lengths, ties = pieces.largest(some, rows)
            else:
                lengths, ties = norms[some].split(counts, 1), [None] * len(counts)
            slopes = [
                norm_slope(row.detach(), length[:, None], q, tie).mul_(weight[:, None])
                for row, length, tie, weight in zip(rows, lengths, ties, gradient[some].split(counts, 1), strict=True)
            ]
            _add(totals, rows, weights, slopes)
        return None, None, None, None, *totals


def _emptied(items: list[Piece]) -> Iterator[Piece]:
    """The items of a list, which lets go of each as it is taken."""
    while items:
        yield items.pop()


def _add(totals: list[Tensor], values: Sequence[Tensor], weights: Sequence[Tensor], slopes: Sequence[Tensor]) -> None:
    """Add the gradients of values with given slopes; values that no weight enters have none."""
    pairs = [(value, slope) for value, slope in zip(values, slopes, strict=True) if value.requires_grad]
    if not pairs:
        return
    ahead, given = zip(*pairs, strict=True)
    for total, one in zip(totals, torch.autograd.grad(ahead, weights, given, allow_unused=True), strict=True):
        if one is not None:
            total += one


@dataclass(frozen=True, eq=False)
class _Pieces:
    """The columns of a batch, some examples and some colours at a time, so that temporaries fit into the budget."""

    region: LinearRegion
    plan: Plan
    budget: int

    def _bytes(self, numbers: int) -> int:
        return numbers * torch.finfo(self.region.net.dtype).bits // 8

    @property
    def _rows(self) -> int:
        """The number of rows."""
        return sum(self.region.hyperplanes[place].count for place in self.plan.places)

    @property
    def _every(self) -> int:
        """The bytes of all values of one column, with their gradients and the rows of max pools."""
        return 2 * self._bytes(sum(math.prod(node.shape) for node in self.region.net.graph) + self._rows)

    @cached_property
    def _numbers(self) -> list[int]:
        """How many numbers all columns of an example have in every node."""
        if self.colours() == self.plan.colouring.count:
            return self.plan.stages.numbers(self.region.net.graph)
        return [math.prod(node.shape) * self.plan.colouring.count for node in self.region.net.graph]

    def kept(self, examples: int) -> int:
        """The bytes of all values and rows of all columns of some examples."""
        return examples * self._bytes(sum(self._numbers) + self._rows * self.plan.colouring.count)

    def colours(self) -> int:
        """How many colours go at a time."""
        return max(1, min(self.plan.colouring.count, self.budget // max(1, self._every)))

    def examples(self, of: Tensor | None = None) -> Sequence[Tensor]:
        """Numbers of examples that go at a time."""
        every = torch.arange(len(self.region), device=self.region.net.device) if of is None else of
        within = self.budget // max(1, self._every * self.colours())
        widest = self._bytes(max(self._numbers)) * self.colours() // self.plan.colouring.count
        return every.split(max(1, min(within, PIECE // max(1, widest))))

    def starts(self) -> range:
        """The first colour of every piece."""
        return range(0, self.plan.colouring.count, self.colours())

    def rows(self, part: LinearRegion, start: int) -> list[Float[Tensor, " batch colours hyperplanes"]]:
        """What some colours have of the rows of all nodes, for some examples."""
        like = torch.zeros(0, dtype=part.net.dtype, device=part.net.device)
        sources = [part.hyperplanes[place].source for place in self.plan.places]
        if self.colours() == self.plan.colouring.count:
            first = self.plan.stages.colourings[0]
            values = push_columns(part.map, first.columns(0, first.count, like), sources, self.plan.stages)
        else:
            values = push_columns(part.map, self.plan.colouring.columns(start, start + self.colours(), like), sources)
        return [
            part.hyperplanes[place].along(
                values[source].expand(len(part), *values[source].shape[1:]), part.patterns[place]
            )
            for place, source in zip(self.plan.places, sources, strict=True)
        ]

    def again(self, examples: Tensor) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """The rows of some examples, with what their gradient needs."""
        for some in self.examples(examples) if len(examples) else ():
            part = self.region.restrict(some)
            for start in self.starts():
                with torch.enable_grad():
                    rows = self.rows(part, start)
                yield some, rows

    @torch.no_grad()
    def largest(self, some: Tensor, rows: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The largest entries of all rows of some examples, and how many entries are as large; `rows` are those just made."""
        starts, part = self.starts(), self.region.restrict(some)
        lengths: list[Tensor] = []
        for start in starts:
            made = [one.abs().amax(1) for one in (rows if len(starts) == 1 else self.rows(part, start))]
            lengths = [torch.maximum(a, b) for a, b in zip(lengths, made, strict=True)] if lengths else made
        ties = [torch.zeros_like(length) for length in lengths]
        for start in starts:
            made = rows if len(starts) == 1 else self.rows(part, start)
            for tie, one, length in zip(ties, made, lengths, strict=True):
                tie += (one.abs() == length[:, None]).sum(1)
        return lengths, [tie[:, None].clamp(min=1) for tie in ties]


def _multiplications(graph: Graph) -> list[dict[int, int]]:
    """For every switching node the multiplications of each affine node before it."""
    places = [node.inputs[0] for node in graph.switches]
    found = propagate(graph, _Ancestors(), {0: frozenset()}, places)
    costs = {node.index: node.op.terms * math.prod(node.shape) for node in graph.affine_nodes}
    return [{node: costs[node] for node in found[place]} for place in places]


class _Ancestors(ForwardRule[frozenset[int]]):
    """The affine nodes that every node is made of."""

    def affine(self, node: Node[Affine], inputs: list[frozenset[int]]) -> frozenset[int]:
        return frozenset({node.index}).union(*inputs)

    def switching(self, node: Node[Switching], value: frozenset[int]) -> frozenset[int]:
        return value
