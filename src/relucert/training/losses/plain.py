"""Cross-entropy on the images as they are."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from relucert.networks.network import Network
from relucert.training.losses.loss import ExampleLosses, StepContext, Terms


class Plain:
    """Minimise the mean cross-entropy."""

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        return plain_losses(net, x, y).terms(y)


def plain_losses(net: Network, x: Tensor, y: Tensor) -> ExampleLosses:
    """The cross-entropy of every example."""
    logits = net(x)
    loss = F.cross_entropy(logits, y, reduction="none")
    return ExampleLosses(loss, {"cross-entropy": loss.detach().mean()}, logits)
