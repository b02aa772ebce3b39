"""DDN: decoupled direction and norm of a perturbation (Rony et al. 2019), for l2.

A step along the normalised gradient of the cross-entropy gives the direction. The norm is set separately: it is multiplied by
`1 - gamma` if the decision has changed and by `1 + gamma` if not. The step size decays by a cosine from `rate` to `rate` / 100.
With `targets` the loss is f_t - f_y instead, for each of the nearest classes t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.attacks._ascent import ascent, cross_entropy
from relucert.attacks._targets import class_distances, lead, nearest_classes, repeated
from relucert.attacks.base import MinimalAttack
from relucert.core.errors import InvalidInput
from relucert.core.norms import norm
from relucert.geometry.witness import Nearest, Witnesses


@dataclass(frozen=True, kw_only=True)
class DDN(MinimalAttack):
    """DDN with `steps` steps, factors `1 +- gamma` of the norm, the first norm `start` and the first step `rate * start`.

    `start`: None is the distance of x to the nearest decision hyperplane of its region.

    `targets`: the number of target classes, each attacked separately, the nearest first; 0 is the untargeted attack.
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

    def search(self, witnesses: Witnesses, generator: torch.Generator) -> None:
        """Run all steps, and take the nearest points on the way."""
        many, loss = 1, partial(cross_entropy, y=witnesses.y)
        if self.targets:
            targets = nearest_classes(witnesses, self.targets)
            many = targets.shape[1]
            loss = partial(lead, y=repeated(witnesses.y, many), target=targets.T.reshape(-1))
        x, y, lower, upper = (
            repeated(values, many) for values in (witnesses.x, witnesses.y, witnesses.lower, witnesses.upper)
        )
        seen = Nearest(x, y, witnesses.p)
        shape = (-1, *(1,) * (x.dim() - 1))
        first = repeated(self._start(witnesses), many)
        z, length = x, first
        for step in range(self.steps):
            gradient, _, logits = ascent(witnesses.net, z, loss)
            hit = seen.see(z, logits)
            rate = self.rate * first * (0.01 + 0.99 * (1 + math.cos(math.pi * step / self.steps)) / 2)
            offset = z - x + gradient * (rate / _positive(norm(gradient, 2))).reshape(shape)
            length = torch.where(hit, (1 - self.gamma) * length, (1 + self.gamma) * length)
            offset = offset * (length / _positive(norm(offset, 2))).reshape(shape)
            z = torch.minimum(torch.maximum(x + offset, lower), upper)
        seen.see(z, witnesses.net(z))
        witnesses.take(seen)

    def _start(self, witnesses: Witnesses) -> Float[Tensor, " batch"]:
        """The first norm of every example."""
        if self.start is not None:
            return torch.full_like(witnesses.distance, self.start)
        nearest = class_distances(witnesses).amin(1)
        # If no class is near, any finite first norm serves.
        width = torch.where(
            witnesses.upper.isfinite() & witnesses.lower.isfinite(), witnesses.upper - witnesses.lower, 1.0
        )
        return torch.minimum(torch.where(nearest > 0, nearest, 1.0), norm(width, 2).clamp(min=1e-12))


def _positive(length: Tensor) -> Tensor:
    return length.masked_fill(length == 0, 1.0)
