"""PGD: projected gradient ascent on the cross-entropy inside a ball (Madry et al. 2018), in every norm.

From a random point of the ball, repeat: take a step of length `2 eps / steps` in the norm of the ball along the direction of
steepest ascent of the cross-entropy, and project onto ball and box, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.attacks._ascent import Within, ascent, cross_entropy
from relucert.attacks.base import FixedAttack
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.norms import steepest
from relucert.core.results import Adversarial
from relucert.networks.network import Network
from relucert.networks.prediction import adversarial, changed


@dataclass(frozen=True, kw_only=True)
class PGD(FixedAttack):
    """PGD with `steps` steps of length `step * eps` (by default 2 / steps) from each of `restarts` random points."""

    name = "pgd"
    steps: int = 40
    restarts: int = 1
    step: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, holds, rule in [
            ("steps", self.steps >= 1, "at least 1"),
            ("restarts", self.restarts >= 1, "at least 1"),
            ("step", self.step is None or 0 < self.step < float("inf"), "positive"),
        ]:
            if not holds:
                raise InvalidInput(f"{name} of pgd must be {rule}, got {getattr(self, name)}")

    @property
    def share(self) -> float:
        """The length of a step in units of eps."""
        return 2 / self.steps if self.step is None else self.step

    def attack(self, net: Network, x: Tensor, y: Tensor, ball: Ball, generator: torch.Generator) -> Adversarial:
        """Search every ball for a point of another class; examples with an adversarial point are skipped."""
        best = x.clone()
        open_ = torch.arange(len(x), device=x.device)
        for _ in range(self.restarts):
            if len(open_) == 0:
                break
            points, done = _search(net, x[open_], y[open_], ball.restrict(open_), self, generator)
            best[open_[done]] = points[done]
            open_ = open_[~done]
        return adversarial(net, x, y, best, ball)


def ascend(
    net: Network, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], ball: Ball, method: PGD,
    generator: torch.Generator, start: Float[Tensor, " batch *input"] | None = None,
) -> Float[Tensor, " batch *input"]:  # fmt: skip
    """The points after one run of PGD with all steps for every example, for adversarial training; by default from random
    starts.
    """
    z, steps = ball.sample(x, generator) if start is None else start, _Steps(Within(x, ball), method.share)
    for _ in range(method.steps):
        gradient, _, _ = ascent(net, z, partial(cross_entropy, y=y))
        z = steps.step(z, gradient)
    return ball.project(x, z)


def ascend_in_cube(
    net: Network, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], ball: Ball, method: PGD,
    uniform: Float[Tensor, " batch *input"],
) -> Float[Tensor, " batch *input"]:  # fmt: skip
    """The same in l_inf at a fraction of the cost, for training: points lie in the ball up to the rounding of one sum.

    The start is uniform in the ball cut with its box: `uniform` has numbers from [0, 1].
    """
    low, high = cube(x, ball)
    z = low + (high - low) * uniform
    length = method.share * ball.radii(x).reshape(-1, *[1] * (x.dim() - 1))
    for _ in range(method.steps):
        gradient, _, _ = ascent(net, z, partial(cross_entropy, y=y))
        z = torch.clamp(z + length * gradient.sign(), low, high)
    return z


def cube(x: Float[Tensor, " batch *input"], ball: Ball) -> tuple[Tensor, Tensor]:
    """The ends of an l_inf ball cut with its box, as computed in the dtype of x."""
    eps, (lower, upper) = ball.radii(x).reshape(-1, *[1] * (x.dim() - 1)), ball.bounds(x)
    return torch.maximum(x - eps, lower), torch.minimum(x + eps, upper)


def _search(
    net: Network, x: Tensor, y: Tensor, ball: Ball, method: PGD, generator: torch.Generator
) -> tuple[Float[Tensor, " batch *input"], Bool[Tensor, " batch"]]:
    """One run of PGD that stops for an example at its first adversarial point: points, and which are adversarial."""
    points = ball.sample(x, generator, independent=method.alike)
    done = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    open_ = torch.arange(len(x), device=x.device)
    z, steps = points.clone(), _Steps(Within(x, ball), method.share)
    for step in range(method.steps + 1):
        labels = y[open_]
        gradient, _, logits = ascent(net, z, partial(cross_entropy, y=labels))
        hit = changed(logits, labels)
        if bool(hit.any()):
            # Rounding into the set may undo a narrow change of decision: test the rounded point.
            which = open_[hit]
            points[which] = ball.restrict(which).project(x[which], z[hit])
            done[which] = changed(net(points[which]), y[which])
            rest = (~done[open_]).nonzero()[:, 0]
            open_, z, gradient, steps = open_[rest], z[rest], gradient[rest], steps.restrict(rest)
        if len(open_) == 0 or step == method.steps:
            break
        z = steps.step(z, gradient)
    return points, done


class _Steps:
    """Steps of steepest ascent, each followed by a projection."""

    def __init__(self, within: Within, share: float):
        self.within, self.share = within, share

    def restrict(self, index: Tensor) -> _Steps:
        """The steps of some of the examples."""
        return _Steps(self.within.restrict(index), self.share)

    def step(self, z: Tensor, gradient: Tensor) -> Tensor:
        """One step from z along its gradient."""
        within = self.within
        length = self.share * within.eps[:, None]
        moved = within.back(within.offset(z) + length * steepest(gradient.flatten(1), within.p))
        return (within.centre + moved).reshape(z.shape)


def robust_error(net: Network, x: Tensor, y: Tensor, ball: Ball, method: PGD, piece: int = 1000) -> float:
    """The fraction of examples that are misclassified or have an adversarial point by PGD."""
    from relucert.attacks.problem import attack

    wrong = 0
    for start in range(0, len(x), piece):
        part = slice(start, start + piece)
        pick = torch.arange(start, min(start + piece, len(x)), device=x.device)
        wrong += int(attack(net, x[part], y[part], ball.restrict(pick), method).success.sum())
    return wrong / len(x)
