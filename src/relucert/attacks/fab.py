"""FAB: fast adaptive boundary attack (Croce and Hein 2020), targeted, in every norm.

At z the difference f_t - f_y of the target class and y is linearised as <w, .> + b. Both z and x are projected onto that
hyperplane within the box, exactly, and the next point is a weighted mean of the two projections, extrapolated slightly,

    z' = (1 - a) (z + 1.05 (P(z) - z)) + a (x + 1.05 (P(x) - x)),    a = min(|P(z) - z| / (|P(z) - z| + |P(x) - x|), bias),

so that the search follows the decision boundary and is biased towards x. If z' changes the decision it is a candidate, and the
search continues from (1 - beta) x + beta z'. At the end the segments from x to the best points are searched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from relucert.attacks._ascent import ascent
from relucert.attacks._segment import approach
from relucert.attacks._targets import lead, nearest_classes, repeated
from relucert.attacks.base import MinimalAttack
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.norms import norm
from relucert.geometry.hyperplane import hyperplane_projection
from relucert.geometry.witness import Nearest, Witnesses


@dataclass(frozen=True, kw_only=True)
class FAB(MinimalAttack):
    """FAB with `steps` steps from each of `restarts` starts, towards the `targets` nearest classes (None: all).

    The first start is x; the others are random, at half the distance of the witness. `bias` is the largest weight of x, `beta`
    the factor of the step back, `stretch` the extrapolation beyond the hyperplane.
    """

    name = "fab"
    steps: int = 100
    restarts: int = 1
    targets: int | None = None
    bias: float = 0.1
    beta: float = 0.9
    stretch: float = 1.05
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, holds, rule in [
            ("steps", self.steps >= 1, "at least 1"),
            ("restarts", self.restarts >= 1, "at least 1"),
            ("targets", self.targets is None or self.targets >= 1, "at least 1, or None for all"),
            ("bias", 0 <= self.bias <= 1, "between 0 and 1"),
            ("beta", 0 <= self.beta < 1, "at least 0 and below 1"),
            ("stretch", 1 <= self.stretch < math.inf, "at least 1"),
        ]:
            if not holds:
                raise InvalidInput(f"{name} of fab must be {rule}, got {getattr(self, name)}")

    def search(self, witnesses: Witnesses, generator: torch.Generator) -> None:
        """Attack all targets at once from every start, then search the segments to x."""
        targets = nearest_classes(witnesses, self.targets)
        for turn in range(self.restarts):
            nearest = self._run(witnesses, targets, None if turn == 0 else generator)
            witnesses.take(nearest)
        has = witnesses.distance.isfinite().nonzero()[:, 0]
        approach(witnesses, has, witnesses.point[has])

    def _run(
        self, witnesses: Witnesses, targets: Int[Tensor, " batch targets"], generator: torch.Generator | None
    ) -> Nearest:
        """One start; the rows of the first target come first, then those of the second, and so on."""
        many = targets.shape[1]
        x, y, lower, upper = (
            repeated(values, many) for values in (witnesses.x, witnesses.y, witnesses.lower, witnesses.upper)
        )
        target = targets.T.reshape(-1)
        nearest = Nearest(x, y, witnesses.p)
        z = x
        if generator is not None:
            size = norm(torch.maximum(witnesses.upper - witnesses.x, witnesses.x - witnesses.lower), witnesses.p)
            reach = torch.minimum(witnesses.distance, size).clamp(max=1e3).repeat(many)
            z = Ball(witnesses.p, reach / 2, (lower, upper)).sample(x, generator)
        for _ in range(self.steps):
            row, value, logits = ascent(witnesses.net, z, partial(lead, y=y, target=target))
            hit = nearest.see(z, logits)
            # After a change of decision, step back towards x first.
            back = hit.reshape(-1, *(1,) * (x.dim() - 1))
            start = torch.where(back, x + self.beta * (z - x), z)
            value = value + (row * (start - z)).flatten(1).sum(1)
            z = self._step(start, x, row, value, (lower, upper), witnesses.p)
        nearest.see(z, witnesses.net(z))
        return nearest

    def _step(self, z: Tensor, x: Tensor, row: Tensor, value: Tensor, box: tuple[Tensor, Tensor], p: float) -> Tensor:
        """The mean of the projections of z and x onto <row, . - z> + value = 0."""
        shape = (-1, *(1,) * (x.dim() - 1))
        other = value + (row * (x - z)).flatten(1).sum(1)
        centres, rows = torch.cat([z, x]), torch.cat([row, row])[:, None]
        sides = (torch.cat([box[0]] * 2), torch.cat([box[1]] * 2))
        both = hyperplane_projection(centres, rows, torch.cat([value, other])[:, None], p, sides)
        assert both.point is not None
        # If the box does not reach the hyperplane, use the corner of the box nearest to it.
        corner = torch.where(row > 0, box[1], torch.where(row < 0, box[0], x))
        corner = torch.where(corner.isfinite(), corner, x)
        missed = both.distance[:, 0].isinf().reshape(shape)
        steps = torch.where(missed, corner.repeat(2, *(1,) * (x.dim() - 1)), both.point[:, 0]) - centres
        step_z, step_x = steps.chunk(2)
        lengths = norm(steps, p)
        a, b = lengths.chunk(2)
        share = (a / (a + b).clamp(min=torch.finfo(a.dtype).tiny)).clamp(max=self.bias).reshape(shape)
        moved = (1 - share) * (z + self.stretch * step_z) + share * (x + self.stretch * step_x)
        return torch.minimum(torch.maximum(moved, box[0]), box[1])
