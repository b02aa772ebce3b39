"""`alpha`: lower slopes optimised for every example and every row of the property (alpha-CROWN, Xu et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.backward import pull
from relucert.bounding.crown import CROWN
from relucert.bounding.relaxation import Lines, Winners, relax
from relucert.bounding.units import BUDGET, UnitBounds
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method
from relucert.core.properties import Property
from relucert.networks.network import Network
from relucert.networks.switching import ReLU


@dataclass(frozen=True, kw_only=True)
class Alpha(Method):
    """`steps` of Adam on the slopes; every step's bound is sound, the best is kept, and it starts from CROWN's.

    Intermediate bounds are CROWN's and stay fixed. `rate` is the step size, slopes being numbers in [0, 1].
    """

    name = "alpha"
    steps: int = 20
    rate: float = 0.3
    budget: int = BUDGET

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 0:
            raise InvalidInput(f"steps of alpha must be at least 0; found {self.steps}")
        if not 0 < self.rate < 10:
            raise InvalidInput(f"rate of alpha must lie between 0 and 10; found {self.rate}")

    @property
    def contains(self) -> tuple[CROWN]:
        """Cheaper methods that prove no more."""
        return (CROWN(budget=self.budget),)

    def units(self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball) -> UnitBounds:
        """Bounds of all units."""
        return CROWN(budget=self.budget).units(net, x, ball)

    def solve(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, asked: Property
    ) -> tuple[UnitBounds, Float[Tensor, " batch specs"]]:
        """Bounds of all units, and lower bounds on the property's margins over the ball; no gradient in the weights."""
        with torch.no_grad():
            bounds, best = CROWN(budget=self.budget).solve(net, x, ball, asked)
        return bounds, self.improve(net, bounds, x, ball, asked, best)

    def improve(
        self, net: Network, bounds: UnitBounds, x: Tensor, ball: Ball, asked: Property, best: Tensor
    ) -> Float[Tensor, " batch specs"]:
        """The best margins seen while the slopes climb."""
        rows = asked.rows.shape[1]
        fixed: dict[int, Lines | Winners] = {}
        slopes: dict[int, Tensor] = {}
        for node in net.switches:
            lines = bounds.relaxations[node.index]
            if isinstance(node.op, ReLU) and isinstance(lines, Lines):
                start = lines.below.detach().unsqueeze(1).expand(-1, rows, *node.shape)
                slopes[node.index] = start.clone().requires_grad_()
            else:
                fixed[node.index] = lines
        if not slopes:
            return best
        optimiser = torch.optim.Adam(slopes.values(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.9)
        frozen = [(weight, weight.requires_grad) for weight in net.parameters()]
        try:
            for weight, _ in frozen:
                weight.requires_grad_(False)
            for _ in range(self.steps):
                with torch.enable_grad():
                    lines = dict(fixed)
                    for node in net.switches:
                        if node.index in slopes:
                            lines[node.index] = relax(node.op, bounds.inputs[node.index], slopes[node.index])  # type: ignore[arg-type]
                    found = pull(net.graph, len(net.graph) - 1, asked.rows, lines).minimum(x, ball) + asked.offsets
                    optimiser.zero_grad(set_to_none=True)
                    (-found.sum()).backward()
                best = torch.maximum(best, found.detach())
                optimiser.step()
                schedule.step()
                with torch.no_grad():
                    for node in net.switches:
                        if node.index in slopes:
                            slopes[node.index].clamp_(node.op.slope, 1.0)  # type: ignore[union-attr]
        finally:
            for weight, before in frozen:
                weight.requires_grad_(before)
        return best
