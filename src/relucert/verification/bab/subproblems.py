"""`SubProblems`: the parts of balls that branch and bound looks at, and their bounds.

A problem is a point and one row of its property; splits of ReLUs cut its ball into sub-problems. They are bounded by climbing
from the slopes and multipliers of the leaf they come from, each in its point's own small network of units that may switch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.reduced_network import ReducedNetwork
from relucert.bounding.relaxation import ReLURelaxation, relax
from relucert.bounding.split_bounds import AscentResult, Numbers, Problems, Signs, ascend
from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.networks.network import Network


@dataclass(eq=False)
class SubProblems:
    """The problems: points `owner`, rows `row` of the property asked of them, and the margins to exceed, `goal`, (problems,).

    `inputs` has intervals of the units over whole balls; `reach` and `unit` are what `ascend` needs to know of rounding, `rate`
    and `candidates` how it climbs, and how many units worth a split it names. Units are numbered over all ReLUs in the order of
    the nodes.
    """

    net: Network
    x: Float[Tensor, " points *input"]
    ball: Ball
    prop: Property
    inputs: dict[int, Interval]
    owner: Int[Tensor, " problems"]
    row: Int[Tensor, " problems"]
    goal: Float[Tensor, " problems"]
    reach: dict[int, Tensor]
    unit: Float[Tensor, " points"]
    rate: float
    candidates: int
    small: dict[int, ReducedNetwork | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.relus = self.net.relus
        self.sizes = [math.prod(node.shape) for node in self.relus]
        self.first = {node.index: sum(self.sizes[:place]) for place, node in enumerate(self.relus)}

    def part(self, which: Int[Tensor, " n"], signs: Signs) -> Problems:
        """What splits make of the problems `which`."""
        owner, row = self.owner[which], self.row[which]
        prop = Property(self.prop.rows[owner, row][:, None], self.prop.offsets[owner, row][:, None])
        inputs = {index: Interval(one.lower[owner], one.upper[owner]) for index, one in self.inputs.items()}
        return Problems(self.x[owner], self.ball.restrict(owner), prop, inputs, signs)

    def start(self, which: Int[Tensor, " n"], splits: Int8[Tensor, " n units"]) -> tuple[Signs, Numbers, Numbers]:
        """Where leaves begin: their splits by node, the slopes of the points' own bounds, and no multipliers."""
        slopes = {}
        for node in self.relus:
            lines = relax(node.op, self.inputs[node.index], "adaptive")
            assert isinstance(lines, ReLURelaxation)
            slopes[node.index] = lines.below[self.owner[which]]
        return self.by_node(splits), slopes, {index: torch.zeros_like(value) for index, value in slopes.items()}

    def flat(self, signs: Signs, count: int) -> Int8[Tensor, " n units"]:
        """Signs of all units in a row; of a network without ReLUs none."""
        none = torch.zeros(count, 0, dtype=torch.int8)
        return torch.cat([none, *(signs[node.index].flatten(1) for node in self.relus)], 1)

    def by_node(self, every: Int8[Tensor, " n units"]) -> Signs:
        """The other way round."""
        parts = zip(self.relus, every.split(self.sizes, 1), strict=True)
        return {node.index: part.reshape(-1, *node.shape) for node, part in parts}

    def split(self, signs: Signs, units: Int[Tensor, " n"], sign: int) -> Signs:
        """The signs with one more unit of every sub-problem."""
        return self.by_node(self.flat(signs, len(units)).scatter(1, units[:, None], sign))

    def known(self, point: int) -> tuple[Bool[Tensor, " units"], Bool[Tensor, " units"], Bool[Tensor, " units"]]:
        """Which units of a point are surely on, surely off, and which may switch; rounding is no reason to be sure."""
        ends = [(self.inputs[node.index], self.unit[point] * self.reach[node.index][point]) for node in self.relus]
        none = torch.zeros(0, dtype=torch.bool)
        on = torch.cat([none, *((within.lower[point] > error).flatten() for within, error in ends)])
        off = torch.cat([none, *((within.upper[point] < -error).flatten() for within, error in ends)])
        return on, off, torch.cat([none, *(within.unstable[point].flatten() for within, _ in ends)])

    def ascend(
        self, which: Int[Tensor, " n"], signs: Signs, slopes: Numbers, betas: Numbers, steps: int
    ) -> AscentResult:
        """Bounds of sub-problems of the problems `which`: those of one point after the other's."""
        owner = self.owner[which]
        found = []
        order: list[Tensor] = []
        for point in owner.unique().tolist():
            places = (owner == point).nonzero()[:, 0]
            mine = [{i: value[places] for i, value in part.items()} for part in (signs, slopes, betas)]
            found.append(self._ascend(point, which[places], mine[0], mine[1], mine[2], steps))
            order.append(places)
        return AscentResult.gathered(found, torch.cat(order))

    def _ascend(
        self, point: int, which: Tensor, signs: Signs, slopes: Numbers, betas: Numbers, steps: int
    ) -> AscentResult:
        """Bounds of sub-problems of one point, in its small network if it has one."""
        problems, goal = self.part(which, signs), self.goal[which]
        owner = self.owner[which]
        reach, unit = {index: value[owner] for index, value in self.reach.items()}, self.unit[owner]
        options = {"steps": steps, "rate": self.rate, "candidates": self.candidates}
        if point not in self.small:
            one = slice(point, point + 1)
            inputs = {index: Interval(part.lower[one], part.upper[one]) for index, part in self.inputs.items()}
            self.small[point] = ReducedNetwork.of(self.net, inputs, self.prop.rows[point])
        small = self.small[point]
        if small is None:
            return ascend(self.net, problems, slopes, betas, goal=goal, unit=unit, reach=reach, **options)  # type: ignore[arg-type]
        low, high = ({i: getattr(one, side) for i, one in problems.inputs.items()} for side in ("lower", "upper"))
        low, high = small.small(low), small.small(high)
        within = {index: Interval(low[index], high[index]) for index in low}
        problems = Problems(problems.x, problems.ball, problems.prop, within, small.small(signs))
        found = ascend(
            self.net, problems, small.small(slopes), small.small(betas), goal=goal, unit=unit,
            reach=small.small(reach), small=(small, self.row[which]), **options,  # type: ignore[arg-type]
        )  # fmt: skip
        every = [self.first[index] + units for index, units in small.units.items()]
        numbers = torch.cat([torch.zeros(0, dtype=torch.long), *every])
        units = torch.where(found.units < 0, -1, numbers[found.units.clamp(min=0)] if len(numbers) else -1)
        return AscentResult(
            found.margin, small.spread(found.slopes, slopes), small.spread(found.betas, betas), found.point, units
        )
