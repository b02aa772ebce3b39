"""`SubProblems`: the parts of balls that branch and bound looks at, and their bounds.

A problem is a point and one row of its property; splits of ReLUs cut its ball into subproblems. They are bounded by dual ascent
from the slopes and multipliers of the subproblem they come from, each in the reduced network of its point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.reduced_network import ReducedNetwork
from relucert.bounding.relaxation import ReLURelaxation, relax
from relucert.bounding.split_bounds import (
    AscentOptions,
    AscentResult,
    DualVariables,
    Problems,
    Splits,
    ascend,
)
from relucert.core.properties import Property
from relucert.verification.bab.frontier import Leaves
from relucert.verification.query import Query


@dataclass(eq=False)
class SubProblems:
    """The problems: points `owner` and rows `row` of their property, both (problems,).

    The float64 copy of `query` has ReLUs only. `bounds` has pre-activation bounds over whole balls; `rate` is the step size of
    dual ascent, and `candidates` the number of units that it proposes for a split. Units are numbered over all ReLUs in the
    order of the nodes.
    """

    query: Query
    bounds: UnitBounds
    owner: Int[Tensor, " problems"]
    row: Int[Tensor, " problems"]
    rate: float
    candidates: int
    reduced: dict[int, ReducedNetwork | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.net, self.x = self.query.double, self.query.wide
        self.relus = self.net.relus
        self.sizes = [math.prod(node.shape) for node in self.relus]
        self.first = {node.index: sum(self.sizes[:place]) for place, node in enumerate(self.relus)}

    def part(self, which: Int[Tensor, " n"], splits: Splits) -> Problems:
        """The subproblems that splits make of the problems `which`."""
        owner = self.owner[which]
        ball = self.query.ball.restrict(owner)
        return Problems(self.x[owner], ball, self._rows(which), self.bounds.restrict(owner), splits)

    def _rows(self, which: Int[Tensor, " n"]) -> Property:
        """The rows of the problems `which`, one each."""
        owner, row, prop = self.owner[which], self.row[which], self.query.prop
        return Property(prop.rows[owner, row][:, None], prop.offsets[owner, row][:, None])

    def start(self, which: Int[Tensor, " n"], splits: Int8[Tensor, " n units"]) -> Leaves:
        """Subproblems before any ascent: CROWN's slopes over the whole ball, and no multipliers."""
        slopes = {}
        for node in self.relus:
            relaxation = relax(node.op, self.bounds.inputs[node.index], "adaptive")
            assert isinstance(relaxation, ReLURelaxation)
            slopes[node.index] = relaxation.below[self.owner[which]]
        return Leaves(self.by_node(splits), slopes, {node: torch.zeros_like(value) for node, value in slopes.items()})

    def flat(self, splits: Splits, count: int) -> Int8[Tensor, " n units"]:
        """The splits of all units in a row; of a network without ReLUs none."""
        none = torch.zeros(count, 0, dtype=torch.int8)
        return torch.cat([none, *(splits[node.index].flatten(1) for node in self.relus)], 1)

    def by_node(self, every: Int8[Tensor, " n units"]) -> Splits:
        """The splits by node, from those in a row."""
        parts = zip(self.relus, every.split(self.sizes, 1), strict=True)
        return {node.index: part.reshape(-1, *node.shape) for node, part in parts}

    def split(self, leaves: Leaves, units: Int[Tensor, " n"], sign: int) -> Leaves:
        """The subproblems with one more unit split in each."""
        return leaves._replace(
            splits=self.by_node(self.flat(leaves.splits, len(units)).scatter(1, units[:, None], sign))
        )

    def known(self, point: int) -> tuple[Bool[Tensor, " units"], Bool[Tensor, " units"], Bool[Tensor, " units"]]:
        """Which units of a point are active, inactive and unstable."""
        ends = [self.bounds.inputs[node.index] for node in self.relus]
        none = torch.zeros(0, dtype=torch.bool)
        on = torch.cat([none, *((within.lower[point] > 0).flatten() for within in ends)])
        off = torch.cat([none, *((within.upper[point] < 0).flatten() for within in ends)])
        return on, off, torch.cat([none, *(within.unstable[point].flatten() for within in ends)])

    def best_split(
        self, which: Int[Tensor, " n"], leaves: Leaves, units: Int[Tensor, " n candidates"]
    ) -> Int[Tensor, " n"]:
        """The candidate (-1: none) with the best branching score, min + 0.1 max of the bounds of both children.

        The children are bounded by one backward propagation each, without ascent; all positive margins count alike.
        """
        count, tried = units.shape
        if tried == 1:
            return units[:, 0]
        flat = units.clamp(min=0).flatten()
        repeat = torch.arange(count).repeat_interleave(tried)
        many = leaves.restrict(repeat)
        bounds = []
        for sign in (1, -1):
            found = self.ascend(which[repeat], self.split(many, flat, sign), 0)
            bounds.append(found.margin.clamp(max=0.0).reshape(count, tried))
        score = torch.minimum(*bounds) + 0.1 * torch.maximum(*bounds)
        return units.gather(1, score.masked_fill(units < 0, -math.inf).argmax(1, keepdim=True))[:, 0]

    def ascend(self, which: Int[Tensor, " n"], leaves: Leaves, steps: int) -> AscentResult:
        """Bounds of subproblems of the problems `which`, one point after the other."""
        owner = self.owner[which]
        found = []
        order: list[Tensor] = []
        for point in owner.unique().tolist():
            places = (owner == point).nonzero()[:, 0]
            found.append(self._ascend(point, which[places], leaves.restrict(places), steps))
            order.append(places)
        return AscentResult.gathered(found, torch.cat(order))

    def _ascend(self, point: int, which: Tensor, leaves: Leaves, steps: int) -> AscentResult:
        """Bounds of subproblems of one point, in its reduced network if it has one."""
        splits, slopes, betas = leaves
        options = AscentOptions(steps=steps, rate=self.rate, candidates=self.candidates)
        if point not in self.reduced:
            own = self.bounds.restrict(torch.tensor([point]))
            self.reduced[point] = ReducedNetwork.of(self.net, own, self.query.prop.rows[point])
        reduced = self.reduced[point]
        if reduced is None:
            return ascend(self.net, self.part(which, splits), DualVariables(slopes, betas), options)
        owner = self.owner[which]
        problems = Problems(
            self.x[owner], self.query.ball.restrict(owner), self._rows(which),
            self._reduced_bounds(point, reduced, len(which)), reduced.restrict(splits), (reduced, self.row[which]),
        )  # fmt: skip
        start = DualVariables(reduced.restrict(slopes), reduced.restrict(betas))
        found = ascend(self.net, problems, start, options)
        every = [self.first[index] + units for index, units in reduced.units.items()]
        numbers = torch.cat([torch.zeros(0, dtype=torch.long), *every])
        units = torch.where(found.units < 0, -1, numbers[found.units.clamp(min=0)] if len(numbers) else -1)
        slopes, betas = reduced.spread(found.slopes, slopes), reduced.spread(found.betas, betas)
        return replace(found, slopes=slopes, betas=betas, units=units)

    def _reduced_bounds(self, point: int, reduced: ReducedNetwork, count: int) -> UnitBounds:
        """The bounds of one point's unstable units, for each of `count` subproblems."""

        def own(values: Tensor, index: int) -> Tensor:
            return values[point].flatten()[reduced.units[index]].expand(count, -1)

        inputs = {
            index: Interval(own(self.bounds.inputs[index].lower, index), own(self.bounds.inputs[index].upper, index))
            for index in reduced.layers
        }
        rounding = self.bounds.rounding
        if rounding is not None:
            drifts = {index: reduced.drift(index, count) for index in reduced.layers}
            largest, lost = rounding.largest[point].expand(count, -1), rounding.lost[point].expand(count)
            before = {index: drift for index, drift in drifts.items() if drift is not None}
            rounding = replace(
                rounding, largest=largest, lost=lost, before=before, logits=largest.new_zeros(count, 2, 0)
            )
        return UnitBounds(inputs, self.bounds.logits, rounding)
