"""Adversarial training (Madry et al. 2018) as in the paper: half of each batch is replaced by PGD points."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from relucert.attacks.pgd import PGD, ascend
from relucert.core.ball import Ball, as_ball
from relucert.networks.network import Network
from relucert.training.losses.loss import ExampleLosses, StepContext, Terms
from relucert.training.ranks import PartGenerator


class Adversarial:
    """Minimise the mean cross-entropy on a batch whose last share, by default half, is adversarial.

    `attack` is PGD, or the number of its steps.
    """

    def __init__(self, ball: Ball, attack: int | PGD, share: float = 0.5):
        self.ball, self.share = ball, share
        self.attack = attack if isinstance(attack, PGD) else PGD(steps=attack)

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        return self.losses(net, x, y, context.generator).terms(y, len(x) - self.moved(len(x)))

    def losses(self, net: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> ExampleLosses:
        """The cross-entropy of every example, of which the last ones are replaced by PGD points."""
        logits = net(self.mix(net, x, y, generator))
        loss = F.cross_entropy(logits, y, reduction="none")
        parts = {"cross-entropy": loss.detach().mean()}
        moved = self.moved(len(x))
        if moved:
            parts["adversarial cross-entropy"] = loss.detach()[len(x) - moved :].mean()
        return ExampleLosses(loss, parts, logits)

    def moved(self, count: int) -> int:
        """The number of adversarial examples in a batch of `count`."""
        return int(self.share * count)

    def mix(self, net: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The batch with its last examples replaced by PGD points."""
        clean = len(x) - self.moved(len(x))
        if clean == len(x):
            return x
        # The attack runs on the network in eval mode: running statistics, no dropout.
        modes = [(part, part.training) for part in net.modules()]
        net.eval()
        try:
            ball_of = as_ball(self.ball, net.box)
            ball = ball_of.restrict(slice(clean, None))
            start = generator.start(ball_of, len(x) - clean, len(x)) if isinstance(generator, PartGenerator) else None
            moved = ascend(net, x[clean:], y[clean:], ball, self.attack, generator, start)
        finally:
            for part, training in modes:
                part.training = training
        return torch.cat([x[:clean], moved])
