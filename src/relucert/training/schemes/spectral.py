"""Scheme `spectral`: small spectral norms (Tsuzuku et al., NeurIPS 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from relucert.core.errors import InvalidInput
from relucert.training._schedules import Tightening
from relucert.training.recipes import Setting
from relucert.training.schemes.scheme import BallScheme, given

if TYPE_CHECKING:
    from relucert.training.losses.loss import Loss


@dataclass(frozen=True, kw_only=True)
class SpectralTraining(BallScheme):
    """Lipschitz-margin training: small spectral norms (Tsuzuku et al. 2018), for l2."""

    name = "spectral"

    def filled(self, setting: Setting) -> Self:
        if setting.p != 2:
            raise InvalidInput(f"p must be 2 for scheme spectral, whose penalty is about l2, got {setting.p:g}")
        return super().filled(setting)

    def loss(self, setting: Setting) -> Loss:
        from relucert.training.losses.spectral import Spectral

        return Spectral(given("eps", self.eps), Tightening(0.0, 0.3, first=0.1))
