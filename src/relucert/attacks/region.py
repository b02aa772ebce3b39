"""The linear-region attack (Croce and Hein 2018; Croce, Rauber and Hein 2019): smallest perturbations region by region.

From an adversarial point on, repeat: take a point near the best one, most often on the side of x, at a random distance of which
small ones are the likeliest; in its linear region look for the nearest point of another class; search the way from x to it
through the network itself, and keep it if it is the best.

For l2 the nearest point of the region is one quadratic program, whose multipliers carry over from region to region. In other
norms the balls around x shrink instead: the point of region and other class is looked for that is in a ball somewhat smaller
than the best distance, next to the best point; how much smaller follows what succeeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.attacks.base import MinimalAttack
from relucert.attacks.ddn import DDN
from relucert.attacks.fab import FAB
from relucert.attacks.local_program import LocalProgram, Scales
from relucert.attacks.rescue import rescue
from relucert.attacks.segment import approach
from relucert.attacks.within import Within
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.norms import norm
from relucert.geometry.region import LinearRegion
from relucert.geometry.witness import Witnesses

PUSH = 2e-5  # by what part of the distance the decision is to be crossed
TOWARDS = 0.8  # the share of samples on the side of x
FIRST, LEAST = 0.03, 1e-4  # by what part balls shrink, at first and at least


@dataclass(frozen=True, kw_only=True)
class RegionAttack(MinimalAttack):
    """The linear-region attack with a number of regions, `iterations` of the program in each, a seed.

    `reach`: how far from the best point regions are looked for, as a part of its distance.
    """

    name = "region"
    regions: int = 400
    iterations: int = 30
    reach: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, holds, rule in [
            ("regions", self.regions >= 1, "at least 1"),
            ("iterations", self.iterations >= 1, "at least 1"),
            ("reach", 0 < self.reach < math.inf, "positive"),
        ]:
            if not holds:
                raise InvalidInput(f"{name} of region must be {rule}, got {getattr(self, name)}")

    def check_norm(self, p: float) -> None:
        """Raise InvalidInput unless p is 1, 2 or inf."""
        if p not in (1.0, 2.0, math.inf):
            raise InvalidInput(f"p of region must be 1, 2 or inf, got {p:g}")

    def search(self, found: Witnesses, generator: torch.Generator) -> None:
        """Start where nothing is known yet with quick attacks, and then go from region to region."""
        unknown = found.distance.isinf()
        if bool(unknown.any()):
            DDN(steps=40).search(found, generator)
            FAB(steps=20, targets=3).search(found, generator)
            rescue(found, generator)
        has = found.distance.isfinite().nonzero()[:, 0]
        if len(has):
            _Walk(self, found, has).run(generator)


class _Walk:
    """The walk of the examples that have an adversarial point."""

    def __init__(self, method: RegionAttack, found: Witnesses, index: Tensor):
        self.method, self.found, self.index = method, found, index
        self.x, self.y = found.x[index], found.y[index]
        self.shape = (-1, *(1,) * (self.x.dim() - 1))
        self.region = LinearRegion.at(found.net, found.point[index])
        self.scales = Scales(self.region)
        self.multipliers = self.x.new_zeros(len(index), self.region.count + 1)
        self.shrink = torch.full_like(found.distance[index], FIRST)

    def run(self, generator: torch.Generator) -> None:
        """Visit all regions, the best point's own first."""
        found, index = self.found, self.index
        for turn in range(self.method.regions):
            start = found.point[index]
            at = start if turn == 0 else self._sample(start, generator)
            candidate = self._nearest(at, start)
            before = found.distance[index]
            approach(found, index, candidate)
            better = found.distance[index] < before
            self.shrink = torch.where(better, (1.5 * self.shrink).clamp(max=0.5), (self.shrink / 2).clamp(min=LEAST))

    def _nearest(self, at: Tensor, start: Tensor) -> Tensor:
        """The nearest points of another class in the regions of given points."""
        found, p = self.found, self.found.p
        region, _, logits = LinearRegion.evaluated(found.net, at)
        target = logits.scatter(1, self.y[:, None], -torch.inf).argmax(1)
        program = LocalProgram(region, self.y, target, self.scales)
        box = (found.lower[self.index], found.upper[self.index])
        distance = found.distance[self.index]
        length = norm(start - self.x, 2.0)
        if p == 2.0:
            self._carry_over(region)
            nearest, self.multipliers = program.solve(
                self.x,
                lambda z: torch.minimum(torch.maximum(z, box[0]), box[1]),
                self.multipliers,
                self.method.iterations,
                PUSH * length,
            )
            return nearest
        ball = Ball(p, (1 - self.shrink) * distance, box)
        within = Within(self.x, ball)
        nearest, _ = program.solve(
            start,
            lambda z: (within.centre + within.back(within.offset(z))).reshape(z.shape),
            torch.zeros_like(self.multipliers),
            self.method.iterations,
            PUSH * length,
        )
        return nearest

    def _carry_over(self, region: LinearRegion) -> None:
        """Multipliers of faces that were crossed on the way to a new region say nothing there."""
        pairs = zip(region.faces, self.region.patterns, region.patterns, strict=True)
        left = [faces.left(old, new) for faces, old, new in pairs]
        if left:
            crossed = torch.cat([*left, torch.zeros_like(left[0][:, :1])], 1)
            self.multipliers = self.multipliers.masked_fill(crossed, 0.0)
        self.region = region

    def _sample(
        self, start: Float[Tensor, " rows *input"], generator: torch.Generator
    ) -> Float[Tensor, " rows *input"]:
        """Random points near given ones: U^6 of the reach away, most of them on the side of x, some well towards it."""
        kind, device = start.dtype, start.device
        draw = torch.randn(start.shape, generator=generator, dtype=kind, device=device)
        chance = torch.rand(3, len(start), generator=generator, dtype=kind, device=device)
        home = self.x - start
        length = norm(home, 2.0)
        unit = home / length.clamp(min=torch.finfo(kind).tiny).reshape(self.shape)
        draw = draw / norm(draw, 2.0).clamp(min=torch.finfo(kind).tiny).reshape(self.shape)
        along = (draw * unit).flatten(1).sum(1)
        turned = (along < 0) & (chance[0] < TOWARDS)
        draw = torch.where(turned.reshape(self.shape), -draw, draw)
        draw = draw + unit * (chance[1] < TOWARDS / 2).to(kind).reshape(self.shape)
        away = (self.method.reach * length * chance[2].pow(6)).reshape(self.shape)
        box = (self.found.lower[self.index], self.found.upper[self.index])
        return torch.minimum(torch.maximum(start + away * draw, box[0]), box[1])
