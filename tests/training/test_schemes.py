import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relucert.attacks.pgd import PGD, ascend
from relucert.core.ball import Ball
from relucert.geometry.region import LinearRegion
from relucert.networks.network import Network
from relucert.regularizers.cross_lipschitz import cross_lipschitz
from relucert.regularizers.mmr import mmr
from relucert.training._randomness import generator
from relucert.training._schedules import Count, Schedule
from relucert.training.losses.adversarial import Adversarial
from relucert.training.losses.cross_lipschitz import CrossLipschitz
from relucert.training.losses.loss import StepContext
from relucert.training.losses.maximum_margin import MaximumMargin
from relucert.training.losses.plain import Plain
from relucert.training.losses.universal import UniversalMargin
from relucert.training.recipes import EPS
from zoo import inputs, network, randomised

ALL = Count(1.0, 1.0, shares=True)


def shares(first, last):
    """k_B as shares of the units, k_D the number of classes."""
    return Schedule(Count(first, last, shares=True), ALL)


def context():
    return StepContext(0.5, torch.Generator().manual_seed(0))


def test_plain_is_the_mean_cross_entropy():
    net = network("fc")
    x, y = inputs(net, 6), torch.tensor([0, 1, 2, 3, 0, 1])
    terms = Plain()(net, x, y, context())
    assert torch.equal(terms.loss, F.cross_entropy(net(x), y, reduction="none").mean())


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("count", [1, 6, 7])
def test_at_replaces_half_of_the_batch_by_points_of_the_ball_with_a_larger_loss(p, count):
    net = network("cnn")
    x, y = inputs(net, count), torch.arange(count) % 3
    ball = Ball(p, 0.3)
    scheme = Adversarial(ball, 10)
    net.train()
    mixed = scheme.mix(net, x, y, context().generator)
    assert net.training
    clean = count - count // 2
    assert torch.equal(mixed[:clean], x[:clean])
    if count > 1:
        assert bool(ball.contains(x[clean:], mixed[clean:]).all())
        with torch.no_grad():
            gained = F.cross_entropy(net(mixed[clean:]), y[clean:]) - F.cross_entropy(net(x[clean:]), y[clean:])
        assert float(gained) > 0
        assert torch.equal(mixed[clean:], ascend(net, x[clean:], y[clean:], ball, PGD(steps=10), context().generator))
    terms = scheme(net, x, y, context())
    assert torch.allclose(terms.loss, F.cross_entropy(net(mixed), y))
    assert len(terms.labels) == clean


@pytest.mark.parametrize("name", ["fc", "cnn"])
def test_mmr_universal_is_the_sum_of_two_regularisers(name):
    net = network(name)
    x, y = inputs(net, 6), torch.arange(6) % net.classes
    loss = UniversalMargin(lam_1=3.0, lam_inf=12.0, gamma_1=1.0, gamma_inf=0.15, schedule=shares(0.2, 0.1))
    terms = loss(net, x, y, context())
    k_b, k_d = shares(0.2, 0.1).counts(0.5, LinearRegion.at(net, x).count, net.classes)
    first, last = (mmr(net, x, y, p, gamma, gamma, k_b, k_d).mean() for p, gamma in ((1.0, 1.0), (math.inf, 0.15)))
    assert torch.allclose(terms.loss, F.cross_entropy(net(x), y) + 3.0 * first + 12.0 * last)
    assert torch.allclose(terms.parts["region l_1"] + terms.parts["decision l_1"], first)
    assert torch.allclose(terms.parts["region l_inf"] + terms.parts["decision l_inf"], last)
    terms.loss.backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in net.parameters() if weight.grad is not None)


def test_generators_follow_from_seed_and_purpose_alone():
    draws = [
        torch.rand(3, generator=generator(*key))
        for key in [(0, "a", 1), (0, "a", 1), (0, "a", 2), (1, "a", 1), (0, "b", 1)]
    ]
    assert torch.equal(draws[0], draws[1])
    assert len({tuple(draw.tolist()) for draw in draws}) == 4


def test_radii_are_the_papers():
    assert EPS["gts"][math.inf] == 4 / 255
    assert EPS["cifar10"] == {math.inf: 2 / 255, 2.0: 0.1}


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("name", ["fc", "cnn", "max pool"])
@pytest.mark.parametrize("progress", [0.0, 0.05, 0.5])
def test_mmr_is_cross_entropy_plus_lambda_times_the_regulariser(p, name, progress):
    net = network(name)
    x, y = inputs(net, 6), torch.arange(6) % 3
    scheme = MaximumMargin(p=p, lam=2.0, gamma_b=0.5, gamma_d=0.5, schedule=shares(0.5, 0.1))
    terms = scheme(net, x, y, StepContext(progress, torch.Generator()))
    k_b = round((0.5 - 0.4 * progress) * LinearRegion.at(net, x).count)
    weight = 2.0 * min(1, 0.1 + 9 * progress)
    expected = F.cross_entropy(net(x), y) + weight * mmr(net, x, y, p, 0.5, 0.5, k_b, net.classes).mean()
    torch.testing.assert_close(terms.loss, expected)
    total = terms.parts["cross-entropy"] + weight * (terms.parts["region"] + terms.parts["decision"])
    torch.testing.assert_close(terms.loss.detach(), total)
    assert 0 <= float(terms.parts["exact"]) <= 1


def test_mmr_at_sees_one_mixed_batch():
    net = network("fc")
    x, y = inputs(net, 7), torch.arange(7) % 4
    adversarial = Adversarial(Ball(2, 0.3), 5)
    scheme = MaximumMargin(p=2.0, lam=1.0, gamma_b=0.5, gamma_d=0.5, schedule=shares(1.0, 1.0), mix=adversarial.mix)
    terms = scheme(net, x, y, context())
    mixed = adversarial.mix(net, x, y, context().generator)
    expected = F.cross_entropy(net(mixed), y) + mmr(net, mixed, y, 2.0, 0.5, 0.5, net.hidden_units, net.classes).mean()
    torch.testing.assert_close(terms.loss, expected)
    assert len(terms.labels) == 4


def test_mmr_dd_has_the_decision_part_alone():
    net = network("cnn")
    x, y = inputs(net, 5), torch.arange(5) % 3
    both, alone = (
        MaximumMargin(p=2.0, lam=1.0, gamma_b=gamma, gamma_d=0.5, schedule=shares(0.5, 0.5))(net, x, y, context())
        for gamma in (0.5, None)
    )
    torch.testing.assert_close(alone.loss.detach(), both.parts["cross-entropy"] + both.parts["decision"])
    assert "region" not in alone.parts


def test_cross_lipschitz_is_cross_entropy_plus_the_regulariser():
    net = network("fc1")
    x, y = inputs(net, 5), torch.arange(5) % 3
    terms = CrossLipschitz(0.2)(net, x, y, context())
    torch.testing.assert_close(terms.loss, F.cross_entropy(net(x), y) + 0.2 * cross_lipschitz(net, x).mean())


def test_layers_that_depend_on_the_mode_see_the_batch_in_train_mode_and_regions_in_eval_mode():
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    net = Network(randomised(module, 2).double(), (4,)).train()
    x, y = inputs(net, 8), torch.arange(8) % 3
    before = module[1].running_mean.clone()
    terms = MaximumMargin(p=2.0, lam=1.0, gamma_b=0.5, gamma_d=0.5, schedule=shares(0.5, 0.5))(net, x, y, context())
    assert not torch.equal(before, module[1].running_mean)
    module[1].running_mean.copy_(before)
    net.train()
    assert float(terms.parts["cross-entropy"]) == pytest.approx(float(F.cross_entropy(net(x), y).detach()))
