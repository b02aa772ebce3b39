"""Lipschitz-margin training: a penalty on spectral norms (Tsuzuku et al., NeurIPS 2018).

A perturbation of l2 norm eps changes the margin over another class by at most sqrt(2) eps L, with L the product of the
layers' spectral norms. The loss is the cross-entropy after sqrt(2) eps L is added to the logits of all other classes: it
falls as margins grow and as spectral norms shrink.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from relucert.networks.network import Network
from relucert.regularizers.spectral import lipschitz_estimate
from relucert.training._schedules import Tightening
from relucert.training.losses.loss import ExampleLosses, StepContext, Terms


class Spectral:
    """Minimise the cross-entropy of logits with sqrt(2) eps L added to all other classes, for an eps that grows."""

    def __init__(self, eps: float, tightening: Tightening):
        self.eps, self.tightening = eps, tightening

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        eps = self.eps * self.tightening.at(context.progress)[0]
        return spectral_losses(net, x, y, eps, context.generator).terms(y)


def spectral_losses(
    net: Network, x: Tensor, y: Tensor, eps: float, generator: torch.Generator | None = None
) -> ExampleLosses:
    """The cross-entropy of every example, with sqrt(2) eps L added to the logits of all other classes."""
    logits = net(x)
    steep = lipschitz_estimate(net, generator)
    raised = logits + math.sqrt(2) * eps * steep * (1 - F.one_hot(y, net.classes).to(logits))
    loss = F.cross_entropy(raised, y, reduction="none")
    with torch.no_grad():
        parts = {
            "cross-entropy": F.cross_entropy(logits, y), "radius": x.new_tensor(eps), "robust": loss.mean(),
            "lipschitz": steep.detach(), "proved": (raised.argmax(1) == y).to(x.dtype).mean(),
        }  # fmt: skip
    return ExampleLosses(loss, parts, logits)
