"""Scheme `mmr+ibp`: the maximum margin regulariser beside training on adversarial points and against intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relucert.training.recipes import Setting
from relucert.training.schemes.expressive import MTLIBPTraining
from relucert.training.schemes.maximum_margin import MMRTraining
from relucert.training.schemes.scheme import given

if TYPE_CHECKING:
    from relucert.training.losses.loss import Loss


@dataclass(frozen=True, kw_only=True)
class MMRIBPTraining(MMRTraining, MTLIBPTraining):
    """The loss of mtl-ibp + lam * MMR: the region and decision terms of the paper beside intervals."""

    name = "mmr+ibp"

    def loss(self, setting: Setting) -> Loss:
        from relucert.training.losses.hybrid import Hybrid

        margin = self._mixed_loss(setting, None)
        return Hybrid(expressive=self._expressive(setting, "mtl-ibp", given("alpha", self.alpha)), margin=margin)
