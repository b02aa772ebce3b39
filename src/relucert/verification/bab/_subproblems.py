"""The subproblems of branch and bound: `SubProblems` bounds them, `Frontier` and `Problem` store those that are open.

A problem is a point and one row of its property; splits of ReLUs cut its ball into subproblems. They are bounded by dual ascent
from the slopes and multipliers of the subproblem they come from, each in the reduced network of its point. Of every point only
the units that are unstable over its whole ball are stored. Any slopes and multipliers give sound bounds, so single
precision suffices for the values from which dual ascent starts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.methods.sdp import UnitBalls
from relucert.bounding.preactivations import Bounding, UnitBounds
from relucert.bounding.reduced_network import ReducedNetwork
from relucert.bounding.relaxation import ReLURelaxation, relax
from relucert.bounding.rounding import Margins
from relucert.bounding.split_bounds import AscentOptions, AscentResult, DualVariables, Numbers, Problems, Splits, ascend
from relucert.core.properties import Property
from relucert.networks.traversal import Node
from relucert.verification._incomplete import started
from relucert.verification.verifier import Query, SavedSubproblems

KINDS = (("signs", torch.int8), ("slopes", torch.float32), ("betas", torch.float32))


@dataclass(eq=False)
class Problem:
    """One point and one row of its property: its open subproblems (margin, order of arrival, slot), worst first."""

    point: int
    row: int
    leaves: list[tuple[float, int, int]] = field(default_factory=list)
    closed: bool = False
    proved: list[float] = field(default_factory=lambda: [math.inf] * 3)

    def close(self, *margins: float) -> None:
        """A subproblem is proved: the problem's margins (real, executed, computed) are the smallest of its subproblems'."""
        self.proved = [min(least, margin) for least, margin in zip(self.proved, margins, strict=True)]

    def least(self) -> float:
        """The margin in real arithmetic that is proved over all subproblems, open or closed."""
        return min([self.proved[0], *(margin for margin, _, _ in self.leaves)])


class Leaves(NamedTuple):
    """Some subproblems by node: splits (1 active, -1 inactive, 0 open), lower slopes, and split multipliers."""

    splits: Splits
    slopes: Numbers
    betas: Numbers

    def restrict(self, index: Tensor | slice) -> Leaves:
        """Some of them, by a mask, positions or a slice; positions may repeat."""
        splits, slopes, betas = ({node: value[index] for node, value in part.items()} for part in self)
        return Leaves(splits, slopes, betas)

    def updated(self, places: Int[Tensor, " n"], found: AscentResult) -> Leaves:
        """The same with the slopes and multipliers of an ascent at some places."""
        slopes, betas = (
            {node: value.index_copy(0, places, new[node]) for node, value in old.items()}
            for old, new in ((self.slopes, found.slopes), (self.betas, found.betas))
        )
        return Leaves(self.splits, slopes, betas)


@dataclass(eq=False)
class SubProblems:
    """The problems: points `owner` and rows `row` of their property, both (problems,).

    The float64 copy of `query` has ReLUs only. `balls` has pre-activation bounds over whole balls, and in l2 how far units
    move; `rate` is the step size of dual ascent, and `candidates` the number of units that it proposes for a split. Units are
    numbered over all ReLUs in the order of the nodes. The problems in `over_balls` (problems,) are bounded over balls of units
    besides boxes, as long as that is better. Where `recorded`, slopes and multipliers are those of the margin.
    """

    query: Query
    balls: UnitBalls
    owner: Int[Tensor, " problems"]
    row: Int[Tensor, " problems"]
    rate: float
    candidates: int
    reduced: dict[int, ReducedNetwork | None] = field(default_factory=dict)
    recorded: bool = False

    def __post_init__(self) -> None:
        self.net, self.x, self.bounds = self.query.double, self.query.wide, self.balls.bounds
        self.relus = self.net.relus
        self.sizes = [math.prod(node.shape) for node in self.relus]
        self.first = {node.index: sum(self.sizes[:place]) for place, node in enumerate(self.relus)}
        self.over_balls = torch.zeros(len(self.owner), dtype=torch.bool)
        self._compared = self.over_balls.clone()
        self._rounds = Counter[int]()

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
        splits = self.flat(leaves.splits, len(units)).scatter(1, units[:, None], sign)
        # A multiplier that is no number says that its split is new.
        new = self.by_node(torch.zeros_like(splits).scatter(1, units[:, None], 1))
        betas = {index: torch.where(new[index] != 0, math.nan, value) for index, value in leaves.betas.items()}
        return leaves._replace(splits=self.by_node(splits), betas=betas)

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

        The children are bounded by one backward propagation each, without ascent; all positive margins count the same.
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

    def compare(self, which: Int[Tensor, " n"], leaves: Leaves, steps: int) -> Leaves:
        """Decide for problems that are new whether balls give better bounds than boxes alone, by their first subproblem.

        The subproblems come back with slopes and multipliers to start from; balls are worth three times the `steps`.
        """
        first: dict[int, int] = {}
        for place in (~self._compared[which]).nonzero()[:, 0].tolist():
            point = int(self.owner[which[place]])
            if self.balls.known(point) and self._reduced(point) is not None:
                first.setdefault(int(which[place]), place)
        self._compared[which], some = True, torch.tensor([*first.values()], dtype=torch.long)
        unknown = {index: torch.full_like(value, math.nan) for index, value in leaves.slopes.items()}
        over = leaves._replace(slopes=unknown)
        if len(some):
            boxes = self.ascend(which[some], leaves.restrict(some), steps)
            self.over_balls[which[some]] = True
            balls = self.ascend(which[some], over.restrict(some), steps)
            better = balls.margin > boxes.margin
            self.over_balls[which[some]] = better
            leaves, over = (part.updated(some, found) for part, found in ((leaves, boxes), (over, balls)))
            if bool(better.any()):
                some = some[better]
                over = over.updated(some, self.ascend(which[some], over.restrict(some), 2 * steps))
        mask = self.over_balls[which]
        slopes, betas = (
            {i: torch.where(mask.reshape(-1, *[1] * (value.dim() - 1)), new[i], value) for i, value in old.items()}
            for new, old in ((over.slopes, leaves.slopes), (over.betas, leaves.betas))
        )
        return Leaves(leaves.splits, slopes, betas)

    def bound(self, which: Int[Tensor, " n"], leaves: Leaves, steps: int) -> AscentResult:
        """As `ascend`; after 2, 4, 8, ... rounds a problem over balls is bounded over boxes from then on if these are better.

        Splits make boxes exact, and balls hardly any smaller: deep in a tree boxes alone close what balls cannot. The worst
        subproblem of a problem decides.
        """
        found = self.ascend(which, leaves, steps)
        worst: dict[int, int] = {}
        for place in found.margin.argsort().tolist():
            key = int(which[place])
            if self.over_balls[key]:
                worst.setdefault(key, place)
        self._rounds.update(worst.keys())
        due = [place for key, place in worst.items() if self._rounds[key] > 1 and self._rounds[key].bit_count() == 1]
        if due:
            some = torch.tensor(due)
            self.over_balls[which[some]] = False
            boxes = self.ascend(which[some], leaves.restrict(some), steps)
            self.over_balls[which[some]] = ~(boxes.margin > found.margin[some])
        return found

    def ascend(self, which: Int[Tensor, " n"], leaves: Leaves, steps: int) -> AscentResult:
        """Bounds of subproblems of the problems `which`, one point after the other, over balls or over boxes alone."""
        group = 2 * self.owner[which] + self.over_balls[which]
        found = []
        order: list[Tensor] = []
        for key in group.unique().tolist():
            places = (group == key).nonzero()[:, 0]
            found.append(self._ascend(key // 2, which[places], leaves.restrict(places), steps))
            order.append(places)
        return AscentResult.gathered(found, torch.cat(order))

    def _reduced(self, point: int) -> ReducedNetwork | None:
        """The reduced network of a point, if it has one."""
        if point not in self.reduced:
            own = self.bounds.restrict(torch.tensor([point]))
            self.reduced[point] = ReducedNetwork.of(self.net, own, self.query.prop.rows[point])
        return self.reduced[point]

    def _ascend(self, point: int, which: Tensor, leaves: Leaves, steps: int) -> AscentResult:
        """Bounds of subproblems of one point, in its reduced network if it has one."""
        splits, slopes, betas = leaves
        options = AscentOptions(steps=steps, rate=self.rate, candidates=self.candidates, best=self.recorded)
        reduced = self._reduced(point)
        if reduced is None:
            return ascend(self.net, self.part(which, splits), DualVariables(slopes, betas), options)
        owner = self.owner[which]
        balls = None
        if bool(self.over_balls[which].any()):
            balls = self.balls.of(point, reduced, len(which))
        problems = Problems(
            self.x[owner], self.query.ball.restrict(owner), self._rows(which),
            self._reduced_bounds(point, reduced, len(which)), reduced.restrict(splits), (reduced, self.row[which]), balls,
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


class Frontier:
    """The open subproblems by point and slot; the slot of one that was taken is used again."""

    def __init__(
        self,
        relus: Sequence[Node],
        unstable: dict[int, Bool[Tensor, " points *shape"]],
        points: int,
        dtype: torch.dtype,
    ):
        self.relus, self.dtype = relus, dtype
        self.sizes = [math.prod(node.shape) for node in relus]
        self.unstable = [row.nonzero()[:, 0] for row in self._flat(unstable, points)]
        self.rows: dict[int, _Rows] = {}

    def add(self, owner: Int[Tensor, " leaves"], leaves: Leaves, units: Int[Tensor, " leaves k"]) -> list[int]:
        """Store subproblems of the points `owner` with their candidate units for the next split; their slots."""
        slots = [0] * len(owner)
        every = {kind: self._flat(part, len(owner)) for (kind, _), part in zip(KINDS, leaves, strict=True)}
        for point in owner.unique().tolist():
            places = (owner == point).nonzero()[:, 0]
            new = {kind: every[kind][places][:, self.unstable[point]].to(dtype) for kind, dtype in KINDS}
            found = self.rows.setdefault(point, _Rows()).add({**new, "units": units[places]})
            for place, slot in zip(places.tolist(), found, strict=True):
                slots[place] = slot
        return slots

    def take(
        self, owner: Int[Tensor, " leaves"], slots: Int[Tensor, " leaves"]
    ) -> tuple[Leaves, Int[Tensor, " leaves k"]]:
        """Remove subproblems; their splits, slopes and multipliers, and their candidate units."""
        every = {
            kind: torch.zeros(len(owner), sum(self.sizes), dtype=torch.int8 if kind == "signs" else self.dtype)
            for kind, _ in KINDS
        }
        units: list[Tensor | None] = [None] * len(owner)
        for point in owner.unique().tolist():
            places = (owner == point).nonzero()[:, 0]
            stored = self.rows[point].take(slots[places])
            for kind, values in every.items():
                values[places[:, None], self.unstable[point][None]] = stored[kind].to(values.dtype)
            for place, row in zip(places.tolist(), stored["units"], strict=True):
                units[place] = row
        splits, slopes, betas = (self._by_node(every[kind]) for kind, _ in KINDS)
        return Leaves(splits, slopes, betas), torch.stack([row for row in units if row is not None])

    def saved(self, point: int, row: int, slots: Int[Tensor, " leaves"]) -> SavedSubproblems:
        """The splits of some subproblems of a point, all about one row of its property."""
        splits = self.rows[point].rows["signs"][slots]
        return SavedSubproblems(torch.full((len(slots),), row), self.unstable[point], splits)

    def forget(self, point: int) -> None:
        """Drop all subproblems of a point."""
        self.rows.pop(point, None)

    def size(self, point: int | None = None) -> int:
        """The bytes that subproblems take, all or those of a point."""
        chosen = self.rows.values() if point is None else [self.rows[point]] if point in self.rows else []
        return sum(rows.size for rows in chosen)

    def _flat(self, part: dict[int, Tensor], count: int) -> Tensor:
        """All units in a row; of a network without ReLUs none."""
        return torch.cat(
            [torch.zeros(count, 0, dtype=torch.bool), *(part[node.index].flatten(1) for node in self.relus)], 1
        )

    def _by_node(self, every: Tensor) -> dict[int, Tensor]:
        pieces = zip(self.relus, every.split(self.sizes, 1), strict=True)
        return {node.index: part.reshape(-1, *node.shape) for node, part in pieces}


class _Rows:
    """Rows of tensors that come and go; the slot of a row that has gone is used again."""

    def __init__(self) -> None:
        self.rows: dict[str, Tensor] = {}
        self.unused: list[int] = []

    def add(self, new: dict[str, Tensor]) -> list[int]:
        """Store rows and return their slots."""
        count = len(new["units"])
        if len(self.unused) < count:
            size = len(self.rows["units"]) if self.rows else 0
            more = max(count, size // 2, 16)
            for key, value in new.items():
                empty = value.new_empty(more, *value.shape[1:])
                self.rows[key] = torch.cat([self.rows[key], empty]) if key in self.rows else empty
            self.unused += range(size, size + more)
        slots = [self.unused.pop() for _ in range(count)]
        place = torch.tensor(slots)
        for key, value in new.items():
            self.rows[key][place] = value
        return slots

    def take(self, slots: Tensor) -> dict[str, Tensor]:
        """The rows of slots, which are free from then on."""
        self.unused += slots.tolist()
        return {key: value[slots] for key, value in self.rows.items()}

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(value.numel() * value.element_size() for value in self.rows.values())


def deep_bounds(query: Query, method: Bounding) -> tuple[UnitBounds, Margins]:
    """Pre-activation bounds of deep networks in float64, and margins, by a method that optimises inner slopes.

    Where the network is in float32 so is the computation, with its rounding charged: that is twice as fast, and rounding is far
    below what optimised slopes gain.
    """
    net, double, ball, prop = query.net, query.double, query.ball, query.prop
    if net.dtype != torch.float32 or net.graph.max_pools or not prop.fits(torch.float32):
        return method.prove(double, started(query, method, double, query.wide), query.wide, ball, prop)
    known = started(query, method, net, query.x)
    units, margins = method.prove(net, known, query.x, ball, prop.to(torch.float32))
    return units.charged(double, query.wide, ball, net.dtype), Margins.unstacked(margins.stacked().double())
