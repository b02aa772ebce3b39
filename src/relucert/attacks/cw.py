"""The attack of Carlini and Wagner (2017), untargeted, for l2.

    minimise  ||z - x||^2 + c max(f_y(z) - max_(s != y) f_s(z) + confidence, 0),    z = middle + half (tanh w) of the box,

by Adam in w, with a binary search for the smallest successful c of every example.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.attacks._ascent import margin
from relucert.attacks.base import MinimalAttack
from relucert.core.errors import InvalidInput
from relucert.geometry.witness import Nearest, Witnesses

LARGEST = 1e10  # the largest constant c
INSIDE = 0.999  # starts are at most this fraction from the middle to the sides of the box, where tanh has no slope
BETAS = (0.9, 0.999)  # of Adam


@dataclass(frozen=True, kw_only=True)
class CW(MinimalAttack):
    """CW with `searches` steps of binary search from `constant`, each of `iterations` steps of Adam with learning rate `rate`.

    `confidence` is the target margin. With `abort_early` the run of an example ends if its loss falls by less than a factor of
    0.9999 in a tenth of the iterations.
    """

    name = "cw"
    searches: int = 20
    iterations: int = 10_000
    rate: float = 0.01
    constant: float = 1e-3
    confidence: float = 0.0
    abort_early: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, holds, rule in [
            ("searches", self.searches >= 1, "at least 1"),
            ("iterations", self.iterations >= 1, "at least 1"),
            ("rate", 0 < self.rate < math.inf, "positive"),
            ("constant", 0 < self.constant < math.inf, "positive"),
            ("confidence", 0 <= self.confidence < math.inf, "at least 0"),
        ]:
            if not holds:
                raise InvalidInput(f"{name} of cw must be {rule}, got {getattr(self, name)}")

    def check_norm(self, p: float) -> None:
        """Raise InvalidInput unless p is 2."""
        if p != 2.0:
            raise InvalidInput(f"p of cw must be 2, got {p:g}")

    def search(self, witnesses: Witnesses, generator: torch.Generator) -> None:
        """Run the binary search for the constants, and take the nearest points of all runs."""
        nearest = Nearest(witnesses.x, witnesses.y, witnesses.p)
        constant = torch.full_like(witnesses.distance, self.constant)
        low, high = torch.zeros_like(constant), torch.full_like(constant, math.inf)
        for turn in range(self.searches):
            # The last run of a long search uses the smallest constant that succeeded so far.
            if turn == self.searches - 1 and self.searches >= 10:
                constant = torch.where(high.isfinite(), high, constant)
            won = _Run(self, witnesses, nearest, constant).descend()
            high = torch.where(won, torch.minimum(high, constant), high)
            low = torch.where(won, low, torch.maximum(low, constant))
            constant = torch.where(high.isfinite(), (low + high) / 2, (10 * constant).clamp(max=LARGEST))
        witnesses.take(nearest)


class _Run:
    """One run of Adam with one constant for every example; examples whose loss no longer falls leave the batch."""

    def __init__(self, method: CW, witnesses: Witnesses, nearest: Nearest, constant: Float[Tensor, " batch"]):
        self.method, self.witnesses, self.nearest, self.constant = method, witnesses, nearest, constant
        sides = witnesses.lower.isfinite() & witnesses.upper.isfinite()
        # Without sides of the box, w is z itself.
        self.sides = sides
        self.half = torch.where(sides, witnesses.upper - witnesses.lower, 1.0) / 2
        self.middle = torch.where(sides, witnesses.lower + self.half, 0.0)

    def descend(self) -> Tensor:
        """Run Adam; return which examples had an adversarial point on the way."""
        method, witnesses, every = self.method, self.witnesses, len(self.constant)
        inner = (witnesses.x - self.middle) / self.half.masked_fill(self.half == 0, 1.0)
        w = torch.where(self.sides, (inner.clamp(-1, 1) * INSIDE).atanh(), witnesses.x)
        first, second = torch.zeros_like(w), torch.zeros_like(w)
        open_ = torch.arange(every, device=w.device)
        won = torch.zeros(every, dtype=torch.bool, device=w.device)
        before = self.constant.new_full((every,), math.inf)
        period = max(1, method.iterations // 10)
        for step in range(1, method.iterations + 1):
            gradient, loss, hit = self._evaluate(w, open_)
            won[open_] |= hit
            first.lerp_(gradient, 1 - BETAS[0])
            second.lerp_(gradient.square(), 1 - BETAS[1])
            size = (second / (1 - BETAS[1] ** step)).sqrt_().add_(1e-8)
            w = w - method.rate / (1 - BETAS[0] ** step) * first / size
            if method.abort_early and step % period == 0:
                going = (loss <= 0.9999 * before[open_]).nonzero()[:, 0]
                before[open_] = loss
                open_, w, first, second = open_[going], w[going], first[going], second[going]
                if len(open_) == 0:
                    return won
        won[open_] |= self._evaluate(w, open_)[2]
        return won

    def _evaluate(self, w: Tensor, open_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient in w, the losses, and which points change the decision."""
        witnesses = self.witnesses
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            z = torch.where(self.sides[open_], self.middle[open_] + self.half[open_] * w.tanh(), w)
            z = torch.minimum(torch.maximum(z, witnesses.lower[open_]), witnesses.upper[open_])
            logits = witnesses.net(z)
            miss = (self.method.confidence - margin(logits, witnesses.y[open_])).clamp(min=0)
            loss = (z - witnesses.x[open_]).flatten(1).square().sum(1) + self.constant[open_] * miss
            (gradient,) = torch.autograd.grad(loss.sum(), w)
        hit = self.nearest.see(z.detach(), logits.detach(), open_)
        return gradient, loss.detach(), hit
