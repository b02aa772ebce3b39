"""The l_p distance of x to a hyperplane, with and without a box (Lemma 3.1 and appendix A.1 of the paper).

    D = min { ||d||_p : <w, d> = -m, lower <= x + d <= upper },   m = <w, x> + b

Without a box D = |m| / ||w||_q. With a box, for 1 < p < inf, d_i = -sign(m w_i) min((k |w_i|)^(q - 1), r_i), where r_i is the
slack to the box in the direction of the step and k is such that the step reaches the hyperplane; for p = inf all coordinates
move by the same length or to the box; for p = 1 the coordinates with the largest |w_i| move first. D is inf if no point of the
box lies on or beyond the hyperplane. D is also the distance to the half space beyond the hyperplane.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.linear_minimum import BUDGET, blocks
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
from relucert.core.rounding import cast_up, relative_rounding


@dataclass(frozen=True, kw_only=True)
class HyperplaneDistance:
    """The distances to hyperplanes: `distance` (batch, rows) within the box, `free` (batch, rows) without it.

    `point` (batch, rows, *input), if computed, are the nearest points: on the hyperplane up to rounding, and in the box
    exactly; x itself where the distance is inf.
    """

    distance: Float[Tensor, " batch rows"]
    free: Float[Tensor, " batch rows"]
    point: Float[Tensor, " batch rows *input"] | None = None


def free_distance(margin: Float[Tensor, " *rows"], row_norm: Float[Tensor, " *rows"]) -> Float[Tensor, " *rows"]:
    """Return |m| / ||w||_q, differentiable: 0 where m = 0, inf where w = 0 and m != 0.

    >>> free_distance(torch.tensor([6.0, -1.0, 0.0]), torch.tensor([2.0, 0.0, 0.0]))
    tensor([3., inf, 0.])
    """
    flat = row_norm == 0
    empty = torch.where(margin == 0, 0.0, math.inf).to(margin.dtype)
    return torch.where(flat, empty, margin.abs() / torch.where(flat, torch.ones_like(row_norm), row_norm))


def hyperplane_distance(
    x: Float[Tensor, " batch *input"],
    rows: Float[Tensor, " batch rows *input"],
    margin: Float[Tensor, " batch rows"],
    p: float | int,
    box: Any = None,
    *,
    max_iterations: int = ITERATIONS,
    budget: int = BUDGET,
) -> HyperplaneDistance:
    """Return the l_p distances of every x to the hyperplanes <w, z> + b = 0, given rows w and margins m = <w, x> + b.

    The box is that of a `Ball`: None, two numbers or two tensors. Distances, also `free`, are computed in float64 and rounded
    down: for the given numbers they are never above those of real arithmetic, and below them by rounding to the dtype of x and
    by the effect of a relative change of about 1e-12 in m. Few `max_iterations` only make them smaller. A zero row has the
    distance inf, or 0 if m is 0. Temporaries use at most `budget` bytes, or as much as one row needs.

    >>> x, rows, margin = torch.tensor([[0.0, 0.5]]), torch.tensor([[[4.0, 3.0]]]), torch.tensor([[1.5]])
    >>> nearest = hyperplane_distance(x, rows, margin, 2, box=(0, 1))
    >>> nearest.free, nearest.distance
    (tensor([[0.3000]]), tensor([[0.5000]]))
    """
    return _Hyperplanes(x, rows, margin, p, box).solve(max_iterations, budget, points=False)


def hyperplane_projection(
    x: Float[Tensor, " batch *input"],
    rows: Float[Tensor, " batch rows *input"],
    margin: Float[Tensor, " batch rows"],
    p: float | int,
    box: Any = None,
    *,
    max_iterations: int = ITERATIONS,
    budget: int = BUDGET,
) -> HyperplaneDistance:
    """Return the distances of `hyperplane_distance` together with the nearest points.

    >>> x, rows, margin = torch.tensor([[0.0, 0.5]]), torch.tensor([[[4.0, 3.0]]]), torch.tensor([[1.5]])
    >>> hyperplane_projection(x, rows, margin, 2, box=(0, 1)).point
    tensor([[[0., 0.]]])
    """
    return _Hyperplanes(x, rows, margin, p, box).solve(max_iterations, budget, points=True)


@dataclass(frozen=True)
class _Hyperplanes:
    """Hyperplanes given by rows and margins at x, a norm and a box."""

    x: Tensor
    rows: Tensor
    margin: Tensor
    p: float | int
    box: Any

    def solve(self, max_iterations: int, budget: int, points: bool) -> HyperplaneDistance:
        """The distances, and with `points` the nearest points."""
        x, rows, margin, box = self.x, self.rows, self.margin, self.box
        p = check_p(self.p)
        ball = Ball(p, math.inf, box)
        ball.check(x)
        if rows.shape[:1] + rows.shape[2:] != x.shape or margin.shape != rows.shape[:2]:
            raise InvalidInput(
                f"rows and margin must be (batch, rows, *input) and (batch, rows) for x {tuple(x.shape)}, "
                f"got {tuple(rows.shape)} and {tuple(margin.shape)}"
            )
        lower, upper = ball.bounds(x)
        centre, flat = x.detach().double().flatten(1), rows.detach().flatten(2)
        # A large finite slack replaces an infinite one, which would lead to NaN.
        below = (centre - lower.double().flatten(1)).clamp_(max=1e300)
        above = (upper.double().flatten(1) - centre).clamp_(max=1e300)
        distance, free = (x.new_empty(margin.shape, dtype=torch.float64) for _ in range(2))
        steps = torch.zeros_like(flat, memory_format=torch.contiguous_format) if points else None
        for place in blocks(flat, budget, torch.float64):
            # With c = sign(m) w the step to the hyperplane decreases <c, .> by |m|.
            m = margin.detach()[place].double()
            c = flat[place].double() * m.sign().unsqueeze(-1)
            free[place] = free_distance(m.abs(), norm(c, dual(p), 2))
            if box is None:
                distance[place] = free[place]
                step = steepest(c, p, 2).mul_(-free[place].masked_fill(free[place].isinf(), 0.0).unsqueeze(-1))
            else:
                step, reached = _shortest_step(
                    c, m.abs(), below[place[0], None], above[place[0], None], p, max_iterations
                )
                distance[place] = norm(step, p, 2).masked_fill_(~reached, math.inf)
            if steps is not None:
                steps[place] = step.mul_(distance[place].isfinite().unsqueeze(-1))
        factor = 1.0 - _allowance(flat.shape[-1], p)
        free = -cast_up(-free * factor, x.dtype)
        distance = torch.maximum(-cast_up(-distance * factor, x.dtype), free)
        nearest = None
        if steps is not None:
            nearest = (x.detach().unsqueeze(1).double() + steps.reshape(rows.shape)).to(x.dtype)
            nearest = torch.minimum(torch.maximum(nearest, lower.unsqueeze(1)), upper.unsqueeze(1))
        return HyperplaneDistance(distance=distance, free=free, point=nearest)


def _allowance(size: int, p: float) -> float:
    """A bound on the relative rounding error of all sums; the power q of a number has q times its relative error."""
    q = dual(p)
    return min(1.0, (4.0 if math.isinf(q) else 4.0 * q) * relative_rounding(size, torch.float64))


def _shortest_step(
    c: Tensor, need: Tensor, below: Tensor, above: Tensor, p: float, max_iterations: int
) -> tuple[Tensor, Tensor]:
    """The shortest step in [-below, above] with <c, step> = -need, never longer; and which rows can reach the need."""
    largest = c.abs().amax(-1)
    shrink = largest.clamp_(min=1e-300).reciprocal_()
    c = c * shrink.unsqueeze(-1)
    # Reduce the need by the rounding error, so that no step overshoots and no reachable row counts as unreachable.
    need = need * shrink * (1.0 - _allowance(c.shape[-1], p))
    slack = descent_slack(c, below, above)
    gains = slack.mul_(c.abs())
    reached = gains.sum(-1) >= need
    if p == 1.0:
        # A coordinate without slack must not count among the largest.
        size = c.abs().mul_(gains > 0)
        return greedy_step(c, critical_size(size, gains, need), below, above, need, gain=True), reached
    q = dual(p)
    # The gain |c| (k |c|)^(q - 1) of a coordinate, divided by the need, is (scale |c|)^q; caps above 1 are irrelevant.
    some = need.masked_fill(need == 0, 1.0)
    scale = filling_scale(c, gains.div_(some.unsqueeze(-1)).clamp_(max=2.0), q, max_iterations)
    if p <= 2.0:
        level = scale.pow(p) * some.pow(p - 1.0)
    else:
        level = scale.pow(q) * some
    level = level.clamp_(max=torch.finfo(level.dtype).max).masked_fill_(need == 0, 0.0)
    return clipped_step(c, level, below, above, p), reached
