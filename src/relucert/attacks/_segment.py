"""Line search: the nearest change of decision on the segment from x to a candidate."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.attacks._ascent import margin
from relucert.core.norms import norm
from relucert.geometry.witness import Witnesses
from relucert.networks.prediction import changed

BEYOND = 1.05  # the segment may extend this factor beyond the candidate


def approach(
    witnesses: Witnesses,
    index: Int[Tensor, " rows"],
    points: Float[Tensor, " rows *input"],
    steps: int = 8,
    beyond: float = BEYOND,
) -> None:
    """Offer the nearest points of another class on the rays from x through the given points, one for each example.

    A ray ends at `beyond` times the distance of the point, or before the distance of the known witness. Bisection and
    interpolation of the margin alternate: `steps` runs of the network.
    """
    x, y = witnesses.x[index], witnesses.y[index]
    offset = points - x
    length = norm(offset, witnesses.p)
    far = torch.minimum(length.new_tensor(beyond), witnesses.distance[index] * (1 - 1e-6) / length.clamp(min=1e-30))
    keep = ((far > 0) & (length > 0) & length.isfinite()).nonzero()[:, 0]
    index, x, y, offset, far = index[keep], x[keep], y[keep], offset[keep], far[keep]

    def at(share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = x + share.reshape(-1, *(1,) * (x.dim() - 1)) * offset
        z = torch.minimum(torch.maximum(z, witnesses.lower[index]), witnesses.upper[index])
        logits = witnesses.net(z)
        return z, margin(logits, y), changed(logits, y)

    if len(index) == 0:
        return
    best, above, hit = at(far)
    keep = hit.nonzero()[:, 0]
    index, x, y, offset, far, best, above = (values[keep] for values in (index, x, y, offset, far, best, above))
    if len(index) == 0:
        return
    near, below = torch.zeros_like(far), margin(witnesses.net(x), y)
    for step in range(steps):
        share = below.abs() / (below.abs() + above.abs()).clamp(min=1e-30)
        # Interpolation usually stops just before the change of decision: aim slightly beyond.
        share = (1.02 * share).clamp(0.02, 0.98) if step % 2 == 0 else torch.full_like(share, 0.5)
        middle = near + share * (far - near)
        z, value, hit = at(middle)
        near, far = torch.where(hit, near, middle), torch.where(hit, middle, far)
        below, above = torch.where(hit, below, value), torch.where(hit, value, above)
        best = torch.where(hit.reshape(-1, *(1,) * (x.dim() - 1)), z, best)
    witnesses.offer(index, best)
