"""The largest radius that a bound certifies: a batched search that believes nothing but bounds it has evaluated.

`lower` is the largest radius at which the bound was evaluated and the margin was proved; no root is guessed, and nothing
is assumed to be monotone (CROWN's margin is not). A certificate at a larger ball covers every smaller one. The search itself
may use whatever makes it fast: it starts from the linear estimate d_D, then interpolates between margins.
"""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.methods import Method, spec
from relucert.core.norms import norm
from relucert.core.properties import class_stays
from relucert.core.results import RadiusInterval, concatenate, meets
from relucert.core.rounding import cast_up
from relucert.geometry.distances import distances
from relucert.geometry.theorem import Region
from relucert.networks.network import Network
from relucert.verification.margins import Bounding, proved_margins
from relucert.verification.upper import refuse_contradictions

TOLERANCE = 0.01  # the search ends when a radius 1 % larger has failed
ROUNDS = 40
BATCH = 100


def search_radius(
    net: Network, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], p: float, box: Any, method: Method
) -> RadiusInterval:
    """The interval of every example: `lower` by the bound, `upper` by the witness of the region theorem, if it has one."""
    double = net if net.dtype == torch.float64 else copy.deepcopy(net).double()
    whole = Ball(p, math.inf, box)
    if len(x) == 0:
        none = x.new_zeros(0)
        return RadiusInterval(none, none, torch.zeros(0, dtype=torch.bool), None, none, [])
    found = []
    for part in torch.arange(len(x), device=x.device).split(BATCH):
        sides = None if box is None else whole.restrict(part).bounds(x[part])
        found.append(_piece(net, double, x[part], y[part], p, sides, method))
    return concatenate(found)


@torch.no_grad()
def _piece(net: Network, double: Network, x: Tensor, y: Tensor, p: float, sides: Any, method: Method) -> RadiusInterval:
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
        self, net: Network, double: Network, x: Tensor, y: Tensor, p: float, sides: Any, method: Method
    ):  # fmt: skip
        self.dtype, self.double, self.y, self.p, self.method = net.dtype, double, y, p, method
        self.x = x.double()
        self.sides = None if sides is None else tuple(side.double() for side in sides)
        self.asked = class_stays(y, net.classes, dtype=torch.float64)
        self.right = net.predict(x) == y
        self.proved, self.failed = self.x.new_zeros(len(x)), self.x.new_full((len(x),), math.inf)
        self.above = self.asked.margins(double(self.x)).amin(1)
        self.below = self.x.new_full((len(x),), -math.inf)
        # A ball that reaches the farthest corner of the box holds all of it: what is proved there is proved for ever.
        corner = None if self.sides is None else torch.maximum(self.x - self.sides[0], self.sides[1] - self.x)
        self.reach = torch.full_like(self.proved, math.inf) if corner is None else norm(corner, p) * (1 + 1e-9)

    def run(self) -> Float[Tensor, " batch"]:
        """The largest proved radii."""
        guess = distances(self.double, self.x, self.y, self.p).decision
        trial = torch.minimum((0.5 * guess).clamp(min=1e-6, max=1e3), self.reach)
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
        asked = type(self.asked)(self.asked.rows[index], self.asked.offsets[index])
        bounding: Bounding = self.method  # type: ignore[assignment]
        margin, needed, _ = proved_margins(self.double, self.x[index], ball, bounding, asked, self.dtype)
        won = margin > needed
        eps = torch.where(won & (eps >= self.reach[index]), math.inf, eps)
        lead = margin - needed
        self.proved[index] = torch.where(won, torch.maximum(self.proved[index], eps), self.proved[index])
        self.above[index] = torch.where(won, lead, self.above[index])
        lost = ~won & (eps < self.failed[index])
        self.failed[index] = torch.where(lost, eps, self.failed[index])
        self.below[index] = torch.where(lost, lead, self.below[index])

    def _next(self) -> Tensor:
        """Doubled until it fails, then where the margin would vanish if it were linear, kept away from both ends."""
        low, high = self.proved, self.failed
        share = (self.above / (self.above - self.below)).nan_to_num(0.5).clamp(0.02, 0.98)
        # A little to the proved side: a success there ends the search sooner than a failure.
        between = low + (high - low) * (share - 0.005).clamp(min=0.02)
        narrow = torch.sqrt(low * high)  # the geometric mean when interpolation has stalled
        between = torch.where((low > 0) & (high > 1.5 * low), torch.minimum(between, narrow * 1.2), between)
        return torch.minimum(torch.where(high.isinf(), 2 * low.clamp(min=1e-6), between), self.reach)
