"""Projected gradient ascent: the losses that attacks maximise, their gradients, and the projection onto ball and box.

Losses are functions of the logits that grow towards a change of decision:

    ce        log sum_(s != y) exp f_s - f_y
    dlr       (max_(s != y) f_s - f_y) / (f_(1) - f_(3))
    targeted  (f_t - f_y) / (f_(1) - (f_(3) + f_(4)) / 2)

where f_(i) is the i-th largest logit. `ce` is an increasing function of the cross-entropy: its gradient has the same direction,
but does not vanish in float32 when the softmax saturates. The other two (Croce and Hein 2020) are invariant to scaling and
shifting of the logits. `Within` projects in the loop; everything that depends only on x is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.norms import norm
from relucert.core.offsets import projected_offset
from relucert.networks.network import Network

Loss = Callable[[Tensor], Tensor]


def margin(logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """max_(s != y) f_s - f_y, positive if the predicted class is not y."""
    own = logits.gather(1, y[:, None])[:, 0]
    return logits.scatter(1, y[:, None], -torch.inf).amax(1) - own


def cross_entropy(logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """log sum_(s != y) exp f_s - f_y, whose gradient has the direction of that of the cross-entropy."""
    own = logits.gather(1, y[:, None])[:, 0]
    return logits.scatter(1, y[:, None], -torch.inf).logsumexp(1) - own


def ratio(
    logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"], target: Int[Tensor, " batch"] | None = None
) -> Float[Tensor, " batch"]:
    """The difference of logits ratio (DLR), towards the best other class or a given target.

    With three classes the smallest logit replaces the missing f_(4); with two classes there is no denominator.
    """
    classes = logits.shape[1]
    if target is None:
        won = margin(logits, y)
    else:
        won = (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None]))[:, 0]
    if classes < 3:
        return won
    ranked = logits.sort(1, descending=True).values
    third = ranked[:, 2] if target is None else (ranked[:, 2] + ranked[:, min(3, classes - 1)]) / 2
    spread = ranked[:, 0] - third
    # Equal logits have the spread 0: avoid a division by zero.
    tiny = 1e-12 * logits.detach().abs().amax(1) + torch.finfo(logits.dtype).tiny
    return won / torch.maximum(spread, tiny)


def ascent(
    net: Network, z: Float[Tensor, " batch *input"], loss: Loss
) -> tuple[Float[Tensor, " batch *input"], Float[Tensor, " batch"], Float[Tensor, " batch classes"]]:
    """The gradients (batch, *input) of the losses of all examples, the losses and the logits."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        logits = net(z)
        values = loss(logits)
        (gradient,) = torch.autograd.grad(values.sum(), z)
    return gradient, values.detach(), logits.detach()


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
