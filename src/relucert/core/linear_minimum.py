"""Concretize: the minimum of a linear function over an l_p ball intersected with a box, the last step of every bound.

    min { <c, d> : ||d||_p <= eps, -below <= d <= above }

Without a box it is -eps ||c||_q. With one, for 1 < p < inf, the minimiser is d_i = -sign(c_i) min((k |c_i|)^(q - 1), r_i),
where r_i is the slack to the box in the direction of descent and k is such that ||d||_p = eps. Every k > 0 proves a lower
bound,

    g(k) = min over the box of  <c, d> + (||d||_p^p - eps^p) / (p k),

which is the minimum at the optimal k, so the search for k may stop at any time. For p = inf the set is a box again; for p = 1
the coordinates with the largest |c_i| move as far as they can, one after the other, until the l_1 length is eps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.errors import InvalidInput
from relucert.core.norms import (
    ITERATIONS,
    check_p,
    clipped_step,
    critical_size,
    descent_slack,
    dual,
    filling_scale,
    greedy_step,
    norm,
    steepest,
)

BUDGET = 2**29  # bytes of temporaries
_CACHED = 2**20  # bytes of one temporary on a CPU: fits its cache, and is large beside the overhead of a call
_TEMPORARIES = 8  # temporaries of the size of a block that exist at a time


@dataclass(frozen=True, kw_only=True)
class LinearMinimum:
    """Lower bounds `value` (batch, rows) of <c, z - x> over a set; on request the minimisers `point` (batch, rows, *input)."""

    value: Float[Tensor, " batch ..."]
    point: Float[Tensor, " batch ..."] | None = None


def linear_minimum(
    rows: Float[Tensor, " batch rows *input"],
    p: float | int,
    eps: Float[Tensor, " batch"],
    below: Float[Tensor, " batch *input"] | None = None,
    above: Float[Tensor, " batch *input"] | None = None,
    *,
    max_iterations: int = ITERATIONS,
    budget: int = BUDGET,
) -> tuple[Float[Tensor, " batch rows"], Callable[[], Tensor]]:
    """Return min { <c, d> : ||d||_p <= eps, -below <= d <= above } for every row c, and a function for the minimisers.

    The function computes the minimisers d when it is called and returns them as a tensor of the shape of `rows`.
    The values are g(k) for the last k of the search: lower bounds for every number of `max_iterations`, up to a relative
    error of `relative_rounding(input size, dtype)` (for 1 < p < 2 q times that of float64, if larger: powers multiply errors).
    below, above and eps may be 0 or inf. If <c, d> is unbounded below on the set, the value is -inf, and d moves only the
    other coordinates. The gradient with respect to the rows is the minimiser; the set is constant. Temporaries use at most
    `budget` bytes, or as much as one row needs.

    >>> rows, eps, slack = torch.tensor([[[3.0, 4.0]]]), torch.tensor([1.0]), torch.tensor([[1.0, 0.0]])
    >>> linear_minimum(rows, 2, eps)[0], linear_minimum(rows, 2, eps, below=slack, above=slack)[0]
    (tensor([[-5.]]), tensor([[-3.]]))
    """
    p = check_p(p)
    if max_iterations < 0:
        raise InvalidInput(f"max_iterations must be at least 0, got {max_iterations}")
    if below is None or above is None or math.prod(rows.shape[2:]) == 0:
        return _unboxed(rows, p, eps.to(rows))
    flat, shape = rows.flatten(2), rows.shape
    unit = _Unit(p, eps.to(rows), below.to(rows).flatten(1), above.to(rows).flatten(1), max_iterations, budget)
    value, level = _Minimum.apply(flat, unit)  # pyright: ignore[reportGeneralTypeIssues]
    return value, lambda: unit.offsets(flat.detach(), level).reshape(shape)


def linear_range(
    rows: Float[Tensor, " batch rows *input"],
    p: float | int,
    eps: Float[Tensor, " batch"],
    below: Float[Tensor, " batch *input"] | None = None,
    above: Float[Tensor, " batch *input"] | None = None,
    *,
    budget: int = BUDGET,
) -> tuple[Float[Tensor, " batch rows"], Float[Tensor, " batch rows"]]:
    """Return the minimum and the maximum of <c, d> over the set of `linear_minimum`, with the same guarantees.

    >>> rows, slack = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[1.0, 0.0]])
    >>> linear_range(rows, math.inf, torch.tensor([2.0]), below=slack, above=2 * slack)
    (tensor([[-3.]]), tensor([[6.]]))
    """
    if below is None or above is None:
        least = linear_minimum(rows, p, eps, budget=budget)[0]
        return least, -least
    if math.isinf(p) and bool(eps.isfinite().all()):
        reach = eps.to(rows)[:, None]
        down, up = (torch.minimum(slack.to(rows).flatten(1), reach) for slack in (below, above))
        return _BoxRange.apply(rows.flatten(2), down, up)  # pyright: ignore[reportReturnType]
    least = linear_minimum(rows, p, eps, below, above, budget=budget)[0]
    return least, -linear_minimum(-rows, p, eps, below, above, budget=budget)[0]


class _BoxRange(torch.autograd.Function):
    """Minimum and maximum of <c, d> over -down <= d <= up: positive and negative parts of c times the sides."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        sides = torch.stack([down, up], 2)
        ctx.save_for_backward(rows, sides)
        gained, lost = rows.clamp(min=0) @ sides, rows.clamp(max=0) @ sides
        return lost[..., 1] - gained[..., 0], gained[..., 1] - lost[..., 0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        rows, sides = ctx.saved_tensors
        least, greatest = grads
        rising = torch.stack([-least, greatest], 2) @ sides.transpose(1, 2)
        falling = torch.stack([-greatest, least], 2) @ sides.transpose(1, 2)
        return torch.where(rows > 0, rising, falling), None, None


def _unboxed(rows: Tensor, p: float, eps: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
    """The minimum over the ball without a box: -eps ||c||_q."""
    length = norm(rows, dual(p), 2)
    # inf * 0 would be NaN, but a zero row has the value 0 for every eps.
    value = -length * torch.where(length == 0, torch.zeros_like(length), eps[:, None])
    reach = eps.masked_fill(eps.isinf(), 0.0).reshape(-1, *[1] * (rows.ndim - 1))
    return value, lambda: -reach * steepest(rows.detach(), p, 2)


class _Minimum(torch.autograd.Function):
    """The minima and levels of all rows; by the envelope theorem the gradient of a minimum is its minimiser."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, unit: _Unit) -> tuple[Tensor, Tensor]:
        value, level = unit.values(flat)
        ctx.unit = unit
        ctx.save_for_backward(flat, level)
        ctx.mark_non_differentiable(level)
        return value, level

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        flat, level = ctx.saved_tensors
        return ctx.unit.offsets(flat, level).mul_(grads[0].unsqueeze(-1)), None


class _Unit:
    """The set in units of eps: a ball of radius 1 and slacks of at most 1, so that no power overflows."""

    def __init__(self, p: float, eps: Tensor, below: Tensor, above: Tensor, max_iterations: int, budget: int):
        self.p, self.max_iterations, self.budget = p, max_iterations, budget
        # Sides along which the set is unbounded: slack and eps are infinite. Rows that decrease there have the minimum -inf.
        endless = eps.isinf()[:, None]
        self.endless = (below.isinf() & endless, above.isinf() & endless) if bool(endless.any()) else None
        if self.endless is not None:
            below, above = below.masked_fill(self.endless[0], 0.0), above.masked_fill(self.endless[1], 0.0)
        # A ball that contains the box is no constraint: reduce it to the size of the box, for units of a good size.
        corner = torch.maximum(below, above).amax(-1) * below.shape[-1]
        self.slacks = below, above
        self.eps = torch.minimum(eps, corner)[:, None]
        unit = self.eps.masked_fill(self.eps == 0, 1.0)
        self.below, self.above = (torch.minimum(slack, self.eps).div_(unit).clamp_(max=1.0) for slack in (below, above))
        # Powers other than squares need the range of float64, and their time exceeds that of the memory traffic.
        self.dtype = torch.float64 if p not in (1.0, 2.0, math.inf) else below.dtype

    def blocks(self, flat: Tensor) -> Iterator[tuple[tuple[slice, slice], Tensor, Tensor, Tensor]]:
        """Yield blocks of the rows with their slacks: (place, c, below, above)."""
        for place in blocks(flat, self.budget, self.dtype):
            below, above = (slack[place[0], None].to(self.dtype) for slack in (self.below, self.above))
            yield place, flat[place].to(self.dtype), below, above

    def values(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """The lower bounds (batch, rows), and the levels that prove them."""
        value = flat.new_empty(flat.shape[:2])
        level = flat.new_ones(flat.shape[:2], dtype=self.dtype)
        for place, c, below, above in self.blocks(flat):
            if math.isinf(self.p):
                found = torch.minimum(c * above, c * -below).sum(-1)
            elif self.p == 1.0:
                found, level[place] = _greedy(c, below, above)
            else:
                level[place] = at = _level(c, below, above, self.p, self.max_iterations)
                found = _dual_value(c, at, below, above, self.p)
            value[place] = found * self.eps[place[0]]
            if self.endless is not None:
                down, up = (side[place[0], None] for side in self.endless)
                value[place] = value[place].masked_fill((((c > 0) & down) | ((c < 0) & up)).any(-1), -math.inf)
        return value, level

    def offsets(self, flat: Tensor, level: Tensor) -> Tensor:
        """The minimisers (batch, rows, size) at the given levels."""
        offset = torch.empty_like(flat, memory_format=torch.contiguous_format)
        for place, c, below, above in self.blocks(flat):
            at = level[place]
            if self.p == 1.0:
                step = greedy_step(c, at, below, above, torch.ones_like(at))
            else:
                step = clipped_step(c, at, below, above, self.p)
            # Rounding of the product may leave the box in the original units: clip once more.
            down, up = (slack[place[0], None] for slack in self.slacks)
            step = step.mul_(self.eps[place[0], None]).to(offset.dtype)
            offset[place] = torch.minimum(torch.maximum(step, -down), up)
        return offset


def blocks(flat: Float[Tensor, " batch rows size"], budget: int, dtype: torch.dtype) -> Iterator[tuple[slice, slice]]:
    """Yield slices that split rows into blocks whose temporaries, of type `dtype`, use at most `budget` bytes."""
    batch, rows, size = flat.shape
    share = budget // _TEMPORARIES
    if flat.device.type == "cpu":
        share = min(share, _CACHED)
    count = max(1, share // (dtype.itemsize * max(size, 1)))
    examples = max(1, count // max(rows, 1))
    for start in range(0, batch, examples):
        for first in range(0, rows, count):
            yield slice(start, start + examples), slice(first, first + count)


def _greedy(c: Tensor, below: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
    """p = 1: minus the least upper bound t + sum_i max(|c_i| - t, 0) r_i on the decrease, and the t at which it is attained."""
    top = c.abs().amax(-1, keepdim=True)
    slack = descent_slack(c / top.masked_fill_(top == 0, 1.0), below, above)
    # A coordinate without slack must not count among the largest.
    size = c.abs().mul_((slack * torch.finfo(c.dtype).max).clamp_(max=1.0))
    level = critical_size(size, slack, slack.new_ones(slack.shape[:-1]))
    return -(size.sub_(level.unsqueeze(-1)).clamp_(min=0.0).mul_(slack).sum(-1) + level), level


def _level(c: Tensor, below: Tensor, above: Tensor, p: float, max_iterations: int) -> Tensor:
    """1 < p < inf: the level at which the clipped step has the length 1, or a smaller level after few iterations."""
    q, limits = dual(p), torch.finfo(c.dtype)
    # Any scale near the largest entry works; the Euclidean norm is the fastest, other powers take much longer.
    size = norm(c, 2, 2) if p == 2.0 else c.abs().amax(-1)
    shrink = size.clamp_(min=limits.tiny).reciprocal_()
    c = c * shrink.unsqueeze(-1)
    # The p-th power of a step (k |c|)^(q - 1) is (k |c|)^q.
    scale = filling_scale(c, descent_slack(c, below.pow(p), above.pow(p)), q, max_iterations)
    level = scale * shrink if p <= 2.0 else (scale * shrink).pow_(q - 1.0)
    # If the ball contains the box, its multiplier is 0, which is the largest level.
    return level.masked_fill(scale.isinf(), limits.max).clamp_(max=limits.max)


def _dual_value(c: Tensor, level: Tensor, below: Tensor, above: Tensor, p: float) -> Tensor:
    """1 < p < inf: the dual value g(k) = <c, step> - (1 - ||step||_p^p) / (p k), in units of eps."""
    step = clipped_step(c, level, below, above, p)
    length = step.square().sum(-1) if p == 2.0 else step.abs().pow_(p).sum(-1)
    multiplier = (level if p <= 2.0 else level.pow(p - 1.0)).reciprocal()
    multiplier = multiplier.masked_fill(level == torch.finfo(level.dtype).max, 0.0)
    return step.mul_(c).sum(-1) - multiplier * (1.0 - length) / p
