"""`spectral`: a penalty on spectral norms that is as large as a certificate needs (Tsuzuku et al., NeurIPS 2018).

A perturbation of l2 norm eps changes the margin over another class by at most sqrt(2) eps L, with L the product of the
layers' spectral norms. The loss is the cross-entropy after sqrt(2) eps L is added to the logits of all other classes: it
falls as margins grow and as spectral norms shrink.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from relucert.core.errors import InvalidInput
from relucert.networks.network import Network
from relucert.regularizers.spectral import lipschitz_estimate
from relucert.training.recipes import Setting
from relucert.training.schedules import Tightening
from relucert.training.schemes.scheme import BallScheme, Loss, StepContext, Terms, given


class Spectral:
    """Minimise the cross-entropy of logits with sqrt(2) eps L added to all other classes, for an eps that grows."""

    def __init__(self, eps: float, tightening: Tightening):
        self.eps, self.tightening = eps, tightening

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        eps = self.eps * self.tightening.at(context.progress)[0]
        logits = net(x)
        steep = lipschitz_estimate(net, context.generator)
        raised = logits + math.sqrt(2) * eps * steep * (1 - F.one_hot(y, net.classes).to(logits))
        loss = F.cross_entropy(raised, y)
        with torch.no_grad():
            parts = {
                "cross-entropy": F.cross_entropy(logits, y), "radius": x.new_tensor(eps), "robust": loss.detach(),
                "lipschitz": steep, "proved": (raised.argmax(1) == y).to(x.dtype).mean(),
            }  # fmt: skip
        return Terms(loss, parts, logits.detach(), y)


@dataclass(frozen=True, kw_only=True)
class SpectralTraining(BallScheme):
    """Lipschitz-margin training: small spectral norms (Tsuzuku et al. 2018), for l2."""

    name = "spectral"

    def filled(self, setting: Setting) -> Self:
        if setting.p != 2:
            raise InvalidInput(f"p must be 2 for scheme spectral, whose penalty is about l2, got {setting.p:g}")
        return super().filled(setting)

    def loss(self, setting: Setting) -> Loss:
        return Spectral(given("eps", self.eps), Tightening(0.0, 0.3, first=0.1))
