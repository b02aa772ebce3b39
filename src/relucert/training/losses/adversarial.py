"""Adversarial training (Madry et al. 2018) as in the paper: half of each batch is replaced by PGD points."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from relucert.attacks.pgd import PGD, ascend
from relucert.core.ball import Ball
from relucert.networks.network import Network
from relucert.training.losses.loss import StepContext, Terms


class Adversarial:
    """Minimise the mean cross-entropy on a batch whose last share, by default half, is adversarial."""

    def __init__(self, ball: Ball, steps: int, share: float = 0.5):
        self.ball, self.attack, self.share = ball, PGD(steps=steps), share

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        mixed = self.mix(net, x, y, context)
        logits = net(mixed)
        loss = F.cross_entropy(logits, y)
        moved = self.moved(len(x))
        with torch.no_grad():
            each = F.cross_entropy(logits, y, reduction="none")
        parts = {"cross-entropy": loss.detach()}
        if moved:
            parts["adversarial cross-entropy"] = each[len(x) - moved :].mean()
        return Terms(loss, parts, logits[: len(x) - moved].detach(), y[: len(x) - moved])

    def moved(self, count: int) -> int:
        """The number of adversarial examples in a batch of `count`."""
        return int(self.share * count)

    def mix(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Tensor:
        """The batch with its last examples replaced by PGD points."""
        clean = len(x) - self.moved(len(x))
        if clean == len(x):
            return x
        # The attack runs on the network in eval mode: running statistics, no dropout.
        modes = [(part, part.training) for part in net.modules()]
        net.eval()
        try:
            moved = ascend(net, x[clean:], y[clean:], self.ball, self.attack, context.generator)
        finally:
            for part, training in modes:
                part.training = training
        return torch.cat([x[:clean], moved])
