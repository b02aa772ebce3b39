"""`spectral`: a penalty on spectral norms that is as large as a certificate needs (Tsuzuku et al., NeurIPS 2018).

An input within eps in l2 changes the lead over another class by at most sqrt(2) eps L, with L the product of the layers'
spectral norms. The loss is the cross-entropy of logits whose other classes are raised by that: it falls as leads grow and as
norms shrink, and networks come out whose norms are small, which bounds in l2 need.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from relucert.networks.network import Network
from relucert.regularizers.spectral import lipschitz_estimate
from relucert.training.recipes import Tightening
from relucert.training.schemes.scheme import StepContext, Terms


class Spectral:
    """Minimise the cross-entropy of logits that lead by sqrt(2) eps L less, for an eps that grows."""

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
