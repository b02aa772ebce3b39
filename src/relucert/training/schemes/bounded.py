"""`kw`, `ibp`, `crown-ibp`: cross-entropy of the worst logits that a bound allows over a ball.

With m the proved lower bounds of the lead over the other classes, the loss of an example is log(1 + sum_k exp(-m_k)), which
no input of the ball exceeds (Wong and Kolter, ICML 2018). `kw` takes Wong and Kolter's relaxation throughout, `ibp` intervals
(Gowal et al. 2018), `crown-ibp` intervals for the units and CROWN for the margins, from which it turns to intervals as the
ball grows (Zhang et al. 2020), altogether or to a share.

Beside it stands cross-entropy, of the examples or of PGD points in the same ball (De Palma et al., ICLR 2024: MTL-IBP). What is
left to the latter need not be proved by the bound of training: that is work for a verifier.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.methods.crown import mixed_margins
from relucert.bounding.methods.ibp import IBP, interval_margins
from relucert.bounding.methods.kw import KW
from relucert.core.ball import Ball
from relucert.core.properties import class_stays
from relucert.networks.network import Network
from relucert.training.recipes import Tightening
from relucert.training.schemes.adversarial import Adversarial
from relucert.training.schemes.scheme import StepContext, Terms


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """Minimise kappa * cross-entropy + (1 - kappa) * worst-case cross-entropy over a ball that grows.

    `method` is kw, ibp or crown-ibp, whose margins are interval margins to the share `intervals` when the ball has grown.
    Margins speak of the network as it will be used, with running statistics. With `attack_steps` the cross-entropy is that
    of points that PGD finds in the ball in as many steps.
    """

    method: str
    ball: Ball
    tightening: Tightening
    intervals: float = 1.0
    attack_steps: int = 0

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        share, kappa = self.tightening.at(context.progress)
        attacked = self.attack_steps > 0 and share > 0 and kappa > 0
        with torch.set_grad_enabled(share == 0 or (kappa > 0 and not attacked)):
            outputs = net(x)
            beside = F.cross_entropy(outputs, y)
        ball = self.ball.with_eps(share * float(self.ball.eps))
        parts = {"cross-entropy": beside.detach(), "radius": x.new_tensor(float(ball.eps))}
        if share == 0:
            return Terms(beside, parts, outputs.detach(), y)
        if attacked:
            moved = Adversarial(ball, self.attack_steps, share=1.0).mix(net, x, y, context)
            beside = F.cross_entropy(net(moved), y)
            parts["adversarial cross-entropy"] = beside.detach()
        margins = self.margins(net, x, y, share)
        worst = worst_cross_entropy(margins).mean()
        parts |= {"robust": worst.detach(), "proved": (margins.detach() > 0).all(1).to(x.dtype).mean()}
        return Terms(kappa * beside + (1 - kappa) * worst, parts, outputs.detach(), y)

    def margins(self, net: Network, x: Tensor, y: Tensor, share: float = 1.0) -> Float[Tensor, " batch others"]:
        """Lower bounds of the lead over every other class, over a share of the ball."""
        prop = class_stays(y, net.classes, dtype=x.dtype)
        ball = self.ball.with_eps(share * float(self.ball.eps))
        if self.method == "kw":
            return KW(intervals=True).solve(net, x, ball, prop)[1]
        units = IBP().units(net, x, ball)
        coarse = interval_margins(net, units, x, ball, prop)
        linear = 1 - share * self.intervals
        if self.method == "ibp" or linear == 0:
            return coarse
        return linear * mixed_margins(net, units, x, ball, prop) + (1 - linear) * coarse


def worst_cross_entropy(margins: Float[Tensor, " batch others"]) -> Float[Tensor, " batch"]:
    """log(1 + sum exp(-m)): the cross-entropy of logits that lead by exactly the margins.

    >>> bool(torch.isclose(worst_cross_entropy(torch.tensor([[1.0, 2.0]])),
    ...                    F.cross_entropy(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([0]))))
    True
    """
    return F.softplus(torch.logsumexp(-margins, 1))
