"""The nearest adversarial point of every input: candidates judged by logits at hand, and witnesses that are verified.

`Nearest` keeps, for every row, the nearest valid point so far. `Witnesses` accepts a point only after running the network on
it again: the decision must change for the network as executed and for the network of real arithmetic
(`networks.prediction`), and the distance is recomputed and rounded up.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.norms import norm
from relucert.core.rounding import cast_up, length_up
from relucert.geometry.hyperplane import hyperplane_projection
from relucert.networks.network import Network, in_double
from relucert.networks.prediction import changed, class_changes

#: Relative steps beyond a hyperplane; fine below 1e-4, the tolerance at which a distance in float32 is exact.
PUSHES = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 2e-5, 3e-5, 5e-5, 7e-5, 9e-5, 2e-4, 1e-3)


class Nearest:
    """For every row the nearest point so far whose class is not y, and its distance in l_p; NaN and inf without a point.

    An attack that aims at several targets has several rows for each example.
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
        """Keep points judged by their logits, of all rows or of the rows `index`; return which points change the decision.

        The points are not verified: give them to `Witnesses.take`.
        """
        index = torch.arange(len(self.x), device=z.device) if index is None else index
        hit = changed(logits, self.y[index])
        self._keep(index, z, norm(z - self.x[index], self.p), hit)
        return hit

    def _keep(self, index: Tensor, points: Tensor, distance: Tensor, valid: Tensor) -> None:
        """Replace the points of the rows `index` (each at most once) by valid points that are nearer."""
        better = valid & (distance < self.distance[index])
        kept = index[better]
        self.point[kept], self.distance[kept] = points[better], distance[better]


class Witnesses(Nearest):
    """The nearest verified adversarial points in the box of a batch of inputs, with distances that are rounded up."""

    def __init__(
        self, net: Network, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], p: float, box: Any,
        double: Network | None = None,
    ):  # fmt: skip
        super().__init__(x, y, p)
        self.net = net
        self.double = in_double(net) if double is None else double
        self.lower, self.upper = box

    def offer(self, index: Int[Tensor, " rows"], points: Float[Tensor, " rows *input"]) -> Bool[Tensor, " rows"]:
        """Verify points of the examples `index` and keep those that are nearer; return which change the decision.

        Points are clipped to the box first.
        """
        if len(index) == 0:
            return torch.zeros(0, dtype=torch.bool, device=self.x.device)
        points = points.to(self.x.dtype)
        points = torch.minimum(torch.maximum(points, self.lower[index]), self.upper[index])
        flipped = class_changes(self.net, self.double, points, self.y[index])
        self._keep(index, points, cast_up(length_up(self.x[index], points, self.p), self.x.dtype), flipped)
        return flipped

    def take(self, candidates: Nearest) -> None:
        """Offer the candidates that are nearer; their rows are the examples in order, repeated once for each target."""
        every = torch.arange(len(self.x), device=self.x.device)
        pairs = zip(candidates.point.split(len(every)), candidates.distance.split(len(every)), strict=True)
        for point, distance in pairs:
            nearer = distance < self.distance
            self.offer(every[nearer], point[nearer])

    def beyond(
        self,
        index: Int[Tensor, " rows"],
        rows: Float[Tensor, " rows *input"],
        margin: Float[Tensor, " rows"],
        pushes: tuple[float, ...] = PUSHES,
    ) -> None:
        """Offer points just beyond decision hyperplanes <w, z> + b = 0 with rows w and margins <w, x> + b, one an example.

        The margin grows by the relative steps `pushes`, one after the other, until the decision changes.
        """
        open_ = torch.arange(len(index), device=index.device)
        for push in pushes:
            if len(open_) == 0:
                return
            at = index[open_]
            further = (margin[open_] * (1 + push))[:, None]
            box = (self.lower[at].double(), self.upper[at].double())
            beyond = hyperplane_projection(
                self.x[at].double(), rows[open_].double()[:, None], further.double(), self.p, box
            )
            assert beyond.point is not None
            reached = beyond.distance[:, 0].isfinite()
            flipped = self.offer(at, beyond.point[:, 0])
            open_ = open_[~(flipped & reached)]

    def around(
        self,
        index: Int[Tensor, " rows"],
        points: Float[Tensor, " rows *input"],
        rows: Float[Tensor, " rows *input"],
        pushes: tuple[float, ...] = PUSHES,
    ) -> None:
        """Offer points moved along -w from points on decision hyperplanes with rows w, by the relative steps `pushes`."""
        open_ = torch.arange(len(index), device=index.device)
        scale = norm(points - self.x[index].double(), self.p)
        length = norm(rows, 2).clamp(min=torch.finfo(torch.float64).tiny)
        for push in pushes:
            if len(open_) == 0:
                return
            size = (push * scale[open_] / length[open_]).reshape(-1, *(1,) * (points.dim() - 1))
            flipped = self.offer(index[open_], points[open_] - size * rows[open_])
            open_ = open_[~flipped]
