"""The linear-region attack (Croce and Hein 2018; Croce, Rauber and Hein 2019): smallest perturbations region by region.

Start from an adversarial point and repeat: sample a point near the best one, mostly towards x, with small distances the most
likely; compute the nearest point of another class in its linear region; search the segment from x to that point with the
network itself, and keep the result if it is the best.

For l2 the nearest point of a region is the solution of a quadratic program, and its multipliers are reused in the next region.
In other norms the program searches a ball around x that is slightly smaller than the best distance, for the point of the
region and of another class that is nearest to the best point; the reduction of the ball adapts to the success.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.attacks._ascent import Within
from relucert.attacks._local_program import LocalProgram, Scales
from relucert.attacks._rescue import rescue
from relucert.attacks._segment import approach
from relucert.attacks.base import MinimalAttack
from relucert.attacks.ddn import DDN
from relucert.attacks.fab import FAB
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.norms import norm
from relucert.geometry.region import LinearRegion
from relucert.geometry.witness import Witnesses

PUSH = 2e-5  # how far beyond the decision hyperplane to aim, relative to the distance
TOWARDS = 0.8  # the fraction of samples on the side of x
FIRST, LEAST = 0.03, 1e-4  # relative reduction of the balls, first and smallest


@dataclass(frozen=True, kw_only=True)
class RegionAttack(MinimalAttack):
    """The linear-region attack with `regions` regions and `iterations` of the program in each.

    `reach`: how far from the best point regions are sampled, relative to its distance.
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

    def search(self, witnesses: Witnesses, generator: torch.Generator) -> None:
        """Run quick attacks if an example has no witness yet, then visit regions."""
        unknown = witnesses.distance.isinf()
        if bool(unknown.any()):
            DDN(steps=40).search(witnesses, generator)
            FAB(steps=20, targets=3).search(witnesses, generator)
            rescue(witnesses, generator)
        has = witnesses.distance.isfinite().nonzero()[:, 0]
        if len(has):
            _Search(self, witnesses, has).run(generator)


class _Search:
    """The search from region to region for the examples that have an adversarial point."""

    def __init__(self, method: RegionAttack, witnesses: Witnesses, index: Tensor):
        self.method, self.witnesses, self.index = method, witnesses, index
        self.x, self.y = witnesses.x[index], witnesses.y[index]
        self.shape = (-1, *(1,) * (self.x.dim() - 1))
        self.region = LinearRegion.at(witnesses.net, witnesses.point[index])
        self.scales = Scales(self.region)
        self.multipliers = self.x.new_zeros(len(index), self.region.count + 1)
        self.shrink = torch.full_like(witnesses.distance[index], FIRST)

    def run(self, generator: torch.Generator) -> None:
        """Visit all regions, the region of the best point first."""
        witnesses, index = self.witnesses, self.index
        for turn in range(self.method.regions):
            start = witnesses.point[index]
            at = start if turn == 0 else self._sample(start, generator)
            candidate = self._nearest(at, start)
            before = witnesses.distance[index]
            approach(witnesses, index, candidate)
            better = witnesses.distance[index] < before
            self.shrink = torch.where(better, (1.5 * self.shrink).clamp(max=0.5), (self.shrink / 2).clamp(min=LEAST))

    def _nearest(self, at: Tensor, start: Tensor) -> Tensor:
        """The nearest points of another class in the regions of the points `at`."""
        witnesses, p = self.witnesses, self.witnesses.p
        region, _, logits = LinearRegion.evaluated(witnesses.net, at)
        target = logits.scatter(1, self.y[:, None], -torch.inf).argmax(1)
        program = LocalProgram(region, self.y, target, self.scales)
        box = (witnesses.lower[self.index], witnesses.upper[self.index])
        distance = witnesses.distance[self.index]
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
        """Set the multipliers of hyperplanes that are crossed on the way to a new region to zero."""
        pairs = zip(region.hyperplanes, self.region.patterns, region.patterns, strict=True)
        left = [hyperplanes.left(old, new) for hyperplanes, old, new in pairs]
        if left:
            crossed = torch.cat([*left, torch.zeros_like(left[0][:, :1])], 1)
            self.multipliers = self.multipliers.masked_fill(crossed, 0.0)
        self.region = region

    def _sample(
        self, start: Float[Tensor, " rows *input"], generator: torch.Generator
    ) -> Float[Tensor, " rows *input"]:
        """Random points at relative distance `reach` U^6, U uniform; most on the side of x, some directly towards x."""
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
        box = (self.witnesses.lower[self.index], self.witnesses.upper[self.index])
        return torch.minimum(torch.maximum(start + away * draw, box[0]), box[1])
