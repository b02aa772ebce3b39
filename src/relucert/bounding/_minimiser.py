"""L-BFGS for many problems at once, each with its own history, its own curvature and its own length of step."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Value = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_HISTORY = 10
_TRIES = 6  # lengths of a step
_DECREASE = 1e-4  # of what the slope promises


@torch.no_grad()
def minimised(
    value: Value, start: Float[Tensor, " problems *shape"], steps: int, enough: float = 1e-5, until: float = math.inf
) -> Float[Tensor, " problems *shape"]:
    """Points from `start` downhill, after `steps` or where ten steps have gained less than `enough` of the value.

    At `until` (of `time.monotonic`) it ends where it is.

    `value(which, points)` gives values (n,) and gradients (n, *shape) of the problems with the numbers `which` (n,). A problem
    whose step can not be made short enough is left where it is.

    >>> weights = torch.tensor([[1.0, 10.0], [3.0, 0.5]])
    >>> def bowl(which: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    ...     return (weights[which] * (z - 1) ** 2).sum(1), 2 * weights[which] * (z - 1)
    >>> minimised(bowl, torch.zeros(2, 2), 30).round(decimals=3)
    tensor([[1., 1.],
            [1., 1.]])
    """
    place = start.flatten(1).clone()
    shape = start.shape[1:]

    def at(which: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        found, slope = value(which, points.reshape(-1, *shape))
        return found, slope.flatten(1)

    every = torch.arange(len(place), device=place.device)
    best, gradient = at(every, place)
    history: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=_HISTORY)
    active, before = torch.ones_like(best, dtype=torch.bool), best
    for step in range(steps):
        if time.monotonic() >= until:
            break
        way = _direction(gradient, history)
        slope = (way * gradient).sum(1)
        uphill = ~(slope < 0)
        way = torch.where(uphill[:, None], -gradient, way)
        slope = torch.where(uphill, -gradient.square().sum(1), slope)
        length = torch.ones_like(best)
        if not history:
            length = 1.0 / gradient.norm(dim=1).clamp(min=1e-30)
        moved, now, next_gradient = place.clone(), best.clone(), gradient.clone()
        trying = active.nonzero()[:, 0]
        for _ in range(_TRIES):
            points = place[trying] + length[trying, None] * way[trying]
            found, slopes = at(trying, points)
            good = found <= best[trying] + _DECREASE * length[trying] * slope[trying]
            done = trying[good]
            moved[done], now[done], next_gradient[done] = points[good], found[good], slopes[good]
            length[trying[~good]] *= 0.4
            trying = trying[~good]
            if len(trying) == 0:
                break
        active[trying] = False
        change, turn = moved - place, next_gradient - gradient
        curvature = (change * turn).sum(1)
        # Where the curvature is not positive the pair says nothing, and is passed over.
        inverse = torch.where(curvature > 1e-10 * turn.square().sum(1), 1.0 / curvature, 0.0)
        history.append((change, turn, inverse))
        place, best, gradient = moved, now, next_gradient
        if step % 10 == 9:
            active &= before - best > enough * best.abs().clamp(min=1e-3)
            before = best
        if not bool(active.any()):
            break
    return place.reshape(start.shape)


def _direction(gradient: Tensor, history: deque[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Minus the inverse Hessian of the history times the gradient, by the two loops of L-BFGS."""
    way = -gradient
    shares = []
    for change, turn, inverse in reversed(history):
        share = inverse * (change * way).sum(1)
        way = way - share[:, None] * turn
        shares.append(share)
    if history:
        change, turn, inverse = history[-1]
        size = turn.square().sum(1) * inverse
        way = way / torch.where(size > 0, size, 1.0)[:, None]
    for (change, turn, inverse), share in zip(history, reversed(shares), strict=True):
        way = way + (share - inverse * (turn * way).sum(1))[:, None] * change
    return way
