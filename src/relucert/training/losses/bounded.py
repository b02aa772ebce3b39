"""Worst-case cross-entropy over a ball, by a bound on the margins.

With m_k a lower bound of the margin over class k, the loss of an example is log(1 + sum_k exp(-m_k)), an upper bound of the
cross-entropy over the ball (Wong and Kolter, ICML 2018). `kw` uses Wong and Kolter's relaxation, `ibp` intervals (Gowal et
al. 2018), `crown-ibp` intervals for the units and a mixture of CROWN and interval margins whose weight moves to intervals as
the ball grows (Zhang et al. 2020).

The second term is cross-entropy, of the examples or of PGD points in the same ball (De Palma et al., ICLR 2024: MTL-IBP).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.methods.crown import mixed_margins
from relucert.bounding.methods.ibp import IBP
from relucert.bounding.methods.kw import KW
from relucert.bounding.preactivations import interval_margins
from relucert.bounding.projected import projected_margins
from relucert.core.ball import Ball, as_ball
from relucert.core.properties import class_stays
from relucert.networks.network import Network
from relucert.training._schedules import Tightening
from relucert.training.losses.adversarial import Adversarial
from relucert.training.losses.loss import ExampleLosses, StepContext, Terms


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """Minimise kappa * cross-entropy + (1 - kappa) * worst-case cross-entropy over a ball that grows.

    `method` is kw, ibp or crown-ibp; the margins of crown-ibp are interval margins with the weight `intervals` when the ball
    has its full radius. Margins are those of the network in eval mode. With `attack_steps` > 0 the cross-entropy is that of
    points that PGD finds in the ball in so many steps. With `projections` the margins of kw are estimated by so many random
    projections (`bounding.projected`).
    """

    method: str
    ball: Ball
    tightening: Tightening
    intervals: float = 1.0
    attack_steps: int = 0
    projections: int | None = None

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        return self.losses(net, x, y, *self.tightening.at(context.progress), context.generator).terms(y)

    def losses(
        self, net: Network, x: Tensor, y: Tensor, share: float, kappa: float, generator: torch.Generator
    ) -> ExampleLosses:
        """The loss of every example over the ball of radius share * eps, with the weight kappa of cross-entropy."""
        attacked = self.attack_steps > 0 and share > 0 and kappa > 0
        with torch.set_grad_enabled(torch.is_grad_enabled() and (share == 0 or (kappa > 0 and not attacked))):
            outputs = net(x)
            entropy = F.cross_entropy(outputs, y, reduction="none")
        ball = self._ball(net, share)
        parts = {"cross-entropy": entropy.detach().mean(), "radius": ball.reach(x).mean()}
        if share == 0:
            return ExampleLosses(entropy, parts, outputs)
        if attacked:
            moved = Adversarial(ball, self.attack_steps, share=1.0).mix(net, x, y, generator)
            entropy = F.cross_entropy(net(moved), y, reduction="none")
            parts["adversarial cross-entropy"] = entropy.detach().mean()
        margins = self.margins(net, x, y, share, generator)
        worst = worst_cross_entropy(margins)
        parts |= {"robust": worst.detach().mean(), "proved": (margins.detach() > 0).all(1).to(x.dtype).mean()}
        return ExampleLosses(kappa * entropy + (1 - kappa) * worst, parts, outputs)

    def _ball(self, net: Network, share: float) -> Ball:
        """The ball of radius share * eps, in the network's box if it was given none."""
        ball = as_ball(self.ball, net.box)
        return ball if share == 1 else ball.with_eps(share * ball.eps)

    def margins(
        self, net: Network, x: Tensor, y: Tensor, share: float = 1.0, generator: torch.Generator | None = None
    ) -> Float[Tensor, " batch others"]:
        """Lower bounds of the margin over every other class, over the ball of radius share * eps.

        `generator` draws the random projections, if there are any.
        """
        prop = class_stays(y, net.classes, dtype=x.dtype)
        ball = self._ball(net, share)
        if self.method == "kw" and self.projections is not None:
            return projected_margins(net, x, ball, prop, self.projections, generator or torch.Generator())
        if self.method == "kw":
            return KW(intervals=True).solve(net, x, ball, prop)[1]
        units = IBP().units(net, x, ball)
        coarse = interval_margins(net, units, x, ball, prop).computed
        linear = 1 - share * self.intervals
        if self.method == "ibp" or linear == 0:
            return coarse
        return linear * mixed_margins(net, units, x, ball, prop) + (1 - linear) * coarse


def worst_cross_entropy(margins: Float[Tensor, " batch others"]) -> Float[Tensor, " batch"]:
    """log(1 + sum exp(-m)): the cross-entropy of logits with exactly these margins.

    >>> bool(torch.isclose(worst_cross_entropy(torch.tensor([[1.0, 2.0]])),
    ...                    F.cross_entropy(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([0]))))
    True
    """
    return F.softplus(torch.logsumexp(-margins, 1))
