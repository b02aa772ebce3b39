"""Scheme `rs`: adversarial training with stable ReLUs (Xiao et al., ICLR 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relucert.training.recipes import Setting
from relucert.training.schemes.scheme import AttackScheme, given

if TYPE_CHECKING:
    from relucert.training.losses.loss import Loss


@dataclass(frozen=True, kw_only=True)
class StabilityTraining(AttackScheme):
    """Adversarial training with a ReLU-stability loss, weight lam, and sparse weights, weight l1 (Xiao et al. 2019).

    The defaults of lam and l1 are those of the authors' released settings for MNIST.
    """

    name = "rs"
    lam: float = 1e-4
    l1: float = 2e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require([(name, 0 <= getattr(self, name) < math.inf, "be a number >= 0") for name in ("lam", "l1")])

    def loss(self, setting: Setting) -> Loss:
        from relucert.training.losses.stability import Stability

        return Stability(self.ball(setting), given("attack_steps", self.attack_steps), self.lam, self.l1)
