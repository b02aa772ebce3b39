"""Schemes `mtl-ibp`, `cc-ibp` and `sabr`: between adversarial training and training against intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from relucert.training._schedules import Tightening
from relucert.training.recipes import Setting, default_modern
from relucert.training.schemes.scheme import AttackScheme, given

if TYPE_CHECKING:
    from relucert.training.losses.expressive import Expressive
    from relucert.training.losses.loss import Loss


@dataclass(frozen=True, kw_only=True)
class ExpressiveTraining(AttackScheme):
    """Training on adversarial points and against intervals over a ball that grows.

    attack_step is the length of a step in units of the attack's radius (by default 2 / attack_steps), attack_eps that radius in
    units of the radius of training; warm_up is the weight of the regulariser of Shi et al. (2021) while the ball grows, l1 that
    of the sum of absolute weights. By default the first weights are theirs, batch norm is folded into the layers in every step,
    gradients are cut to length 10, and the weights of the last tenth of the run are averaged.
    """

    decay = 0.3
    start = "ibp"
    batch_norm = True
    clip = 10.0
    average = 0.1
    #: How the ball grows.
    growth: ClassVar[Tightening] = Tightening(0.0, 0.3)

    attack_step: float | None = None
    attack_eps: float | None = None
    warm_up: float = 0.5
    l1: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        step, reach, l1 = self.attack_step, self.attack_eps, self.l1
        self.require(
            [
                ("attack_step", step is None or 0 < step < math.inf, "be a positive number"),
                ("attack_eps", reach is None or 0 < reach < math.inf, "be a positive number"),
                ("warm_up", 0 <= self.warm_up < math.inf, "be a number >= 0"),
                ("l1", l1 is None or 0 <= l1 < math.inf, "be a number >= 0"),
            ]
        )

    def filled(self, setting: Setting) -> Self:
        modern = default_modern(setting)
        scheme = self
        for name, value in (
            ("attack_steps", modern.attack_steps), ("attack_eps", modern.attack_eps), ("l1", modern.l1)
        ):  # fmt: skip
            if getattr(scheme, name) is None:
                scheme = replace(scheme, **{name: value})
        scheme = super(ExpressiveTraining, scheme).filled(setting)
        return (
            scheme
            if scheme.attack_step is not None
            else replace(scheme, attack_step=2 / given("attack_steps", scheme.attack_steps))
        )

    def widening(self, data: str) -> float:
        """As De Palma et al. do: trained at 0.2 on MNIST to be certified at 0.1."""
        return {"mnist": 2.0}.get(data, 1.0)

    def _expressive(self, setting: Setting, method: str, weight: float) -> Expressive:
        from relucert.attacks.pgd import PGD
        from relucert.training.losses.expressive import Expressive

        return Expressive(
            method=method, ball=self.ball(setting), tightening=self.growth, weight=weight,
            attack=PGD(steps=given("attack_steps", self.attack_steps), step=given("attack_step", self.attack_step)),
            reach=given("attack_eps", self.attack_eps), warm_up=self.warm_up, l1=given("l1", self.l1),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CoefficientTraining(ExpressiveTraining):
    """A loss with a coefficient alpha between adversarial training (0) and training against intervals (1)."""

    alpha: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        alpha = self.alpha
        self.require([("alpha", alpha is None or 0 <= alpha <= 1, "be a number from 0 to 1")])

    def filled(self, setting: Setting) -> Self:
        scheme = super().filled(setting)
        return (
            scheme
            if scheme.alpha is not None
            else replace(scheme, alpha=default_modern(setting).alpha[self.name != "cc-ibp"])
        )

    def loss(self, setting: Setting) -> Loss:
        return self._expressive(setting, self.name, given("alpha", self.alpha))


@dataclass(frozen=True, kw_only=True)
class MTLIBPTraining(CoefficientTraining):
    """(1 - alpha) * cross-entropy at PGD points + alpha * worst-case cross-entropy by intervals (De Palma et al. 2024)."""

    name = "mtl-ibp"


@dataclass(frozen=True, kw_only=True)
class CCIBPTraining(CoefficientTraining):
    """Cross-entropy of (1 - alpha) * margins at PGD points + alpha * interval margins (De Palma et al. 2024)."""

    name = "cc-ibp"


@dataclass(frozen=True, kw_only=True)
class SABRTraining(ExpressiveTraining):
    """Worst-case cross-entropy by intervals over a small box in the ball, around a PGD point (Mueller et al. 2023).

    ratio is the radius of the box as a share of eps.
    """

    name = "sabr"
    ratio: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        ratio = self.ratio
        self.require([("ratio", ratio is None or 0 < ratio <= 1, "be a number above 0 and at most 1")])

    def filled(self, setting: Setting) -> Self:
        scheme = super().filled(setting)
        return scheme if scheme.ratio is not None else replace(scheme, ratio=default_modern(setting).ratio)

    def loss(self, setting: Setting) -> Loss:
        return self._expressive(setting, self.name, given("ratio", self.ratio))
