"""Random points nearer than the best one: with few inputs they find the small pockets of another class that gradients miss."""

from __future__ import annotations

import torch

from relucert.attacks.segment import approach
from relucert.core.ball import Ball
from relucert.core.norms import norm
from relucert.geometry.witness import Witnesses
from relucert.networks.prediction import changed

NUMBERS = 4096  # inputs times points
MOST, LEAST = 256, 4  # points


def scatter(found: Witnesses, generator: torch.Generator) -> None:
    """Look at random points of the balls up to the best points, and search the way from x to the nearest that hold."""
    index = found.distance.isfinite().nonzero()[:, 0]
    if len(index) == 0:
        return
    x, y = found.x[index], found.y[index]
    count = max(LEAST, min(MOST, NUMBERS // x[0].numel()))
    ball = Ball(found.p, found.distance[index], (found.lower[index], found.upper[index]))
    points = ball.sample(x, generator, count)
    hit = changed(found.net(points.flatten(0, 1)), y.repeat_interleave(count)).reshape(-1, count)
    distance = norm(points - x[:, None], found.p, 2).masked_fill(~hit, torch.inf)
    nearest, place = distance.min(1)
    has = nearest.isfinite().nonzero()[:, 0]
    approach(found, index[has], points[has, place[has]])
