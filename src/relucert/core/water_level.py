"""How far every coordinate moves when a linear function is to fall by much at little length, and each has a room of its own.

For 1 < p < inf the step that gains most for its l_p length is d_i = -sign(c_i) (k |c_i|)^(q - 1); a room r_i cuts it off. The
scale k follows from one equation, the length of the step or what it gains, which in the right variable is that of a basin:
water of level s over columns of widths w_i and caps y_i, sum_i min(s w_i, y_i) = 1. For p = 1 the coordinates with the largest
|c_i| move first; for p = inf all move equally far.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.norms import norm

ITERATIONS = 64  # Newton steps; a level is exact to rounding long before, see `water_level`
_STEEP = 21.0  # from this q on (p < 1.05) |c|^q leaves the range of float64 too soon to be a width


def clipped_step(
    c: Float[Tensor, " *rows size"],
    level: Float[Tensor, " *rows"],
    below: Float[Tensor, " ..."],
    above: Float[Tensor, " ..."],
    p: float,
) -> Float[Tensor, " *rows size"]:
    """Return the step against c that is shortest in l_p for what it gains, cut to the rooms.

    d_i = -sign(c_i) min(level |c_i|^(q - 1), r_i) for p > 2, and -sign(c_i) min((level |c_i|)^(q - 1), r_i) for p <= 2: either
    way nothing but numbers near the rooms is raised to a power above 1.
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


def pulled(
    c: Float[Tensor, " *rows size"], below: Float[Tensor, " ..."], above: Float[Tensor, " ..."]
) -> Float[Tensor, " *rows size"]:
    """Return the room of every coordinate on the side to which c pulls, 0 where c is 0; c must be scaled to about 1."""
    # Arithmetic instead of a mask and `where`, which is several times slower on a CPU.
    step = c * (-0.25 * torch.finfo(c.dtype).max)
    return torch.minimum(torch.maximum(step, -below, out=step), above, out=step).abs_()


def water_level(
    widths: Float[Tensor, " *rows size"], caps: Float[Tensor, " *rows size"], max_iterations: int = ITERATIONS
) -> Float[Tensor, " *rows"]:
    """Return the level s at which sum_i min(s w_i, y_i) = 1, from below; inf where the caps y add up to less.

    Newton's method on a concave piecewise linear function, which never passes the solution: hold the columns that s fills at
    their caps, solve for s, and repeat. A step that leaves the share m missing and the share n of the slope has m + n <= 1, so
    the product of both falls fourfold each time; 3 to 7 steps are usual. Widths must be positive, the largest about 1.

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
        # 1 for columns under their caps and 0 for full ones, by arithmetic as in `pulled`; every pass over memory counts here.
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
        if 2 * count < len(at):  # go on with the unfinished rows alone
            kept = rises.nonzero().squeeze(-1)
            turns, w, y, at = turns[kept], w[kept], y[kept], at[kept]
            free, scratch = free[:count], scratch[:count]
            places = kept if places is None else places[kept]
    # Beyond `most` the columns that still fill are too narrow to matter, and the level too high to be compared.
    return level.masked_fill(level >= most, math.inf).reshape(shape)


def filling_scale(
    c: Float[Tensor, " *rows size"], caps: Float[Tensor, " *rows size"], q: float, max_iterations: int = ITERATIONS
) -> Float[Tensor, " *rows"]:
    """Return the k at which sum_i min((k |c_i|)^q, y_i) = 1, from below; inf where the caps y add up to less.

    The largest |c_i| must be about 1; q finite.
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
    """Return the largest t such that the amounts of all entries with size >= t add up to `need`; 0 where even all do not.

    >>> critical_size(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[0.5, 0.5, 0.5]]), torch.tensor([0.75]))
    tensor([2.])
    """
    shape, sizes, amounts, need = need.shape, sizes.flatten(0, -2), amounts.flatten(0, -2), need.flatten()
    found = torch.zeros_like(need)
    places = torch.arange(len(need), device=need.device)
    count = min(32, sizes.shape[-1])  # as a rule a few of the largest suffice, and a full sort costs five times as much
    while len(places):
        top, index = sizes.topk(count)
        short = (amounts.gather(-1, index).cumsum(-1) < need.unsqueeze(-1)).sum(-1)
        done = short < count
        found[places[done]] = top[done].gather(-1, short[done].unsqueeze(-1)).squeeze(-1)
        if count == sizes.shape[-1]:
            break
        sizes, amounts, need, places = sizes[~done], amounts[~done], need[~done], places[~done]
        count = min(8 * count, sizes.shape[-1])
    return found.reshape(shape)


def greedy_step(
    c: Float[Tensor, " *rows size"],
    level: Float[Tensor, " *rows"],
    below: Float[Tensor, " ..."],
    above: Float[Tensor, " ..."],
    need: Float[Tensor, " *rows"],
    gain: bool = False,
) -> Float[Tensor, " *rows size"]:
    """Return the step for p = 1: all room where |c_i| > level, and equal shares of it where |c_i| = level > 0.

    The shares are such that the l_1 length of the step is `need`, or with `gain` that <c, step> = -need.
    """
    full = torch.minimum(torch.maximum(c.sign().mul_(-torch.finfo(c.dtype).max), -below), above)
    size, at = c.abs(), level.unsqueeze(-1)
    step = full * (size > at)
    ties = full * ((size == at) & (at > 0))
    spent, wanted = (((part * c) if gain else part).abs().sum(-1) for part in (step, ties))
    share = ((need - spent) / wanted.masked_fill(wanted == 0, 1.0)).clamp_(0.0, 1.0)
    return ties.mul_(share.unsqueeze(-1)).add_(step)
