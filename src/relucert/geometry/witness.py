"""Points just across a decision hyperplane, accepted only after the network was run on them.

The decision must change for the network as executed and for the network of real arithmetic (`networks.prediction`).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.norms import norm
from relucert.core.rounding import cast_up, length_up
from relucert.geometry.hyperplane import hyperplane_distance
from relucert.networks.network import Network, in_double
from relucert.networks.prediction import class_changes

#: Fine below 1e-4, the tolerance at which a distance in float32 is exact.
PUSHES = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 2e-5, 3e-5, 5e-5, 7e-5, 9e-5, 2e-4, 1e-3)


class Witnesses:
    """The nearest points found so far at which the network's own decision is another, with their recomputed distances."""

    def __init__(
        self, net: Network, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], p: float, box: Any,
        double: Network | None = None,
    ):  # fmt: skip
        self.net, self.x, self.y, self.p = net, x, y, p
        self.double = in_double(net) if double is None else double
        self.lower, self.upper = box
        self.point = torch.full_like(x, torch.nan)
        self.distance = x.new_full((len(x),), torch.inf)

    def offer(self, index: Int[Tensor, " rows"], points: Float[Tensor, " rows *input"]) -> Bool[Tensor, " rows"]:
        """Take points of some examples that change the decision and are nearer than what was known; say which do so."""
        if len(index) == 0:
            return torch.zeros(0, dtype=torch.bool, device=self.x.device)
        points = points.to(self.x.dtype)
        points = torch.minimum(torch.maximum(points, self.lower[index]), self.upper[index])
        flipped = class_changes(self.net, self.double, points, self.y[index])
        distance = cast_up(length_up(self.x[index], points, self.p), self.x.dtype)
        better = flipped & (distance < self.distance[index])
        kept = index[better]
        self.point[kept], self.distance[kept] = points[better], distance[better]
        return flipped

    def beyond(
        self,
        index: Int[Tensor, " rows"],
        rows: Float[Tensor, " rows *input"],
        margin: Float[Tensor, " rows"],
        pushes: tuple[float, ...] = PUSHES,
    ) -> None:
        """Look just behind decision hyperplanes <w, z> + b = 0 with the given margins <w, x> + b, one an example.

        The hyperplane is moved away by a small part of the margin, a larger one as long as the network does not notice.
        """
        open_ = torch.arange(len(index), device=index.device)
        for push in pushes:
            if len(open_) == 0:
                return
            at = index[open_]
            further = (margin[open_] * (1 + push))[:, None]
            box = (self.lower[at].double(), self.upper[at].double())
            found = hyperplane_distance(
                self.x[at].double(), rows[open_].double()[:, None], further.double(), self.p, box, point=True
            )
            assert found.point is not None
            reached = found.distance[:, 0].isfinite()
            flipped = self.offer(at, found.point[:, 0])
            open_ = open_[~(flipped & reached)]

    def around(
        self, index: Int[Tensor, " rows"], points: Float[Tensor, " rows *input"], rows: Float[Tensor, " rows *input"]
    ) -> None:
        """Look just behind points on decision hyperplanes with the given rows, along the rows."""
        open_ = torch.arange(len(index), device=index.device)
        scale = norm(points - self.x[index].double(), self.p)
        length = norm(rows, 2).clamp(min=torch.finfo(torch.float64).tiny)
        for push in PUSHES:
            if len(open_) == 0:
                return
            size = (push * scale[open_] / length[open_]).reshape(-1, *(1,) * (points.dim() - 1))
            flipped = self.offer(index[open_], points[open_] - size * rows[open_])
            open_ = open_[~flipped]
