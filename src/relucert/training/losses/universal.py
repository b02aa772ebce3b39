"""Cross-entropy plus the maximum margin regularisers of l_1 and l_inf: MMR-Universal (Croce and Hein, ICLR 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from relucert.geometry.region import LinearRegion
from relucert.networks.network import Network
from relucert.regularizers.mmr import MMRParameters, mmr_terms
from relucert.training._schedules import Schedule, ramp
from relucert.training.losses.loss import StepContext, Terms, depends_on_mode


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
        region, values, logits = LinearRegion.evaluated(net, x)
        margins = region.margins_of(values, x)
        # The regulariser is about the network in eval mode; layers that depend on the mode need a second pass.
        outputs = net(x) if depends_on_mode(net) else logits
        loss = F.cross_entropy(outputs, y)
        k_b, k_d = self.schedule.counts(context.progress, region.count, net.classes)
        parts, total = {"cross-entropy": loss.detach()}, loss
        for name, p, lam, gamma in (
            ("1", 1.0, self.lam_1, self.gamma_1),
            ("inf", math.inf, self.lam_inf, self.gamma_inf),
        ):
            parameters = MMRParameters(p=p, gamma_b=gamma, gamma_d=gamma, k_b=k_b, k_d=k_d)
            terms = mmr_terms(region, margins, logits, y, parameters)
            parts[f"region l_{name}"] = terms.region.detach().mean()
            parts[f"decision l_{name}"] = terms.decision.detach().mean()
            total = total + ramp(context.progress) * lam * terms.total.mean()
        return Terms(total, parts, outputs.detach(), y)
