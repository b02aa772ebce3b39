"""Kolter-Wong bounds with gradients in the weights, for training: only the rows that the loss depends on have a gradient.

Bounds of a unit enter the loss through its relaxation alone, and only while the unit is unstable. So the unstable units' rows
are made without a graph, some at a time (`core.pieces`), and the gradient makes those rows again whose bounds are used: of
units that are still unstable, and whose bounds are tighter than the known ones. Rows of a convolution behind convolutions are
made on their receptive fields (`networks.windows`), all others are pulled back through the graph.

All relaxations are parallel lines, so that one row gives both ends of a unit. Rounding is not charged: these bounds train, and
prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding._relaxed_rows import Layer, relaxed_rows
from relucert.bounding.interval import Interval
from relucert.bounding.propagation import Functional, Relaxations, pull_back
from relucert.bounding.relaxation import ReLURelaxation
from relucert.core.ball import Ball
from relucert.core.linear_minimum import linear_range
from relucert.core.pieces import in_pieces
from relucert.networks.affine_map import Step, chain, one_hot
from relucert.networks.conv_rows import ConvChain
from relucert.networks.patches import Filters
from relucert.networks.traversal import Evaluation, Graph, propagate
from relucert.networks.windows import Units, WindowRows

PIECE = 2**24  # bytes of the temporaries of some rows: they stay in the cache
KEPT = 2**29  # bytes that are kept for the gradient; rows that need more are made again


class GradientBounds:
    """Bounds of the units of one batch over its balls, differentiable in the weights of the network."""

    def __init__(self, graph: Graph, x: Float[Tensor, " batch *input"], ball: Ball):
        self.graph, self.x, self.ball = graph, x, ball
        self.steps = chain(graph)
        self.weights = _weights(graph)
        self.size = torch.finfo(x.dtype).bits // 8

    def serves(self, relaxations: Mapping[int, object]) -> bool:
        """Whether gradients in the weights are wanted, and all relaxations are parallel lines of ReLUs."""
        parallel = all(isinstance(line, ReLURelaxation) and line.parallel for line in relaxations.values())
        return torch.is_grad_enabled() and bool(self.weights) and parallel

    def refined(self, node: int, known: Interval, relaxations: Relaxations) -> Interval:
        """The bounds of a node: known ones, tightened for its unstable units."""
        batch, units = known.unstable.detach().flatten(1).nonzero(as_tuple=True)
        if len(batch) == 0:
            return known
        steps = self._convolutions(node)
        if steps is not None:
            least, greatest = self._window_range(steps, batch, units, relaxations)
        else:
            least, greatest = self._pulled_range(node, batch, units, relaxations)
        ends = []
        for bound, new, pick in ((known.lower, least, torch.maximum), (known.upper, greatest, torch.minimum)):
            flat = bound.flatten(1)
            ends.append(flat.index_put((batch, units), pick(flat[batch, units], new)).reshape(bound.shape))
        return Interval(*ends)

    def margins(self, functionals: Float[Tensor, " batch rows classes"], relaxations: Relaxations) -> Tensor:
        """Lower bounds (batch, rows) of functionals of the logits, all of them in one pass."""
        if self._follows_convolutions(len(self.graph) - 1, functionals.shape[:2].numel()):
            batch = torch.arange(len(self.x), device=self.x.device).repeat_interleave(functionals.shape[1])
            rows, low, _ = self._behind_convolutions(len(self.graph) - 1, batch, functionals.flatten(0, 1), relaxations)
            every = rows.reshape(*functionals.shape[:2], *self.x.shape[1:])
            return Functional(every, low.view(functionals.shape[:2]), None).minimum(self.x, self.ball)
        lines, rebuilt = _unpacked(relaxations)

        def least(rows: Tensor, *given: Tensor) -> Tensor:
            bound = self._pulled(len(self.graph) - 1, functionals[rows], rebuilt(given, rows))
            return bound.minimum(self.x[rows], self.ball.restrict(rows)).T

        at_once, rows = self._at_once(functionals.shape[1]), functionals.shape[:2].numel()
        keep = 4 * rows * self.size * sum(math.prod(node.shape) for node in self.graph) <= KEPT
        return in_pieces(least, len(self.x), at_once, *lines, *self.weights, keep=keep).T

    def _pulled_range(
        self, node: int, batch: Tensor, units: Tensor, relaxations: Relaxations
    ) -> Float[Tensor, " ends n"]:
        """The ends of units whose rows are pulled back through the graph."""
        if self._follows_convolutions(node, len(batch)):
            rows, low, high = self._behind_convolutions(node, batch, units, relaxations)
            slacks = self.ball.slacks(self.x) if self.ball.box is not None else ()
            room = [slack.flatten(1).index_select(0, batch) for slack in slacks]
            found = linear_range(rows.unsqueeze(1), self.ball.p, self.ball.reach(self.x)[batch], *room)
            value = (rows * self.x.flatten(1).index_select(0, batch)).sum(1)
            return torch.stack([found[0][:, 0] + value + low, found[1][:, 0] + value + high])
        lines, rebuilt = _unpacked(relaxations)
        shape = self.graph[node].shape

        def ends(rows: Tensor, *given: Tensor) -> Tensor:
            which = batch[rows]
            picked = one_hot(units[rows, None], shape, self.x.dtype)
            found = self._pulled(node, picked, rebuilt(given, which)).range(self.x[which], self.ball.restrict(which))
            return torch.cat(found, 1).T

        return in_pieces(ends, len(batch), self._at_once(1), *lines, *self.weights)

    def _window_range(
        self, steps: Sequence[Step], batch: Tensor, units: Tensor, relaxations: Relaxations
    ) -> tuple[Tensor, Tensor]:
        """The ends of units of a convolution behind one convolution, whose rows live on their receptive fields."""
        first, second = steps
        relaxed = relaxations[second.core.inputs[0]]
        assert isinstance(relaxed, ReLURelaxation)
        value, offset = self.graph.values(self.x, [first.last])[first.last], second.offset(self.x)
        at_x = relaxed.convolved(value, Filters.of(second))
        work = WindowRows(steps, self.graph[0].shape)
        every = Units(batch, units, second.shape)  # type: ignore[arg-type]
        factors, tables = work.factors(), work.tables([relaxed.above])
        inside, eps = work.inside(self.x), self.ball.reach(self.x)
        boxed = self.ball.box is not None
        slacks = [work.windows[0].seen(slack) for slack in self.ball.slacks(self.x)] if boxed else []

        def ends(rows: Tensor, *given: Tensor) -> Tensor:
            some = every.restrict(rows)
            made = work.rows(some, given[: len(factors)], given[len(factors) :])
            made = made * some.pick(inside, work.grids[0])
            room = [some.pick(slack, work.grids[0]) for slack in slacks]
            found = linear_range(made.unsqueeze(1), self.ball.p, eps[some.batch], *room)
            return torch.cat(found, 1).T

        at_once = 2 * PIECE // (6 * self.size * work.entries)
        least, greatest = in_pieces(ends, len(batch), at_once, *factors, *tables)
        low, high = ((bound + offset).flatten(1)[batch, units] for bound in (at_x.lower, at_x.upper))
        return low + least, high + greatest

    def _pulled(self, node: int, functionals: Tensor, relaxations: Relaxations) -> Functional:
        return pull_back(self.graph, node, functionals, relaxations)

    def _depth(self) -> int:
        """The number of convolutions of a chain that matrices alone follow; 0 if the network is not such a chain."""
        if self.steps is None:
            return 0
        kinds = [step.conv is not None for step in self.steps]
        depth = sum(kinds)
        plain = not any(step.before for step in self.steps[1:depth])
        return depth if depth < len(kinds) and all(kinds[:depth]) and plain else 0

    def _follows_convolutions(self, node: int, rows: int) -> bool:
        """Whether a node is the value of a matrix behind convolutions, and what so many rows keep fits into memory."""
        depth = self._depth()
        if self.steps is None or not any(step.last == node for step in self.steps[depth:]):
            return False
        kept = rows * self.size * 2 * sum(math.prod(step.shape) for step in self.steps[:depth])
        return depth > 0 and kept <= KEPT

    def _behind_convolutions(
        self, node: int, batch: Tensor, functionals: Tensor, relaxations: Relaxations
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Functionals of the value of a matrix behind convolutions, as rows (n, pixels) with offsets of both ends.

        They are given by coefficients (n, units), or by the number (n,) of the unit that each of them picks out.
        """
        assert self.steps is not None
        depth, value = self._depth(), functionals
        low = high = self.x.new_zeros(len(functionals))
        # Through the matrices, from the node to the first of them; lines of the ReLUs before each are parallel.
        for step in reversed([step for step in self.steps[depth:] if step.last <= node]):
            if value.dim() == 1:
                constant = self._constant(step).flatten().index_select(0, value)
                value = step.weight().index_select(0, value)
            else:
                constant = value @ self._constant(step).flatten()
                value = value @ step.weight()
            low, high = low + constant, high + constant
            if step is not self.steps[depth]:
                slope, offset = (part.flatten(1).index_select(0, batch) for part in self._line(relaxations, step))
                below, above = ((part * offset).sum(1) for part in (value.clamp(max=0), value.clamp(min=0)))
                low, high, value = low + below, high + above, value * slope
        convolutions = self.steps[:depth]
        layers = [
            Layer(step.weight(), self._constant(step), *self._line(relaxations, behind))
            for step, behind in zip(convolutions, self.steps[1:], strict=False)
        ]
        geometry = ConvChain.of(convolutions, self.graph[0].shape)
        rows, below, above = relaxed_rows(value, batch, geometry, layers)
        return rows, low + below, high + above

    def _constant(self, step: Step) -> Float[Tensor, " 1 *shape"]:
        """The value of a step where the values that it reads are zero."""
        first = step.before[0] if step.before else step.core
        zero = self.x.new_zeros(1, *self.graph[first.inputs[0]].shape)
        return propagate(self.graph, Evaluation(), {first.inputs[0]: zero}, [step.last])[step.last]

    def _line(self, relaxations: Relaxations, step: Step) -> tuple[Tensor, Tensor]:
        """The slopes and offsets of the ReLUs whose values a step reads, in the shape of the layer before."""
        first = step.before[0] if step.before else step.core
        return _parts(relaxations[first.inputs[0]])

    def _convolutions(self, node: int) -> Sequence[Step] | None:
        """The first two steps, if both are convolutions and the node is the value of the second; else None."""
        steps = self.steps
        two = steps is not None and len(steps) > 2 and steps[0].conv is not None and steps[1].conv is not None
        return steps[:2] if steps is not None and two and not steps[1].before and steps[1].last == node else None

    def _at_once(self, rows: int) -> int:
        """How many examples, of so many rows each, are made at a time."""
        widest = max(math.prod(node.shape) for node in self.graph)
        return max(1, PIECE // (6 * self.size * widest * rows))


def _weights(graph: Graph) -> list[Tensor]:
    """The parameters that the nodes of a graph read, each once."""
    owners = dict.fromkeys(source.owner for node in graph.affine_nodes for source in node.op.sources().values())
    found: dict[int, Tensor] = {}
    for owner in owners:
        for weight in owner.parameters():
            if weight.requires_grad:
                found[id(weight)] = weight
    return list(found.values())


def _unpacked(relaxations: Relaxations):
    """The tensors of relaxations, and a function that makes the relaxations of some examples of such tensors."""
    places = list(relaxations)
    tensors = [part for place in places for part in _parts(relaxations[place])]

    def rebuilt(given: Sequence[Tensor], batch: Tensor) -> dict[int, ReLURelaxation]:
        found = {}
        for number, place in enumerate(places):
            slope, offset = (part.index_select(0, batch) for part in given[2 * number : 2 * number + 2])
            found[place] = ReLURelaxation(slope, slope, offset)
        return found

    return tensors, rebuilt


def _parts(line: object) -> tuple[Tensor, Tensor]:
    assert isinstance(line, ReLURelaxation)
    return line.above, line.offset
