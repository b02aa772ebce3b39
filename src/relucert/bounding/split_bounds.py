"""Bounds of subproblems: a ball, and ReLUs that are split, active or inactive (beta-CROWN, Wang et al. 2021).

A split says s z >= 0 for a unit z, s = 1 (active) or -1 (inactive). On that side the unit is linear, and for every beta >= 0

    c' phi(z)  >=  a z + b  >=  (a - beta s) z + b,

so backward propagation may subtract beta s from the functional before the ReLU. The split multipliers beta are optimised
together with the slopes of the ReLUs that are not split. Every slope and every beta give a bound that holds on the subproblem.
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

from relucert.bounding._dual_ascent import Schedule, Variables, dual_ascent
from relucert.bounding.interval import Interval
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.propagation import Functional, Relaxations, pull_back
from relucert.bounding.reduced_network import ReducedNetwork
from relucert.bounding.relaxation import Pulled, ReLURelaxation, charged, relax
from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.networks.network import Network

Splits = dict[int, Tensor]  # by node: 1 active, -1 inactive, 0 not split; int8 (problems, *shape)
Numbers = dict[int, Tensor]


@dataclass(frozen=True, eq=False)
class SplitRelaxation:
    """The linear relaxation of a layer of ReLUs, and what split multipliers subtract before it, `push` (problems, *shape).

    `drift` is what rounding does to the inputs of the ReLUs, and is charged for the multipliers as well.
    """

    relaxation: ReLURelaxation
    push: Tensor
    seen: dict[str, Tensor]
    drift: Tensor | None
    parallel = False

    def pull_back(self, rows: Float[Tensor, " batch rows *shape"]) -> Pulled:
        """As for `ReLURelaxation`; the functionals of the node's output are kept in `seen`."""
        self.seen["rows"] = rows.detach()
        back, low, _, cost = self.relaxation.pull_back(rows)
        if cost is not None and self.drift is not None:
            cost = cost + cast(Tensor, charged(self.push.unsqueeze(1), self.drift))
        return Pulled(back - self.push.unsqueeze(1), low, None, cost)


@dataclass(frozen=True, eq=False)
class Problems:
    """Subproblems: inputs (problems, *input), a row of the property each (problems, 1, classes), pre-activation bounds, splits.

    With `reduced`, the reduced network of the example and the row of its property for each subproblem, tensors by node hold
    the unstable units alone, (problems, units).
    """

    x: Tensor
    ball: Ball
    prop: Property
    bounds: UnitBounds
    splits: Splits
    reduced: tuple[ReducedNetwork, Int[Tensor, " problems"]] | None = None

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
    """`steps` of dual ascent at a `rate` (that of multipliers is half of it), and the number of `candidates` for a split."""

    steps: int
    rate: float
    candidates: int


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
    bound = _SplitBound(net, problems, start)
    steps = options.steps if bound.relus else 0
    leaks = [node.op.slope for node in bound.relus]
    variables = [
        Variables(list(bound.slopes.values()), leaks, 1.0, options.rate),
        Variables(list(bound.betas.values()), [0.0] * len(leaks), None, options.rate / 2),
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
    slopes, betas = ({i: value.detach() for i, value in part.items()} for part in (bound.slopes, bound.betas))
    return AscentResult(margin, executed, computed, slopes, betas, point[:, 0], units)


class _SplitBound:
    """The margins of subproblems as a function of `slopes` and `betas`, evaluated by every call.

    A call keeps the `functional` of the input that bounds the margin, and the functionals of every ReLU's output, in `seen`.
    """

    def __init__(self, net: Network, problems: Problems, start: DualVariables):
        self.net, self.problems = net, problems
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
        # The start may be rounded: a lower slope of a leaky ReLU is at least the leak, and no beta is negative.
        self.slopes = {node.index: start.slopes[node.index].clamp(node.op.slope, 1.0) for node in self.relus}
        self.betas = {node.index: start.betas[node.index].clamp(min=0.0) for node in self.relus}
        self.seen: dict[int, dict[str, Tensor]] = {node.index: {} for node in self.relus}
        self.functional: Functional | None = None

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Margins (problems,); without gradient (problems, 3): as computed, for real arithmetic, for the executed network."""
        problems, relaxations = self.problems, dict(self.fixed)
        for node in self.relus:
            index, sign, beta = node.index, self.splits[node.index], self.betas[node.index]
            drift = problems.bounds.drift(index)
            relaxation = relax(node.op, self.within[index], self.slopes[index].unsqueeze(1), drift)
            assert isinstance(relaxation, ReLURelaxation)
            relaxations[index] = SplitRelaxation(relaxation, sign * beta, self.seen[index], drift)  # type: ignore[assignment]
        charge = problems.bounds.charge()
        if problems.reduced is None:
            last = len(self.net.graph) - 1
            self.functional = pull_back(self.net.graph, last, problems.prop.rows, relaxations, charge)
        else:
            network, row = problems.reduced
            self.functional = network.pull_back(row, relaxations, problems.x.shape[1:], charge)
        found = self.functional.margins(problems.x, problems.ball).plus(problems.prop.offsets)
        return found.computed[:, 0], found.stacked()[:, 0]


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
        open_ = (within.unstable & (bound.problems.splits[node.index] == 0)).flatten(1)
        drift = bound.problems.bounds.drift(node.index)
        if drift is not None:  # a unit that crosses zero by no more than rounding is not worth a split
            open_ = open_ & (torch.minimum(high, -low).flatten(1) > 4 * drift.sum(1))
        scores.append(torch.where(open_, score.flatten(1), -1.0))
    every = torch.cat(scores, 1)
    top = every.topk(min(k, every.shape[1]), 1)
    chosen = torch.where(top.values > -0.5, top.indices, -1)
    return F.pad(chosen, (0, k - chosen.shape[1]), value=-1)
