"""Bounds of sub-problems: a ball, and ReLUs that are known to be on or off there (beta-CROWN, Wang et al. 2021).

A split says s z >= 0 for a unit z, with s = 1 (on) or -1 (off). On its side the unit is linear, and for every beta >= 0

    c' phi(z)  >=  a z + b  >=  (a - beta s) z + b,

so the walk may take beta s from the functional before the ReLU: multipliers of the split, which climb together with the slopes
of the ReLUs that are still open. Every slope and every beta give a bound that holds on the sub-problem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.propagation import Relaxations, pull_back
from relucert.bounding.reduced_network import ReducedNetwork
from relucert.bounding.relaxation import ReLURelaxation, relax
from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.networks.network import Network

Signs = dict[int, Tensor]  # by node: 1 on, -1 off, 0 open; int8 (problems, *shape)
Numbers = dict[int, Tensor]


@dataclass(frozen=True, eq=False)
class SplitRelaxation:
    """The lines of a layer of ReLUs, and what multipliers take from the functional before it, (problems, *shape)."""

    lines: ReLURelaxation
    push: Tensor
    seen: dict[str, Tensor]
    parallel = False

    def pull_back(self, rows: Float[Tensor, " batch rows *shape"]) -> tuple[Tensor, Tensor, Tensor | None]:
        """As for `ReLURelaxation`; the functionals behind the node are kept in `seen`."""
        self.seen["rows"] = rows.detach()
        back, low, _ = self.lines.pull_back(rows)
        return back - self.push.unsqueeze(1), low, None


@dataclass(frozen=True, eq=False)
class Problems:
    """Sub-problems: inputs (problems, *input), one row each (problems, 1, classes), bounds of the units, and splits."""

    x: Tensor
    ball: Ball
    prop: Property
    inputs: dict[int, Interval]
    signs: Signs

    def __len__(self) -> int:
        return len(self.x)

    def clipped(self, index: int) -> Interval:
        """The interval of a node's input with the splits: zero is an end of it."""
        within = self.inputs[index]
        if index not in self.signs:
            return within
        sign = self.signs[index]
        low = torch.where(sign > 0, within.lower.clamp(min=0), within.lower)
        high = torch.where(sign < 0, within.upper.clamp(max=0), within.upper)
        # Ends that have crossed speak of a set that is empty, or of nothing but rounding.
        return Interval(torch.minimum(low, high), torch.maximum(low, high))


@dataclass(frozen=True, eq=False)
class AscentResult:
    """What climbing found: margins (problems,), slopes and multipliers, the bound's minimisers, and units worth a split.

    `units` (problems, k) are numbers of units over all ReLUs in the order of the nodes, best first, -1 where there are no more.
    """

    margin: Float[Tensor, " problems"]
    slopes: Numbers
    betas: Numbers
    point: Float[Tensor, " problems *input"]
    units: Int[Tensor, " problems k"]

    @staticmethod
    def gathered(parts: Sequence[AscentResult], order: Int[Tensor, " problems"]) -> AscentResult:
        """Several as one; `order` has the places of their problems, one part's after the other's."""
        if len(parts) == 1:
            return parts[0]
        back = order.argsort()
        slopes, betas = (
            {i: torch.cat([getattr(part, name)[i] for part in parts])[back] for i in getattr(parts[0], name)}
            for name in ("slopes", "betas")
        )
        margin, point, units = (
            torch.cat([getattr(part, name) for part in parts])[back] for name in ("margin", "point", "units")
        )
        return AscentResult(margin, slopes, betas, point, units)


def ascend(
    net: Network,
    problems: Problems,
    slopes: Numbers,
    betas: Numbers,
    *,
    steps: int,
    rate: float,
    goal: Float[Tensor, " problems"],
    reach: dict[int, Tensor],
    unit: Float[Tensor, " problems"],
    candidates: int,
    small: tuple[ReducedNetwork, Int[Tensor, " problems"]] | None = None,
) -> AscentResult:
    """Climb from given slopes and multipliers until all margins exceed the goal, or for `steps`.

    With `small`, the contraction of one example's network and the rows of its property that problems are about, everything
    that is given or found by node is about the units that may switch, (problems, units).

    `reach` bounds the size of every ReLU's input over the ball and `unit` is the relative error of a walk: what multipliers
    add to the rounding of a margin, sum of beta times reach, is taken from it.
    """
    switches = [node for node in net.switches if small is None or node.index in small[0].layers]
    relus = [node for node in net.relus if node in switches]
    last = len(net.graph) - 1
    steps = steps if relus else 0
    within = {node.index: problems.clipped(node.index) for node in switches}
    fixed: Relaxations = {
        node.index: relax(node.op, within[node.index], "adaptive") for node in switches if node not in relus
    }
    signs = {node.index: problems.signs[node.index].to(problems.x.dtype) for node in relus}
    # Whatever the start was rounded to: a line below a leaky ReLU has a slope of at least the leak, and no beta is negative.
    slopes = {node.index: slopes[node.index].clamp(node.op.slope, 1.0).requires_grad_(steps > 0) for node in relus}
    betas = {node.index: betas[node.index].clamp(min=0.0).requires_grad_(steps > 0) for node in relus}
    optimiser = None
    if steps > 0:
        groups = [{"params": list(slopes.values()), "lr": rate}, {"params": list(betas.values()), "lr": rate / 2}]
        optimiser = torch.optim.Adam(groups, betas=(0.9, 0.99))
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.96)
    best = problems.x.new_full((len(problems),), -math.inf)
    seen: dict[int, dict[str, Tensor]] = {node.index: {} for node in relus}
    found = None
    for step in range(steps + 1):
        ascending = optimiser is not None and step < steps
        with torch.set_grad_enabled(ascending):
            lines = dict(fixed)
            cost = torch.zeros_like(best)
            for node in relus:
                index = node.index
                relaxed = relax(node.op, within[index], slopes[index].unsqueeze(1))
                assert isinstance(relaxed, ReLURelaxation)
                lines[index] = SplitRelaxation(relaxed, signs[index] * betas[index], seen[index])  # type: ignore[assignment]
                cost = cost + (betas[index].detach() * signs[index].abs() * reach[index]).flatten(1).sum(1)
            if small is None:
                found = pull_back(net.graph, last, problems.prop.rows, lines)
            else:
                found = small[0].pull_back(small[1], lines, problems.x.shape[1:])
            margin = (found.minimum(problems.x, problems.ball) + problems.prop.offsets)[:, 0]
            loss = -margin[margin.isfinite()].sum()
        best = torch.fmax(best, margin.detach() - unit * cost)
        if not ascending or bool((best > goal).all()):
            break
        assert optimiser is not None
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()  # pyright: ignore[reportPossiblyUnboundVariable]
        with torch.no_grad():
            for node in relus:
                slopes[node.index].clamp_(node.op.slope, 1.0)
                betas[node.index].clamp_(min=0.0)
    assert found is not None
    with torch.no_grad():
        point = problems.ball.minimum(problems.x, found.rows.detach(), point=True).point
        assert point is not None
        units = torch.full((len(problems), candidates), -1)
        if relus:
            units = _branching_scores(relus, within, problems.signs, slopes, seen, candidates)
    return AscentResult(
        best, {i: value.detach() for i, value in slopes.items()}, {i: value.detach() for i, value in betas.items()},
        point[:, 0], units,
    )  # fmt: skip


def _branching_scores(
    relus: list, within: dict[int, Interval], signs: Signs, slopes: Numbers, seen: dict[int, dict[str, Tensor]], k: int
) -> Int[Tensor, " problems k"]:
    """The open units whose lines cost the bound most: the functional's weight times the gap between line and ReLU."""
    scores = []
    for node in relus:
        low, high = within[node.index].lower, within[node.index].upper
        rows = seen[node.index]["rows"][:, 0]
        slope, leak = slopes[node.index], node.op.slope
        width = (high - low).clamp(min=torch.finfo(low.dtype).tiny)
        above = (1 - leak) * high * -low / width
        below = torch.minimum((1 - slope) * high, (slope - leak) * -low)
        # A slope strictly between its ends balances both sides, and a split frees the smaller gap at least.
        score = torch.where(rows < 0, -rows * above, rows * torch.maximum(below, 0.1 * above))
        open_ = within[node.index].unstable & (signs[node.index] == 0)
        scores.append(torch.where(open_, score, -1.0).flatten(1))
    every = torch.cat(scores, 1)
    top = every.topk(min(k, every.shape[1]), 1)
    chosen = torch.where(top.values > -0.5, top.indices, -1)
    return F.pad(chosen, (0, k - chosen.shape[1]), value=-1)
