"""`relucert.losses`: what each training scheme minimises, for training loops of one's own.

Every function takes a network (or an `nn.Module`, which is traced at every call: wrap it in a `Network` before a training
loop), a batch x (batch, *input) and labels y (batch,), and returns the loss of every example, (batch,), differentiable in the
weights. The schemes of `relucert.train` minimise the means of the same functions; their schedules (a weight that grows, a ball
that grows, fewer and fewer hyperplanes) are left to the caller, who passes the values of the step.

Bounds and linear regions are those of the network in eval mode; cross-entropy is that of the mode that the network is in.
Margins of bounds are computed in the network's dtype and prove nothing: `relucert.certify` does. `generator` holds the
randomness of attacks and estimates; by default every call draws the same numbers. A ball may have a scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from inspect import signature
from numbers import Real
from typing import ParamSpec

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relucert.attacks.pgd import PGD
from relucert.core.ball import Ball, as_ball
from relucert.core.errors import InvalidInput
from relucert.core.norms import check_p
from relucert.networks.network import Network, as_network
from relucert.networks.scaled import scaled_in_training
from relucert.regularizers.mmr import MMRParameters
from relucert.training._schedules import Count, Schedule, Tightening
from relucert.training.losses.adversarial import Adversarial
from relucert.training.losses.bounded import Bounded
from relucert.training.losses.cross_lipschitz import cross_lipschitz_losses
from relucert.training.losses.expressive import Expressive
from relucert.training.losses.maximum_margin import margin_losses, margin_penalties
from relucert.training.losses.plain import plain_losses
from relucert.training.losses.spectral import spectral_losses
from relucert.training.losses.stability import Stability
from relucert.training.losses.universal import UniversalMargin

__all__ = [
    "at",
    "cc_ibp",
    "cross_lipschitz",
    "crown_ibp",
    "ibp",
    "kw",
    "mmr",
    "mmr_ibp",
    "mmr_universal",
    "mtl_ibp",
    "plain",
    "sabr",
    "spectral",
    "stability",
]
Losses = Float[Tensor, " batch"]
#: Attack of the functions that train on adversarial points.
ATTACK = PGD(steps=10)
#: The full ball, and cross-entropy as it is given: schedules are the caller's.
_WHOLE = Tightening(0.0, 1.0)
Given = ParamSpec("Given")


def _for_any_scale(loss: Callable[Given, Losses]) -> Callable[Given, Losses]:
    """The loss over a ball with a scale, as that of the network of inputs divided by it."""

    @wraps(loss)
    def computed(*args: Given.args, **kwargs: Given.kwargs) -> Losses:
        given = signature(loss).bind(*args, **kwargs).arguments
        net, x, y, ball = (given[name] for name in ("net", "x", "y", "ball"))
        if not isinstance(ball, Ball) or ball.scale is None:
            return loss(*args, **kwargs)
        checked = _inspected(net, x, y, ball)
        inner, v, plain, _ = scaled_in_training(checked, x, as_ball(ball, checked.box))
        return loss(**(given | {"net": inner, "x": v, "ball": plain}))  # type: ignore[call-arg]

    return computed


def plain(net: nn.Module, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"]) -> Losses:
    """Cross-entropy.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10), rc.dataset("digits")
    >>> plain(net, data.x_test[:5], data.y_test[:5]).shape
    torch.Size([5])
    """
    return plain_losses(_inspected(net, x, y), x, y).loss


@_for_any_scale
def at(
    net: nn.Module, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], ball: Ball, attack: PGD = ATTACK,
    share: float = 0.5, generator: torch.Generator | None = None,
) -> Losses:  # fmt: skip
    """Cross-entropy on a batch whose last `share` is replaced by points that PGD finds in the ball (Madry et al. 2018)."""
    checked = _inspected(net, x, y, ball)
    _require("share", share, 0 <= share <= 1, "be a number from 0 to 1")
    return _adversarial(ball, attack, share).losses(checked, x, y, _drawn(generator)).loss


def mmr(
    net: nn.Module, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], margin: MMRParameters, lam: float = 1.0,
    ball: Ball | None = None, generator: torch.Generator | None = None,
) -> Losses:  # fmt: skip
    """Cross-entropy + lam * MMR (section 4 of the paper); the regulariser alone is `relucert.mmr`.

    `margin` is `relucert.MMRParameters(p=, gamma_b=, gamma_d=, k_b=, k_d=)`; gamma_b=None leaves the region term out (MMR-DD).
    With a ball the second half of the batch is replaced by PGD points (mmr+at).

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10), rc.dataset("digits")
    >>> margin = rc.MMRParameters(p=2, gamma_b=0.3, gamma_d=0.3, k_b=50, k_d=10)
    >>> loss = mmr(net, data.x_test[:6], data.y_test[:6], margin, lam=0.5, ball=rc.Ball(2, 0.2))
    >>> loss.shape, loss.requires_grad
    (torch.Size([6]), True)
    """
    checked = _inspected(net, x, y, ball)
    _require("margin", margin, isinstance(margin, MMRParameters), "be relucert.MMRParameters(p=, gamma_b=, gamma_d=)")
    _require_number("lam", lam)
    check_p(margin.p)
    points = x if ball is None else _mixed(checked, x, y, ball, generator)
    return margin_losses(checked, points, y, lambda hyperplanes, classes: {"": (lam, margin)}).loss


def mmr_universal(
    net: nn.Module, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], lam: tuple[float, float],
    gamma: tuple[float, float], k_b: int = 1, k_d: int = 1,
) -> Losses:  # fmt: skip
    """Cross-entropy + lam[0] * MMR in l_1 + lam[1] * MMR in l_inf, with gamma_B = gamma_D = gamma[0] and gamma[1].

    The k_b and k_d nearest hyperplanes enter, in each norm its own (Croce and Hein, ICLR 2020).
    """
    checked = _inspected(net, x, y)
    for name, pair in (("lam", lam), ("gamma", gamma)):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidInput(f"{name} must be two numbers, for l_1 and l_inf, got {pair!r}")
    _require("lam", lam, min(lam) >= 0, "be two numbers >= 0")
    never = Schedule(Count(1, 1), Count(1, 1))
    loss = UniversalMargin(lam_1=lam[0], lam_inf=lam[1], gamma_1=gamma[0], gamma_inf=gamma[1], schedule=never)
    return margin_losses(checked, x, y, lambda hyperplanes, classes: loss.weighted(1.0, k_b, k_d)).loss


def cross_lipschitz(
    net: nn.Module, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], lam: float = 0.01
) -> Losses:
    """Cross-entropy + lam * the cross-Lipschitz regulariser, `relucert.cross_lipschitz` (Hein and Andriushchenko 2017)."""
    _require_number("lam", lam)
    return cross_lipschitz_losses(_inspected(net, x, y), x, y, lam).loss


@_for_any_scale
def kw(
    net: nn.Module, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], ball: Ball, kappa: float = 0.0,
    projections: int | None = None, generator: torch.Generator | None = None,
) -> Losses:  # fmt: skip
    """kappa * cross-entropy + (1 - kappa) * its upper bound over the ball by Wong and Kolter's relaxation (ICML 2018).

    With `projections` the bound is estimated by so many random projections (Wong et al., NeurIPS 2018).
    """
    _require("projections", projections, projections is None or projections >= 1, "be at least 1")
    bound = Bounded(method="kw", ball=ball, tightening=_WHOLE, projections=projections)
    return _bounded(bound, net, x, y, kappa, generator)


@_for_any_scale
def ibp(
    net: nn.Module, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], ball: Ball, kappa: float = 0.0
) -> Losses:
    """kappa * cross-entropy + (1 - kappa) * its upper bound over the ball by intervals (Gowal et al. 2018).

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10), rc.dataset("digits")
    >>> x, y = data.x_test[:5], data.y_test[:5]
    >>> bool((ibp(net, x, y, rc.Ball(2, 0.1)) >= plain(net, x, y)).all())
    True
    """
    return _bounded(Bounded(method="ibp", ball=ball, tightening=_WHOLE), net, x, y, kappa)


@_for_any_scale
def crown_ibp(
    net: nn.Module, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], ball: Ball, kappa: float = 0.0,
    intervals: float = 0.0,
) -> Losses:  # fmt: skip
    """kappa * cross-entropy + (1 - kappa) * its upper bound: units by intervals, margins by CROWN (Zhang et al. 2020).

    `intervals` is the weight of interval margins against CROWN's, which moves from 0 to 1 in training.
    """
    _require("intervals", intervals, 0 <= intervals <= 1, "be a number from 0 to 1")
    return _bounded(Bounded(method="crown-ibp", ball=ball, tightening=_WHOLE, intervals=intervals), net, x, y, kappa)


@_for_any_scale
def mtl_ibp(
    net: nn.Module, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], ball: Ball, alpha: float,
    attack: PGD = ATTACK, generator: torch.Generator | None = None,
) -> Losses:  # fmt: skip
    """(1 - alpha) * cross-entropy at PGD points + alpha * its upper bound by intervals (De Palma et al., ICLR 2024)."""
    _require("alpha", alpha, 0 <= alpha <= 1, "be a number from 0 to 1")
    return _expressive(_loss("mtl-ibp", ball, alpha, attack), net, x, y, generator)


@_for_any_scale
def cc_ibp(
    net: nn.Module, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], ball: Ball, alpha: float,
    attack: PGD = ATTACK, generator: torch.Generator | None = None,
) -> Losses:  # fmt: skip
    """Cross-entropy of (1 - alpha) * margins at PGD points + alpha * interval margins (De Palma et al., ICLR 2024).

    >>> import relucert as rc
    >>> net, data, ball = rc.build("fc1", (1, 8, 8), 10), rc.dataset("digits"), rc.Ball(float("inf"), 0.05)
    >>> batch = net, data.x_test[:5], data.y_test[:5], ball
    >>> bool((cc_ibp(*batch, alpha=0.5) <= mtl_ibp(*batch, alpha=0.5) + 1e-5).all())
    True
    """
    _require("alpha", alpha, 0 <= alpha <= 1, "be a number from 0 to 1")
    return _expressive(_loss("cc-ibp", ball, alpha, attack), net, x, y, generator)


def mmr_ibp(
    net: nn.Module, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], ball: Ball, alpha: float,
    margin: MMRParameters, lam: float = 1.0,
) -> Losses:  # fmt: skip
    """The loss of `mtl_ibp`, with its default attack, + lam * MMR at the examples themselves."""
    checked = _inspected(net, x, y, ball)
    _require("margin", margin, isinstance(margin, MMRParameters), "be relucert.MMRParameters(p=, gamma_b=, gamma_d=)")
    _require_number("lam", lam)
    check_p(margin.p)
    penalty, _, _ = margin_penalties(checked, x, y, lambda hyperplanes, classes: {"": (lam, margin)})
    return mtl_ibp(checked, x, y, ball, alpha) + penalty


@_for_any_scale
def sabr(
    net: nn.Module, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], ball: Ball, ratio: float,
    attack: PGD = ATTACK, generator: torch.Generator | None = None,
) -> Losses:  # fmt: skip
    """Upper bound by intervals of the cross-entropy over a ball of radius ratio * eps in the ball (Mueller et al., ICLR 2023).

    The small ball stands around a PGD point, moved towards x until the ball holds it.
    """
    _require("ratio", ratio, 0 < ratio <= 1, "be a number above 0 and at most 1")
    return _expressive(_loss("sabr", ball, ratio, attack), net, x, y, generator)


@_for_any_scale
def stability(
    net: nn.Module, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], ball: Ball,
    weights: tuple[float, float] = (1e-4, 2e-5), attack: PGD = ATTACK, generator: torch.Generator | None = None,
) -> Losses:  # fmt: skip
    """Adversarial cross-entropy + lam * ReLU stability + l1 * the sum of absolute weights, weights=(lam, l1).

    Xiao et al. (ICLR 2019). The stability of a unit with interval bounds l and u is -tanh(1 + l u).
    """
    checked = _inspected(net, x, y, ball)
    _require("weights", weights, len(weights) == 2 and min(weights) >= 0, "be two numbers >= 0")
    return Stability(ball, _single(attack), *weights).losses(checked, x, y, _drawn(generator)).loss


def spectral(
    net: nn.Module, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], eps: float,
    generator: torch.Generator | None = None,
) -> Losses:  # fmt: skip
    """Cross-entropy with sqrt(2) eps L added to all other logits, L the product of spectral norms (Tsuzuku et al. 2018)."""
    _require_number("eps", eps)
    return spectral_losses(_inspected(net, x, y), x, y, eps, _drawn(generator)).loss


def _bounded(
    loss: Bounded, net: nn.Module, x: Tensor, y: Tensor, kappa: float, generator: torch.Generator | None = None
) -> Tensor:
    checked = _inspected(net, x, y, loss.ball)
    _require("kappa", kappa, 0 <= kappa <= 1, "be a number from 0 to 1")
    return loss.losses(checked, x, y, 1.0, kappa, _drawn(generator)).loss


def _loss(method: str, ball: Ball, weight: float, attack: PGD) -> Expressive:
    return Expressive(method=method, ball=ball, tightening=_WHOLE, weight=weight, attack=_single(attack))


def _expressive(loss: Expressive, net: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
    checked = _inspected(net, x, y, loss.ball)
    return loss.losses(checked, x, y, 1.0, _drawn(generator)).loss


def _adversarial(ball: Ball, attack: PGD, share: float) -> Adversarial:
    return Adversarial(ball, _single(attack), share)


def _mixed(net: Network, x: Tensor, y: Tensor, ball: Ball, generator: torch.Generator | None) -> Tensor:
    """The batch with PGD points in the place of its second half."""
    ball = as_ball(ball, net.box)
    if ball.scale is None:
        return _adversarial(ball, ATTACK, 0.5).mix(net, x, y, _drawn(generator))
    inner, v, plain, factor = scaled_in_training(net, x, ball)
    points = _adversarial(plain, ATTACK, 0.5).mix(inner, v, y, _drawn(generator))
    return torch.where(points == v, x, points * factor)


def _single(attack: PGD) -> PGD:
    """The attack, which must be PGD from one point: training takes the last point of one run."""
    if not isinstance(attack, PGD) or attack.restarts != 1:
        raise InvalidInput(f"attack must be relucert.PGD with one start, got {attack!r}")
    return attack


def _inspected(net: nn.Module, x: Tensor, y: Tensor, ball: Ball | None = None) -> Network:
    """The network, after checks of the batch and of the ball around it."""
    network = as_network(net, x)
    network.check(x, y)
    if ball is not None:
        ball = as_ball(ball, network.box)
        (ball if ball.scale is None else replace(ball, scale=None)).check(x)
    return network


def _drawn(generator: torch.Generator | None) -> torch.Generator:
    return torch.Generator().manual_seed(0) if generator is None else generator


def _require(name: str, value: object, holds: bool, rule: str) -> None:
    if not holds:
        raise InvalidInput(f"{name} must {rule}, got {value!r}")


def _require_number(name: str, value: object) -> None:
    _require(name, value, isinstance(value, Real) and float(value) >= 0, "be a number >= 0")
