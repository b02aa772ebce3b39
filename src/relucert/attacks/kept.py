"""The nearest points that an attack has come across, judged by the logits that it has at hand."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.norms import norm
from relucert.geometry.witness import Witnesses
from relucert.networks.prediction import changed


class Kept:
    """For every row the nearest point seen that changes the decision; an example may have several rows.

    Nothing is run here: `hand_over` offers the points to the witnesses, which run the network on them again.
    """

    def __init__(self, x: Float[Tensor, " rows *input"], y: Int[Tensor, " rows"], p: float):
        self.x, self.y, self.p = x, y, p
        self.point = torch.full_like(x, torch.nan)
        self.distance = x.new_full((len(x),), torch.inf)

    def see(
        self,
        z: Float[Tensor, " seen *input"],
        logits: Float[Tensor, " seen classes"],
        index: Int[Tensor, " seen"] | None = None,
    ) -> Bool[Tensor, " seen"]:
        """Keep what is nearer than before, of all rows or of some (each at most once); say which change the decision."""
        index = torch.arange(len(self.x), device=z.device) if index is None else index
        hit = changed(logits, self.y[index])
        distance = norm(z - self.x[index], self.p)
        better = hit & (distance < self.distance[index])
        kept = index[better]
        self.point[kept], self.distance[kept] = z[better], distance[better]
        return hit

    def hand_over(self, found: Witnesses) -> None:
        """Offer the points to their examples; rows are those of the examples in order, once or several times over."""
        every = torch.arange(len(found.x), device=self.x.device)
        for point, distance in zip(self.point.split(len(every)), self.distance.split(len(every)), strict=True):
            has = distance.isfinite()
            found.offer(every[has], point[has])
