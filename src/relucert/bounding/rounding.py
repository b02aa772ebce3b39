"""Rounding charged where it arises: an interval bias of every affine node.

Let the network run in its dtype. An affine node then computes W a + b + e with

    |e| <= gamma_n (|W| amax + |b|),    gamma_n = n u / (1 - n u),

for sums of n products in any order, where amax bounds the absolute values of its inputs over the ball. So the executed network
is one of a family of networks with interval biases e, and the network of real arithmetic is another, with e = 0. Pre-activation
bounds hold for the whole family: they are widened by what is charged below.

Backward propagation with coefficients A in front of the node loses |A| |e|, nothing more. The computation of the bound rounds
as well, in the same form: the computed coefficients before the node are A W - r with |r| <= gamma_n |A| |W|, and replacing r a
by its smallest value costs gamma_n |A| |W| amax at once, instead of an error that all earlier layers multiply. So

    lower bound = computed value - sum over nodes of |A| (gamma_executed + gamma_computed) (|W| amax + |b|),

one product with a vector for each node; products of absolute matrices, which explode with depth, do not occur. Between two
switching nodes errors are added up forward (`drift`), so that they are charged once, at the switching node behind them.

Charges come in pairs: at position 0 what the computation of the bound rounds, which every proof needs, at position 1 what the
network rounds when it runs. A margin less the first is a bound for real arithmetic, less both for the network as executed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.bounding.interval import Interval, IntervalPropagation
from relucert.core.ball import Ball
from relucert.core.norms import dual
from relucert.core.rounding import gamma
from relucert.networks.network import Network
from relucert.networks.nodes import Affine, Switching
from relucert.networks.traversal import ForwardRule, Graph, Node, propagate

#: Pays for the rounding of the charges themselves, sums of positive terms.
RAISED = 1.02

_MORE = 8  # operations besides the sum of products: centre and radius of an interval, slopes, differences


@dataclass(frozen=True, eq=False)
class Charge:
    """What a functional of one node's value is charged: `drift` (batch, 2, units) times the absolute value of its entries.

    For the last step, the minimum over the ball: `largest` (batch, inputs) bounds |x| + |z - x|, `steps` is the relative
    error of the minimum of a linear functional over the ball. `lost` (batch,) pays for products that underflow on the way.
    """

    drift: Float[Tensor, " batch 2 units"]
    largest: Float[Tensor, " batch inputs"]
    lost: Float[Tensor, " batch"]
    steps: float

    def restrict(self, batch: Int[Tensor, " n"]) -> Charge:
        """The charges of some examples."""
        return Charge(self.drift[batch], self.largest[batch], self.lost[batch], self.steps)


@dataclass(eq=False)
class Rounding:
    """What rounding does to the nodes of a network over a ball, as far as propagation has come.

    `before` has the drift of the input of every switching node by the node's index, `logits` that of the logits; `executed` is
    the dtype that the network runs in. `largest`, `lost` and `steps` are those of `Charge`.
    """

    executed: torch.dtype
    largest: Float[Tensor, " batch inputs"]
    lost: Float[Tensor, " batch"]
    steps: float
    before: dict[int, Float[Tensor, " batch 2 units"]] = field(default_factory=dict)
    logits: Float[Tensor, " batch 2 classes"] | None = None

    @staticmethod
    @torch.no_grad()
    def over(x: Float[Tensor, " batch *input"], ball: Ball, executed: torch.dtype) -> Rounding:
        """For a ball, before the first node."""
        low, high = (side.flatten(1) for side in ball.hull(x))
        centre, size = x.flatten(1), math.prod(x.shape[1:])
        reach = torch.maximum(high - centre, centre - low)
        # Minima are computed in units of the ball: slacks that underflow there are lost, whatever their coefficients.
        small = torch.finfo(x.dtype).tiny * (1.0 + size * reach.amax(1, keepdim=True))
        largest = centre.abs() + reach + small
        # A value and a minimum are two sums. Minima over the ball take powers q - 1 for 1 < p < 2, which multiply errors.
        times = 2.0 if math.isinf(ball.p) else 4.0 * (dual(ball.p) if 1 < ball.p < 2 else 1.0)
        return Rounding(executed, largest, x.new_zeros(len(x)), times * gamma(size + 16, x.dtype))

    def finish(self, logits: State) -> None:
        """Keep the drift of the logits."""
        drift = logits.drift
        if drift is None:
            drift = logits.within.lower.new_zeros(len(self.lost), 2, *logits.within.lower.shape[1:])
        self.logits = drift.flatten(2)

    def at(self, index: int) -> Charge:
        """The charge of functionals of a switching node's input."""
        return Charge(self.before[index], self.largest, self.lost, self.steps)

    def at_logits(self) -> Charge:
        """The charge of functionals of the logits."""
        assert self.logits is not None
        return Charge(self.logits, self.largest, self.lost, self.steps)

    def carrying(self, drift: Float[Tensor, " batch 2 *shape"]) -> Charge:
        """The charge of functionals of a node with a drift."""
        return Charge(drift.flatten(2), self.largest, self.lost, self.steps)

    def fresh(self) -> Rounding:
        """The same before the first node."""
        return Rounding(self.executed, self.largest, self.lost, self.steps)

    def restrict(self, batch: Int[Tensor, " n"]) -> Rounding:
        """Those of some examples."""
        before = {index: drift[batch] for index, drift in self.before.items()}
        logits = None if self.logits is None else self.logits[batch]
        return Rounding(self.executed, self.largest[batch], self.lost[batch], self.steps, before, logits)


class Accuracy:
    """Computes the drift of node after node, and fills a `Rounding`."""

    def __init__(self, graph: Graph, rounding: Rounding):
        self.rounding = rounding
        #: How many nodes read each node: so many functionals are added up there.
        self.readers = Counter(source for node in graph for source in node.inputs)

    def affine(
        self, node: Node[Affine], inputs: list[Interval], drifts: list[Tensor | None]
    ) -> tuple[Float[Tensor, " batch 2 *shape"] | None, Float[Tensor, " batch *shape"] | None]:
        """The drift of an affine node, and how far the node itself rounds: by so much its interval is widened."""
        op, own, wider = node.op, None, None
        # A permutation rounds nothing, but where its input has other readers, functionals are added up there.
        if not op.permutes or any(self.readers[source] > 1 for source in node.inputs):
            own, wider = self._own(node, inputs)
        passed = None
        if any(drift is not None for drift in drifts):
            like = next(drift for drift in drifts if drift is not None)
            given = [
                like.new_zeros(like.shape[0] * 2, *shape) if drift is None else drift.flatten(0, 1)
                for drift, shape in zip(drifts, op.in_shapes, strict=True)
            ]
            passed = RAISED * op.absolute(*given).unflatten(0, like.shape[:2])
        if own is None:
            return passed, None
        return own if passed is None else own + passed, wider

    def _own(
        self, node: Node[Affine], inputs: list[Interval]
    ) -> tuple[Float[Tensor, " batch 2 *shape"], Float[Tensor, " batch *shape"]]:
        """What the node itself adds to the drift of its value, and to the interval of its value."""
        op, rounding = node.op, self.rounding
        largest = [absolute(within) for within in inputs]
        reach = op.magnitude(*largest)
        offset = op.magnitude(*(part.new_zeros(1, *part.shape[1:]) for part in largest))
        info, more = torch.finfo(reach.dtype), _MORE + sum(self.readers[source] for source in node.inputs)
        count = max(op.terms, op.adjoint_terms)
        computed = gamma(count + more, reach.dtype) * reach + count * info.tiny
        # Backward propagation takes the product of coefficients and offsets over all units; intervals do not.
        summed = gamma(math.prod(node.shape) + 4, reach.dtype) * offset
        there, relative = torch.finfo(rounding.executed), gamma(op.terms, rounding.executed)
        # Beyond the range of the dtype nothing is known of the value; an average is a sum first.
        executed = torch.where(reach * (op.terms * (1 + relative)) < there.max, relative * reach, math.inf)
        # Products that underflow: of the coefficients, times what they stand at, and of the values themselves.
        total = sum((part.flatten(1).sum(1) for part in largest), start=rounding.lost.new_zeros(len(reach)))
        rounding.lost = rounding.lost + count * info.tiny * (1.0 + total)
        executed = executed + op.terms * there.tiny
        return RAISED * torch.stack([computed + summed, executed], 1), RAISED * (computed + executed)

    def switching(
        self, node: Node[Switching], within: Interval, drift: Float[Tensor, " batch 2 *shape"] | None
    ) -> Float[Tensor, " batch 2 units"]:
        """The drift before a switching node, kept in `before`: with what the node and its relaxation round."""
        size = absolute(within)
        info, there = torch.finfo(size.dtype), torch.finfo(self.rounding.executed)
        read = self.readers[node.index] + self.readers[node.inputs[0]]
        # Slopes and products with slopes; overlapping windows of a pool are added up.
        own = gamma(_MORE + read + node.op.most(), size.dtype) * size
        # The executed slope is rounded, and so is the product with it.
        runs = gamma(2, self.rounding.executed) * size + there.tiny if node.op.slope else torch.zeros_like(size)
        total = torch.stack([own + info.tiny, runs], 1)
        total = RAISED * total if drift is None else RAISED * total + drift
        self.rounding.lost = self.rounding.lost + info.tiny * (1.0 + size.flatten(1).sum(1))
        self.rounding.before[node.index] = total.flatten(2)
        return self.rounding.before[node.index]


class State(NamedTuple):
    """The interval of a node over the ball, and its drift (None: nothing is rounded since the last switching node)."""

    within: Interval
    drift: Float[Tensor, " batch 2 *shape"] | None = None


class ChargedIntervals(ForwardRule[State]):
    """Interval arithmetic, widened by what every node rounds; without an `accuracy` rounding is not charged.

    `known` has bounds of the inputs of switching nodes, by index, that hold for the executed network as well.
    """

    def __init__(self, accuracy: Accuracy | None, known: Mapping[int, Interval] | None = None):
        self.accuracy, self.known = accuracy, known or {}
        self.intervals = IntervalPropagation()

    def affine(self, node: Node[Affine], inputs: list[State]) -> State:
        given = [state.within for state in inputs]
        within = self.intervals.affine(node, given)
        if self.accuracy is None:
            return State(within)
        with torch.no_grad():
            drift, wider = self.accuracy.affine(node, given, [state.drift for state in inputs])
        if wider is not None:
            within = Interval(within.lower - wider, within.upper + wider)
        return State(within, drift)

    def preactivation(self, node: Node[Switching], value: State) -> State:
        within = value.within
        if node.index in self.known:
            within = within.meet(self.known[node.index])
        if self.accuracy is not None:
            self.accuracy.switching(node, within, value.drift)
        return State(within, value.drift)

    def switching(self, node: Node[Switching], value: State) -> State:
        within = self.intervals.switching(node, value.within)
        if self.accuracy is not None and node.op.slope:
            # A leaky slope is rounded, here and in the network as executed.
            there = torch.finfo(self.accuracy.rounding.executed)
            wider = (gamma(4, within.lower.dtype) + gamma(2, self.accuracy.rounding.executed)) * absolute(
                value.within
            ) + there.tiny
            within = Interval(within.lower - wider, within.upper + wider)
        return State(within)


@torch.no_grad()
def rounding_over(
    net: Network, x: Float[Tensor, " batch *input"], ball: Ball, known: Mapping[int, Interval], executed: torch.dtype
) -> Rounding:
    """What rounding does to a network over a ball, from bounds of the inputs of its switching nodes.

    `net` and `x` are in the dtype that bounds are computed in, `executed` is the dtype that the network runs in.
    """
    rounding = Rounding.over(x, ball, executed)
    rule = ChargedIntervals(Accuracy(net.graph, rounding), known)
    logits = propagate(net.graph, rule, {0: State(Interval(*ball.hull(x)))})[len(net.graph) - 1]
    rounding.finish(logits)
    return rounding


class Magnitudes(ForwardRule[Tensor]):
    """|W| z + |b| from node to node, as far as nodes are affine: the size of what is summed up."""

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        return node.op.magnitude(*inputs)


def absolute(within: Interval) -> Float[Tensor, " batch *shape"]:
    """The largest absolute value in an interval, raised by the smallest normal number.

    A share gamma_n of that pays for halves of numbers below it, which round to zero, whatever their weights.
    """
    return torch.maximum(within.lower.abs(), within.upper.abs()) + torch.finfo(within.lower.dtype).tiny


@dataclass(frozen=True, eq=False)
class Margins:
    """Lower bounds on the margins of a property over a ball, mostly (batch, specs).

    `computed` is the bound as computed, with gradients if it has any; `real` is proved for the network of real arithmetic,
    `executed` for the network as it runs in its dtype. Where rounding is not charged all three are the same.
    """

    computed: Float[Tensor, " *margins"]
    real: Float[Tensor, " *margins"]
    executed: Float[Tensor, " *margins"]

    @staticmethod
    def plain(computed: Float[Tensor, " *margins"]) -> Margins:
        """Bounds whose rounding is not charged."""
        return Margins(computed, computed, computed)

    @staticmethod
    def charged(computed: Float[Tensor, " *margins"], cost: Float[Tensor, " *margins 2"] | None) -> Margins:
        """Bounds less their charges; without charges, as they are."""
        if cost is None:
            return Margins.plain(computed)
        real, executed = lowered(computed.detach(), cost[..., 0]), lowered(computed.detach(), cost.sum(-1))
        return Margins(computed, real, executed)

    def best(self, other: Margins) -> Margins:
        """The larger of two bounds, entry by entry: both hold. What is not a number proves nothing."""
        plain = self.real is self.computed and other.real is other.computed
        computed = torch.fmax(self.computed, other.computed)
        if plain:
            return Margins.plain(computed)
        return Margins(computed, torch.fmax(self.real, other.real), torch.fmax(self.executed, other.executed))

    def plus(self, offsets: Float[Tensor, " *margins"]) -> Margins:
        """The bounds with the offsets of a property added, rounded down."""
        if self.real is self.computed:
            return Margins.plain(self.computed + offsets)
        real, executed = (lowered(part + offsets, torch.zeros_like(part)) for part in (self.real, self.executed))
        return Margins(self.computed + offsets, *(
            torch.where(offsets == 0, part, down)
            for part, down in ((self.real, real), (self.executed, executed))
        ))  # fmt: skip

    def stacked(self) -> Float[Tensor, " *margins 3"]:
        """All three bounds as one tensor without gradients."""
        return torch.stack([self.computed.detach(), self.real.detach(), self.executed.detach()], -1)

    @staticmethod
    def unstacked(bounds: Float[Tensor, " *margins 3"]) -> Margins:
        """From the tensor that `stacked` returns."""
        return Margins(*bounds.unbind(-1))


def lowered(bound: Float[Tensor, " *shape"], cost: Float[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    """A computed lower bound less its charges, rounded down."""
    less = bound - RAISED * cost
    return torch.nextafter(torch.nextafter(less, torch.full_like(less, -math.inf)), torch.full_like(less, -math.inf))
