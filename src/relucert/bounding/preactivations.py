"""Pre-activation bounds: intervals of the inputs of every switching node over a ball, and of the logits.

Node after node: first interval arithmetic, then, for the units that are still unstable, backward propagation through the linear
relaxations of the nodes before. A node without a switching node before it is linear, and its bounds are exact.

`Bounding` is what every bounding method promises: bounds of all units and, from these, of a property's margins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.bounding._gradient_bounds import GradientBounds
from relucert.bounding._receptive_fields import FilterRows
from relucert.bounding._shallow_bounds import Before, decided
from relucert.bounding.backward_bounds import BUDGET, BackwardBounds
from relucert.bounding.interval import Interval
from relucert.bounding.relaxation import MaxPoolRelaxation, ReLURelaxation, Rule, relax
from relucert.bounding.rounding import (
    Accuracy,
    Charge,
    ChargedIntervals,
    Margins,
    Rounding,
    State,
    absolute,
    rounding_over,
)
from relucert.core.ball import Ball
from relucert.core.methods import Method
from relucert.core.properties import Property
from relucert.core.rounding import gamma
from relucert.networks.affine_map import leading_convolution, transpose_rows
from relucert.networks.network import Network
from relucert.networks.nodes import Affine, Switching
from relucert.networks.traversal import Node, affine_ancestors, propagate


@dataclass(frozen=True, eq=False)
class UnitBounds:
    """Intervals of the inputs of every switching node (by the node's index), and of all logits.

    `rounding` is what rounding does to the nodes; intervals then hold for the executed network as well. None: not charged.
    """

    inputs: dict[int, Interval]
    logits: Interval
    rounding: Rounding | None = None

    def unstable(self) -> dict[int, Bool[Tensor, " batch *shape"]]:
        """The unstable units of each node."""
        return {index: within.unstable for index, within in self.inputs.items()}

    def restrict(self, batch: Int[Tensor, " n"]) -> UnitBounds:
        """The bounds of some examples."""
        return UnitBounds(
            {index: within.restrict(batch) for index, within in self.inputs.items()},
            self.logits.restrict(batch),
            None if self.rounding is None else self.rounding.restrict(batch),
        )

    @staticmethod
    def joined(parts: Sequence[UnitBounds]) -> UnitBounds:
        """The bounds of several batches one after the other; what rounding does is left out."""

        def all_of(found: Sequence[Interval]) -> Interval:
            return Interval(torch.cat([each.lower for each in found]), torch.cat([each.upper for each in found]))

        inputs = {index: all_of([part.inputs[index] for part in parts]) for index in parts[0].inputs}
        return UnitBounds(inputs, all_of([part.logits for part in parts]))

    def detach(self) -> UnitBounds:
        """The bounds as constants, without gradients."""
        inputs = {index: within.detach() for index, within in self.inputs.items()}
        return UnitBounds(inputs, self.logits.detach(), self.rounding)

    def improved(self, inputs: dict[int, Interval]) -> UnitBounds:
        """The same with tighter bounds of the units; what rounding does over wider intervals still holds."""
        return UnitBounds(inputs, self.logits, self.rounding)

    def drift(self, index: int) -> Float[Tensor, " batch 2 units"] | None:
        """What rounding does to the input of a switching node."""
        return None if self.rounding is None else self.rounding.before[index]

    def charge(self, index: int | None = None) -> Charge | None:
        """What functionals of a switching node's input are charged for rounding, or functionals of the logits."""
        if self.rounding is None:
            return None
        return self.rounding.at_logits() if index is None else self.rounding.at(index)

    @torch.no_grad()
    def charged(self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, executed: torch.dtype) -> UnitBounds:
        """The same bounds in the dtype of x, with the rounding of computations in that dtype.

        Bounds must hold for the network as it runs in the dtype `executed`.
        """
        inputs = {index: within.to(x.dtype) for index, within in self.inputs.items()}
        rounding = rounding_over(net, x, ball, inputs, executed)
        return UnitBounds(inputs, self.logits.to(x.dtype), rounding)

    def relaxed(self, net: Network, rule: Rule) -> dict[int, ReLURelaxation | MaxPoolRelaxation]:
        """The linear relaxation of every switching node, by its index."""
        return {
            node.index: relax(node.op, self.inputs[node.index], rule, self.drift(node.index)) for node in net.switches
        }


@dataclass(eq=False)
class KnownUnits:
    """Pre-activation bounds of some examples of a batch, by their positions; the last that were added count."""

    parts: list[tuple[Int[Tensor, " n"], UnitBounds]] = field(default_factory=list)

    def add(self, index: Int[Tensor, " n"], units: UnitBounds) -> None:
        """Keep the bounds of some examples, instead of older ones; what rounding does is left out."""
        kept = [((~torch.isin(known, index)).nonzero()[:, 0], known, each) for known, each in self.parts]
        self.parts = [(known[left], each.restrict(left)) for left, known, each in kept if len(left)]
        if len(index):
            self.parts.append((index, replace(units, rounding=None)))

    def of(self, index: Int[Tensor, " n"]) -> UnitBounds | None:
        """The bounds of some examples; None where one of them has none."""
        places = [torch.isin(known, index).nonzero()[:, 0] for known, _ in self.parts]
        found = [(known[at], units.restrict(at)) for at, (known, units) in zip(places, self.parts, strict=True)]
        known = torch.cat([part for part, _ in found]) if found else index[:0]
        if len(known) < len(index):
            return None
        order = known.argsort()[index.argsort().argsort()]
        return UnitBounds.joined([units for _, units in found]).restrict(order)


@dataclass(frozen=True, eq=False)
class SharedUnits:
    """Pre-activation bounds of inputs over a ball that methods leave to one another, by the dtype of the computation.

    They hold for real arithmetic and the executed network, and for these `nets` (a network in several dtypes), inputs and balls
    alone. A dtype's bounds are as tight as those that a method starts from. `places` are those of some of the inputs.
    """

    nets: tuple[Network, ...]
    x: Float[Tensor, " all *input"]
    ball: Ball
    places: Int[Tensor, " batch"]
    known: dict[torch.dtype, KnownUnits] = field(default_factory=dict)

    @staticmethod
    def about(nets: tuple[Network, ...], x: Float[Tensor, " batch *input"], ball: Ball) -> SharedUnits:
        """Nothing yet about a batch."""
        return SharedUnits(nets, x, ball, torch.arange(len(x), device=x.device))

    def restrict(self, index: Int[Tensor, " n"]) -> SharedUnits:
        """Those of some of the inputs; what is added to them is known here as well."""
        return replace(self, places=self.places[index])

    def add(self, net: Network, x: Tensor, ball: Ball, known: KnownUnits) -> None:
        """Keep bounds of a network's units, computed in its dtype, by their positions among x."""
        if self._about(net, x, ball):
            for index, units in known.parts:
                self.known.setdefault(net.dtype, KnownUnits()).add(self.places[index], units)

    def of(self, net: Network, x: Tensor, ball: Ball) -> UnitBounds | None:
        """The bounds of all of x that were computed in the dtype of a network; None where an input has none."""
        known = self.known.get(net.dtype)
        return known.of(self.places) if known is not None and self._about(net, x, ball) else None

    def _about(self, net: Network, x: Tensor, ball: Ball) -> bool:
        own, before = self.x[self.places], self.ball.restrict(self.places)
        shape = (before.p, before.box is None) == (ball.p, ball.box is None)
        if not (shape and any(net is one for one in self.nets) and torch.equal(own, x)):
            return False
        sides = zip(before.bounds(own), ball.bounds(x), strict=True)
        return torch.equal(before.reach(own.double()), ball.reach(x.double())) and all(
            torch.equal(*each) for each in sides
        )


@dataclass(frozen=True, kw_only=True)
class Bounding(Method):
    """A method that bounds margins over a ball: it starts from bounds of the units, and goes on from there."""

    #: Whether the method is quick and sharp enough in float32 to be tried there first.
    single: ClassVar[bool] = False
    #: Whether the method starts from CROWN's bounds of the units, or tighter ones that another such method leaves.
    shares: ClassVar[bool] = False

    @property
    def contains(self) -> tuple[Bounding, ...]:
        """Cheaper methods that prove no more; each can go on from the units' bounds of the one before it."""
        return ()

    def units(self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball) -> UnitBounds:
        """Bounds of all units, as good as the method makes them."""
        return self.start(net, x, ball)

    def start(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, executed: torch.dtype | None = None
    ) -> UnitBounds:
        """The bounds of the units that it starts from.

        With `executed`, the dtype that the network runs in, rounding is charged, here and in margins that go on from here.
        """
        raise NotImplementedError(self.name)

    def prove(
        self, net: Network, known: UnitBounds, x: Float[Tensor, " batch *input"], ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Margins]:
        """From known bounds of the units, whoever found them: its own, and lower bounds on the property's margins.

        Rounding is charged where the known bounds charge it.
        """
        raise NotImplementedError(self.name)

    def proceed(
        self, net: Network, known: UnitBounds, x: Float[Tensor, " batch *input"], ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Float[Tensor, " batch specs"]]:
        """As `prove`, with the margins as computed."""
        units, margins = self.prove(net, known, x, ball, prop)
        return units, margins.computed

    def solve(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Float[Tensor, " batch specs"]]:
        """Bounds of all units, and lower bounds on the property's margins over the ball."""
        return self.proceed(net, self.start(net, x, ball), x, ball, prop)


@dataclass(frozen=True, kw_only=True)
class Tightening:
    """How pre-activation bounds are tightened beyond intervals: the `rule` of the lower slopes, None for not at all.

    `intervals=False` leaves interval arithmetic out behind the first switching node: the relaxation as published, which is
    sometimes weaker. With `loose` units that weaker bounds show to be stable keep these, which no relaxation depends on.
    `budget`: bytes of memory.
    """

    rule: Rule | None
    intervals: bool = True
    loose: bool = False
    budget: int = BUDGET

    @property
    def every(self) -> bool:
        """Whether the bounds of every unit are those of the relaxation alone."""
        return not (self.intervals or self.loose)


def unit_bounds(
    net: Network, x: Tensor, ball: Ball, tightening: Tightening, executed: torch.dtype | None = None
) -> UnitBounds:
    """Bounds of every unit over the ball.

    With `executed`, the dtype that the network runs in, rounding is charged: bounds hold for real arithmetic and for the
    executed network. Without, they are those of the formulas, up to rounding.
    """
    rounding = None if executed is None else Rounding.over(x, ball, executed)
    backward = BackwardBounds(net.graph, x, ball, tightening.budget, rounding)
    bounds = _PreactivationBounds(backward, tightening)
    logits = propagate(net.graph, bounds, {0: State(Interval(*ball.hull(x)))})[len(net.graph) - 1]
    if rounding is not None:
        rounding.finish(logits)
    return UnitBounds(bounds.inputs, logits.within, rounding)


class _PreactivationBounds(ChargedIntervals):
    """Intervals through the network, tightened before every switching node by backward propagation.

    Later nodes read the tightened intervals. `inputs` has the bounds of the inputs of all switching nodes, by index.
    """

    def __init__(self, backward: BackwardBounds, tightening: Tightening):
        rounding = backward.rounding
        super().__init__(None if rounding is None else Accuracy(backward.graph, rounding))
        self.backward, self.tightening = backward, tightening
        self.inputs: dict[int, Interval] = {}
        self.relaxations: dict[int, ReLURelaxation | MaxPoolRelaxation] = {}
        #: The intervals of the values of switching nodes.
        self.outputs: dict[int, Interval] = {}

    def preactivation(self, node: Node[Switching], value: State) -> State:
        within = self.inputs[node.index] = self._tightened(node, value)
        drift = None
        if self.accuracy is not None:
            with torch.no_grad():
                drift = self.accuracy.switching(node, within, value.drift)
        if self.tightening.rule is not None:
            self.relaxations[node.index] = relax(node.op, within, self.tightening.rule, drift)
        return State(within, value.drift)

    def switching(self, node: Node[Switching], value: State) -> State:
        within, line = super().switching(node, value).within, self.relaxations.get(node.index)
        if self.tightening.loose and not self.tightening.intervals and isinstance(line, ReLURelaxation):
            # What follows from the lines alone: backward propagation through them proves at least as much.
            within = within.join(line.hull(value.within))
        self.outputs[node.index] = within
        return State(within)

    def _tightened(self, node: Node[Switching], value: State) -> Interval:
        source, known, rounding = node.inputs[0], value.within, self.backward.rounding
        inside, roots = affine_ancestors(self.backward.graph, source)
        if not inside:  # the input itself, or the output of another switching node
            return known
        charge = None
        if rounding is not None:
            drift = value.drift
            charge = rounding.carrying(
                known.lower.new_zeros(len(known.lower), 2, *known.lower.shape[1:]) if drift is None else drift
            )
        if roots == [0]:
            step = None if self.backward.exact(source) else leading_convolution(self.backward.graph, source)
            if step is None:
                return self.backward.linear(source, known, charge)
            return FilterRows.of(self.backward, step, charge).bounds(self.backward, known)
        if self.tightening.rule is None:
            return known
        everything = self.tightening.every or not node.op.decided_by_sign
        intervals = self.tightening.intervals or not everything
        if self.backward.patched(source) and self.tightening.every:
            return self.backward.local(self.relaxations, charge)
        if not everything:
            before = Before(self.relaxations, self.inputs, self.outputs)
            known = decided(self.backward, source, known, before, charge)
        if charge is None and not everything:
            gradients = GradientBounds(self.backward.graph, self.backward.x, self.backward.ball)
            if gradients.serves(self.relaxations):
                return gradients.refined(source, known, self.relaxations)
        for lines in [self.relaxations] if everything else self._stages():
            if self.backward.patched(source):
                known = self.backward.local_unstable(lines, known, charge)
            else:
                known = self.backward.refined(source, known, lines, charge, everything=everything, intervals=intervals)
        return known

    def _stages(self) -> list[dict[int, ReLURelaxation | MaxPoolRelaxation]]:
        """Relaxations in the order in which they are tried: parallel lines first, which give both ends of a unit at once.

        Units that are stable by then need no more.
        """
        every = self.relaxations
        pools = any(isinstance(line, MaxPoolRelaxation) for line in every.values())
        if pools or all(line.parallel for line in every.values()):
            return [every]
        return [{i: line.parallel_lines() for i, line in every.items() if isinstance(line, ReLURelaxation)}, every]


def interval_margins(net: Network, bounds: UnitBounds, x: Tensor, ball: Ball, prop: Property) -> Margins:
    """The margins from the intervals of the node before the logits: the property's rows go through the last matrix."""
    inside, _ = affine_ancestors(net.graph, len(net.graph) - 1)
    within = _last_input(net, bounds, x, ball, inside)
    if within is None:  # several affine nodes stand between the last switch and the logits
        cost = None
        if bounds.rounding is not None:
            cost = _rounded(prop.rows, absolute(bounds.logits), prop.classes)
        return Margins.charged(_over(bounds.logits, prop.rows), cost).plus(prop.offsets)
    (last,) = inside
    (rows,) = transpose_rows(last.op, prop.rows)
    margins, cost = _over(within, rows) + prop.rows @ last.op.offset(x)[0], None
    if bounds.rounding is not None:
        with torch.no_grad():
            # Products with the matrix, and sums over its columns.
            size = last.op.magnitude(absolute(within))
            cost = _rounded(prop.rows, size, math.prod(within.lower.shape[1:]) + last.op.adjoint_terms)
            drift = bounds.rounding.at_logits().drift
            cost = cost + prop.rows.abs() @ drift.mT
    return Margins.charged(margins, cost).plus(prop.offsets)


def _last_input(net: Network, bounds: UnitBounds, x: Tensor, ball: Ball, inside: list[Node[Affine]]) -> Interval | None:
    """The interval of the last affine node's input, if the node has one and nothing else is between it and its root."""
    if len(inside) != 1 or len(inside[0].inputs) != 1:
        return None
    source = inside[0].inputs[0]
    if source == 0:
        return Interval(*ball.hull(x))
    if source not in bounds.inputs:
        return None
    rule = ChargedIntervals(None if bounds.rounding is None else Accuracy(net.graph, bounds.rounding.fresh()))
    known = {net.graph[source].inputs[0]: State(bounds.inputs[source])}
    return propagate(net.graph, rule, known, [source])[source].within


@torch.no_grad()
def _rounded(rows: Tensor, size: Tensor, count: int) -> Float[Tensor, " batch specs 2"]:
    """What rounding costs a sum of `count` products whose absolute values add up to rows times size."""
    cost = gamma(count + 16, rows.dtype) * (rows.abs() @ size.flatten(1).unsqueeze(2))
    return torch.cat([cost + torch.finfo(rows.dtype).tiny * count, torch.zeros_like(cost)], 2)


def _over(within: Interval, rows: Tensor) -> Tensor:
    """The smallest value of linear functionals over an interval."""
    centre, reach = (within.lower + within.upper) / 2, (within.upper - within.lower) / 2
    flat = rows.flatten(2)
    ends = (flat @ centre.flatten(1).unsqueeze(2)) - (flat.abs() @ reach.flatten(1).unsqueeze(2))
    return ends.squeeze(2)
