"""`kw`, `ibp`, `crown-ibp`: cross-entropy of the worst logits that a bound allows over a ball.

With m_k a lower bound of the margin over class k, the loss of an example is log(1 + sum_k exp(-m_k)), an upper bound of the
cross-entropy over the ball (Wong and Kolter, ICML 2018). `kw` uses Wong and Kolter's relaxation, `ibp` intervals (Gowal et
al. 2018), `crown-ibp` intervals for the units and a mixture of CROWN and interval margins whose weight moves to intervals as
the ball grows (Zhang et al. 2020).

The second term is cross-entropy, of the examples or of PGD points in the same ball (De Palma et al., ICLR 2024: MTL-IBP).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.methods.crown import mixed_margins
from relucert.bounding.methods.ibp import IBP, interval_margins
from relucert.bounding.methods.kw import KW
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import class_stays
from relucert.networks.network import Network
from relucert.training.recipes import Setting
from relucert.training.schedules import Tightening
from relucert.training.schemes.adversarial import Adversarial
from relucert.training.schemes.scheme import AttackScheme, Loss, StepContext, Terms, given


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """Minimise kappa * cross-entropy + (1 - kappa) * worst-case cross-entropy over a ball that grows.

    `method` is kw, ibp or crown-ibp; the margins of crown-ibp are interval margins with the weight `intervals` when the ball
    has its full radius. Margins are those of the network in eval mode. With `attack_steps` > 0 the cross-entropy is that of
    points that PGD finds in the ball in so many steps.
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
            entropy = F.cross_entropy(outputs, y)
        ball = self.ball.with_eps(share * float(self.ball.eps))
        parts = {"cross-entropy": entropy.detach(), "radius": x.new_tensor(float(ball.eps))}
        if share == 0:
            return Terms(entropy, parts, outputs.detach(), y)
        if attacked:
            moved = Adversarial(ball, self.attack_steps, share=1.0).mix(net, x, y, context)
            entropy = F.cross_entropy(net(moved), y)
            parts["adversarial cross-entropy"] = entropy.detach()
        margins = self.margins(net, x, y, share)
        worst = worst_cross_entropy(margins).mean()
        parts |= {"robust": worst.detach(), "proved": (margins.detach() > 0).all(1).to(x.dtype).mean()}
        return Terms(kappa * entropy + (1 - kappa) * worst, parts, outputs.detach(), y)

    def margins(self, net: Network, x: Tensor, y: Tensor, share: float = 1.0) -> Float[Tensor, " batch others"]:
        """Lower bounds of the margin over every other class, over the ball of radius share * eps."""
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
    """log(1 + sum exp(-m)): the cross-entropy of logits with exactly these margins.

    >>> bool(torch.isclose(worst_cross_entropy(torch.tensor([[1.0, 2.0]])),
    ...                    F.cross_entropy(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([0]))))
    True
    """
    return F.softplus(torch.logsumexp(-margins, 1))


@dataclass(frozen=True, kw_only=True)
class BoundedTraining(AttackScheme):
    """Training against a bound: kappa * cross-entropy + (1 - kappa) * worst-case cross-entropy over a ball that grows.

    kappa is the weight of cross-entropy when the ball has its full radius eps; with `adversarial` the cross-entropy is
    that of points that PGD finds in attack_steps steps.
    """

    #: How the ball grows. The shares of the run are ours: the authors' are for runs of 60 to 200 epochs.
    growth: ClassVar[Tightening]

    kappa: float = 0.0
    adversarial: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require([("kappa", 0 <= self.kappa <= 1, "be a number from 0 to 1")])
        if self.adversarial and self.kappa == 0:
            raise InvalidInput("kappa must be positive where adversarial is True, got 0.0")

    def filled(self, setting: Setting) -> Self:
        scheme = super().filled(setting)
        return scheme if self.adversarial else replace(scheme, attack_steps=None)

    @property
    def tightening(self) -> Tightening:
        """How the ball grows, with kappa at the end."""
        return replace(self.growth, kappa=(max(self.growth.kappa[0], self.kappa), self.kappa))

    def loss(self, setting: Setting) -> Loss:
        return self._bounded(setting, 1.0)

    def _bounded(self, setting: Setting, intervals: float) -> Bounded:
        return Bounded(
            method=self.name, ball=self.ball(setting), tightening=self.tightening, intervals=intervals,
            attack_steps=given("attack_steps", self.attack_steps) if self.adversarial else 0,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class KWTraining(BoundedTraining):
    """Worst-case cross-entropy by the relaxation of Wong and Kolter (2018).

    The ball grows from a tenth of eps, as theirs does.
    """

    name = "kw"
    growth = Tightening(0.0, 0.4, first=0.1)


@dataclass(frozen=True, kw_only=True)
class IBPTraining(BoundedTraining):
    """Worst-case cross-entropy by interval bounds (Gowal et al. 2018).

    The ball grows from nothing after a warm-up; the learning rate falls after the ball has grown.
    """

    name = "ibp"
    growth = Tightening(0.05, 0.5, kappa=(1.0, 0.0))
    decay = 1 - growth.end

    def widening(self, data: str) -> float:
        """Gowal et al. train at 0.2 on MNIST to be certified at 0.1, and at 1.1 times the radius on CIFAR-10."""
        return {"mnist": 2.0, "cifar10": 1.1}.get(data, 1.0)


@dataclass(frozen=True, kw_only=True)
class CROWNIBPTraining(IBPTraining):
    """Worst-case cross-entropy by intervals for the units and CROWN for the margins (Zhang et al. 2020).

    `intervals` is the weight of interval margins when the ball has its full radius; the rest is CROWN's.
    """

    name = "crown-ibp"
    intervals: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require([("intervals", 0 <= self.intervals <= 1, "be a number from 0 to 1")])

    def loss(self, setting: Setting) -> Loss:
        return self._bounded(setting, self.intervals)
