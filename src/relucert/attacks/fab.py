"""FAB: fast adaptive boundary attack (Croce and Hein 2020), targeted, in every norm.

At z the decision between y and a target class is linearised, f_t - f_y = <w, .> + b. Both z and x are projected onto that
hyperplane within the box, exactly, and the next point is a mean of the two projections, stretched a little beyond,

    z' = (1 - a) (z + 1.05 (P(z) - z)) + a (x + 1.05 (P(x) - x)),    a = min(|P(z) - z| / (|P(z) - z| + |P(x) - x|), bias),

so that the search follows the boundary and is drawn towards x. Where z' changes the decision it is a new candidate, and the
search goes back towards x, to (1 - beta) x + beta z'. In the end the way from x to the best points is searched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from relucert.attacks.base import MinimalAttack
from relucert.attacks.kept import Kept
from relucert.attacks.losses import ascent
from relucert.attacks.segment import approach
from relucert.attacks.targets import lead, nearest_classes, repeated
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.norms import norm
from relucert.geometry.hyperplane import hyperplane_distance
from relucert.geometry.witness import Witnesses


@dataclass(frozen=True, kw_only=True)
class FAB(MinimalAttack):
    """FAB with a number of steps from each of some starts, towards the `targets` nearest classes (None: all).

    The first start is x itself, others are random, half as far from x as what was found. `bias` is the largest share of x,
    `beta` the way back, `stretch` how far beyond the hyperplane a step goes.
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

    def search(self, found: Witnesses, generator: torch.Generator) -> None:
        """Follow the boundaries to all targets at once."""
        targets = nearest_classes(found, self.targets)
        for turn in range(self.restarts):
            kept = self._run(found, targets, None if turn == 0 else generator)
            kept.hand_over(found)
        has = found.distance.isfinite().nonzero()[:, 0]
        approach(found, has, found.point[has])

    def _run(self, found: Witnesses, targets: Int[Tensor, " batch targets"], generator: torch.Generator | None) -> Kept:
        """One start; rows are those of the first target, then those of the second, and so on."""
        many = targets.shape[1]
        x, y, lower, upper = (repeated(part, many) for part in (found.x, found.y, found.lower, found.upper))
        target = targets.T.reshape(-1)
        kept = Kept(x, y, found.p)
        z = x
        if generator is not None:
            size = norm(torch.maximum(found.upper - found.x, found.x - found.lower), found.p)
            reach = torch.minimum(found.distance, size).clamp(max=1e3).repeat(many)
            z = Ball(found.p, reach / 2, (lower, upper)).sample(x, generator)
        for _ in range(self.steps):
            row, value, logits = ascent(found.net, z, partial(lead, y=y, target=target))
            hit = kept.see(z, logits)
            # Behind the change the search goes back towards x before it goes on.
            back = hit.reshape(-1, *(1,) * (x.dim() - 1))
            start = torch.where(back, x + self.beta * (z - x), z)
            value = value + (row * (start - z)).flatten(1).sum(1)
            z = self._step(start, x, row, value, (lower, upper), found.p)
        kept.see(z, found.net(z))
        return kept

    def _step(self, z: Tensor, x: Tensor, row: Tensor, value: Tensor, box: tuple[Tensor, Tensor], p: float) -> Tensor:
        """The mean of the projections of z and x onto <row, . - z> + value = 0."""
        shape = (-1, *(1,) * (x.dim() - 1))
        other = value + (row * (x - z)).flatten(1).sum(1)
        centres, rows = torch.cat([z, x]), torch.cat([row, row])[:, None]
        sides = (torch.cat([box[0]] * 2), torch.cat([box[1]] * 2))
        found = hyperplane_distance(centres, rows, torch.cat([value, other])[:, None], p, sides, point=True)
        assert found.point is not None
        # Where the box ends before the hyperplane, its corner is as far as one can go.
        corner = torch.where(row > 0, box[1], torch.where(row < 0, box[0], x))
        corner = torch.where(corner.isfinite(), corner, x)
        missed = found.distance[:, 0].isinf().reshape(shape)
        steps = torch.where(missed, corner.repeat(2, *(1,) * (x.dim() - 1)), found.point[:, 0]) - centres
        here, there = steps.chunk(2)
        lengths = norm(steps, p)
        a, b = lengths.chunk(2)
        share = (a / (a + b).clamp(min=torch.finfo(a.dtype).tiny)).clamp(max=self.bias).reshape(shape)
        moved = (1 - share) * (z + self.stretch * here) + share * (x + self.stretch * there)
        return torch.minimum(torch.maximum(moved, box[0]), box[1])
