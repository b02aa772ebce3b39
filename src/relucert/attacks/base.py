"""The interface of attacks: points lie in ball and box, change the decision, and have recomputed distances.

An attack searches for a point within a given ball (`FixedAttack`) or for the nearest point (`MinimalAttack`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.attacks._ascent import ascent, margin
from relucert.core.ball import Ball
from relucert.core.methods import Method
from relucert.core.norms import steepest
from relucert.core.results import Adversarial
from relucert.geometry.witness import Witnesses
from relucert.networks.network import Network
from relucert.networks.prediction import slack

NUDGES = tuple(10.0**k for k in range(-8, -1))  # relative to the distance of a point


@dataclass(frozen=True, kw_only=True)
class FixedAttack(Method):
    """An attack within given balls; `seed` is the seed of its random starts.

    `alike`: all examples use the same random draws, so that the result of an example is independent of the batch composition.
    """

    seed: int = 0
    alike: bool = False

    def attack(self, net: Network, x: Tensor, y: Tensor, ball: Ball, generator: torch.Generator) -> Adversarial:
        """Search every ball for a point of another class than y; examples with an adversarial point are skipped."""
        raise NotImplementedError(self.name)


@dataclass(frozen=True, kw_only=True)
class MinimalAttack(Method):
    """An attack that searches for the nearest points of another class."""

    def check_norm(self, p: float) -> None:
        """Raise InvalidInput if the attack does not support the norm; by default all norms are supported."""

    def search(self, witnesses: Witnesses, generator: torch.Generator) -> None:
        """Improve the nearest witnesses of inputs that are all classified as `witnesses.y`."""
        raise NotImplementedError(self.name)


def clearly_changed(logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
    """Which logits favour another class than y by twice the slack of `changed`, so that it wins in every batch composition."""
    return margin(logits, y) > 2 * slack(logits)


def settle(witnesses: Witnesses) -> None:
    """Move witnesses whose margin is within rounding error, until their class is changed in every batch composition.

    The points move along the gradient of the margin, by increasing fractions of their distance.
    """
    index = witnesses.distance.isfinite().nonzero()[:, 0]
    if len(index) == 0:
        return
    point, distance = witnesses.point.clone(), witnesses.distance
    for share in NUDGES:
        open_ = ~clearly_changed(witnesses.net(point[index]), witnesses.y[index])
        index = index[open_]
        if len(index) == 0:
            break
        x, z, y = witnesses.x[index], witnesses.point[index], witnesses.y[index]
        gradient, _, _ = ascent(witnesses.net, z, partial(margin, y=y))
        size = (share * distance[index]).reshape(-1, *(1,) * (x.dim() - 1))
        moved = z + size * (steepest(gradient, 2.0))
        point[index] = torch.minimum(torch.maximum(moved, witnesses.lower[index]), witnesses.upper[index])
    witnesses.point = point
