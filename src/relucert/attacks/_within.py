"""Projection onto ball and box inside the loop of an attack; everything that depends only on x is computed once."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.norms import norm
from relucert.core.projection import projected_offset


class Within:
    """Balls around the inputs of a batch, intersected with a box, in offsets `(batch, size)` from their centres.

    `eps` is at most the distance of the farthest corner of the box. Projections are exact up to rounding: after the loop,
    `Ball.project` rounds the points into the set.
    """

    def __init__(self, x: Float[Tensor, " batch *input"], ball: Ball):
        self.p, self.centre = ball.p, x.flatten(1)
        self.below, self.above = (slack.flatten(1) for slack in ball.slacks(x))
        corner = norm(torch.maximum(self.below, self.above), self.p)
        self.eps = torch.minimum(ball.radii(x), corner)

    def restrict(self, index: Tensor) -> Within:
        """The balls of some of the examples."""
        part = object.__new__(Within)
        part.p = self.p
        for name in ("centre", "eps", "below", "above"):
            setattr(part, name, getattr(self, name)[index])
        return part

    def offset(self, z: Float[Tensor, " batch *input"]) -> Float[Tensor, " batch size"]:
        """The offsets z - x of points."""
        return z.flatten(1) - self.centre

    def back(self, offset: Float[Tensor, " batch size"]) -> Float[Tensor, " batch size"]:
        """The Euclidean projection of an offset onto the set."""
        if math.isinf(self.p):
            cube = torch.minimum(torch.maximum(offset, -self.eps[:, None]), self.eps[:, None])
            return torch.minimum(torch.maximum(cube, -self.below), self.above)
        sizes = (offset, self.eps, self.below, self.above)
        v, eps, below, above = (size.double() for size in sizes)
        return projected_offset(v, self.p, eps, below, above).to(offset.dtype)

    def useful(
        self, offset: Float[Tensor, " batch size"], direction: Float[Tensor, " batch size"]
    ) -> Float[Tensor, " batch size"]:
        """A direction with zeros at the coordinates that point out of the box."""
        stuck = ((offset >= self.above) & (direction > 0)) | ((offset <= -self.below) & (direction < 0))
        return direction.masked_fill(stuck, 0.0)
