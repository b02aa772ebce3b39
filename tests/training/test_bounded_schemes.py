"""Training against bounds: losses that nothing in the ball exceeds, exact gradients, schedules with the right ends."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import relucert as rc
from relucert.bounding.methods.ibp import IBP
from relucert.bounding.methods.kw import KW
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import class_stays
from relucert.networks.network import Network
from relucert.regularizers.spectral import lipschitz_estimate
from relucert.training._schedules import Tightening
from relucert.training.config import TrainConfig
from relucert.training.losses.bounded import Bounded
from relucert.training.losses.loss import StepContext
from relucert.training.losses.spectral import Spectral
from relucert.training.losses.stability import Stability, stability
from relucert.training.schemes.bounded import CROWNIBPTraining, IBPTraining, KWTraining
from zoo import NETWORKS, inputs, network, randomised

METHODS = ("kw", "ibp", "crown-ibp")
WHOLE = Tightening(0.0, 0.5, kappa=(1.0, 0.25))


def at(progress: float) -> StepContext:
    return StepContext(progress, torch.Generator().manual_seed(0))


@pytest.mark.share(3)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_no_point_of_the_ball_has_a_larger_cross_entropy(name, method, p):
    net = network(name)
    x, y = inputs(net, 5), torch.arange(5) % 3
    ball = Ball(p, 0.2)
    scheme = Bounded(method=method, ball=ball, tightening=Tightening(0.0, 0.5))
    for share in (0.25, 1.0):
        margins = scheme.margins(net, x, y, share)
        worst = torch.log1p((-margins).exp().sum(1))
        generator, smaller = torch.Generator().manual_seed(0), ball.with_eps(0.2 * share)
        for _ in range(40):
            seen = F.cross_entropy(net(smaller.sample(x, generator)), y, reduction="none")
            assert bool((seen <= worst + 1e-9).all())
    assert float(scheme(net, x, y, at(0.9)).loss.detach()) == pytest.approx(float(worst.detach().mean()))


@pytest.mark.parametrize("method", METHODS)
def test_the_ball_grows_and_clean_cross_entropy_loses_weight(method):
    net = network("cnn")
    x, y = inputs(net, 4), torch.arange(4) % 3
    scheme = Bounded(method=method, ball=Ball(math.inf, 0.1), tightening=WHOLE)
    clean = F.cross_entropy(net(x), y, reduction="none").mean()
    assert torch.equal(scheme(net, x, y, at(0.0)).loss, clean)
    for progress, share, kappa in ((0.25, 0.5, 0.625), (0.5, 1.0, 0.25), (0.99, 1.0, 0.25)):
        terms = scheme(net, x, y, at(progress))
        worst = F.softplus(torch.logsumexp(-scheme.margins(net, x, y, share), 1)).mean()
        torch.testing.assert_close(terms.loss, kappa * clean + (1 - kappa) * worst)
        assert float(terms.parts["radius"]) == pytest.approx(0.1 * share)
        assert float(terms.parts["robust"]) >= float(terms.parts["cross-entropy"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["fc deep", "cnn", "residual"])
def test_cross_entropy_may_be_that_of_points_of_the_grown_ball(method, name):
    """The loss lies between the loss at the examples, where PGD starts, and the worst case of the bound."""
    net = network(name)
    x, y = inputs(net, 6), torch.arange(6) % 3
    scheme = Bounded(method=method, ball=Ball(math.inf, 0.05), tightening=WHOLE, attack_steps=10)
    for progress, kappa in ((0.25, 0.625), (0.75, 0.25)):
        terms = scheme(net, x, y, at(progress))
        clean, attacked, robust = (
            float(terms.parts[part]) for part in ("cross-entropy", "adversarial cross-entropy", "robust")
        )
        assert clean < attacked <= robust
        assert float(terms.loss.detach()) == pytest.approx(kappa * attacked + (1 - kappa) * robust)
        torch.testing.assert_close(terms.logits, net(x).detach())
    assert "adversarial cross-entropy" not in scheme(net, x, y, at(0.0)).parts
    slopes = torch.autograd.grad(scheme(net, x, y, at(0.75)).loss, list(net.parameters()), materialize_grads=True)
    assert any(bool(slope.any()) for slope in slopes)


def test_what_is_left_to_cross_entropy_is_a_share_and_for_bounds_only():
    assert IBPTraining(kappa=0.5).tightening.at(1.0) == (1.0, 0.5)
    assert KWTraining(kappa=0.5).tightening.at(0.0) == (0.1, 0.5)
    assert IBPTraining().tightening.at(1.0) == (1.0, 0.0)
    given = TrainConfig(data="digits", scheme="ibp(kappa=0.5, adversarial=True)", eps=0.1).to_json()
    assert given["scheme"] == "ibp(adversarial=True, attack_steps=10, eps=0.1, kappa=0.5)"
    left = TrainConfig(data="digits", scheme="ibp", eps=0.1).to_json()
    assert left["scheme"] == "ibp(adversarial=False, attack_steps=None, eps=0.1, kappa=0.0)"
    for wrong, message in (
        ("ibp(kappa=1.5)", "kappa must be a number from 0 to 1, got 1.5"),
        ("plain(kappa=0.5)", "plain has no parameter 'kappa'; it has none"),
        ("at(adversarial=True)", "at has no parameter 'adversarial'; it has attack_steps, eps"),
        ("ibp(adversarial=True)", "kappa must be positive where adversarial is True, got 0.0"),
    ):
        with pytest.raises(InvalidInput, match=message):
            TrainConfig(data="digits", eps=0.1, scheme=wrong)


def test_crown_ibp_ends_as_ibp_and_kw_is_at_least_the_published_bound():
    net = network("cnn")
    x, y = inputs(net, 4), torch.arange(4) % 3
    ball = Ball(math.inf, 0.05)
    found = {method: Bounded(method=method, ball=ball, tightening=WHOLE).margins(net, x, y) for method in METHODS}
    assert torch.equal(found["crown-ibp"], found["ibp"])
    published = KW().solve(net, x, ball, class_stays(y, net.classes, dtype=torch.float64))[1]
    assert float(found["kw"].detach().sum()) >= float(published.detach().sum())
    early = Bounded(method="crown-ibp", ball=ball.with_eps(0.1), tightening=WHOLE).margins(net, x, y, 0.5)
    assert bool((early.sum(1) > found["ibp"].sum(1)).all())
    crown = Bounded(method="crown-ibp", ball=ball, tightening=WHOLE, intervals=0.0).margins(net, x, y)
    half = Bounded(method="crown-ibp", ball=ball, tightening=WHOLE, intervals=0.5).margins(net, x, y)
    torch.testing.assert_close(half, (crown + found["ibp"]) / 2)
    assert bool((crown.sum(1) > found["ibp"].sum(1)).all())


@pytest.mark.parametrize("name", ["fc deep", "cnn", "cnn colour", "residual", "max pool", "leaky"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("p", [2.0, math.inf])
def test_gradients_agree_with_finite_differences(name, method, p):
    net = network(name)
    x, y = inputs(net, 3), torch.arange(3) % 3
    scheme = Bounded(method=method, ball=Ball(p, 0.1 if p == 2 else 0.03), tightening=WHOLE)
    weights = list(net.parameters())
    generator = torch.Generator().manual_seed(1)
    direction = [torch.randn(weight.shape, generator=generator, dtype=torch.float64) for weight in weights]
    slopes = torch.autograd.grad(scheme(net, x, y, at(0.3)).loss, weights, allow_unused=True, materialize_grads=True)
    expected = sum(float((slope * along).sum()) for slope, along in zip(slopes, direction, strict=True))
    step, values = 1e-6, []
    for by in (step, -2 * step):
        with torch.no_grad():
            for weight, along in zip(weights, direction, strict=True):
                weight += by * along
            values.append(float(scheme(net, x, y, at(0.3)).loss))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_running_statistics_move_though_margins_use_them():
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    net = Network(randomised(module, 2).double(), (4,)).train()
    x, y = inputs(net, 8), torch.arange(8) % 3
    before = module[1].running_mean.clone()
    Bounded(method="ibp", ball=Ball(2, 0.1), tightening=Tightening(0.0, 0.5))(net, x, y, at(0.9))
    assert not torch.equal(before, module[1].running_mean)


def test_stability_is_the_sum_over_units_of_a_known_network():
    # One pixel x = 0.5, eps 0.25: units x - 0.5 in [-0.25, 0.25] and 2 x + 1 in [1.5, 2.5].
    module = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[1.0], [2.0]]))
        module[0].bias.copy_(torch.tensor([-0.5, 1.0]))
    net = Network(module.double(), (1,)).eval()
    found, unstable = stability(net, torch.tensor([[0.5]]).double(), Ball(math.inf, 0.25))
    assert float(found.detach()) == pytest.approx(-math.tanh(1 - 0.0625) - math.tanh(1 + 3.75))
    assert unstable.tolist() == [1.0]


@pytest.mark.parametrize("name", ["fc", "cnn", "residual"])
def test_rs_is_adversarial_cross_entropy_with_stability_and_sparsity(name):
    net = network(name)
    x, y = inputs(net, 5), torch.arange(5) % 3
    scheme = Stability(Ball(math.inf, 0.1), 5, lam=0.01, l1=0.001)
    terms = scheme(net, x, y, at(0.5))
    moved = scheme.adversarial.mix(net, x, y, at(0.5).generator)
    assert bool((moved != x).flatten(1).any(1).all())
    found = IBP().units(net, x, Ball(math.inf, 0.1)).inputs
    units = [within for index, within in found.items() if net.graph[index].kind == "relu"]
    stable = sum(-torch.tanh(1 + one.lower * one.upper).flatten(1).sum(1) for one in units)
    size = sum(weight.abs().sum() for weight in net.parameters() if weight.dim() > 1)
    torch.testing.assert_close(terms.loss, F.cross_entropy(net(moved), y) + 0.01 * stable.mean() + 0.001 * size)
    unstable = sum(one.unstable.flatten(1).sum(1) for one in units)
    assert float(terms.parts["unstable"]) == pytest.approx(float(unstable.double().mean()))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_estimate_of_the_lipschitz_constant_is_one(name):
    """With enough iterations the product of norms is above the change of the logits between any two points."""
    net = network(name)
    steep = float(lipschitz_estimate(net, iterations=300).detach())
    a, b = inputs(net, 50), inputs(net, 50, seed=1)
    with torch.no_grad():
        moved = (net(a) - net(b)).norm(dim=1) / (a - b).flatten(1).norm(dim=1)
    assert float(moved.max()) <= steep * (1 + 1e-6)


def test_spectral_raises_the_other_classes_by_what_the_ball_can_change():
    net = network("fc deep")
    x, y = inputs(net, 4), torch.arange(4) % 3
    scheme = Spectral(0.3, Tightening(0.0, 0.5, first=0.5))
    terms = scheme(net, x, y, at(0.25))
    steep = lipschitz_estimate(net, torch.Generator().manual_seed(0))
    logits = net(x)
    raised = logits + math.sqrt(2) * 0.225 * steep
    raised[torch.arange(4), y] = logits[torch.arange(4), y]
    torch.testing.assert_close(terms.loss, F.cross_entropy(raised, y))
    assert terms.loss.grad_fn is not None


def test_networks_of_small_norms_are_proved_by_their_norms():
    """What `proved` says of training points is what the method lipschitz proves."""
    net = network("fc", torch.float64)
    x = inputs(net, 8)
    y = net.predict(x)
    terms = Spectral(1e-3, Tightening(0.0, 0.5, first=1.0))(net, x, y, at(0.9))
    found = rc.certify(net, x, y, Ball(2, 1e-3), "lipschitz")
    assert float(terms.parts["proved"]) <= sum(str(verdict) == "robust" for verdict in found.verdict) / 8


def test_recipes():
    def filled(**given):
        return TrainConfig(**given).settings.scheme

    assert filled(data="mnist", model="cnn", scheme="ibp").eps == pytest.approx(0.2)
    assert TrainConfig(data="mnist", model="cnn", scheme="ibp").radius == 0.1
    assert filled(data="mnist", scheme="ibp(eps=0.15)").eps == 0.15
    assert filled(data="fmnist", scheme="crown-ibp").eps == 0.1
    assert filled(data="mnist", scheme="kw").eps == 0.1
    assert filled(data="mnist", scheme="rs").l1 == 2e-5
    assert filled(data="mnist", scheme="rs").eps == 0.1
    assert KWTraining().tightening.at(0.0) == (0.1, 0.0)
    assert CROWNIBPTraining().tightening.at(1.0) == (1.0, 0.0)
    with pytest.raises(InvalidInput, match="p must be 2 for scheme spectral"):
        TrainConfig(scheme="spectral")
    with pytest.raises(InvalidInput, match="eps must be given for p=3"):
        TrainConfig(scheme="kw", p=3)
    with pytest.raises(InvalidInput, match="eps must be a positive number, got 0"):
        TrainConfig(scheme="kw(eps=0)")
    with pytest.raises(InvalidInput, match="l1 must be a number >= 0, got -1"):
        TrainConfig(scheme="rs(l1=-1)")


def test_margins_are_those_of_the_method():
    net = network("cnn")
    x, y = inputs(net, 3), torch.arange(3) % 3
    ball = Ball(2, 0.1)
    prop = class_stays(y, net.classes, dtype=torch.float64)
    mine = Bounded(method="ibp", ball=ball, tightening=WHOLE).margins(net, x, y)
    torch.testing.assert_close(mine, IBP().solve(net, x, ball, prop)[1])
