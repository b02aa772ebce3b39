"""The regulariser of Shi et al.: its definition on small networks, where it vanishes, and its gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from relucert.bounding.methods.ibp import IBP
from relucert.bounding.preactivations import UnitBounds
from relucert.core.ball import Ball
from relucert.networks.architectures import build
from relucert.networks.network import Network
from relucert.regularizers.warm_up import TOLERANCE, warm_up_terms
from zoo import inputs, network


def terms(net: Network, x: torch.Tensor, ball: Ball):
    return warm_up_terms(net, IBP().units(net, x, ball), x, ball)


@pytest.mark.parametrize("name", ["fc deep", "cnn", "residual"])
@pytest.mark.parametrize("p", [2.0, math.inf])
def test_both_terms_are_their_definitions(name, p):
    net, ball = network(name), Ball(p, 0.05)
    x = inputs(net, 5)
    units = IBP().units(net, x, ball)
    lower, upper = ball.hull(x)
    width = float((upper - lower).mean())
    tightness, balance = [], []
    for node in net.relus:
        within = units.inputs[node.index]
        low, high = within.lower.detach().flatten().tolist(), within.upper.detach().flatten().tolist()
        tightness.append(max(0.0, 0.5 - width / (sum(b - a for a, b in zip(low, high, strict=True)) / len(low))) / 0.5)
        centres = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        mean, total = sum(centres) / len(centres), 0.0
        active = [c for c, a in zip(centres, low, strict=True) if a >= 0]
        inactive = [c for c, b in zip(centres, high, strict=True) if b <= 0]
        if active and inactive:
            for size in (lambda c: abs(c), lambda c, mean=mean: (c - mean) ** 2):
                ratio = sum(map(size, active)) / sum(map(size, inactive))
                total += max(0.0, 0.5 - min(ratio, 1 / ratio)) / 0.5
        balance.append(total)
    found = terms(net, x, ball)
    assert float(found.tightness.detach()) == pytest.approx(sum(tightness) / len(tightness))
    assert float(found.balance.detach()) == pytest.approx(sum(balance) / len(balance))


def test_tight_layers_cost_nothing_and_wide_ones_at_most_one():
    layer = nn.Linear(2, 2).double()
    net, x, ball = (
        Network(nn.Sequential(layer, nn.ReLU(), nn.Linear(2, 2).double()), (2,)),
        torch.full((1, 2), 0.5).double(),
        Ball(math.inf, 0.1),
    )
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2))
    assert float(terms(net, x, ball).tightness.detach()) == 0
    with torch.no_grad():
        layer.weight.mul_(1 / TOLERANCE)
    assert float(terms(net, x, ball).tightness.detach()) == pytest.approx(0, abs=1e-12)
    with torch.no_grad():
        layer.weight.mul_(2)  # w_0 / w_1 = 1/4
    assert float(terms(net, x, ball).tightness.detach()) == pytest.approx(0.5)
    with torch.no_grad():
        layer.weight.mul_(1e6)
    assert 0.99 < float(terms(net, x, ball).tightness.detach()) <= 1


def test_first_weights_for_intervals_keep_widths():
    """Widths at a fresh network grow hundredfold with the paper's weights and little with those for intervals."""
    x, ball = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0)), Ball(math.inf, 0.01)
    growth = {}
    for start in ("he", "ibp"):
        net = build("cnn", (1, 28, 28), 10, seed=1, start=start)
        units: UnitBounds = IBP().units(net, x, ball)
        last = units.inputs[net.relus[-1].index]
        growth[start] = float((last.upper - last.lower).mean().detach()) / 0.02
    assert growth["he"] > 50 * growth["ibp"]
    assert 0.1 < growth["ibp"] < 4


def test_gradients_are_those_of_finite_differences():
    net, ball = network("cnn"), Ball(math.inf, 0.01)
    x = inputs(net, 4)
    weights = list(net.parameters())

    def value() -> torch.Tensor:
        found = terms(net, x, ball)
        return found.tightness + found.balance

    slopes = torch.autograd.grad(value(), weights, materialize_grads=True, allow_unused=True)
    generator, step = torch.Generator().manual_seed(0), 1e-7
    directions = [torch.randn(w.shape, generator=generator, dtype=w.dtype) for w in weights]
    expected = sum(float((s * d).sum()) for s, d in zip(slopes, directions, strict=True))
    values = []
    with torch.no_grad():
        for factor in (step, -2 * step, step):
            for weight, direction in zip(weights, directions, strict=True):
                weight += factor * direction
            values.append(float(value()))
    assert abs(expected) > 1e-3
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(expected, rel=1e-4)
