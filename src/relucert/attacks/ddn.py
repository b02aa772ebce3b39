"""DDN: the direction and the norm of a perturbation, decoupled (Rony et al. 2019), for l2.

A step along the normalised gradient of the cross-entropy gives the direction; the norm is set apart from it, `1 - gamma` times
what it was where the decision has changed and `1 + gamma` times where it has not. Steps shrink by a cosine from `rate` to a
hundredth of it. With `targets` the gradient is that of a class's lead over y instead, for some of the nearest classes each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.attacks.base import MinimalAttack
from relucert.attacks.kept import Kept
from relucert.attacks.losses import ascent, cross_entropy
from relucert.attacks.targets import class_distances, lead, nearest_classes, repeated
from relucert.core.errors import InvalidInput
from relucert.core.norms import norm
from relucert.geometry.witness import Witnesses


@dataclass(frozen=True, kw_only=True)
class DDN(MinimalAttack):
    """DDN with a number of steps, factors `1 +- gamma` of the norm, the first norm `start`, the first step `rate` times that.

    `start`: None takes the distance of x to the nearest decision hyperplane of its own region.

    `targets`: the number of classes that are aimed at one by one, the nearest first; 0 aims at none.
    """

    name = "ddn"
    steps: int = 100
    gamma: float = 0.05
    start: float | None = None
    rate: float = 1.0
    targets: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, holds, rule in [
            ("steps", self.steps >= 1, "at least 1"),
            ("gamma", 0 < self.gamma < 1, "between 0 and 1"),
            ("start", self.start is None or 0 < self.start < math.inf, "positive"),
            ("targets", self.targets >= 0, "at least 0"),
            ("rate", 0 < self.rate < math.inf, "positive"),
        ]:
            if not holds:
                raise InvalidInput(f"{name} of ddn must be {rule}, got {getattr(self, name)}")

    def check_norm(self, p: float) -> None:
        """Raise InvalidInput unless p is 2."""
        if p != 2.0:
            raise InvalidInput(f"p of ddn must be 2, got {p:g}")

    def search(self, found: Witnesses, generator: torch.Generator) -> None:
        """Walk for all steps, and keep the nearest points that were passed."""
        many, loss = 1, partial(cross_entropy, y=found.y)
        if self.targets:
            targets = nearest_classes(found, self.targets)
            many = targets.shape[1]
            loss = partial(lead, y=repeated(found.y, many), target=targets.T.reshape(-1))
        x, y, lower, upper = (repeated(part, many) for part in (found.x, found.y, found.lower, found.upper))
        kept = Kept(x, y, found.p)
        shape = (-1, *(1,) * (x.dim() - 1))
        first = repeated(self._start(found), many)
        z, length = x, first
        for step in range(self.steps):
            gradient, _, logits = ascent(found.net, z, loss)
            hit = kept.see(z, logits)
            rate = self.rate * first * (0.01 + 0.99 * (1 + math.cos(math.pi * step / self.steps)) / 2)
            offset = z - x + gradient * (rate / _positive(norm(gradient, 2))).reshape(shape)
            length = torch.where(hit, (1 - self.gamma) * length, (1 + self.gamma) * length)
            offset = offset * (length / _positive(norm(offset, 2))).reshape(shape)
            z = torch.minimum(torch.maximum(x + offset, lower), upper)
        kept.see(z, found.net(z))
        kept.hand_over(found)

    def _start(self, found: Witnesses) -> Float[Tensor, " batch"]:
        """The first norm of every example."""
        if self.start is not None:
            return torch.full_like(found.distance, self.start)
        nearest = class_distances(found).amin(1)
        # Where no class is near the first norm hardly matters, but it must be a number.
        room = torch.where(found.upper.isfinite() & found.lower.isfinite(), found.upper - found.lower, 1.0)
        return torch.minimum(torch.where(nearest > 0, nearest, 1.0), norm(room, 2).clamp(min=1e-12))


def _positive(length: Tensor) -> Tensor:
    return length.masked_fill(length == 0, 1.0)
