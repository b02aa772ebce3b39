"""Cross-entropy plus the maximum margin regulariser (section 4 of the paper)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from relucert.geometry.region import LinearRegion
from relucert.networks.network import Network
from relucert.regularizers.mmr import MMRParameters, mmr_terms
from relucert.training._schedules import Schedule, ramp
from relucert.training.losses.loss import (
    StepContext,
    Terms,
    depends_on_mode,
)

Mix = Callable[[Network, Tensor, Tensor, StepContext], Tensor]


@dataclass(frozen=True, kw_only=True)
class MaximumMargin:
    """Minimise cross-entropy + lam * MMR, both on the same batch; `mix` replaces half of it by adversarial points.

    Without gamma_b the region term is left out (MMR-DD, Table 2 of the paper).
    """

    p: float
    lam: float
    gamma_b: float | None
    gamma_d: float
    schedule: Schedule
    mix: Mix | None = None

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        clean = len(x) if self.mix is None else len(x) - len(x) // 2
        x = x if self.mix is None else self.mix(net, x, y, context)
        region, values, logits = LinearRegion.evaluated(net, x)
        margins = region.margins_of(values, x)
        # The regulariser is about the network in eval mode; layers that depend on the mode need a second pass.
        outputs = net(x) if depends_on_mode(net) else logits
        loss = F.cross_entropy(outputs, y)
        k_b, k_d = self.schedule.counts(context.progress, region.count, net.classes)
        parameters = MMRParameters(p=self.p, gamma_b=self.gamma_b, gamma_d=self.gamma_d, k_b=k_b, k_d=k_d)
        terms = mmr_terms(region, margins, logits, y, parameters)
        parts = {"cross-entropy": loss.detach(), "decision": terms.decision.detach().mean()}
        if self.gamma_b is not None:
            parts["region"] = terms.region.detach().mean()
            parts["exact"] = (terms.d_d <= terms.d_b).to(logits.dtype).mean()
        total = loss + ramp(context.progress) * self.lam * terms.total.mean()
        return Terms(total, parts, outputs[:clean].detach(), y[:clean])
