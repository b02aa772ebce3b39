"""What every attack promises: its points are in ball and box, change the decision, and their distance is recomputed."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.norms import norm
from relucert.core.results import Adversarial
from relucert.networks.network import Network


def broken(logits: Float[Tensor, "batch classes"], y: Int[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
    """Where another class than y wins by more than rounding.

    The same input in another batch may come out some units in the last place apart, so a narrower win is none.
    """
    own = logits.gather(1, y[:, None])[:, 0]
    other = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    slack = 32 * torch.finfo(logits.dtype).eps * logits.abs().amax(1)
    return other - own > slack


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
    success = already | (broken(net(points), y) & ball.contains(x, points))
    points = torch.where(success.reshape(kept.shape), points, x)
    # The distance as a number of the input's dtype that is not below the true one.
    distance = norm(points.double() - x.double(), ball.p)
    rounded = distance.to(x.dtype)
    rounded = torch.where(
        rounded.double() < distance, torch.nextafter(rounded, torch.full_like(rounded, torch.inf)), rounded
    )
    return Adversarial(points, success, torch.where(success, rounded, torch.inf))
