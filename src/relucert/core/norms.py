"""The l_p norms for p in [1, inf]: the norm, its derivative, the dual exponent, and steepest steps, also within a box.

Water-filling gives the step of steepest descent that minimises <c, d> over an l_p ball intersected with a box. For 1 < p < inf
the step with the largest decrease for its l_p length is d_i = -sign(c_i) min((k |c_i|)^(q - 1), r_i), where r_i is the slack to
the box in the direction of the step. The scale k solves one equation, for the length of the step or for its decrease. After a
change of variables that equation describes water of level s over columns of widths w_i and caps y_i:
sum_i min(s w_i, y_i) = 1. For p = 1 the coordinates with the largest |c_i| move first; for p = inf all coordinates move by
the same length.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Num
from torch import Tensor

from relucert.core.errors import InvalidInput

ITERATIONS = 64  # limit of Newton steps; a level is exact up to rounding much earlier, see `water_level`
_STEEP = 21.0  # for q at least this (p < 1.05) |c|^q underflows float64 too easily to serve as a width


def check_p(p: float | int | str) -> float:
    """Return p as a float after checking that it is a number of at least 1, or infinity.

    >>> check_p(2), check_p("inf")
    (2.0, inf)
    """
    rule = f"p must be a number of at least 1 or inf, got {p!r}"
    if isinstance(p, bool):
        raise InvalidInput(rule)
    try:
        value = float(p)
    except (TypeError, ValueError) as error:
        raise InvalidInput(rule) from error
    if not value >= 1.0:  # also refuses NaN
        raise InvalidInput(rule)
    return value


def dual(p: float | int | str) -> float:
    """Return q with 1/p + 1/q = 1, the exponent of the dual norm.

    >>> dual(1), dual(2), dual(3), dual("inf")
    (inf, 2.0, 1.5, 1.0)
    """
    p = check_p(p)
    if p == 1.0:
        return math.inf
    return 1.0 if math.isinf(p) else p / (p - 1.0)


def norm(v: Float[Tensor, "..."], p: float | int | str, batch_dims: int = 1) -> Float[Tensor, "..."]:
    """Return the l_p norm over all dimensions but the first `batch_dims`.

    ||v||_p = (sum_i |v_i|^p)^(1/p), and max_i |v_i| for p = inf; shape v.shape[:batch_dims].
    No power overflows or underflows, however large p or |v| is; the gradient at the zero vector is zero.

    >>> norm(torch.tensor([[3.0, -4.0], [0.0, 0.0]]), 2)
    tensor([5., 0.])
    >>> norm(torch.tensor([[3e30, -4e30]]), 64)
    tensor([4.0000e+30])
    """
    p = check_p(p)
    if not 0 <= batch_dims < max(v.ndim, 1):
        raise InvalidInput(f"batch_dims must be at least 0 and below the {v.ndim} dimensions of v, got {batch_dims}")
    flat = v.flatten(batch_dims)
    if flat.shape[-1] == 0:
        return flat.sum(-1)
    if p == 1.0:
        return flat.abs().sum(-1)
    if math.isinf(p):
        return flat.abs().amax(-1)
    plain = torch.linalg.vector_norm(flat, p, dim=-1)
    # ||v||^p and its derivative must stay well inside the range of the dtype: half of its exponents is safe.
    # For p != 2 the root uses a rounded 1/p, and its error grows with log ||v||.
    reach = 0.5 * math.log(torch.finfo(v.dtype).max) / p
    reach = reach if p == 2.0 else min(reach, 8.0)
    safe = plain.detach().log().abs() <= reach
    if bool(safe.all()):
        return plain
    # Each formula gets zeros in the rows of the other one, where its gradient would be NaN.
    inside, zeros = safe.unsqueeze(-1), torch.zeros_like(flat)
    plain = torch.linalg.vector_norm(torch.where(inside, flat, zeros), p, dim=-1)
    return torch.where(safe, plain, _scaled_norm(torch.where(inside, zeros, flat), p))


def _scaled_norm(flat: Float[Tensor, "... size"], p: float) -> Float[Tensor, "..."]:
    """The norm as max_i |v_i| times the norm of v / max_i |v_i|, which cannot overflow."""
    largest = flat.detach().abs().amax(-1)
    scale = torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
    powers = (flat / scale.unsqueeze(-1)).abs().pow(p).sum(-1)
    # The root has an infinite slope at 0: avoid evaluating it there; the outer `where` passes no gradient back.
    zero = powers == 0
    root = torch.where(zero, torch.ones_like(powers), powers).pow(1.0 / p)
    return torch.where(zero, torch.zeros_like(powers), root * scale)


def norm_slope(
    v: Float[Tensor, "..."], length: Float[Tensor, "..."], p: float, ties: Num[Tensor, "..."] | None = None
) -> Float[Tensor, "..."]:
    """Return the derivative of ||v||_p with respect to v, where the norms `length` are known; they broadcast against v.

    The derivative is sign(v_i) (|v_i| / ||v||)^(p - 1). For p = inf the entries of largest size share it equally: `ties` is
    their number, 1 by default. It is zero for the zero vector.

    >>> norm_slope(torch.tensor([[3.0, -4.0]]), torch.tensor([[5.0]]), 2)
    tensor([[ 0.6000, -0.8000]])
    """
    if p == 1.0:
        return v.sign()
    if math.isinf(p):
        at = v.sign() * (v.abs() == length)
        return at if ties is None else at / ties
    safe = length.masked_fill(length == 0, math.inf)
    return v / safe if p == 2.0 else v.sign() * (v.abs() / safe).pow(p - 1.0)


def steepest(g: Float[Tensor, "..."], p: float | int | str, batch_dims: int = 1) -> Float[Tensor, "..."]:
    """Return the direction of steepest ascent of <g, d> in the l_p unit ball.

    argmax { <g, d> : ||d||_p <= 1 } is d_i = sign(g_i) (|g_i| / ||g||_q)^(q - 1), with the value ||g||_q: the sign for
    p = inf, only the first largest coordinate for p = 1. A zero gradient gives the zero direction.

    >>> steepest(torch.tensor([[3.0, -4.0], [0.0, 0.0]]), 2)
    tensor([[ 0.6000, -0.8000],
            [ 0.0000,  0.0000]])
    """
    p = check_p(p)
    if math.isinf(p):
        return g.sign()
    flat = g.flatten(batch_dims)
    largest, where = flat.abs().max(-1, keepdim=True)
    if p == 1.0:
        direction = torch.zeros_like(flat).scatter(-1, where, flat.gather(-1, where).sign())
    else:
        ratio = flat / torch.where(largest > 0, largest, torch.ones_like(largest))
        powers = ratio.abs().pow(1.0 / (p - 1.0)) * ratio.sign()
        length = norm(powers, p, powers.ndim - 1).unsqueeze(-1)
        direction = powers / torch.where(length > 0, length, torch.ones_like(length))
    return direction.reshape(g.shape)


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
