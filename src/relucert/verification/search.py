"""The largest radius that a bound certifies: a batched search that believes nothing but bounds it has evaluated.

`lower` is the largest radius at which the bound was evaluated and the margin was proved; no root is guessed, and nothing
is assumed to be monotone (CROWN's margin is not). A certificate at a larger ball covers every smaller one. The search itself
may use whatever makes it fast: it starts from the linear estimate d_D, then asks where a curve through the margins vanishes.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.bounding.base import Bounding
from relucert.core.ball import Ball
from relucert.core.methods import spec
from relucert.core.norms import norm
from relucert.core.properties import class_stays
from relucert.core.results import RadiusInterval, concatenate, meets
from relucert.core.rounding import cast_up
from relucert.geometry.distances import distances
from relucert.geometry.theorem import Region
from relucert.networks.network import Network, in_double
from relucert.verification.margins import proved_margins
from relucert.verification.upper import refuse_contradictions

TOLERANCE = 0.01  # the search ends when a radius 1 % larger has failed
ROUNDS = 40
POWER, POWERS = (
    5.0,
    (1.5, 8.0),
)  # of the radius, with which relaxations lose the lead: as long as one margin is known, and later
BATCH = 100


def search_radius(
    net: Network, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], p: float, box: Any, method: Bounding
) -> RadiusInterval:
    """The interval of every example: `lower` by the bound, `upper` by the witness of the region theorem, if it has one."""
    double = in_double(net)
    whole = Ball(p, math.inf, box)
    found = []
    for part in torch.arange(len(x), device=x.device).split(BATCH):
        sides = None if box is None else whole.restrict(part).bounds(x[part])
        found.append(_piece(net, double, x[part], y[part], p, sides, method))
    return concatenate(found)


@torch.no_grad()
def _piece(
    net: Network, double: Network, x: Tensor, y: Tensor, p: float, sides: Any, method: Bounding
) -> RadiusInterval:
    started = time.perf_counter()
    first = Region(regions=1).radius(net, x, y, p, sides)
    searched = -cast_up(-_Search(net, double, x, y, p, sides, method).run(), x.dtype)
    # The margin was to cover rounding in every dtype.
    refuse_contradictions(searched, first.upper, [spec(method)] * len(x))
    lower = torch.maximum(searched, first.lower)
    seconds = torch.full_like(lower, (time.perf_counter() - started) / max(1, len(x)))
    exact = meets(lower, first.upper) & (first.upper.isfinite() | lower.isinf())
    return RadiusInterval(lower, first.upper, exact, first.witness, seconds, [spec(method)] * len(x))


class _Search:
    """Radii that were proved, radii that failed, and the margins at both."""

    def __init__(
        self, net: Network, double: Network, x: Tensor, y: Tensor, p: float, sides: Any, method: Bounding
    ):  # fmt: skip
        self.dtype, self.double, self.y, self.p, self.method = net.dtype, double, y, p, method
        self.x = x.double()
        self.sides = None if sides is None else tuple(side.double() for side in sides)
        self.prop = class_stays(y, net.classes, dtype=torch.float64)
        self.right = net.predict(x) == y
        self.proved, self.failed = self.x.new_zeros(len(x)), self.x.new_full((len(x),), math.inf)
        self.above = self.prop.margins(double(self.x)).amin(1)
        self.below, self.lead = self.x.new_full((len(x),), -math.inf), self.above.clone()
        self.width, self.slow = torch.full_like(self.proved, math.inf), torch.zeros_like(self.proved)
        # A ball that reaches the farthest corner of the box holds all of it: what is proved there is proved for ever.
        corner = None if self.sides is None else torch.maximum(self.x - self.sides[0], self.sides[1] - self.x)
        self.reach = torch.full_like(self.proved, math.inf) if corner is None else norm(corner, p) * (1 + 1e-9)

    def run(self) -> Float[Tensor, " batch"]:
        """The largest proved radii."""
        self.guess = distances(self.double, self.x, self.y, self.p).decision.clamp(min=2e-6, max=2e3)
        trial = torch.minimum(0.5 * self.guess, self.reach)
        for _ in range(ROUNDS):
            wide = (self.failed > self.proved * (1 + TOLERANCE)) & (self.failed > 1e-6)
            open_ = (self.right & wide & (self.proved < 1e3)).nonzero()[:, 0]
            if len(open_) == 0:
                break
            self._evaluate(open_, trial[open_])
            trial = self._next()
        return self.proved

    def _evaluate(self, index: Tensor, eps: Tensor) -> None:
        ball = Ball(self.p, eps, None if self.sides is None else tuple(side[index] for side in self.sides))
        margin, needed, _ = proved_margins(
            self.double, self.x[index], ball, self.method, self.prop.restrict(index), self.dtype
        )
        won, lead = margin > needed, (margin - needed).clamp(min=-1e30)
        eps = torch.where(won & (eps >= self.reach[index]), math.inf, eps)
        for mine, end, value in ((won, self.proved, self.above), (~won, self.failed, self.below)):
            place, old = index[mine], end[index[mine]]
            # A bound need not be monotone: what is proved at a larger radius than one that failed is proved all the same.
            further = eps[mine] > old if end is self.proved else eps[mine] < old
            end[place[further]], value[place[further]] = eps[mine][further], lead[mine][further]
        width = (self.failed / self.proved.clamp(min=1e-9))[index]
        self.slow[index] = torch.where(width.sqrt() > 1 + 0.5 * (self.width[index].sqrt() - 1), self.slow[index] + 1, 0)
        self.width[index] = width

    def _next(self) -> Tensor:
        """Where the margin should vanish; near an end of the interval just so far from it that one answer may be the last."""
        low, high = self.proved, self.failed
        root = self._root()
        wider = 1 + 0.98 * TOLERANCE
        # A little to the proved side: with luck the next radius, just wider, is the last.
        trial = 0.997 * root
        trial = torch.where(trial < low * wider, low * wider, torch.where(trial > high / wider, high / wider, trial))
        middle = torch.where(low > 0, torch.sqrt(low * high), high / 16)
        stalled = high.isfinite() & (self.slow >= 3) & (self.slow % 2 == 1) & (high > low * wider)
        trial = torch.where(stalled, middle, trial)
        upwards = torch.minimum(torch.maximum(0.997 * root, wider * low), 2 * low).clamp(min=1e-6)
        trial = torch.where(high.isinf(), upwards, trial)
        return torch.minimum(trial, self.reach)

    def _root(self) -> Tensor:
        """Where the margin would vanish if what relaxations lose of the lead grew like a power of the radius.

        Near x every margin is linear, and would vanish at the distance to the decision hyperplanes, the guess: a relaxation
        loses D(t) = lead (1 - t / guess) - margin. The power is that between the ends of the interval, if there are two.
        """
        low, high, two = self.proved, self.failed, self.failed.isfinite() & (self.proved > 0)
        tiny = 1e-9 * self.lead + 1e-300

        def lost(radius: Tensor, margin: Tensor) -> Tensor:
            return torch.maximum(self.lead * (1 - radius / self.guess) - margin, tiny)

        inner, outer = lost(low, self.above), lost(high, self.below)
        power = (outer / inner).log() / (high / low).log()
        power = torch.where(two, power.clamp(*POWERS), POWER)
        # The curve goes through the end whose margin is nearer to zero.
        by_low = high.isinf() | (two & (self.above < -self.below))
        anchor, size = torch.where(by_low, low, high), torch.where(by_low, inner, outer)
        least, most = low.clone(), torch.where(high.isfinite(), high, 2 * low.clamp(min=1e-6))
        for _ in range(30):
            middle = (least + most) / 2
            positive = self.lead * (1 - middle / self.guess) > size * (middle / anchor) ** power
            least, most = torch.where(positive, middle, least), torch.where(positive, most, middle)
        return most
