"""The nearest change of decision on the way from x to a point: where a candidate becomes the best that it can be."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.attacks.losses import margin
from relucert.core.norms import norm
from relucert.geometry.witness import Witnesses
from relucert.networks.prediction import changed

BEYOND = 1.05  # how much farther than the candidate may be looked, if it was not far enough


def approach(
    found: Witnesses,
    index: Int[Tensor, " rows"],
    points: Float[Tensor, " rows *input"],
    steps: int = 8,
    beyond: float = BEYOND,
) -> None:
    """Offer the nearest points of another class on the rays from x through the given points, one an example.

    The far end is the point itself or up to `beyond` times as far, but nearer than what is known. Between it and x the
    margin is halved and interpolated in turn: `steps` runs of the network.
    """
    x, y = found.x[index], found.y[index]
    offset = points - x
    length = norm(offset, found.p)
    far = torch.minimum(length.new_tensor(beyond), found.distance[index] * (1 - 1e-6) / length.clamp(min=1e-30))
    keep = ((far > 0) & (length > 0) & length.isfinite()).nonzero()[:, 0]
    index, x, y, offset, far = index[keep], x[keep], y[keep], offset[keep], far[keep]

    def at(share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = x + share.reshape(-1, *(1,) * (x.dim() - 1)) * offset
        z = torch.minimum(torch.maximum(z, found.lower[index]), found.upper[index])
        logits = found.net(z)
        return z, margin(logits, y), changed(logits, y)

    if len(index) == 0:
        return
    best, above, hit = at(far)
    keep = hit.nonzero()[:, 0]
    index, x, y, offset, far, best, above = (part[keep] for part in (index, x, y, offset, far, best, above))
    if len(index) == 0:
        return
    near, below = torch.zeros_like(far), margin(found.net(x), y)
    for step in range(steps):
        share = below.abs() / (below.abs() + above.abs()).clamp(min=1e-30)
        # The interpolated place is most often just short of the change: aim a little behind it.
        share = (1.02 * share).clamp(0.02, 0.98) if step % 2 == 0 else torch.full_like(share, 0.5)
        middle = near + share * (far - near)
        z, value, hit = at(middle)
        near, far = torch.where(hit, near, middle), torch.where(hit, middle, far)
        below, above = torch.where(hit, below, value), torch.where(hit, value, above)
        best = torch.where(hit.reshape(-1, *(1,) * (x.dim() - 1)), z, best)
    found.offer(index, best)
