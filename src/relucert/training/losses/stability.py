"""Adversarial training with the ReLU-stability loss and sparse weights (Xiao et al., ICLR 2019)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from relucert.attacks.pgd import PGD
from relucert.bounding.methods.ibp import IBP
from relucert.core.ball import Ball, as_ball
from relucert.networks.network import Network
from relucert.training.losses.adversarial import Adversarial
from relucert.training.losses.loss import ExampleLosses, StepContext, Terms


class Stability:
    """Minimise cross-entropy on adversarial points + lam * sum over units of -tanh(1 + l u) + l1 * sum of |weights|.

    l and u are the interval bounds of a unit over the ball; their product is negative for unstable units. The whole batch is
    adversarial.
    """

    def __init__(self, ball: Ball, attack: int | PGD, lam: float, l1: float):
        self.adversarial, self.ball, self.lam, self.l1 = Adversarial(ball, attack, share=1.0), ball, lam, l1

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        return self.losses(net, x, y, context.generator).terms(y)

    def losses(self, net: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> ExampleLosses:
        """The loss of every example; the sum of absolute weights is the same in each."""
        logits = net(self.adversarial.mix(net, x, y, generator))
        loss = F.cross_entropy(logits, y, reduction="none")
        stable, unstable = stability(net, x, as_ball(self.ball, net.box))
        size = sum((weight.abs().sum() for weight in net.parameters() if weight.dim() > 1), x.new_zeros(()))
        parts = {"cross-entropy": loss.detach().mean(), "stability": stable.detach().mean()}
        parts |= {"unstable": unstable.mean(), "l1": size.detach()}
        return ExampleLosses(loss + self.lam * stable + self.l1 * size, parts, logits)


def stability(net: Network, x: Tensor, ball: Ball) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """The stability loss of every example, sum of -tanh(1 + l u), and its number of unstable units."""
    units = IBP().units(net, x, ball)
    total, count = x.new_zeros(len(x)), x.new_zeros(len(x))
    for node in net.relus:
        within = units.inputs[node.index]
        total = total - torch.tanh(1 + within.lower * within.upper).flatten(1).sum(1)
        count = count + within.unstable.flatten(1).sum(1)
    return total, count
