"""Cross-entropy plus the maximum margin regularisers of l_1 and l_inf: MMR-Universal (Croce and Hein, ICLR 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from relucert.networks.network import Network
from relucert.regularizers.mmr import MMRParameters
from relucert.training._schedules import Schedule, ramp
from relucert.training.losses.loss import StepContext, Terms
from relucert.training.losses.maximum_margin import margin_losses


@dataclass(frozen=True, kw_only=True)
class UniversalMargin:
    """Minimise cross-entropy + lam_1 MMR-l_1 + lam_inf MMR-l_inf, each with gamma_B = gamma_D = gamma.

    The k_B and k_D nearest hyperplanes are chosen in each norm by itself.
    """

    lam_1: float
    lam_inf: float
    gamma_1: float
    gamma_inf: float
    schedule: Schedule

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        def weighted(hyperplanes: int, classes: int) -> dict[str, tuple[float, MMRParameters]]:
            counts = self.schedule.counts(context.progress, hyperplanes, classes)
            return self.weighted(ramp(context.progress), *counts)

        return margin_losses(net, x, y, weighted).terms(y)

    def weighted(self, factor: float, k_b: int, k_d: int) -> dict[str, tuple[float, MMRParameters]]:
        """The two regularisers, with their weights times a factor."""
        return {
            f" l_{p:g}": (factor * lam, MMRParameters(p=p, gamma_b=gamma, gamma_d=gamma, k_b=k_b, k_d=k_d))
            for p, lam, gamma in ((1.0, self.lam_1, self.gamma_1), (math.inf, self.lam_inf, self.gamma_inf))
        }
