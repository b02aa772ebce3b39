"""Adversarial training with the ReLU-stability loss and sparse weights (Xiao et al., ICLR 2019)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.methods.ibp import IBP
from relucert.core.ball import Ball
from relucert.networks.network import Network
from relucert.training.losses.adversarial import Adversarial
from relucert.training.losses.loss import StepContext, Terms


class Stability:
    """Minimise cross-entropy on adversarial points + lam * sum over units of -tanh(1 + l u) + l1 * sum of |weights|.

    l and u are the interval bounds of a unit over the ball; their product is negative for unstable units. The whole batch is
    adversarial.
    """

    def __init__(self, ball: Ball, steps: int, lam: float, l1: float):
        self.adversarial, self.ball, self.lam, self.l1 = Adversarial(ball, steps, share=1.0), ball, lam, l1

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        logits = net(self.adversarial.mix(net, x, y, context))
        loss = F.cross_entropy(logits, y)
        stable, unstable = stability(net, x, self.ball)
        size = sum((weight.abs().sum() for weight in net.parameters() if weight.dim() > 1), x.new_zeros(()))
        parts = {"cross-entropy": loss.detach(), "stability": stable.detach().mean(), "unstable": unstable.mean()}
        total = loss + self.lam * stable.mean() + self.l1 * size
        return Terms(total, parts | {"l1": size.detach()}, logits.detach(), y)


def stability(net: Network, x: Tensor, ball: Ball) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """The stability loss of every example, sum of -tanh(1 + l u), and its number of unstable units."""
    units = IBP().units(net, x, ball)
    total, count = x.new_zeros(len(x)), x.new_zeros(len(x))
    for node in net.relus:
        within = units.inputs[node.index]
        total = total - torch.tanh(1 + within.lower * within.upper).flatten(1).sum(1)
        count = count + within.unstable.flatten(1).sum(1)
    return total, count
