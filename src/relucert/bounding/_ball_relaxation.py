"""The relaxation of a layer of ReLUs whose inputs lie in a box and in an l2 ball, after SDP-CROWN (Chiu et al., ICML 2025).

Let z be the inputs of ReLUs phi(z) = max(z, s z), with l <= z <= u, and ||z - z0||_2 <= rho over the unstable units. For every
g and every lam >= 0, since lam / 2 (||z - z0||^2 - rho^2) <= 0 on the ball,

    c' phi(z) - g' z  >=  -lam / 2 rho^2 + sum_i min over z_i in [l_i, u_i] of  c_i phi(z_i) - g_i z_i + lam / 2 (z_i - z0_i)^2.

Each term is the smaller of two parabolas' minima, one for either side of zero: k (z0 + t) + lam / 2 t^2 with k = c_i - g_i or
s c_i - g_i, least at t = -k / lam or at an end of the piece. Backward propagation goes on with the functional g and adds the
right side. Without the box and with s = 0 that is SDP-CROWN's bound,

    -1/2 (lam (rho^2 - ||z0||^2) + sum_i min(c_i - g_i - lam z0_i, g_i + lam z0_i, 0)^2 / lam);

with lam = 0 and CROWN's slopes g / c it is CROWN's. Slopes are kept in [s, 1], as CROWN's are. The right side is concave in
lam with the derivative (||t||^2 - rho^2) / 2, whose sign brackets the best lam; inside the bracket lam <- lam ||t|| / rho is
the next guess. Every lam and every slope give a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.relaxation import Pulled, charged
from relucert.core.rounding import gamma_above, relative_rounding
from relucert.networks.patches import Filters

_CACHE = 2**20  # bytes of a tensor of constants that are computed together


class Surroundings(NamedTuple):
    """Box and ball of some units: z0, l - z0 and u - z0 (batch, units), rho (batch,)."""

    centre: Tensor
    low: Tensor
    high: Tensor
    reach: Tensor


@dataclass(frozen=True, eq=False)
class BallRelaxation:
    """The relaxation of ReLUs over box and ball: slopes for positive and negative entries of c, (batch, *shape) or by row.

    `low` and `high` (batch, *shape) are l - z0 and u - z0, `centre` is z0, `reach` (batch,) is rho, `slope` is the leak s;
    `rounds` of the search for lam.
    """

    slope: float
    slopes: tuple[Tensor, Tensor]
    unstable: Tensor
    centre: Tensor
    low: Tensor
    high: Tensor
    reach: Tensor
    rounds: int
    by_row: bool = False
    charge: Tensor | None = None
    parallel = False

    @property
    def below(self) -> Tensor:
        """Slopes for positive entries of c."""
        return self.slopes[0]

    @property
    def above(self) -> Tensor:
        """Slopes for negative entries of c."""
        return self.slopes[1]

    @property
    def offset(self) -> Tensor:
        """A bound on what a unit adds to a constant, in parts of |c|."""
        return self.high - self.low + self.centre.abs()

    def with_slopes(self, below: Tensor, above: Tensor) -> BallRelaxation:
        """The relaxation with other slopes of unstable units for every row, (batch, rows, *shape)."""
        mask = self.unstable.unsqueeze(1)
        low, high = (
            torch.where(mask, new, old.unsqueeze(1)) for new, old in zip((below, above), self.slopes, strict=True)
        )
        return replace(self, slopes=(low, high), by_row=True)

    def pull_back(self, rows: Float[Tensor, " batch rows *shape"]) -> Pulled:
        """Functionals c of the output as functionals g of the input, and the constant of the lower bound."""
        below, above = self.slopes if self.by_row else (side.unsqueeze(1) for side in self.slopes)
        slopes = torch.where(rows > 0, below, above)
        # Only unstable units contribute to the constant; stable ones are linear, with their slope.
        unstable = self.unstable.flatten(1)
        mask, units = unstable.to(torch.int8).sort(1, descending=True)
        wide = int(unstable.sum(1).max()) if len(unstable) else 0
        mask, units = mask[:, :wide].to(rows.dtype), units[:, :wide]
        place = units.unsqueeze(1).expand(-1, rows.shape[1], -1)
        own = rows.flatten(2).gather(2, place) * mask.unsqueeze(1)
        centre, low, high = (side.flatten(1).gather(1, units) for side in (self.centre, self.low, self.high))
        around = Surroundings(centre, low, high, self.reach)
        low = least_gap(own, own * slopes.flatten(2).gather(2, place), around, self.slope, self.rounds).value
        return Pulled(rows * slopes, low, None, charged(rows, self.charge))

    def convolved(self, value: Tensor, filters: Filters) -> Interval:
        """Bounds of a convolution of the outputs: that of slopes times `value`, the inputs at x, plus the constants."""
        below, above = self.below * value, self.above * value
        up, down = filters.parts()
        low, high = up.apply(below) + down.apply(above), up.apply(above) + down.apply(below)
        mask = self.unstable.to(value.dtype)
        seen = [filters.seen(part) for part in (mask, self.below, self.above, self.centre, self.low, self.high)]
        reach = self.reach.expand(len(seen[0]), -1)
        weights = filters.weight.flatten(1)
        at_once = max(1, _CACHE // (weights.numel() * value.element_size()))
        constants: list[tuple[Tensor, Tensor]] = []
        for parts in zip(*(part.flatten(0, 1).split(at_once) for part in (*seen, reach)), strict=True):
            own, rising, falling, *around = parts
            rising, falling, rows = rising.unsqueeze(1), falling.unsqueeze(1), weights * own.unsqueeze(1)
            low_back, high_back = (
                side * torch.where(weights > 0, first, second)
                for side, first, second in ((rows, rising, falling), (-rows, falling, rising))
            )
            least = least_gap(rows, low_back, Surroundings(*around), self.slope, self.rounds).value
            most = least_gap(-rows, high_back, Surroundings(*around), self.slope, self.rounds).value
            constants.append((least, most))
        least, most = (
            torch.cat(ends).unflatten(0, reach.shape).permute(1, 2, 0).reshape(low.shape)
            for ends in zip(*constants, strict=True)
        )
        return Interval(low + least, high - most)


class Gap(NamedTuple):
    """`value` (batch, rows) bounds c' phi(z) - g' z below; `lost` (batch, rows, units) is what single units take from it."""

    value: Tensor
    lost: Tensor


def least_gap(
    rows: Float[Tensor, " batch rows units"],
    back: Float[Tensor, " batch rows units"],
    around: Surroundings,
    slope: float,
    rounds: int,
) -> Gap:
    """The right side of the inequality for c = `rows` and g = `back`, at nearly its best lam, rounded down.

    `slope` is the leak s, `rounds` are those of the search for lam.
    """
    with torch.no_grad():
        up, down = rows - back, slope * rows - back
        centre, low, high, reach = (side.unsqueeze(1) for side in around)
        middle = torch.minimum(torch.maximum(-centre, low), high)
        up_centre, down_centre = up * centre, down * centre
        # Where g is c or s c a piece is flat and ties with the kink: the side of the centre decides then, not rounding.
        slack = gamma_above(8, rows.dtype) * (up_centre.abs() + down_centre.abs())
        bias = torch.where(centre >= 0, slack, -slack)
        limits = torch.finfo(rows.dtype)
        least, most = limits.tiny**0.5, limits.max**0.25
        unit = reach.clamp(min=1 / most)

        def at(lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """The minimisers t, whether they lie on the upper piece, and the right side.

            Where c = 0 both pieces are lam / 2 t^2, and the minimum is on the piece that contains t = 0.
            """
            half = lam.unsqueeze(2) / 2
            near = -half.mul(2)
            # Without a parabola a piece is least at an end: a slope divided by zero goes there, however small it is.
            right, left = (torch.where(side == 0, side, side / near) for side in (up, down))
            torch.minimum(torch.maximum(right, middle, out=right), high, out=right)
            torch.minimum(torch.maximum(left, low, out=left), middle, out=left)
            over = torch.addcmul(up, half, right).mul_(right).add_(up_centre)
            under = torch.addcmul(down, half, left).mul_(left).add_(down_centre)
            upper = over <= under + bias
            step = torch.where(upper, right, left)
            value = torch.minimum(over, under, out=over).sum(2) - lam / 2 * reach.square()
            return step, upper, value

        none = torch.zeros_like(reach.expand(rows.shape[:2]))
        lam = (torch.maximum(up.abs(), down.abs()).norm(dim=2) / unit).clamp(least, most)
        lower, higher, kept = none + least, none + most, none
        place, upper, best = at(none)  # with the box alone
        for _ in range(rounds):
            step, over, value = at(lam)
            better = value > best
            best, kept = torch.where(better, value, best), torch.where(better, lam, kept)
            place = torch.where(better.unsqueeze(2), step, place)
            upper = torch.where(better.unsqueeze(2), over, upper)
            length = step.norm(dim=2)
            lower = torch.where(length > reach, lam, lower)
            higher = torch.where(length > reach, higher, lam)
            # Exact if no unit changes its piece; outside the bracket: the middle of the bracket in logarithms.
            guess = lam * length / unit
            lam = torch.where((guess > lower) & (guess < higher), guess, lower.sqrt() * higher.sqrt())
        # torch.where with two numbers gives float32: a slope must not lose its last digits.
        chosen = torch.where(upper, torch.ones_like(rows), slope)
        place, squares = centre + place, place.square().sum(2)
        size = ((rows * chosen - back) * place).abs().sum(2) + kept / 2 * (squares + reach.square())
        if slope:  # the product s c is rounded before the difference is taken
            size = size + (slope * rows * place).abs().sum(2)
        rest = kept / 2 * (squares - reach.square())
        rest = rest - 4 * relative_rounding(rows.shape[2], rows.dtype) * size - 2 * slack.sum(2)
    # By the envelope theorem the gradient is that of the terms with lam and the minimisers held fixed.
    gap = (rows * chosen - back) * place
    return Gap(gap.sum(2) + rest, -gap.detach())
