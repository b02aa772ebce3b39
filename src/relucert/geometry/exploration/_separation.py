"""The distance of x to an intersection of half spaces in the box, bounded below by one combined half space.

Offsets d = z - x of points in all half spaces <w_j, d> + m_j <= 0 lie in the half space of v = sum_j mu_j w_j and
M = sum_j mu_j m_j, for any multipliers mu >= 0. So every mu is a proof: the distance to the combined half space in the box is
a lower bound, and the best mu reaches the distance to the intersection (duality). No solver is trusted.

In l_2 the dual value needs no search for the nearest point: every d in the half space and in the box has

    1/2 ||d||^2 >= G(mu) = min over the box of (1/2 ||d||^2 + <v, d>) + M,   attained at d = clip(-v).

G is concave in mu; `ascend` maximises it by Newton steps in the space of multipliers. G is 1-smooth in v, and linear in v_i
where d_i is at a side of the box and v_i grows towards that side. So one more half space (w, m) has, with its residual
r = <w, d> + m > 0 and n = the sum of w_i^2 over coordinates that are not linear, for the multiplier r / n

    G(mu, r / n) >= G(mu) + r^2 / (2 n)      (`gain`),

which bounds the distances to all intersections with one more half space by three matrix products. In the other norms
`paired` finds the best combination of two half spaces by bisection.

Rounding. Margins m_j are known up to `margin_errors`, rows up to `row_errors` in every l_q. The computed v is off by at most
E = sum_j mu_j (row error_j + gamma ||w_j||_1), which changes <v, d> by at most E R within distance R of x: the bound is
min(R, distance with M - E R). R is `BEYOND` times the bound without E, or the reach of the box.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.norms import norm
from relucert.core.rounding import gamma_above
from relucert.geometry.hyperplane import hyperplane_projection

BEYOND = 100.0  # distances are proved up to this many times the distance without rounding errors of rows
HALVINGS = 6  # bisections of the multipliers of two half spaces
VIOLATED = 1e-9  # relative violation of a half space that counts
FARTHER = 1e4  # by how much a value grows at once where an intersection may be empty
RIDGE = 1e-12  # relative, on the diagonal of the Hessian


class Effort(NamedTuple):
    """How long the dual value is raised: Newton steps, and the relative gain that ends the ascent."""

    steps: int
    gain: float


FULL, QUICK = Effort(30, 1e-10), Effort(10, 1e-6)


class HalfSpaces(NamedTuple):
    """Half spaces <rows, d> + margins <= 0 of offsets d, some for each of n cases; `sizes` are l_1 norms of the rows.

    A row of zeros with zero margin and errors is no condition. `row_errors` hold in every l_q.
    """

    rows: Float[Tensor, " n k size"]
    margins: Float[Tensor, " n k"]
    margin_errors: Float[Tensor, " n k"]
    row_errors: Float[Tensor, " n k"]
    sizes: Float[Tensor, " n k"]

    def joined(self, other: HalfSpaces) -> HalfSpaces:
        """The half spaces of both, for the same cases."""
        return HalfSpaces(*(torch.cat(parts, 1) for parts in zip(self, other, strict=True)))

    @classmethod
    def of(cls, *spaces: Combined) -> HalfSpaces:
        """Combined half spaces, one after the other; their errors of margins are charged already."""
        rows = torch.stack([space.row for space in spaces], 1)
        margins = torch.stack([space.margin for space in spaces], 1)
        errors = torch.stack([space.error for space in spaces], 1)
        return cls(rows, margins, torch.zeros_like(margins), errors, norm(rows, 1, 2))

    def at(self, index: Tensor) -> HalfSpaces:
        """The half spaces of some cases."""
        return HalfSpaces(*(part[index] for part in self))


class Box(NamedTuple):
    """The box as slacks around x, rounded up, for each of n cases; `reach` is a radius that contains the whole box."""

    below: Float[Tensor, " n size"]
    above: Float[Tensor, " n size"]
    reach: Float[Tensor, " n"]

    def at(self, index: Int[Tensor, " m"]) -> Box:
        """The boxes of some cases."""
        return Box(*(part[index] for part in self))


class Combined(NamedTuple):
    """One half space <row, d> + margin <= 0 that contains an intersection within distance R up to `error` R."""

    row: Float[Tensor, " n size"]
    margin: Float[Tensor, " n"]
    error: Float[Tensor, " n"]


def combined(spaces: HalfSpaces, multipliers: Float[Tensor, " n k"]) -> Combined:
    """The half space of nonnegative multipliers, its margin reduced by all errors that do not depend on the distance."""
    weight = gamma_above(spaces.rows.shape[1] + 2)
    row = (multipliers.unsqueeze(1) @ spaces.rows).squeeze(1)
    margin = multipliers * (spaces.margins - spaces.margin_errors)
    lost = weight * (multipliers * (spaces.margins.abs() + spaces.margin_errors)).sum(1)
    error = (multipliers * (spaces.row_errors + weight * spaces.sizes)).sum(1)
    return Combined(row, margin.sum(1) - lost, error * (1 + weight))


class Dual(NamedTuple):
    """The dual value of a combined half space in l_2: `value` <= 1/2 ||d||^2 within `radius`, and the minimiser `step`."""

    value: Float[Tensor, " n"]
    step: Float[Tensor, " n size"]
    radius: Float[Tensor, " n"]


def dual(space: Combined, box: Box) -> Dual:
    """The dual value G with all rounding charged; NaN from overflow counts as 0."""
    step = torch.minimum(torch.maximum(-space.row, -box.below), box.above)
    square, linear = step.square().sum(1) / 2, (space.row * step).sum(1)
    terms = square + (space.row * step).abs().sum(1) + space.margin.abs()
    value = square + linear + space.margin - gamma_above(step.shape[1] + 8) * terms
    value = value.nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    radius = torch.minimum(box.reach, BEYOND * (2 * value).sqrt())
    lost = torch.where(space.error == 0, 0.0, space.error * radius)
    value = (value - lost).nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    limit = torch.where((space.error == 0) | (radius >= box.reach), math.inf, radius)
    return Dual(value, step, limit)


def gain(residual: Tensor, squares: Tensor) -> Tensor:
    """r^2 / (2 n) where r > 0, the proved increase of the dual value by one more half space; inf where it is empty."""
    grown = residual.clamp(min=0).square() / (2 * squares)
    return torch.where(residual > 0, grown, 0.0).nan_to_num(0.0, math.inf, 0.0)


def ascend(
    spaces: HalfSpaces, start: Float[Tensor, " n k"], box: Box, enough: Float[Tensor, " n"], effort: Effort = FULL
) -> Float[Tensor, " n k"]:
    """Multipliers that nearly maximise the l_2 dual value, from given ones, or with a value above `enough`.

    If the minimiser violates a half space in the end, the intersection may be empty and the value unbounded. Then
    G(mu) - (sum_j mu_j m_j)^2 / (8 L) is maximised, which is bounded and leads to values of the order of L = `enough`.
    """
    found, value, violated = _ascend(spaces, start, box, enough, torch.zeros_like(enough), effort)
    some = (violated & (value < enough)).nonzero()[:, 0]
    if len(some) == 0 or effort is QUICK:
        return found
    part, inside, before = spaces.at(some), box.at(some), value[some].clamp(min=0)
    limit = torch.minimum(torch.minimum(enough[some], inside.reach.square()), FARTHER * before + 1e-12)
    steep, grown, _ = _ascend(part, found[some], inside, limit, 1 / (4 * limit), effort)
    found[some] = torch.where((grown > before)[:, None], steep, found[some])
    return found


def _ascend(
    spaces: HalfSpaces, start: Tensor, box: Box, enough: Tensor, damping: Tensor, effort: Effort
) -> tuple[Float[Tensor, " n k"], Float[Tensor, " n"], Bool[Tensor, " n"]]:
    """Newton steps on G - damping (sum_j mu_j m_j)^2 / 2: multipliers, values of G, and whether half spaces are violated."""
    best, value = start.clone(), torch.full_like(enough, -math.inf)
    plain, violated = value.clone(), torch.zeros_like(enough, dtype=torch.bool)
    every = torch.arange(len(start))
    part, inside, mu, factor, damped = spaces, box, start, torch.ones_like(enough), damping
    direction = torch.zeros_like(start)
    squares = spaces.rows.square().sum(2)
    for _ in range(effort.steps):
        row = (mu.unsqueeze(1) @ part.rows).squeeze(1)
        step = torch.minimum(torch.maximum(-row, -inside.below), inside.above)
        residual = (part.rows @ step.unsqueeze(2)).squeeze(2) + part.margins
        undamped = step.square().sum(1) / 2 + (mu * residual).sum(1)
        total = (mu * part.margins).sum(1)
        now = undamped - damped * total.square() / 2
        old = value[every]
        better = now > old
        # A Newton step that loses value is shortened, from the multipliers where it began.
        kept = every[better]
        value[kept], best[kept], plain[kept] = now[better], mu[better], undamped[better]
        violated[kept] = (residual > VIOLATED * (part.sizes * step.abs().amax(1, keepdim=True))).any(1)[better]
        slope = residual - (damped * total)[:, None] * part.margins
        moved = _newton(part, squares, mu, slope, step == -row, damped)
        direction = torch.where(better[:, None], moved, direction)
        factor = torch.where(better, 1.0, factor / 8)
        going = torch.where(better, now - old > effort.gain * now.abs(), factor > 1e-12)
        going &= (plain[every] < enough[every]) & now.isfinite()
        rest = going.nonzero()[:, 0]
        if len(rest) == 0:
            break
        if len(rest) < len(every):
            every, direction, factor, damped = every[rest], direction[rest], factor[rest], damped[rest]
            part, inside, squares = part.at(rest), inside.at(rest), squares[rest]
        mu = (best[every] + factor[:, None] * direction).clamp(min=0)
    return best, plain, violated


def _newton(
    spaces: HalfSpaces, scale: Tensor, mu: Tensor, slope: Tensor, free: Tensor, damping: Tensor
) -> Float[Tensor, " n k"]:
    """The Newton step in the multipliers that are positive or want to grow; `scale` are the squares of the rows' norms."""
    rows = spaces.rows
    active = (mu > 0) | (slope > 0)
    hessian = (rows * free.unsqueeze(1)) @ rows.transpose(1, 2)
    if bool(damping.any()):
        hessian = hessian + damping[:, None, None] * spaces.margins.unsqueeze(2) * spaces.margins.unsqueeze(1)
    hessian = hessian * (active.unsqueeze(1) & active.unsqueeze(2))
    hessian = hessian + torch.diag_embed(torch.where(active & (scale > 0), RIDGE * scale, 1.0))
    solved, failed = torch.linalg.solve_ex(hessian, (slope * active).unsqueeze(2))
    fallback = torch.where(active, slope / scale.clamp(min=1e-300), 0.0)
    fine = (failed == 0) & solved.isfinite().all(1).squeeze(1)
    return torch.where(fine[:, None], solved.squeeze(2), fallback)


def paired(
    first: Combined, second: Combined, x: Float[Tensor, " n *input"], p: float, sides: tuple[Tensor, Tensor]
) -> Float[Tensor, " n 2"]:
    """Multipliers of two half spaces whose combination is farthest from x in l_p and in the box, by bisection.

    At the point of the combination nearest to x one of the two half spaces is violated: it gets a larger share.
    """
    shape = (len(x), 1, *x.shape[1:])
    scales = [norm(space.row, 2).clamp(min=1e-300).reciprocal() for space in (first, second)]
    rows = [space.row * scale[:, None] for space, scale in zip((first, second), scales, strict=True)]
    margins = [space.margin * scale for space, scale in zip((first, second), scales, strict=True)]
    low, high = torch.zeros_like(first.margin), torch.ones_like(first.margin)
    share, best, farthest = torch.ones_like(low), torch.zeros_like(low), torch.full_like(low, -math.inf)
    for turn in range(HALVINGS + 2):
        share = torch.zeros_like(low) if turn == 0 else torch.ones_like(low) if turn == 1 else (low + high) / 2
        row = (1 - share)[:, None] * rows[0] + share[:, None] * rows[1]
        margin = ((1 - share) * margins[0] + share * margins[1]).clamp(min=0)
        nearest = hyperplane_projection(x, row.reshape(shape), margin[:, None], p, sides)
        assert nearest.point is not None
        distance = nearest.distance[:, 0]
        further = distance > farthest
        best, farthest = torch.where(further, share, best), torch.where(further, distance, farthest)
        offset = (nearest.point[:, 0] - x).flatten(1)
        wanted = (rows[1] * offset).sum(1) + margins[1] > (rows[0] * offset).sum(1) + margins[0]
        if turn > 1:
            low, high = torch.where(wanted, share, low), torch.where(wanted, high, share)
    return torch.stack([(1 - best) * scales[0], best * scales[1]], 1)
