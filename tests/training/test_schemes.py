import math

import pytest
import torch
import torch.nn.functional as F

from relucert.attacks.pgd import PGD, ascend
from relucert.core.ball import Ball
from relucert.training.randomness import generator
from relucert.training.recipes import EPS
from relucert.training.schemes.adversarial import Adversarial
from relucert.training.schemes.plain import Plain
from relucert.training.schemes.scheme import Moment
from zoo import inputs, network


def moment():
    return Moment(0.5, torch.Generator().manual_seed(0))


def test_plain_is_the_mean_cross_entropy():
    net = network("fc")
    x, y = inputs(net, 6), torch.tensor([0, 1, 2, 3, 0, 1])
    terms = Plain()(net, x, y, moment())
    assert torch.equal(terms.loss, F.cross_entropy(net(x), y))


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("count", [1, 6, 7])
def test_at_replaces_half_of_the_batch_by_points_of_the_ball_with_a_larger_loss(p, count):
    net = network("cnn")
    x, y = inputs(net, count), torch.arange(count) % 3
    ball = Ball(p, 0.3)
    scheme = Adversarial(ball, steps=10)
    net.train()
    mixed = scheme.mix(net, x, y, moment())
    assert net.training
    clean = count - count // 2
    assert torch.equal(mixed[:clean], x[:clean])
    if count > 1:
        assert bool(ball.contains(x[clean:], mixed[clean:]).all())
        with torch.no_grad():
            gained = F.cross_entropy(net(mixed[clean:]), y[clean:]) - F.cross_entropy(net(x[clean:]), y[clean:])
        assert float(gained) > 0
        assert torch.equal(mixed[clean:], ascend(net, x[clean:], y[clean:], ball, PGD(steps=10), moment().generator))
    terms = scheme(net, x, y, moment())
    assert torch.allclose(terms.loss, F.cross_entropy(net(mixed), y))
    assert len(terms.labels) == clean


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
