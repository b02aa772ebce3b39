"""Cross-Lipschitz regularisation is the mean square of differences of gradients, by both formulas."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.functional import jacobian

from relucert.regularizers.cross_lipschitz import cross_lipschitz
from zoo import NETWORKS, inputs, network


@pytest.mark.parametrize("name", NETWORKS)
def test_is_the_sum_over_pairs_of_classes(name: str) -> None:
    net = network(name)
    x = inputs(net, 3)
    found = cross_lipschitz(net, x)
    for i in range(len(x)):
        slopes = jacobian(net, x[i : i + 1])[0].flatten(1)
        pairs = torch.stack([(a - b).square().sum() for a in slopes for b in slopes])
        assert float(found[i].detach()) == pytest.approx(float(pairs.mean()), rel=1e-10)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "linear"])
def test_gradient_agrees_with_finite_differences(name: str) -> None:
    net = network(name)
    x = inputs(net, 3)
    weights = list(net.parameters())
    generator = torch.Generator().manual_seed(2)
    direction = [torch.randn(weight.shape, generator=generator, dtype=torch.float64) for weight in weights]
    slopes = torch.autograd.grad(cross_lipschitz(net, x).sum(), weights, allow_unused=True, materialize_grads=True)
    expected = sum(float((slope * along).sum()) for slope, along in zip(slopes, direction, strict=True))
    step, values, pattern = 1e-7, [], net.pattern(x)
    for by in (step, -2 * step):
        with torch.no_grad():
            for weight, along in zip(weights, direction, strict=True):
                weight += by * along
            assert all(torch.equal(a, b) for a, b in zip(net.pattern(x), pattern, strict=True))
            values.append(float(cross_lipschitz(net, x).sum()))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(expected, rel=1e-5, abs=1e-5)
