"""What every attack promises: its points are in ball and box, change the decision, and their distance is recomputed."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.norms import norm
from relucert.core.results import Adversarial
from relucert.core.rounding import cast_up
from relucert.networks.network import Network
from relucert.networks.prediction import changed


@torch.no_grad()
def adversarial(
    net: Network,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"],
    points: Float[Tensor, " batch *input"],
    ball: Ball,
) -> Adversarial:
    """Run the points through the network again and keep those that hold; where y was not predicted, x itself is one.

    A failure has x itself as its point and an infinite distance.
    """
    already = net(x).argmax(1) != y
    kept = already.reshape(-1, *(1,) * (x.dim() - 1))
    points = torch.where(kept, x, points)
    success = already | (changed(net(points), y) & ball.contains(x, points))
    points = torch.where(success.reshape(kept.shape), points, x)
    # The distance as a number of the input's dtype that is not below the true one.
    distance = cast_up(norm(points.double() - x.double(), ball.p), x.dtype)
    return Adversarial(points, success, torch.where(success, distance, torch.inf))
