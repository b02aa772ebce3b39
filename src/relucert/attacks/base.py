"""What every attack promises: its points are in ball and box, change the decision, and their distance is recomputed.

Attacks promise one of two things: a point within a given ball (`FixedAttack`), or one as near as possible (`MinimalAttack`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.attacks.losses import ascent, margin
from relucert.core.ball import Ball
from relucert.core.methods import Method
from relucert.core.norms import steepest
from relucert.core.results import Adversarial
from relucert.core.rounding import cast_up, length_up
from relucert.geometry.witness import Witnesses
from relucert.networks.network import Network, in_double
from relucert.networks.prediction import class_changes, slack

NUDGES = tuple(10.0**k for k in range(-8, -1))  # of a point's distance


@dataclass(frozen=True, kw_only=True)
class FixedAttack(Method):
    """An attack within given balls; `seed` is that of its random starts.

    `alike`: all examples start from the same draws, so that what is found does not depend on who shares the batch.
    """

    seed: int = 0
    alike: bool = False

    def attack(self, net: Network, x: Tensor, y: Tensor, ball: Ball, generator: torch.Generator) -> Adversarial:
        """Search every ball for a point of another class than y; an example that is broken is left in peace."""
        raise NotImplementedError(self.name)


@dataclass(frozen=True, kw_only=True)
class MinimalAttack(Method):
    """An attack that looks for the nearest points of another class."""

    def check_norm(self, p: float) -> None:
        """Raise InvalidInput if the attack does not know the norm; by default it knows every one."""

    def search(self, found: Witnesses, generator: torch.Generator) -> None:
        """Improve the nearest points found so far, of inputs that are all classified as `found.y`."""
        raise NotImplementedError(self.name)


def clearly_changed(logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
    """Where another class than y wins by twice what `changed` asks for, so that it is still one in another batch."""
    return margin(logits, y) > 2 * slack(logits)


def settle(found: Witnesses) -> None:
    """Move the points that change the decision by no more than rounding a little, until they do so in any batch.

    They go along the gradient of the margin, by ever larger parts of their distance.
    """
    index = found.distance.isfinite().nonzero()[:, 0]
    if len(index) == 0:
        return
    point, distance = found.point.clone(), found.distance
    for share in NUDGES:
        open_ = ~clearly_changed(found.net(point[index]), found.y[index])
        index = index[open_]
        if len(index) == 0:
            break
        x, z, y = found.x[index], found.point[index], found.y[index]
        gradient, _, _ = ascent(found.net, z, partial(margin, y=y))
        size = (share * distance[index]).reshape(-1, *(1,) * (x.dim() - 1))
        moved = z + size * (steepest(gradient, 2.0))
        point[index] = torch.minimum(torch.maximum(moved, found.lower[index]), found.upper[index])
    found.point = point


@torch.no_grad()
def adversarial(
    net: Network,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"],
    points: Float[Tensor, " batch *input"],
    ball: Ball,
) -> Adversarial:
    """Run the points through the network again and keep those that hold; where y was not predicted, x itself is one.

    A failure has x itself as its point and an infinite distance; points that are not finite are failures. With eps = inf in
    the ball only the box limits the points.
    """
    already = net(x).argmax(1) != y
    kept = already.reshape(-1, *(1,) * (x.dim() - 1))
    points = torch.where(kept | ~points.isfinite(), x, points)
    success = already | (class_changes(net, in_double(net), points, y) & ball.contains(x, points))
    points = torch.where(success.reshape(kept.shape), points, x)
    # The distance as a number of the input's dtype that is not below the true one.
    distance = cast_up(length_up(x, points, ball.p), x.dtype)
    return Adversarial(points, success, torch.where(success, distance, torch.inf))
