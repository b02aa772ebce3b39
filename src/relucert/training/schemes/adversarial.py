"""Scheme `at`: adversarial training (Madry et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relucert.training.recipes import Setting
from relucert.training.schemes.scheme import AttackScheme, given

if TYPE_CHECKING:
    from relucert.training.losses.loss import Loss


@dataclass(frozen=True, kw_only=True)
class AdversarialTraining(AttackScheme):
    """Cross-entropy on batches of which half is replaced by PGD points (Madry et al. 2018)."""

    name = "at"

    def loss(self, setting: Setting) -> Loss:
        from relucert.training.losses.adversarial import Adversarial

        return Adversarial(self.ball(setting), given("attack_steps", self.attack_steps))
