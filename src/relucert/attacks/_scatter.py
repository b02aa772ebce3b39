"""Random points nearer than the best one: in low dimension they find small regions of another class that gradients miss."""

from __future__ import annotations

import torch

from relucert.attacks._segment import approach
from relucert.core.ball import Ball
from relucert.core.norms import norm
from relucert.geometry.witness import Witnesses
from relucert.networks.prediction import changed

NUMBERS = 4096  # input dimension times number of points
MOST, LEAST = 256, 4  # limits of the number of points


def scatter(witnesses: Witnesses, generator: torch.Generator) -> None:
    """Sample the balls that end at the best points, and search the segment from x to the nearest adversarial sample."""
    index = witnesses.distance.isfinite().nonzero()[:, 0]
    if len(index) == 0:
        return
    x, y = witnesses.x[index], witnesses.y[index]
    count = max(LEAST, min(MOST, NUMBERS // x[0].numel()))
    ball = Ball(witnesses.p, witnesses.distance[index], (witnesses.lower[index], witnesses.upper[index]))
    points = ball.sample(x, generator, count)
    hit = changed(witnesses.net(points.flatten(0, 1)), y.repeat_interleave(count)).reshape(-1, count)
    distance = norm(points - x[:, None], witnesses.p, 2).masked_fill(~hit, torch.inf)
    nearest, place = distance.min(1)
    has = nearest.isfinite().nonzero()[:, 0]
    approach(witnesses, index[has], points[has, place[has]])
