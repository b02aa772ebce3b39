"""Radii in every l_p from the distances in l_1 and l_inf: MMR-Universal (Croce and Hein, ICLR 2020, Theorem 4.1).

Let rho_p = min(d_B, d_D) in l_p. The balls of radius rho_1 in l_1 and rho_inf in l_inf lie in the linear region of x and on the
side of its class, an intersection of half spaces; so does the convex hull of both balls. With r = rho_1 / rho_inf,
a = r - floor(r) and 1/p + 1/q = 1, the hull contains the l_p ball of radius

    rho_1 / (r - a + a^q)^(1/q).

The half spaces must be those of the whole space: distances to the parts of hyperplanes inside a box are larger, and the formula
is wrong for them.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.methods import Method, spec
from relucert.core.norms import check_p, dual, norm
from relucert.core.results import RadiusInterval
from relucert.core.rounding import rounded_down
from relucert.geometry.exploration.search import SAFETY, Measured, measure, own_class
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms.row_norms import row_norms
from relucert.networks.network import Network, in_double


@dataclass(frozen=True, kw_only=True)
class Universal(Method):
    """A radius in every l_p from the distances of x in l_1 and l_inf to the hyperplanes of its linear region.

    The box does not enter. `budget`: bytes of memory.
    """

    name = "universal"
    budget: int = 2**31

    @torch.no_grad()
    def radius(
        self, net: Network, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], p: float, box: Any = None
    ) -> RadiusInterval:
        """The proved radius of every example as `lower`, without witnesses; a misclassified example has the radius 0."""
        started, p = time.perf_counter(), check_p(p)
        double, wrong = in_double(net), net(x).argmax(1) != y
        first, last = region_radii(LinearRegion.at(double, x.double()), x.double(), y, self.budget)
        lower = rounded_down(hull_radius(first, last, x[0].numel(), p), x.dtype)
        lower = lower.masked_fill(wrong, 0.0)
        upper = torch.where(wrong, 0.0, math.inf).to(x.dtype)
        seconds = torch.full_like(lower, (time.perf_counter() - started) / max(1, len(x)))
        return RadiusInterval(lower, upper, wrong | lower.isinf(), x, seconds, [spec(self)] * len(x))


def region_radii(
    region: LinearRegion, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], budget: int
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """rho_1 and rho_inf: distances in l_1 and l_inf, without a box, within which x stays in its region and its class.

    `region` and `x` are in float64. The distances are reduced by bounds on the rounding errors of margins and rows; they are
    zero where the class at x is not certain, and where a unit and its row both vanish.
    """
    measured = measure(region, x, y, of_x=True)
    return _radius(measured, y, 1.0, budget), _radius(measured, y, math.inf, budget)


def _radius(measured: Measured, y: Tensor, p: float, budget: int) -> Float[Tensor, " batch"]:
    """The smallest distance in l_p to a hyperplane of the region or of the decision."""
    q = dual(p)
    units = _quotient(measured.margins, row_norms(measured.region, q, budget) + measured.row_errors)
    classes = _quotient(measured.lead, norm(measured.class_rows, q, 2) + measured.class_errors)
    classes = classes.masked_fill(own_class(y, classes.shape[1]), math.inf)
    least = torch.cat([units, classes], 1).amin(1) * (1 - SAFETY)
    # Values beyond the range of float64 prove nothing.
    return least.masked_fill(~measured.certain | least.isnan(), 0.0)


def _quotient(margin: Tensor, length: Tensor) -> Tensor:
    """|m| / length; inf for a length of zero, and 0 where both vanish."""
    found = margin.abs() / torch.where(length == 0, 1.0, length)
    return torch.where(length == 0, torch.where(margin == 0, 0.0, math.inf).to(margin), found)


def hull_radius(
    first: Float[Tensor, " batch"], last: Float[Tensor, " batch"], size: int, p: float
) -> Float[Tensor, " batch"]:
    """The radius of the largest l_p ball in the convex hull of an l_1 ball and an l_inf ball, in float64 and rounded down.

    `first` is the radius of the l_1 ball, `last` that of the l_inf ball, `size` the dimension.

    >>> one, ten = torch.tensor([1.0]).double(), torch.tensor([10.0]).double()
    >>> hull_radius(ten, one, 100, 2), hull_radius(one, one, 100, 2)
    (tensor([3.1623], dtype=torch.float64), tensor([1.0000], dtype=torch.float64))
    """
    p, first, last = check_p(p), first.double(), last.double()
    # Each ball contains a ball of the other norm.
    last = torch.maximum(last, first / size * (1 - SAFETY))
    first = torch.maximum(first, last)
    if p == 1.0 or math.isinf(p):
        return first if p == 1.0 else last
    q = dual(p)
    known = (last > 0) & first.isfinite()
    ratio = torch.where(known, first / torch.where(known, last, 1.0), 1.0)
    whole = ratio.floor()
    found = first / (whole + (ratio - whole) ** q) ** (1 / q) * (1 - SAFETY)
    return torch.where(known, found, torch.where(last > 0, math.inf, 0.0).to(found))
