"""`alpha`: lower slopes optimised for every example and every row of the property (alpha-CROWN, Xu et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.methods.crown import CROWN, AfterCROWN, crown_margins
from relucert.bounding.preactivations import BackwardBounds, UnitBounds, tightened
from relucert.bounding.propagation import pull_back
from relucert.bounding.relaxation import ReLURelaxation, relax
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import Property
from relucert.networks.linear_map import one_hot
from relucert.networks.network import Network
from relucert.networks.switching import MaxPool2d


@dataclass(frozen=True, kw_only=True)
class Alpha(AfterCROWN):
    """`steps` of Adam on the slopes; every step's bound is sound, the best is kept, and it starts from CROWN's.

    Intermediate bounds are CROWN's, improved by `inner` steps on slopes of their own for every unit that may switch. `rate` is
    the step size, slopes being numbers in [0, 1].
    """

    name = "alpha"
    steps: int = 20
    inner: int = 0
    rate: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "inner"):
            if getattr(self, name) < 0:
                raise InvalidInput(f"{name} of alpha must be at least 0, got {getattr(self, name)}")
        if not 0 < self.rate < 10:
            raise InvalidInput(f"rate of alpha must lie between 0 and 10, got {self.rate}")

    @property
    def contains(self) -> tuple[CROWN]:
        """Cheaper methods that prove no more."""
        return (CROWN(budget=self.budget),)

    def units(self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball) -> UnitBounds:
        """Bounds of all units."""
        bounds = self.start(net, x, ball)
        return self._refined(net, bounds, x, ball) if self.inner else bounds

    def proceed(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Tensor]:
        """The units' bounds after the `inner` steps, and the best margins of the others."""
        known = known.detach()
        with torch.no_grad():
            best = crown_margins(net, known, x, ball, prop)
            if self.inner:
                known = self._refined(net, known, x, ball)
                best = torch.maximum(best, crown_margins(net, known, x, ball, prop))
        last = len(net.graph) - 1
        found = self._ascend(net, last, prop.rows, known, x, ball, best - prop.offsets, self.steps)
        return known, found + prop.offsets

    @torch.no_grad()
    def _refined(self, net: Network, bounds: UnitBounds, x: Tensor, ball: Ball) -> UnitBounds:
        """The bounds of the units, layer after layer, with slopes of their own for each end of every unit."""
        walks = BackwardBounds(net.graph, x, ball, self.budget)
        inputs = dict(bounds.inputs)
        for node in net.switches:
            source, within = node.inputs[0], inputs[node.index]
            if walks.switched(source):
                shape = within.lower.shape[1:]
                low, high = within.lower.flatten(1), within.upper.flatten(1)
                needed = within.unstable.flatten(1)
                if isinstance(node.op, MaxPool2d):
                    needed = torch.ones_like(needed)
                for batch, units, mine in walks.chosen(needed, 2):
                    here = UnitBounds(inputs, bounds.logits).restrict(batch)
                    picked = one_hot(units, shape, x.dtype)
                    rows = torch.cat([picked, -picked], 1)
                    none = rows.new_full(rows.shape[:2], -math.inf)
                    ends = self._ascend(net, source, rows, here, x[batch], ball.restrict(batch), none, self.inner)
                    below, above = ends.split(units.shape[1], 1)
                    low, high = tightened((low, high), (batch, units, mine), (below, -above), keep=True)
                inputs[node.index] = Interval(low.reshape(-1, *shape), high.reshape(-1, *shape))
        return UnitBounds(inputs, bounds.logits)

    def _ascend(
        self, net: Network, node: int, rows: Tensor, bounds: UnitBounds, x: Tensor, ball: Ball, best: Tensor, steps: int
    ) -> Float[Tensor, " batch rows"]:
        """The best lower bounds of functionals of a node seen while the slopes below it climb."""
        slopes, starts = {}, bounds.relaxed(net, "adaptive")
        below = [relu for relu in net.relus if relu.index <= node]
        for relu in below:
            lines = starts[relu.index]
            assert isinstance(lines, ReLURelaxation)
            start = lines.below.detach().unsqueeze(1).expand(-1, rows.shape[1], *relu.shape)
            slopes[relu.index] = start.clone().requires_grad_()
        fixed = {index: lines for index, lines in starts.items() if index <= node and index not in slopes}
        if not slopes:
            return torch.maximum(best, pull_back(net.graph, node, rows, fixed).minimum(x, ball).detach())
        optimiser = torch.optim.Adam(slopes.values(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.9)
        frozen = [(weight, weight.requires_grad) for weight in net.parameters()]
        try:
            for weight, _ in frozen:
                weight.requires_grad_(False)
            for _ in range(steps):
                with torch.enable_grad():
                    lines = dict(fixed)
                    for relu in below:
                        lines[relu.index] = relax(relu.op, bounds.inputs[relu.index], slopes[relu.index])
                    found = pull_back(net.graph, node, rows, lines).minimum(x, ball)
                    optimiser.zero_grad(set_to_none=True)
                    (-found.sum()).backward()
                best = torch.fmax(best, found.detach())
                optimiser.step()
                schedule.step()
                with torch.no_grad():
                    for relu in below:
                        slopes[relu.index].clamp_(relu.op.slope, 1.0)
        finally:
            for weight, before in frozen:
                weight.requires_grad_(before)
        return best
