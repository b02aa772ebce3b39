"""Cross-entropy on the images as they are."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from relucert.networks.network import Network
from relucert.training.losses.loss import StepContext, Terms


class Plain:
    """Minimise the mean cross-entropy."""

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        logits = net(x)
        loss = F.cross_entropy(logits, y)
        return Terms(loss, {"cross-entropy": loss.detach()}, logits.detach(), y)
