"""Offsets from the centre of an l_p ball intersected with a box: the nearest to a given one, and random ones.

`projected_offset` is the Euclidean projection, for every p:

    argmin { ||e - v||_2 : ||e||_p <= eps, -below <= e <= above }

The centre lies in the box, so e_i has the sign of v_i. With g_i = |v_i| and r_i the slack to the box on the side of v_i, a
multiplier m >= 0 separates the coordinates: |e_i| = min(t_i, r_i) where t_i + m t_i^(p - 1) = g_i, and ||e||_p = eps determines
m unless m = 0 is feasible. p = inf needs no multiplier; p = 2 is a scaling, the same as the linear minimum along -v; p = 1
subtracts m, which sorting finds; other p solve two nested monotone equations. All computations are in float64.

`random_offsets` range from near the centre to the corners and vertices.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.linear_minimum import linear_minimum
from relucert.core.norms import check_p, descent_slack, dual, norm

_OUTER, _INNER = 100, 60  # limits of both Newton iterations; about 8 steps are usual
_CORRECTIONS = 4  # times that random offsets are scaled and clipped


def projected_offset(
    v: Float[Tensor, " batch size"],
    p: float | int,
    eps: Float[Tensor, " batch"],
    below: Float[Tensor, " batch size"],
    above: Float[Tensor, " batch size"],
) -> Float[Tensor, " batch size"]:
    """Return the point nearest to v of { e : ||e||_p <= eps, -below <= e <= above }, up to float64 rounding.

    All arguments are float64; below, above and eps may be 0 or inf.

    >>> slack = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    >>> projected_offset(torch.tensor([[3.0, 4.0]], dtype=torch.float64), 1, slack[:, 0], slack, slack)
    tensor([[0., 1.]], dtype=torch.float64)
    """
    p = check_p(p)
    boxed = torch.minimum(torch.maximum(v, -below), above)
    if math.isinf(p):
        return torch.minimum(torch.maximum(boxed, -eps[:, None]), eps[:, None])
    rows = (norm(boxed, p) > eps).nonzero().squeeze(-1)
    if len(rows) == 0:
        return boxed
    # Lengths in units of eps; no coordinate moves by more than eps.
    unit = eps[rows, None].masked_fill(eps[rows, None] == 0, 1.0)
    v, down, up = v[rows] / unit, *(torch.minimum(slack[rows], eps[rows, None]) / unit for slack in (below, above))
    if p == 1.0:
        moved = _shifted(v, down, up)
    elif p == 2.0:
        moved = _scaled(v, down, up)
    else:
        moved = _shrunk(v, down, up, p)
    # Rounding of the product may leave the box in the original units: clip once more.
    moved = torch.minimum(torch.maximum(moved * eps[rows, None], -below[rows]), above[rows])
    return boxed.index_copy(0, rows, moved)


def _scaled(v: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """p = 2: e = min(v / (1 + m), r), the point of the set farthest along v."""
    _, minimisers = linear_minimum(-v.unsqueeze(1), 2, torch.ones_like(v[:, 0]), below, above)
    return minimisers().squeeze(1)


def _shifted(v: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """p = 1: e = min(max(g - m, 0), r); sum(e) is piecewise linear and decreasing in m, with breakpoints at all g and g - r."""
    size = v.abs()
    top = size.amax(-1, keepdim=True)
    slack = torch.minimum(descent_slack(-v / top, below, above), size)
    corners, order = torch.cat([size, size - slack], -1).sort(-1, descending=True)
    # As m decreases, a coordinate grows from m = g until m = g - r.
    kind = torch.cat([torch.ones_like(size), -torch.ones_like(size)], -1).gather(-1, order)
    growing, weighted = kind.cumsum(-1), (kind * corners).cumsum(-1)
    reached = weighted - growing * corners >= 1.0
    # m lies in the segment that ends at the first breakpoint with sum(e) >= 1.
    segment = (reached.to(torch.uint8).argmax(-1, keepdim=True) - 1).clamp_(min=0)
    slope = growing.gather(-1, segment).clamp_(min=1.0)
    # If rounding keeps the sum below 1 at every breakpoint, all coordinates use their whole slack.
    shift = ((weighted.gather(-1, segment) - 1.0) / slope).masked_fill_(~reached.any(-1, keepdim=True), 0.0)
    return torch.copysign(torch.minimum((size - shift).clamp_(min=0.0), slack), v)


def _shrunk(v: Tensor, below: Tensor, above: Tensor, p: float) -> Tensor:
    """Other p: Newton's method on log ||e||_p as a function of log m, safeguarded by a bracket."""
    size = v.abs()
    slack = torch.minimum(descent_slack(-v / size.amax(-1, keepdim=True), below, above), size)
    # At m = ||g||_q the length is at most 1, since e <= (g / m)^(q - 1).
    high = norm(size, dual(p)).log()
    low = high - 60.0
    at, moved = high, slack
    for _ in range(_OUTER):
        m = at.exp().unsqueeze(-1)
        free = _solved(size, m, p)
        moved = torch.minimum(free, slack)
        length = norm(moved, p)
        over = length > 1.0
        low, high = torch.where(over, at, low), torch.where(over, high, at)
        done = ((length - 1.0).abs() <= 1e-14) | (high - low <= 1e-14)
        if bool(done.all()):
            break
        # d log e / d log m is -rate for a coordinate that is not clipped.
        penalty = m * free.pow(p - 1.0)
        rate = torch.where(free < slack, penalty / (free + (p - 1.0) * penalty).clamp_(min=1e-300), 0.0)
        guess = at + length.log() / (rate * (moved / length.unsqueeze(-1)).pow_(p)).sum(-1)
        guess = torch.where((guess > low) & (guess < high), guess, (low + high) / 2.0)
        at = torch.where(done, at, guess)
    return torch.copysign(moved, v)


def _solved(size: Tensor, m: Tensor, p: float) -> Tensor:
    """Solve e + m e^(p - 1) = g by Newton's method from above, in the variable in which the equation is convex."""
    if p > 2.0:
        outer, inner, power = torch.ones_like(m), m, p - 1.0  # y = e:          y + m y^(p - 1) = g
    else:
        outer, inner, power = m, torch.ones_like(m), 1.0 / (p - 1.0)  # y = e^(p - 1):  m y + y^(1 / (p - 1)) = g
    # Each term alone gives an upper bound on y; at the smaller bound their sum is at most 2 g.
    y = torch.minimum(size / outer, (size / inner).pow(1.0 / power))
    for _ in range(_INNER):
        steep = inner * y.pow(power - 1.0)
        change = ((outer + steep) * y - size) / (outer + power * steep)
        y = (y - change).clamp_(min=0.0)
        if bool((change <= 1e-10 * y).all()):  # the next error is quadratically smaller
            break
    return y if p > 2.0 else y.pow(1.0 / (p - 1.0))


def random_offsets(
    below: Float[Tensor, " batch size"],
    above: Float[Tensor, " batch size"],
    radius: Float[Tensor, " batch"],
    p: float | int,
    count: int,
    generator: torch.Generator,
    *,
    independent: bool = False,
) -> Float[Tensor, " batch count size"]:
    """Return random steps d with ||d||_p <= `radius` and -below <= d <= above, up to rounding; all arguments are float64.

    Signs are random; a coordinate without slack on one side moves to the other. The sizes of coordinates are U^k with U
    uniform and, for each point, log10 k uniform in [-2, 2]: points near corners of the cube, near vertices of the
    cross-polytope, and in between. Half of the points are scaled to the full radius, the others to a uniform share of it.
    Coordinates are then clipped to [-below, above] and the step is scaled again, a few times. With `independent` all examples
    use the same draws, so that the steps are independent of the batch composition.
    """
    batch, size = below.shape
    below, above = below.unsqueeze(1), above.unsqueeze(1)

    def uniform(last: int) -> Tensor:
        return torch.rand(
            1 if independent else batch, count, last, generator=generator, dtype=torch.float64, device=below.device
        )

    signs = torch.where((uniform(size) < 0.5) & (below > 0) | (above == 0), -1.0, 1.0)
    step = uniform(size).pow(10.0 ** (4.0 * uniform(1) - 2.0)) * signs
    length = radius[:, None, None] * torch.where(uniform(1) < 0.5, 1.0, uniform(1))
    for _ in range(_CORRECTIONS):
        now = norm(step, p, 2).unsqueeze(-1)
        step = step * torch.where(now > 0, length / now, 0.0)
        step = torch.minimum(torch.maximum(step, -below), above)
    return step
