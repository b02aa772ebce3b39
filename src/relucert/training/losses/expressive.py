"""Losses between adversarial training and training against intervals, for a ball that grows.

With L_adv the cross-entropy at adversarial points, m_adv their margins, and m the interval margins over the ball:

    mtl-ibp   (1 - alpha) L_adv + alpha L(m)                    De Palma et al., ICLR 2024
    cc-ibp    L((1 - alpha) m_adv + alpha m)                    the same
    sabr      L(m'), m' over a box of ratio * eps in the ball   Mueller et al., ICLR 2023

where L(m) = log(1 + sum_k exp(-m_k)). The box of sabr stands around the adversarial point, moved towards the example until the
ball holds the box. alpha = 1 and ratio = 1 are training against intervals (`ibp`), alpha = 0 is adversarial training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from relucert.attacks.pgd import PGD, ascend, ascend_in_cube, cube
from relucert.bounding.methods.ibp import IBP
from relucert.bounding.preactivations import UnitBounds, interval_margins
from relucert.core.ball import Ball, as_ball
from relucert.core.properties import class_stays
from relucert.networks.network import Network
from relucert.regularizers.warm_up import warm_up_terms
from relucert.training._schedules import Tightening
from relucert.training.losses.bounded import worst_cross_entropy
from relucert.training.losses.loss import ExampleLosses, StepContext, Terms
from relucert.training.ranks import PartGenerator


@dataclass(frozen=True, kw_only=True)
class Expressive:
    """Minimise one of the losses above over a ball that grows.

    `weight` is alpha, or the ratio of sabr. The attack works in a ball of `reach` times the radius of the moment. `warm_up` is
    the weight of the regulariser of Shi et al. when the ball has no radius, and falls to 0 as the ball grows; `l1` is that of
    the sum of absolute weights.
    """

    method: str
    ball: Ball
    tightening: Tightening
    weight: float
    attack: PGD
    reach: float = 1.0
    warm_up: float = 0.0
    l1: float = 0.0

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        share, _ = self.tightening.at(context.progress)
        return self.losses(net, x, y, share, context.generator).terms(y)

    def losses(self, net: Network, x: Tensor, y: Tensor, share: float, generator: torch.Generator) -> ExampleLosses:
        """The loss of every example over the ball of radius share * eps."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and share == 0):
            outputs = net(x)
            entropy = F.cross_entropy(outputs, y, reduction="none")
        ball = as_ball(self.ball, net.box)
        ball = ball if share == 1 else ball.with_eps(share * ball.eps)
        parts = {"cross-entropy": entropy.detach().mean(), "radius": ball.reach(x).mean()}
        loss = entropy
        if share > 0:
            loss, more = self._worst(net, x, y, ball, share, generator)
            parts |= more
        if self.l1:
            size = sum((weight.abs().sum() for weight in net.parameters() if weight.dim() > 1), x.new_zeros(()))
            loss = loss + self.l1 * size
            parts["l1"] = size.detach()
        return ExampleLosses(loss, parts, outputs)

    def _worst(
        self, net: Network, x: Tensor, y: Tensor, ball: Ball, share: float, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss over a ball with a radius, and its parts."""
        parts: dict[str, Tensor] = {}
        moved = x
        if self.weight < 1:
            wide = ball if self.reach == 1 else ball.with_eps(self.reach * ball.eps)
            moved = adversarial_points(net, x, y, wide, self.attack, generator)
        warm = self.warm_up * (1 - share)
        loss = x.new_zeros(len(x))
        adversarial = None
        if self.method != "sabr" and self.weight < 1:
            adversarial = net(moved)
            loss = F.cross_entropy(adversarial, y, reduction="none")
            parts["adversarial cross-entropy"] = loss.detach().mean()
        if self.method == "sabr" or self.weight > 0 or warm > 0:
            units, margins = self._margins(net, x, moved, y, ball)
            worst = worst_cross_entropy(margins)
            parts |= {"robust": worst.detach().mean(), "proved": (margins.detach() > 0).all(1).to(x.dtype).mean()}
            if self.method == "sabr":
                loss = worst
            elif adversarial is None or self.method == "mtl-ibp":
                loss = (1 - self.weight) * loss + self.weight * worst
            else:
                own = class_stays(y, net.classes, dtype=x.dtype).margins(adversarial)
                loss = worst_cross_entropy((1 - self.weight) * own + self.weight * margins)
            if warm > 0:
                terms = warm_up_terms(net, units, x, self._inner(x, moved, ball)[1])
                parts |= {"tightness": terms.tightness.detach(), "balance": terms.balance.detach()}
                loss = loss + warm * (terms.tightness + terms.balance)
        return loss, parts

    def _inner(self, x: Tensor, moved: Tensor, ball: Ball) -> tuple[Tensor, Ball]:
        """The centres and the ball that intervals are propagated from."""
        if self.method != "sabr" or self.weight == 1:
            return x, ball
        kept = ball.with_eps((1 - self.weight) * ball.eps)
        return _nearest(x, moved, kept), ball.with_eps(self.weight * ball.eps)

    def _margins(
        self, net: Network, x: Tensor, moved: Tensor, y: Tensor, ball: Ball
    ) -> tuple[UnitBounds, Float[Tensor, " batch others"]]:
        """Interval bounds of all units, and of the margin over every other class."""
        centre, inner = self._inner(x, moved, ball)
        prop = class_stays(y, net.classes, dtype=x.dtype)
        units = IBP().units(net, centre, inner)
        return units, interval_margins(net, units, centre, inner, prop).computed


def adversarial_points(
    net: Network, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], ball: Ball, attack: PGD,
    generator: torch.Generator,
) -> Float[Tensor, " batch *input"]:  # fmt: skip
    """Points after the steps of PGD from a random start, for every example; the network is in eval mode meanwhile.

    In l_inf they lie in the ball up to the rounding of one sum (`ascend_in_cube`), in other norms exactly (`ascend`).
    """
    modes = [(part, part.training) for part in net.modules()]
    net.eval()  # running statistics of the network's own batch norms, no dropout
    try:
        if math.isinf(ball.p):
            return ascend_in_cube(net, x, y, ball, attack, _uniform(x, generator))
        start = generator.start(ball, len(x), len(x)) if isinstance(generator, PartGenerator) else None
        return ascend(net, x, y, ball, attack, generator, start)
    finally:
        for part, training in modes:
            part.training = training


def _nearest(x: Tensor, z: Tensor, ball: Ball) -> Tensor:
    """The nearest points of the ball: as computed in l_inf, exactly projected in other norms."""
    return torch.clamp(z, *cube(x, ball)) if math.isinf(ball.p) else ball.project(x, z)


def _uniform(x: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers from [0, 1) in the shape of x; for a part of a batch those of the part, drawn for the whole batch."""
    if isinstance(generator, PartGenerator):
        whole = torch.rand(generator.batch.shape, generator=generator, dtype=x.dtype)
        return whole[generator.places].to(x.device)
    return torch.rand(x.shape, generator=generator, dtype=x.dtype).to(x.device)
