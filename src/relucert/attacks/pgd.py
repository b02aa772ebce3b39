"""Projected gradient descent on the margin's loss inside a ball (Madry et al. 2018), in every norm.

From a random point of the ball, repeat: step along the direction of steepest ascent of the cross-entropy, with a step of
`2 eps / steps` in the ball's own norm, and project back onto ball and box, exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.attacks.contract import adversarial
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method
from relucert.core.norms import steepest
from relucert.core.projection import projected_offset
from relucert.core.results import Adversarial
from relucert.networks.network import Network
from relucert.networks.prediction import changed


@dataclass(frozen=True, kw_only=True)
class PGD(Method):
    """PGD with a number of steps, restarts from random points, the step in units of eps (by default 2 / steps), a seed."""

    name = "pgd"
    steps: int = 40
    restarts: int = 1
    step: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, holds, rule in [
            ("steps", self.steps >= 1, "at least 1"),
            ("restarts", self.restarts >= 1, "at least 1"),
            ("step", self.step is None or 0 < self.step < float("inf"), "positive"),
        ]:
            if not holds:
                raise InvalidInput(f"{name} of pgd must be {rule}; found {getattr(self, name)}")

    def attack(self, net: Network, x: Tensor, y: Tensor, ball: Ball, generator: torch.Generator) -> Adversarial:
        """Search every ball for a point of another class; an example that is broken is left in peace."""
        best = x.clone()
        open_ = torch.arange(len(x), device=x.device)
        for _ in range(self.restarts):
            if len(open_) == 0:
                break
            part = ball.restrict(open_)
            points, done = _search(net, x[open_], y[open_], part, self, generator)
            best[open_[done]] = points[done]
            open_ = open_[~done]
        return adversarial(net, x, y, best, ball)


def ascend(
    net: Network, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], ball: Ball, method: PGD,
    generator: torch.Generator,
) -> Float[Tensor, " batch *input"]:  # fmt: skip
    """One run of PGD, all steps for every example whether broken or not: what adversarial training learns from."""
    z, steps = ball.sample(x, generator), _Steps(x, ball, method)
    for _ in range(method.steps):
        gradient, _ = _gradient(net, z, y)
        z = steps.step(z, gradient)
    return ball.project(x, z)


def _search(
    net: Network, x: Tensor, y: Tensor, ball: Ball, method: PGD, generator: torch.Generator
) -> tuple[Float[Tensor, " batch *input"], Bool[Tensor, " batch"]]:
    """One run of PGD that stops for an example as soon as it is broken: points, and which of them are."""
    points = ball.sample(x, generator)
    done = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    open_ = torch.arange(len(x), device=x.device)
    z, steps = points.clone(), _Steps(x, ball, method)
    for step in range(method.steps + 1):
        gradient, logits = _gradient(net, z, y[open_])
        hit = changed(logits, y[open_])
        if bool(hit.any()):
            # Rounding into the set may undo a narrow win: what counts is the rounded point.
            found = open_[hit]
            points[found] = ball.restrict(found).project(x[found], z[hit])
            done[found] = changed(net(points[found]), y[found])
            rest = (~done[open_]).nonzero()[:, 0]
            open_, z, gradient, steps = open_[rest], z[rest], gradient[rest], steps.restrict(rest)
        if len(open_) == 0 or step == method.steps:
            break
        z = steps.step(z, gradient)
    return points, done


def _gradient(net: Network, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of every example's loss, and the logits.

    The loss is `log sum_(s != y) exp f_s - f_y`: it grows where the cross-entropy grows, and unlike that of a saturated
    softmax its gradient does not vanish in float32.
    """
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        logits = net(z)
        own = logits.gather(1, y[:, None])[:, 0]
        rest = logits.masked_fill(F.one_hot(y, logits.shape[1]).bool(), -torch.inf).logsumexp(1)
        (gradient,) = torch.autograd.grad((rest - own).sum(), z)
    return gradient, logits.detach()


class _Steps:
    """Steps of steepest ascent and the way back, with all that depends on x alone made once.

    Within the loop the projection is exact up to rounding; what leaves the loop is rounded into the set.
    """

    def __init__(self, x: Tensor, ball: Ball, method: PGD):
        self.p, self.centre = ball.p, x.flatten(1)
        self.eps = ball.radii(x)
        self.below, self.above = (room.flatten(1) for room in ball.rooms(x))
        share = 2 / method.steps if method.step is None else method.step
        self.length = share * self.eps

    def restrict(self, index: Tensor) -> _Steps:
        """The same for some of the examples."""
        part = object.__new__(_Steps)
        part.p = self.p
        for name in ("centre", "eps", "below", "above", "length"):
            setattr(part, name, getattr(self, name)[index])
        return part

    def step(self, z: Tensor, gradient: Tensor) -> Tensor:
        """One step from z along its gradient."""
        offset = z.flatten(1) - self.centre + self.length[:, None] * steepest(gradient.flatten(1), self.p)
        if math.isinf(self.p):
            cube = torch.minimum(torch.maximum(offset, -self.eps[:, None]), self.eps[:, None])
            moved = torch.minimum(torch.maximum(cube, -self.below), self.above)
        else:
            sizes = (offset, self.eps, self.below, self.above)
            v, eps, below, above = (size.double() for size in sizes)
            moved = projected_offset(v, self.p, eps, below, above).to(z.dtype)
        return (self.centre + moved).reshape(z.shape)


def robust_error(net: Network, x: Tensor, y: Tensor, ball: Ball, method: PGD, piece: int = 1000) -> float:
    """The share of examples that are misclassified, or broken by PGD."""
    from relucert.attacks.interface import attack

    wrong = 0
    for start in range(0, len(x), piece):
        part = slice(start, start + piece)
        pick = torch.arange(start, min(start + piece, len(x)), device=x.device)
        wrong += int(attack(net, x[part], y[part], ball.restrict(pick), method).success.sum())
    return wrong / len(x)
