"""`mmr`, `mmr-dd`, `mmr+at`: cross-entropy plus the maximum margin regulariser (section 4 of the paper)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from relucert.geometry.region import LinearRegion
from relucert.networks.network import Network
from relucert.regularizers.mmr import mmr_parts
from relucert.training.recipes import Schedule, ramp
from relucert.training.schemes.scheme import StepContext, Terms

Mix = Callable[[Network, Tensor, Tensor, StepContext], Tensor]


@dataclass(frozen=True, kw_only=True)
class MaximumMargin:
    """Minimise cross-entropy + lam * MMR, both on the same batch; `mix` replaces part of it by adversarial points.

    `faces=False` leaves the region part out (MMR-DD, Table 2 of the paper). Half of a mixed batch is clean.
    """

    p: float
    lam: float
    gamma: float
    schedule: Schedule
    faces: bool = True
    mix: Mix | None = None

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        clean = len(x) if self.mix is None else len(x) - len(x) // 2
        x = x if self.mix is None else self.mix(net, x, y, context)
        region, values, logits = LinearRegion.evaluated(net, x)
        margins = region.margins_of(values, x)
        # The regulariser speaks of the network as it will be used; layers that behave otherwise in training need a pass.
        outputs = net(x) if depends_on_mode(net) else logits
        loss = F.cross_entropy(outputs, y)
        k_b, k_d = self.schedule.counts(context.progress, region.count, net.classes)
        found = mmr_parts(
            region, margins, logits, y, self.p, self.gamma, self.gamma, k_b, k_d, faces=self.faces
        )  # fmt: skip
        parts = {"cross-entropy": loss.detach(), "decision": found.decision.detach().mean()}
        if self.faces:
            parts["region"] = found.region.detach().mean()
            parts["exact"] = (found.d_d <= found.d_b).to(logits.dtype).mean()
        total = loss + ramp(context.progress) * self.lam * found.total.mean()
        return Terms(total, parts, outputs[:clean].detach(), y[:clean])


def depends_on_mode(net: Network) -> bool:
    """Whether a network computes something else in train mode: batch norm, dropout."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    return any(isinstance(part, kinds) for part in net.modules())
