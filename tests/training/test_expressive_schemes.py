"""Losses between adversarial training and intervals: their formulas, their ends, and that they are sound where they say so."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

import relucert as rc
from relucert.attacks.pgd import PGD
from relucert.bounding.methods.ibp import IBP
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.regularizers.mmr import MMRParameters, mmr
from relucert.regularizers.warm_up import warm_up_terms
from relucert.training._schedules import Tightening
from relucert.training.config import TrainConfig
from relucert.training.losses.bounded import Bounded
from relucert.training.losses.expressive import Expressive, adversarial_points
from relucert.training.losses.hybrid import Hybrid
from relucert.training.losses.loss import StepContext
from relucert.training.losses.maximum_margin import MaximumMargin
from relucert.training.schemes.expressive import CCIBPTraining, MTLIBPTraining, SABRTraining
from relucert.training.schemes.hybrid import MMRIBPTraining
from zoo import inputs, network

NAMES = ["fc deep", "cnn", "residual", "max pool"]
METHODS = ("mtl-ibp", "cc-ibp", "sabr")
GROWTH = Tightening(0.0, 0.5)
ATTACK = PGD(steps=3)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def loss_of(method, weight, ball, **more) -> Expressive:
    return Expressive(method=method, ball=ball, tightening=GROWTH, weight=weight, attack=ATTACK, **more)


def batch(name):
    net = network(name)
    return net, inputs(net, 6), torch.arange(6) % 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_ends_are_intervals_and_adversarial_training(name, p, share):
    net, x, y = batch(name)
    ball = Ball(p, 0.1)
    intervals = Bounded(method="ibp", ball=ball, tightening=GROWTH).losses(net, x, y, share, 0.0, generator()).loss
    for method in METHODS:
        torch.testing.assert_close(loss_of(method, 1.0, ball).losses(net, x, y, share, generator()).loss, intervals)
    moved = adversarial_points(net, x, y, ball.with_eps(0.1 * share), ATTACK, generator())
    attacked = F.cross_entropy(net(moved), y, reduction="none")
    for method in ("mtl-ibp", "cc-ibp"):
        torch.testing.assert_close(loss_of(method, 0.0, ball).losses(net, x, y, share, generator()).loss, attacked)


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_their_formulas(name):
    net, x, y = batch(name)
    ball = Ball(math.inf, 0.05)
    moved = adversarial_points(net, x, y, ball, ATTACK, generator())
    logits = net(moved)
    others = torch.tensor([[k for k in range(net.classes) if k != label] for label in y.tolist()])
    own = logits.gather(1, y[:, None]) - logits.gather(1, others)
    margins = Bounded(method="ibp", ball=ball, tightening=GROWTH).margins(net, x, y)
    attacked, worst = torch.log1p((-own).exp().sum(1)), torch.log1p((-margins).exp().sum(1))
    for alpha in (0.1, 0.6):
        found = loss_of("mtl-ibp", alpha, ball).losses(net, x, y, 1.0, generator()).loss
        torch.testing.assert_close(found, (1 - alpha) * attacked + alpha * worst)
        found = loss_of("cc-ibp", alpha, ball).losses(net, x, y, 1.0, generator()).loss
        torch.testing.assert_close(found, torch.log1p((-(1 - alpha) * own - alpha * margins).exp().sum(1)))
        assert bool((found <= (1 - alpha) * attacked + alpha * worst + 1e-9).all())  # the loss is convex in the margins
    centre = torch.clamp(moved, x - 0.7 * 0.05, x + 0.7 * 0.05)
    small = Bounded(method="ibp", ball=Ball(math.inf, 0.3 * 0.05), tightening=GROWTH).margins(net, centre, y)
    found = loss_of("sabr", 0.3, ball).losses(net, x, y, 1.0, generator()).loss
    torch.testing.assert_close(found, torch.log1p((-small).exp().sum(1)))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_the_small_box_of_sabr_lies_in_the_ball_and_is_bounded(p):
    net, x, y = batch("cnn")
    ball = Ball(p, 0.3)
    loss = loss_of("sabr", 0.4, ball)
    moved = adversarial_points(net, x, y, ball, ATTACK, generator())
    centre, inner = loss._inner(x, moved, ball)
    assert bool(ball.with_eps(0.18).contains(x, centre, slack=1e-9).all())
    assert float(inner.eps) == pytest.approx(0.12)
    worst, draws = loss.losses(net, x, y, 1.0, generator()).loss, generator()
    for _ in range(30):
        points = inner.sample(centre, draws)
        assert bool(ball.contains(x, points, slack=1e-9).all())
        assert bool((F.cross_entropy(net(points), y, reduction="none") <= worst + 1e-9).all())


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("steps", [1, 5])
def test_adversarial_points_lie_in_the_ball_and_raise_the_loss(p, steps):
    net, x, y = batch("cnn")
    ball = Ball(p, 0.2)
    net.train()
    moved = adversarial_points(net, x, y, ball, PGD(steps=steps), generator())
    assert net.training
    assert not moved.requires_grad
    assert bool(ball.contains(x, moved, slack=1e-9).all())
    with torch.no_grad():
        assert float(F.cross_entropy(net(moved), y)) > float(F.cross_entropy(net(x), y))
    other = adversarial_points(net, x, y, ball, PGD(steps=steps, step=0.01), generator())
    assert float((other - moved).abs().max()) > 0.01


def test_the_attack_has_a_radius_of_its_own_and_the_ball_grows():
    net, x, y = batch("cnn")
    ball = Ball(math.inf, 0.05)
    wide = loss_of("mtl-ibp", 0.25, ball, reach=2.0).losses(net, x, y, 0.5, generator())
    moved = adversarial_points(net, x, y, ball, ATTACK, generator())
    worst = Bounded(method="ibp", ball=ball.with_eps(0.025), tightening=GROWTH).losses(net, x, y, 1.0, 0.0, generator())
    torch.testing.assert_close(wide.loss, 0.75 * F.cross_entropy(net(moved), y, reduction="none") + 0.25 * worst.loss)
    start = loss_of("cc-ibp", 0.25, ball)(net, x, y, StepContext(0.0, generator()))
    torch.testing.assert_close(start.loss, F.cross_entropy(net(x), y))
    assert float(start.parts["radius"]) == 0
    later = loss_of("cc-ibp", 0.25, ball)(net, x, y, StepContext(0.25, generator()))
    assert float(later.parts["radius"]) == pytest.approx(0.025)


@pytest.mark.parametrize("method", METHODS)
def test_the_regulariser_ends_with_the_growth_and_weights_are_summed(method):
    net, x, y = batch("cnn")
    ball = Ball(math.inf, 0.05)
    for share in (0.5, 1.0):
        plain = loss_of(method, 0.5, ball).losses(net, x, y, share, generator()).loss
        more = loss_of(method, 0.5, ball, warm_up=0.8, l1=0.01).losses(net, x, y, share, generator())
        size = sum(float(weight.detach().abs().sum()) for weight in net.parameters() if weight.dim() > 1)
        expected = plain + 0.01 * size
        if share < 1:
            expected = expected + 0.8 * (1 - share) * (more.parts["tightness"] + more.parts["balance"])
            if method != "sabr":
                smaller = ball.with_eps(0.025)
                terms = warm_up_terms(net, IBP().units(net, x, smaller), x, smaller)
                torch.testing.assert_close(more.parts["tightness"], terms.tightness.detach())
        else:
            assert "tightness" not in more.parts
        torch.testing.assert_close(more.loss, expected)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_those_of_finite_differences(method):
    net, x, y = batch("fc deep")
    weight = next(value for value in net.parameters() if value.dim() > 1)
    loss = loss_of(method, 0.4, Ball(math.inf, 0.02), warm_up=0.5, l1=0.01)
    # The adversarial points are constants of the gradient: take steps that do not move them.
    loss = dataclasses.replace(loss, attack=PGD(steps=1, step=1e-9))

    def value() -> torch.Tensor:
        return loss.losses(net, x, y, 0.6, generator()).loss.mean()

    (slope,) = torch.autograd.grad(value(), weight)
    direction = torch.randn(weight.shape, generator=generator(), dtype=weight.dtype)
    step = 1e-6
    with torch.no_grad():
        weight += step * direction
        above = float(value())
        weight -= 2 * step * direction
        below = float(value())
        weight += step * direction
    assert (above - below) / (2 * step) == pytest.approx(float((slope * direction).sum()), rel=1e-4, abs=1e-6)


def test_the_hybrid_is_the_sum_of_the_loss_and_mmr():
    net, x, y = batch("cnn")
    context = StepContext(0.5, generator())
    expressive = loss_of("mtl-ibp", 0.3, Ball(math.inf, 0.05))
    config = TrainConfig(
        data="digits", model="cnn", scheme="mmr+ibp(lam=0.5, gamma_b=0.3, gamma_d=0.2, k_b=(4, 4), k_d=(2, 2))"
    )
    margin = config.settings.scheme.loss(config.setting).margin
    assert isinstance(margin, MaximumMargin)
    terms = Hybrid(expressive=expressive, margin=margin)(net, x, y, context)
    alone = expressive(net, x, y, StepContext(0.5, generator()))
    penalty = mmr(net, x, y, math.inf, 0.3, 0.2, 4, 2).mean()
    torch.testing.assert_close(terms.loss, alone.loss + 0.5 * penalty)
    torch.testing.assert_close(terms.parts["region"] + terms.parts["decision"], penalty.detach())
    parameters = MMRParameters(p=math.inf, gamma_b=0.3, gamma_d=0.2, k_b=4, k_d=2)
    each = rc.losses.mmr_ibp(net, x, y, Ball(math.inf, 0.05), 0.3, parameters, 0.5)
    alone = rc.losses.mtl_ibp(net, x, y, Ball(math.inf, 0.05), 0.3)
    torch.testing.assert_close(each, alone + 0.5 * mmr(net, x, y, math.inf, 0.3, 0.2, 4, 2))


def test_defaults_are_those_of_the_data_set():
    mnist = TrainConfig(data="mnist", model="cnn", scheme="mtl-ibp").settings
    assert mnist.scheme == MTLIBPTraining(
        alpha=0.02, eps=0.2, attack_steps=1, attack_step=2.0, attack_eps=1.0, l1=1e-5, warm_up=0.5
    )
    assert (mnist.start, mnist.batch_norm, mnist.clip, mnist.average, mnist.rate) == ("ibp", True, 10.0, 0.1, 5e-4)
    cifar = TrainConfig(data="cifar10", model="cnn", scheme="sabr").settings.scheme
    assert isinstance(cifar, SABRTraining)
    assert (cifar.eps, cifar.attack_eps, cifar.ratio) == (2 / 255, 2.0, 0.1)
    convex = TrainConfig(data="fmnist", model="cnn", scheme="cc-ibp(alpha=0.3)").settings.scheme
    assert isinstance(convex, CCIBPTraining)
    assert (convex.alpha, convex.eps) == (0.3, 0.1)
    both = TrainConfig(data="mnist", model="cnn", scheme="mmr+ibp").settings.scheme
    assert isinstance(both, MMRIBPTraining)
    assert (both.lam, both.gamma_b, both.alpha, both.eps) == (0.5, 0.2, 0.02, 0.2)  # lam and gamma of mmr+at
    plain = TrainConfig(data="mnist", model="cnn", scheme="mtl-ibp", batch_norm=False, clip=0, average=0, start="he")
    saved = plain.to_json()
    assert (saved["batch_norm"], saved["clip"], saved["average"], saved["start"]) == (False, 0, 0, "he")
    assert TrainConfig.from_json(saved).to_json() == saved
    assert "batch_norm" not in TrainConfig(data="mnist").to_json()


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("mtl-ibp(alpha=1.5)", "alpha must be a number from 0 to 1, got 1.5"),
        ("cc-ibp(alpha=-0.1)", "alpha must be a number from 0 to 1, got -0.1"),
        ("sabr(ratio=0)", "ratio must be a number above 0 and at most 1, got 0.0"),
        ("sabr(alpha=0.1)", "sabr has no parameter 'alpha'"),
        ("mtl-ibp(attack_step=0)", "attack_step must be a positive number, got 0.0"),
        ("mtl-ibp(attack_eps=-1)", "attack_eps must be a positive number, got -1.0"),
        ("mtl-ibp(warm_up=-1)", "warm_up must be a number >= 0, got -1.0"),
        ("mtl-ibp(l1=-1)", "l1 must be a number >= 0, got -1.0"),
        ("mmr+ibp(lam=-1)", "lam must be a number >= 0, got -1.0"),
    ],
)
def test_bad_parameters_are_named(scheme, message):
    with pytest.raises(InvalidInput, match=message):
        TrainConfig(data="digits", scheme=scheme)
