"""Some point of another class, however far, for the examples of which none is known yet."""

from __future__ import annotations

import math

import torch

from relucert.attacks.apgd import APGD
from relucert.attacks.segment import approach
from relucert.core.ball import Ball
from relucert.geometry.witness import Witnesses

FAR = 10.0  # where the box has no sides, in pixels


def rescue(found: Witnesses, generator: torch.Generator, steps: int = 20) -> None:
    """Climb through the whole box, and search the way back to x."""
    index = found.distance.isinf().nonzero()[:, 0]
    if len(index) == 0:
        return
    x, y = found.x[index], found.y[index]
    lower, upper = found.lower[index], found.upper[index]
    box = (torch.maximum(lower, x - FAR), torch.minimum(upper, x + FAR))
    reached = APGD(steps=steps).attack(found.net, x, y, Ball(math.inf, math.inf, box), generator)
    falsified = reached.success
    found.offer(index[falsified], reached.x[falsified])
    approach(found, index[falsified], reached.x[falsified], beyond=1.0)
