"""The ends of `output_range` hold all over the ball, and are exact where the network is linear."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import nn

import relucert as rc
from relucert.core.errors import InvalidInput
from relucert.networks.network import Network
from relucert.verification.output_range import OutputRange, output_range
from zoo import inputs, network, randomised


@pytest.mark.parametrize("method", ["ibp", "kw", "crown", "alpha(steps=3)", "lipschitz", "sdp(steps=3)"])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_no_point_of_the_ball_leaves_the_range(method: str, p: float) -> None:
    module = randomised(nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1)), 3)
    net = Network(module, (3,))
    x = 30 * inputs(net, 4) - 10
    ball = rc.Ball(p, torch.tensor([0.0, 0.1, 1.0, 5.0]), None)
    found = output_range(net, x, ball, method)
    assert isinstance(found, OutputRange)
    assert found.lower.shape == found.upper.shape == (4, 1)
    assert found.lower.dtype == torch.float32
    points = ball.sample(x, torch.Generator().manual_seed(0), 200)
    values = net.double()(points.double().flatten(0, 1)).reshape(4, 200, 1)
    assert bool((values >= found.lower[:, None]).all())
    assert bool((values <= found.upper[:, None]).all())
    if method != "lipschitz":
        assert bool((found.upper - found.lower)[0] < 1e-3)


def test_the_range_of_a_linear_network_holds_the_exact_one() -> None:
    torch.manual_seed(0)
    net = nn.Linear(5, 2)
    x, eps = torch.randn(3, 5) * 1e3, 0.3
    for arithmetic in ("real", "executed"):
        found = output_range(net, x, rc.Ball(math.inf, eps, None), arithmetic=arithmetic)
        for i in range(3):
            for k in range(2):
                row = [Fraction(value) for value in net.weight[k].tolist()]
                middle = sum(w * Fraction(z) for w, z in zip(row, x[i].tolist(), strict=True))
                middle += Fraction(net.bias[k].item())
                reach = sum(abs(w) for w in row) * Fraction(eps)
                assert Fraction(found.lower[i, k].item()) <= middle - reach
                assert Fraction(found.upper[i, k].item()) >= middle + reach
                assert float(found.upper[i, k] - found.lower[i, k]) <= float(2 * reach) * 1.01 + 1e-2


def test_ranges_lie_within_the_bounds_of_methods_and_batches_do_not_matter() -> None:
    net = network("cnn")
    x = inputs(net, 5)
    ball = rc.Ball(2, 0.05)
    found, pieces = output_range(net, x, ball), output_range(net, x, ball, batch=2)
    plain = rc.bounds(net, x, ball, "crown").logits
    torch.testing.assert_close(found.lower, plain.lower, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.upper, plain.upper, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(pieces.lower, found.lower, rtol=1e-12, atol=1e-12)
    assert len(output_range(net, x[:0], ball)) == 0


def test_questions_that_make_no_sense_are_named() -> None:
    net = network("fc")
    x = inputs(net, 2)
    with pytest.raises(InvalidInput, match="ball must be a Ball"):
        output_range(net, x, 0.1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="batch must be at least 1, got 0"):
        output_range(net, x, rc.Ball(2, 0.1), batch=0)
    with pytest.raises(InvalidInput, match="arithmetic must be 'real' or 'executed'"):
        output_range(net, x, rc.Ball(2, 0.1), arithmetic="float")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="method must be one of"):
        output_range(net, x, rc.Ball(2, 0.1), "mip")
