"""MMR is equation 4 of the paper written out with explicit rows, for every network and norm, with an exact gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import relucert as rc
from relucert.core.errors import InvalidInput
from relucert.core.norms import dual, norm
from relucert.geometry.region import LinearRegion
from relucert.networks.network import Network
from relucert.regularizers.mmr import MMRParameters, mmr, mmr_terms
from zoo import NETWORKS, inputs, network, randomised

SWITCHING = [name for name in NETWORKS if name != "linear"]
names = pytest.mark.parametrize("name", SWITCHING)
norms = pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, math.inf])
GAMMA_B, GAMMA_D = 0.7, 1.3


def labels(net: Network, count: int) -> Tensor:
    return torch.arange(count) % net.classes


def by_hand(net: Network, x: Tensor, y: Tensor, p: float, k_b: int, k_d: int) -> Tensor:
    """Equation 4 from all rows of V, one example after the other."""
    found = []
    region = LinearRegion.at(net, x)
    rows = region.rows(torch.arange(region.count).expand(len(x), -1))
    margins, (values, offsets) = region.margins(x), region.logits_map()
    logits = torch.einsum("bk...,b...->bk", values, x) + offsets
    for i in range(len(x)):
        lengths = norm(rows[i], dual(p), 1)
        real = (lengths > 0) & margins[i].isfinite()
        d_b = (margins[i][real] / lengths[real]).sort().values[:k_b]
        region_part = (1 - d_b / GAMMA_B).clamp(min=0).sum() / k_b
        d_d = []
        for s in range(net.classes):
            if s != int(y[i]):
                lead, row = logits[i, y[i]] - logits[i, s], values[i, y[i]] - values[i, s]
                # Where no unit is active the logits are constants: a lead is for ever, and a lag has no distance.
                constant = float(norm(row[None].detach(), dual(p), 1)) == 0
                d_d.append(lead.detach().sign() * math.inf if constant else lead / norm(row[None], dual(p), 1)[0])
        nearest = torch.stack(d_d).sort().values[:k_d]
        found.append(region_part + (1 - nearest[nearest.isfinite()] / GAMMA_D).clamp(min=0).sum() / k_d)
    return torch.stack(found)


@names
@norms
def test_is_the_equation(name: str, p: float) -> None:
    net = network(name)
    x, y = inputs(net, 4), labels(net, 4)
    weights = list(net.parameters())
    for k_b, k_d in ((1, 1), (5, 2), (10, net.classes)):
        mine, theirs = mmr(net, x, y, p, GAMMA_B, GAMMA_D, k_b, k_d), by_hand(net, x, y, p, k_b, k_d)
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
        weighting = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64)
        slopes = (
            torch.autograd.grad((loss * weighting).sum(), weights, allow_unused=True, materialize_grads=True)
            for loss in (mine, theirs)
        )
        for one, other in zip(*slopes, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
    assert bool((mine > 0).any())


@names
@norms
def test_gradient_agrees_with_finite_differences(name: str, p: float) -> None:
    net = network(name)
    x, y = inputs(net, 3), labels(net, 3)
    weights = list(net.parameters())
    generator = torch.Generator().manual_seed(3)
    direction = [torch.randn(weight.shape, generator=generator, dtype=torch.float64) for weight in weights]
    step = 1e-7

    def loss() -> Tensor:
        return mmr(net, x, y, p, GAMMA_B, GAMMA_D, 4, net.classes).sum()

    def move(by: float) -> None:
        with torch.no_grad():
            for weight, along in zip(weights, direction, strict=True):
                weight += by * along

    pattern = net.pattern(x)
    slopes = torch.autograd.grad(loss(), weights, allow_unused=True, materialize_grads=True)
    expected = sum(float((slope * along).sum()) for slope, along in zip(slopes, direction, strict=True))
    values = []
    for by in (step, -2 * step):
        move(by)
        assert all(torch.equal(a, b) for a, b in zip(net.pattern(x), pattern, strict=True)), "a pattern has changed"
        values.append(float(loss().detach()))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(expected, rel=2e-5, abs=2e-5)


def test_parts_add_up_and_come_alone() -> None:
    net = network("cnn")
    x, y = inputs(net, 4), labels(net, 4)
    region, values, logits = LinearRegion.evaluated(net, x)
    margins = region.margins_of(values, x)
    both, alone = (
        mmr_terms(region, margins, logits, y, MMRParameters(p=2.0, gamma_b=gamma_b, gamma_d=GAMMA_D, k_b=3, k_d=2))
        for gamma_b in (GAMMA_B, None)
    )
    torch.testing.assert_close(both.total, mmr(net, x, y, 2.0, GAMMA_B, GAMMA_D, 3, 2))
    torch.testing.assert_close(alone.total, both.decision)
    assert bool((both.region > 0).all())
    assert bool((alone.region == 0).all())
    seen = rc.distances(net, x, y, 2.0)
    torch.testing.assert_close(both.d_b, seen.region.detach())
    torch.testing.assert_close(both.d_d, seen.decision.detach())


def test_far_hyperplanes_cost_nothing() -> None:
    net = network("fc")
    x = inputs(net, 5)
    y = net.predict(x)
    seen = rc.distances(net, x, y, 2.0)
    tiny = float(torch.minimum(seen.region, seen.decision).min().detach()) / 2
    loss = mmr(net, x, y, 2.0, tiny, tiny, 2, 2)
    assert bool((loss == 0).all())
    slopes = torch.autograd.grad(loss.sum(), list(net.parameters()))
    assert all(bool((slope == 0).all()) for slope in slopes)


def test_by_hand_on_two_units() -> None:
    """One input, units z and 1 - z, logits (2 relu(z), relu(1 - z)): at z = 0.25 everything is known."""
    module = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))  # type: ignore[operator]
        module[0].bias.copy_(torch.tensor([0.0, 1.0]))  # type: ignore[operator, union-attr]
        module[2].weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))  # type: ignore[operator]
    net = Network(module.double(), (1,)).eval()
    x, y = torch.tensor([[0.25]], dtype=torch.float64), torch.tensor([1])
    # d_B = 0.25 and 0.75; the logits 2 z and 1 - z meet at 1/3, so d_D = 1/12.
    net.requires_grad_(False)
    assert float(mmr(net, x, y, 2, 0.5, 0.5)) == pytest.approx((1 - 0.25 / 0.5) + (1 - (1 / 12) / 0.5))
    assert float(mmr(net, x, y, 2, 1.0, 0.5, k_b=2)) == pytest.approx((0.75 + 0.25) / 2 + (1 - (1 / 12) / 0.5))
    assert float(mmr(net, x, 1 - y, 2, 0.5, 0.5)) == pytest.approx((1 - 0.25 / 0.5) + (1 + (1 / 12) / 0.5))


def test_dead_networks_are_no_nan() -> None:
    module = randomised(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), 3)
    with torch.no_grad():
        module[0].bias.fill_(-100.0)  # type: ignore[union-attr, operator]
    net = Network(module.double(), (3,)).eval()
    x = inputs(net, 3)
    for p in (1.0, 2.0, 3.0, math.inf):
        for label in range(3):
            loss = mmr(net, x, torch.full((3,), label), p, 1e3, 1e3, 9, 3)
            slopes = torch.autograd.grad(loss.sum(), list(net.parameters()), allow_unused=True, materialize_grads=True)
            assert bool(loss.isfinite().all())
            assert all(bool(slope.isfinite().all()) for slope in slopes)


@names
def test_a_small_budget_changes_nothing(name: str) -> None:
    net = network(name)
    x, y = inputs(net, 5), labels(net, 5)
    weights = list(net.parameters())
    found = []
    for budget in (2**30, 2**12):
        loss = mmr(net, x, y, math.inf, GAMMA_B, GAMMA_D, 6, 2, budget)
        found.append(
            (loss.detach(), torch.autograd.grad(loss.sum(), weights, allow_unused=True, materialize_grads=True))
        )
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-12, atol=1e-12)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gamma_b": 0.0}, "gamma_b must be a positive number, got 0.0"),
        ({"gamma_d": math.inf}, "gamma_d must be a positive number, got inf"),
        ({"k_b": 0}, "k_b must be a whole number in 1..10, the number of hyperplanes, got 0"),
        ({"k_b": 11}, "k_b must be a whole number in 1..10"),
        ({"k_d": 5}, "k_d must be a whole number in 1..4, the number of classes, got 5"),
        ({"k_d": 1.5}, "k_d must be a whole number"),
        ({"p": 0.5}, "p must be a number of at least 1"),
    ],
)
def test_bad_parameters_are_named(change: dict[str, float], said: str) -> None:
    net = network("fc")
    given = {"p": 2.0, "gamma_b": 1.0, "gamma_d": 1.0, "k_b": 1, "k_d": 1} | change
    with pytest.raises(InvalidInput, match=said):
        mmr(net, inputs(net, 2), labels(net, 2), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fc", "residual"])
def test_train_mode_counts_with_running_statistics(name: str) -> None:
    net = network(name)
    x, y = inputs(net, 2), labels(net, 2)
    expected = mmr(net, x, y, 2.0, 1.0, 1.0)
    assert torch.equal(mmr(net.train(), x, y, 2.0, 1.0, 1.0), expected)
    assert torch.equal(mmr(net.module, x, y, 2.0, 1.0, 1.0), expected)
    assert net.training
