"""Any point of another class, at any distance, for examples without a witness."""

from __future__ import annotations

import math

import torch

from relucert.attacks._segment import approach
from relucert.attacks.apgd import APGD
from relucert.core.ball import Ball
from relucert.geometry.witness import Witnesses

FAR = 10.0  # pixels, for coordinates without a box


def rescue(witnesses: Witnesses, generator: torch.Generator, steps: int = 20) -> None:
    """Run APGD in the whole box, and search the segment back to x."""
    index = witnesses.distance.isinf().nonzero()[:, 0]
    if len(index) == 0:
        return
    x, y = witnesses.x[index], witnesses.y[index]
    lower, upper = witnesses.lower[index], witnesses.upper[index]
    box = (torch.maximum(lower, x - FAR), torch.minimum(upper, x + FAR))
    reached = APGD(steps=steps).attack(witnesses.net, x, y, Ball(math.inf, math.inf, box), generator)
    falsified = reached.success
    witnesses.offer(index[falsified], reached.x[falsified])
    approach(witnesses, index[falsified], reached.x[falsified], beyond=1.0)
