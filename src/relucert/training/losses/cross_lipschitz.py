"""Cross-entropy plus the regulariser of Hein and Andriushchenko (2017)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from relucert.geometry.region import LinearRegion
from relucert.networks.network import Network
from relucert.regularizers.cross_lipschitz import cross_lipschitz_of
from relucert.training._schedules import ramp
from relucert.training.losses.loss import ExampleLosses, StepContext, Terms, depends_on_mode


class CrossLipschitz:
    """Minimise cross-entropy + lam * Omega on the images as they are."""

    def __init__(self, lam: float):
        self.lam = lam

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        return cross_lipschitz_losses(net, x, y, ramp(context.progress) * self.lam).terms(y)


def cross_lipschitz_losses(net: Network, x: Tensor, y: Tensor, lam: float) -> ExampleLosses:
    """Cross-entropy + lam * Omega of every example."""
    region, _, logits = LinearRegion.evaluated(net, x)
    outputs = net(x) if depends_on_mode(net) else logits
    loss, slopes = F.cross_entropy(outputs, y, reduction="none"), cross_lipschitz_of(region)
    parts = {"cross-entropy": loss.detach().mean(), "cross-lipschitz": slopes.detach().mean()}
    return ExampleLosses(loss + lam * slopes, parts, outputs)
