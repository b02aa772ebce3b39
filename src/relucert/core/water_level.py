"""Water-filling: minimise <c, d> over an l_p ball intersected with a box.

For 1 < p < inf the step with the largest decrease for its l_p length is d_i = -sign(c_i) min((k |c_i|)^(q - 1), r_i), where r_i
is the slack to the box in the direction of the step. The scale k solves one equation, for the length of the step or for its
decrease. After a change of variables that equation describes water of level s over columns of widths w_i and caps y_i:
sum_i min(s w_i, y_i) = 1. For p = 1 the coordinates with the largest |c_i| move first; for p = inf all coordinates move by
the same length.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.norms import norm

ITERATIONS = 64  # limit of Newton steps; a level is exact up to rounding much earlier, see `water_level`
_STEEP = 21.0  # for q at least this (p < 1.05) |c|^q underflows float64 too easily to serve as a width


def clipped_step(
    c: Float[Tensor, " *rows size"],
    level: Float[Tensor, " *rows"],
    below: Float[Tensor, " ..."],
    above: Float[Tensor, " ..."],
    p: float,
) -> Float[Tensor, " *rows size"]:
    """Return the step of steepest descent of <c, d> in l_p at a given level, clipped to [-below, above].

    d_i = -sign(c_i) min(level |c_i|^(q - 1), r_i) for p > 2, and -sign(c_i) min((level |c_i|)^(q - 1), r_i) for p <= 2. In both
    cases only numbers of the size of r_i are raised to a power above 1, which avoids overflow.
    """
    at = level.unsqueeze(-1)
    if p == 2.0:
        step = c * -at
    elif math.isinf(p):
        step = c.sign().mul_(-at)
    elif p > 2.0:
        step = torch.copysign(c.abs().pow_(1.0 / (p - 1.0)).mul_(at), -c)
    else:
        step = torch.copysign(c.abs().mul_(at).pow_(1.0 / (p - 1.0)), -c)
    return torch.minimum(torch.maximum(step, -below, out=step), above, out=step)


def descent_slack(
    c: Float[Tensor, " *rows size"], below: Float[Tensor, " ..."], above: Float[Tensor, " ..."]
) -> Float[Tensor, " *rows size"]:
    """Return r_i, the slack on the side where c_i d_i decreases, 0 where c_i = 0; max |c_i| must be about 1."""
    # Clamping instead of a mask and `where`, which is several times slower on a CPU.
    step = c * (-0.25 * torch.finfo(c.dtype).max)
    return torch.minimum(torch.maximum(step, -below, out=step), above, out=step).abs_()


def water_level(
    widths: Float[Tensor, " *rows size"], caps: Float[Tensor, " *rows size"], max_iterations: int = ITERATIONS
) -> Float[Tensor, " *rows"]:
    """Return the level s with sum_i min(s w_i, y_i) = 1, approximated from below; inf if the caps y add up to less than 1.

    Newton's method on a concave piecewise linear function never overshoots: fix the columns that s fills at their caps, solve
    for s, and repeat. If a step leaves the fraction m of the residual and the fraction n of the slope, m + n <= 1, so the
    product of residual and slope falls at least fourfold; 3 to 7 steps are usual. Widths must be positive, the largest about 1.

    >>> water_level(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.25, 2.0]]))
    tensor([1.5000])
    """
    shape, w, y = widths.shape[:-1], widths.flatten(0, -2), caps.flatten(0, -2)
    limits = torch.finfo(w.dtype)
    sharp, most = (1e12, 1e20) if limits.bits == 32 else (1e30, 1e30)
    turns = (y / w).mul_(sharp)
    level = w.sum(-1).reciprocal_().clamp_(max=most)
    at, places, scratch = level, None, torch.empty_like(w)
    free = torch.empty_like(w)
    for _ in range(max_iterations):
        # 1 for columns below their caps and 0 for full ones, by clamping as in `descent_slack` to save passes over memory.
        torch.sub(turns, (sharp * at).unsqueeze(-1), out=free).clamp_(0.0, 1.0)
        slope = torch.mul(free, w, out=scratch).sum(-1)
        missing = 1.0 - torch.addcmul(y, y, free, value=-1.0, out=scratch).sum(-1)
        raised = (missing / slope).clamp_(max=most)
        rises = (raised > at) & (missing - slope * at > 8.0 * limits.eps)
        at = torch.where(rises, raised, at)
        level = at if places is None else level.index_copy(0, places, at)
        count = int(rises.sum())
        if count == 0:
            break
        if 2 * count < len(at):  # continue with the unfinished rows only
            kept = rises.nonzero().squeeze(-1)
            turns, w, y, at = turns[kept], w[kept], y[kept], at[kept]
            free, scratch = free[:count], scratch[:count]
            places = kept if places is None else places[kept]
    # Above `most` the columns below their caps are too narrow to matter, and the level is too large to compare.
    return level.masked_fill(level >= most, math.inf).reshape(shape)


def filling_scale(
    c: Float[Tensor, " *rows size"], caps: Float[Tensor, " *rows size"], q: float, max_iterations: int = ITERATIONS
) -> Float[Tensor, " *rows"]:
    """Return the k with sum_i min((k |c_i|)^q, y_i) = 1, approximated from below; inf if the caps y add up to less than 1.

    The largest |c_i| must be about 1, and q must be finite.
    """
    if q < _STEEP:
        widths = c * c if q == 2.0 else c.abs().pow_(q)
        return water_level(widths.clamp_(min=torch.finfo(c.dtype).tiny), caps, max_iterations).pow_(1.0 / q)
    size = c.abs()
    length = norm(size, q, c.ndim - 1)
    low = length.masked_fill(length == 0, 1.0).reciprocal_()
    high = low * 2.0**500
    for _ in range(max_iterations):
        middle = (low * high).sqrt_()
        over = torch.minimum((size * middle.unsqueeze(-1)).pow_(q), caps).sum(-1) > 1.0
        low, high = torch.where(over, low, middle), torch.where(over, middle, high)
    return low.masked_fill(caps.sum(-1) <= 1.0, math.inf)


def critical_size(
    sizes: Float[Tensor, " *rows size"], amounts: Float[Tensor, " *rows size"], need: Float[Tensor, " *rows"]
) -> Float[Tensor, " *rows"]:
    """Return the largest t such that the amounts of all entries with size >= t add up to `need`; 0 if all amounts do not.

    >>> critical_size(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[0.5, 0.5, 0.5]]), torch.tensor([0.75]))
    tensor([2.])
    """
    shape, sizes, amounts, need = need.shape, sizes.flatten(0, -2), amounts.flatten(0, -2), need.flatten()
    size_at = torch.zeros_like(need)
    places = torch.arange(len(need), device=need.device)
    count = min(32, sizes.shape[-1])  # a few of the largest usually suffice, and a full sort takes five times as long
    while len(places):
        top, index = sizes.topk(count)
        short = (amounts.gather(-1, index).cumsum(-1) < need.unsqueeze(-1)).sum(-1)
        done = short < count
        size_at[places[done]] = top[done].gather(-1, short[done].unsqueeze(-1)).squeeze(-1)
        if count == sizes.shape[-1]:
            break
        sizes, amounts, need, places = sizes[~done], amounts[~done], need[~done], places[~done]
        count = min(8 * count, sizes.shape[-1])
    return size_at.reshape(shape)


def greedy_step(
    c: Float[Tensor, " *rows size"],
    level: Float[Tensor, " *rows"],
    below: Float[Tensor, " ..."],
    above: Float[Tensor, " ..."],
    need: Float[Tensor, " *rows"],
    gain: bool = False,
) -> Float[Tensor, " *rows size"]:
    """Return the step for p = 1: the whole slack where |c_i| > level, and a common fraction of it where |c_i| = level > 0.

    The fraction is such that the l_1 length of the step is `need`, or with `gain` that <c, step> = -need.
    """
    full = torch.minimum(torch.maximum(c.sign().mul_(-torch.finfo(c.dtype).max), -below), above)
    size, at = c.abs(), level.unsqueeze(-1)
    step = full * (size > at)
    ties = full * ((size == at) & (at > 0))
    spent, wanted = (((move * c) if gain else move).abs().sum(-1) for move in (step, ties))
    share = ((need - spent) / wanted.masked_fill(wanted == 0, 1.0)).clamp_(0.0, 1.0)
    return ties.mul_(share.unsqueeze(-1)).add_(step)
