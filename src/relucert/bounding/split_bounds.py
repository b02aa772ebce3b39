"""Bounds of subproblems: a ball, and ReLUs that are split, active or inactive (beta-CROWN, Wang et al. 2021).

A split says s z >= 0 for a unit z, s = 1 (active) or -1 (inactive). On that side the unit is linear, and for every beta >= 0

    c' phi(z)  >=  a z + b  >=  (a - beta s) z + b,

so backward propagation may subtract beta s from the functional before the ReLU. The split multipliers beta are optimised
together with the slopes of the ReLUs that are not split. Every slope and every beta give a bound that holds on the subproblem.

In l2 units lie in a ball besides, as in `sdp`. With c behind and g before a layer of ReLUs, g any functional, the bound of
`bounding/_ball_relaxation.py` holds with the intervals that splits have cut: a split unit stays in the sum, on its side. There
g = s c for unstable units with any slope s, and g = c - beta s for split ones, beta of either sign.

A multiplier that is not a number says that its split is new: it is set such that g is what it was before the split. Then the
bound of a subproblem at the variables of its parent is at least that of the parent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from relucert.bounding._ball_relaxation import Surroundings, least_gap
from relucert.bounding._dual_ascent import Schedule, Variables, dual_ascent
from relucert.bounding.interval import Interval
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.propagation import Functional, Relaxations, pull_back
from relucert.bounding.reduced_network import ReducedNetwork
from relucert.bounding.relaxation import Pulled, ReLURelaxation, charged, relax
from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.networks.network import Network
from relucert.networks.nodes import ReLU
from relucert.networks.traversal import Node

ROUNDS = 6  # of the search for the multiplier of a ball

Splits = dict[int, Tensor]  # by node: 1 active, -1 inactive, 0 not split; int8 (problems, *shape)
Numbers = dict[int, Tensor]


@dataclass(frozen=True, eq=False)
class SplitRelaxation:
    """The linear relaxation of a layer of ReLUs, and the split multipliers, which subtract something before it.

    `drift` is what rounding does to the inputs of the ReLUs, and is charged for the multipliers as well.
    """

    relaxation: ReLURelaxation
    variables: SplitVariables
    seen: dict[str, Tensor]
    drift: Tensor | None
    parallel = False

    def pull_back(self, rows: Float[Tensor, " batch rows *shape"]) -> Pulled:
        """As for `ReLURelaxation`; the functionals of the node's output are kept in `seen`."""
        self.seen["rows"] = rows.detach()
        self.variables.fill(rows[:, 0].detach(), self.relaxation.above, least=0.0)
        back, low, _, cost = self.relaxation.pull_back(rows)
        push = self.variables.push().unsqueeze(1)
        if cost is not None and self.drift is not None:
            cost = cost + cast(Tensor, charged(push, self.drift))
        return Pulled(back - push, low, None, cost)


@dataclass(frozen=True, eq=False)
class SplitBallRelaxation:
    """The relaxation of a layer of ReLUs over a box cut by splits and over a ball; tensors are (problems, units).

    `stable` has the slopes of units that are stable on their side of a split, NaN for others; `around` box and ball.
    """

    leak: float
    stable: Tensor
    around: Surroundings
    variables: SplitVariables
    seen: dict[str, Tensor]
    drift: Tensor | None
    parallel = False

    def pull_back(self, rows: Float[Tensor, " problems one units"]) -> Pulled:
        """As for `SplitRelaxation`; what units take from the bound is kept in `seen` as well."""
        fixed = ~self.stable.isnan()
        self.seen["rows"] = rows.detach()
        self.variables.fill(rows[:, 0].detach(), self.stable)
        slopes = torch.where(fixed, self.stable, self.variables.slopes)
        push = self.variables.push().unsqueeze(1)
        back = rows * slopes.unsqueeze(1) - push
        gap = least_gap(rows, back, self.around, self.leak, ROUNDS)
        self.seen["lost"] = gap.lost[:, 0]
        cost = None
        if self.drift is not None:
            cost = cast(Tensor, charged(rows, self.drift)) + cast(Tensor, charged(push, self.drift))
        return Pulled(back, gap.value, None, cost)


@dataclass(frozen=True, eq=False)
class SplitVariables:
    """Slopes and split multipliers of one layer, and the signs of its splits, all (problems, *shape).

    `start` has slopes for positive and for negative entries of a functional: those that take the place of what is no number.
    """

    slopes: Tensor
    betas: Tensor
    signs: Tensor
    start: tuple[Tensor, Tensor]

    def push(self) -> Tensor:
        """What the multipliers subtract from the functional before the ReLUs."""
        return self.signs * self.betas

    @torch.no_grad()
    def fill(self, rows: Tensor, stable: Tensor, least: float = -math.inf) -> None:
        """Set slopes and multipliers that are not numbers, for functionals behind the ReLUs and slopes on sides of splits.

        A new multiplier keeps the functional before the ReLU as it was with the slope of the unit before its split, as far as
        multipliers of at least `least` can.
        """
        if bool(self.slopes.isnan().any()):
            first = torch.where(rows > 0, *self.start)
            self.slopes.copy_(torch.where(self.slopes.isnan(), first, self.slopes))
        if bool(self.betas.isnan().any()):
            kept = self.signs * (stable - self.slopes) * rows
            if least == 0.0:  # the slope is that of the line below, which only positive entries meet
                kept = torch.where(rows > 0, kept, 0.0).clamp(min=0.0)
            kept = torch.where(self.signs == 0, 0.0, kept)
            self.betas.copy_(torch.where(self.betas.isnan(), kept, self.betas))


@dataclass(frozen=True, eq=False)
class Problems:
    """Subproblems: inputs (problems, *input), a row of the property each (problems, 1, classes), pre-activation bounds, splits.

    With `reduced`, the reduced network of the example and the row of its property for each subproblem, tensors by node hold
    the unstable units alone, (problems, units). `balls` then has centres (problems, units) and radii (problems,) of the balls
    that the inputs of ReLUs lie in, by node; None: boxes alone.
    """

    x: Tensor
    ball: Ball
    prop: Property
    bounds: UnitBounds
    splits: Splits
    reduced: tuple[ReducedNetwork, Int[Tensor, " problems"]] | None = None
    balls: dict[int, tuple[Tensor, Tensor]] | None = None

    def __len__(self) -> int:
        return len(self.x)

    def clipped(self, index: int) -> Interval:
        """The interval of a node's input, cut off at zero by its splits."""
        within = self.bounds.inputs[index]
        if index not in self.splits:
            return within
        sign = self.splits[index]
        low = torch.where(sign > 0, within.lower.clamp(min=0), within.lower)
        high = torch.where(sign < 0, within.upper.clamp(max=0), within.upper)
        # Crossed ends mean an empty set, or rounding.
        return Interval(torch.minimum(low, high), torch.maximum(low, high))


@dataclass(frozen=True, eq=False)
class DualVariables:
    """Slopes (alpha) and split multipliers (beta) of every ReLU, by node (problems, *shape)."""

    slopes: Numbers
    betas: Numbers


@dataclass(frozen=True, kw_only=True)
class AscentOptions:
    """`steps` of dual ascent at a `rate` (that of multipliers is half of it), and the number of `candidates` for a split.

    With `best` the slopes and multipliers of a result are those of its margin, over boxes as well.
    """

    steps: int
    rate: float
    candidates: int
    best: bool = False


@dataclass(frozen=True, eq=False)
class AscentResult:
    """Margins (problems,), optimised slopes and multipliers, minimisers of the bound, and candidates for the next split.

    `margin` is proved for real arithmetic, `executed` for the executed network; `computed` is the bound before rounding was
    charged.
    `units` (problems, k) number the units of all ReLUs in the order of the nodes, by decreasing branching score, -1 for none.
    """

    margin: Float[Tensor, " problems"]
    executed: Float[Tensor, " problems"]
    computed: Float[Tensor, " problems"]
    slopes: Numbers
    betas: Numbers
    point: Float[Tensor, " problems *input"]
    units: Int[Tensor, " problems k"]

    @staticmethod
    def gathered(parts: Sequence[AscentResult], order: Int[Tensor, " problems"]) -> AscentResult:
        """The concatenation of several results; `order` has the positions of their problems, part after part."""
        if len(parts) == 1:
            return parts[0]
        back = order.argsort()
        slopes, betas = (
            {i: torch.cat([getattr(part, name)[i] for part in parts])[back] for i in getattr(parts[0], name)}
            for name in ("slopes", "betas")
        )
        margin, executed, computed, point, units = (
            torch.cat([getattr(part, name) for part in parts])[back]
            for name in ("margin", "executed", "computed", "point", "units")
        )
        return AscentResult(margin, executed, computed, slopes, betas, point, units)


def ascend(
    net: Network,
    problems: Problems,
    start: DualVariables,
    options: AscentOptions,
) -> AscentResult:
    """Optimise slopes and split multipliers from a start, until all margins are positive when executed or for all steps."""
    bound = _SplitBound(net, problems, start, keeps=options.best)
    steps = options.steps if bound.relus else 0
    leaks = [node.op.slope for node in bound.relus]
    variables = [
        Variables(list(bound.slopes.values()), leaks, 1.0, options.rate),
        Variables(list(bound.betas.values()), [bound.least] * len(leaks), None, options.rate / 2),
    ]
    unknown = problems.x.new_full((len(problems), 3), -math.inf)
    schedule = Schedule(steps=steps, decay=0.96, averages=(0.9, 0.99))
    goal = torch.stack([unknown[:, 0], unknown[:, 1], torch.zeros_like(unknown[:, 2])], 1)
    computed, margin, executed = dual_ascent(net, bound, variables, unknown, schedule, goal).unbind(1)
    assert bound.functional is not None
    with torch.no_grad():
        point = problems.ball.minimum(problems.x, bound.functional.rows.detach(), point=True).point
        assert point is not None
        # A functional that is not a number has no minimiser: the centre stands for it.
        point = torch.where(point.isfinite(), point, problems.x.unsqueeze(1))
        units = torch.full((len(problems), options.candidates), -1)
        if bound.relus:
            units = _branching_scores(bound, options.candidates)
    slopes, betas = bound.kept()
    return AscentResult(margin, executed, computed, slopes, betas, point[:, 0], units)


class _SplitBound:
    """The margins of subproblems as a function of `slopes` and `betas`, evaluated by every call.

    A call keeps the `functional` of the input that bounds the margin, and the functionals of every ReLU's output, in `seen`.
    """

    def __init__(self, net: Network, problems: Problems, start: DualVariables, *, keeps: bool = False):
        self.net, self.problems = net, problems
        self.keeps = keeps or problems.balls is not None
        reduced = problems.reduced
        switches = [node for node in net.switches if reduced is None or node.index in reduced[0].layers]
        self.relus = [node for node in net.relus if node in switches]
        self.within = {node.index: problems.clipped(node.index) for node in switches}
        self.fixed: Relaxations = {
            node.index: relax(node.op, self.within[node.index], "adaptive", problems.bounds.drift(node.index))
            for node in switches
            if node not in self.relus
        }
        self.splits = {node.index: problems.splits[node.index].to(problems.x.dtype) for node in self.relus}
        # The start may be rounded: a lower slope of a leaky ReLU is at least the leak, and no beta is negative without balls.
        self.least = 0.0 if problems.balls is None else -math.inf
        self.slopes = {node.index: start.slopes[node.index].clamp(node.op.slope, 1.0) for node in self.relus}
        self.betas = {node.index: start.betas[node.index].clamp(min=self.least) for node in self.relus}
        self.lines: dict[int, ReLURelaxation] = {}
        if problems.balls is not None:
            self.lines = {
                node.index: cast(ReLURelaxation, relax(node.op, self.within[node.index], "adaptive"))
                for node in self.relus
            }
        self.seen: dict[int, dict[str, Tensor]] = {node.index: {} for node in self.relus}
        self.functional: Functional | None = None
        self.best: tuple[Tensor, Numbers, Numbers] | None = None

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Margins (problems,); without gradient (problems, 3): as computed, for real arithmetic, for the executed network."""
        problems, relaxations = self.problems, dict(self.fixed)
        for node in self.relus:
            relaxations[node.index] = self._relaxed(node)  # type: ignore[assignment]
        charge = problems.bounds.charge()
        if problems.reduced is None:
            last = len(self.net.graph) - 1
            self.functional = pull_back(self.net.graph, last, problems.prop.rows, relaxations, charge)
        else:
            network, row = problems.reduced
            self.functional = network.pull_back(row, relaxations, problems.x.shape[1:], charge)
        found = self.functional.margins(problems.x, problems.ball).plus(problems.prop.offsets)
        if self.keeps:
            self._keep(found.real[:, 0].detach())
        return found.computed[:, 0], found.stacked()[:, 0]

    @torch.no_grad()
    def _keep(self, margin: Float[Tensor, " problems"]) -> None:
        """Keep the slopes and multipliers of the best bound of every subproblem so far."""
        slopes, betas = ({i: value.detach() for i, value in part.items()} for part in (self.slopes, self.betas))
        if self.best is None:
            slopes, betas = ({i: value.clone() for i, value in part.items()} for part in (slopes, betas))
            self.best = margin, slopes, betas
            return
        last, *parts = self.best
        better = margin > last
        slopes, betas = (
            {i: torch.where(better[:, None], value, old[i]) for i, value in new.items()}
            for new, old in zip((slopes, betas), parts, strict=True)
        )
        self.best = torch.where(better, margin, last), slopes, betas

    def kept(self) -> tuple[Numbers, Numbers]:
        """Slopes and multipliers for subproblems to start from: those of the best bound where they are kept, else the last."""
        if self.best is not None:
            return self.best[1], self.best[2]
        slopes, betas = ({i: value.detach() for i, value in part.items()} for part in (self.slopes, self.betas))
        return slopes, betas

    def _relaxed(self, node: Node[ReLU]) -> SplitRelaxation | SplitBallRelaxation:
        """The relaxation of a layer of ReLUs at the current slopes and multipliers."""
        index, within = node.index, self.within[node.index]
        drift = self.problems.bounds.drift(index)
        if self.problems.balls is None:
            relaxation = relax(node.op, within, self.slopes[index].unsqueeze(1), drift)
            assert isinstance(relaxation, ReLURelaxation)
            variables = SplitVariables(
                self.slopes[index], self.betas[index], self.splits[index], (relaxation.above, relaxation.above)
            )
            return SplitRelaxation(relaxation, variables, self.seen[index], drift)
        line, (centre, reach) = self.lines[index], self.problems.balls[index]
        variables = SplitVariables(self.slopes[index], self.betas[index], self.splits[index], (line.below, line.above))
        stable = torch.where(within.unstable, math.nan, line.above)
        around = Surroundings(centre, within.lower - centre, within.upper - centre, reach)
        return SplitBallRelaxation(node.op.slope, stable, around, variables, self.seen[index], drift)


def _branching_scores(bound: _SplitBound, k: int) -> Int[Tensor, " problems k"]:
    """The k unstable units with the largest scores: weight of the functional times the gap between relaxation and ReLU."""
    scores = []
    for node in bound.relus:
        within = bound.within[node.index]
        low, high = within.lower, within.upper
        rows = bound.seen[node.index]["rows"][:, 0]
        slope, leak = bound.slopes[node.index], node.op.slope
        width = (high - low).clamp(min=torch.finfo(low.dtype).tiny)
        above = (1 - leak) * high * -low / width
        below = torch.minimum((1 - slope) * high, (slope - leak) * -low)
        # A slope strictly between its ends balances both sides, and a split frees the smaller gap at least.
        score = torch.where(rows < 0, -rows * above, rows * torch.maximum(below, 0.1 * above))
        if "lost" in bound.seen[node.index]:  # with balls it is known what each unit takes from the bound
            score = torch.maximum(bound.seen[node.index]["lost"], 0.01 * score)
        open_ = (within.unstable & (bound.problems.splits[node.index] == 0)).flatten(1)
        drift = bound.problems.bounds.drift(node.index)
        if drift is not None:  # a unit that crosses zero by no more than rounding is not worth a split
            open_ = open_ & (torch.minimum(high, -low).flatten(1) > 4 * drift.sum(1))
        scores.append(torch.where(open_, score.flatten(1), -1.0))
    every = torch.cat(scores, 1)
    top = every.topk(min(k, every.shape[1]), 1)
    chosen = torch.where(top.values > -0.5, top.indices, -1)
    return F.pad(chosen, (0, k - chosen.shape[1]), value=-1)
