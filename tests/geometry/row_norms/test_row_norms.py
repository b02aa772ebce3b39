"""Row norms are those of explicit rows, by the fast ways and the general one, with the gradients of explicit rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from relucert.core.norms import norm
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms.row_norms import chain_norms, row_norms
from relucert.networks.network import Network
from zoo import NETWORKS, inputs, network, randomised

SWITCHING = [name for name in NETWORKS if name != "linear"]
names = pytest.mark.parametrize("name", SWITCHING)
QS = (1.0, 1.5, 2.0, 3.0, math.inf)


def explicit(region: LinearRegion) -> Tensor:
    """All rows, pulled back at once."""
    return region.rows(torch.arange(region.count).expand(len(region), -1))


@names
def test_norms_of_explicit_rows(name: str) -> None:
    net = network(name)
    region = LinearRegion.at(net, inputs(net, 4))
    rows = explicit(region).detach()
    for q in QS:
        found = row_norms(region, q)
        torch.testing.assert_close(found.detach(), norm(rows, q, 2), rtol=1e-11, atol=1e-12)
        with torch.no_grad():
            torch.testing.assert_close(row_norms(region, q, 2**20), found.detach(), rtol=1e-12, atol=1e-13)


@names
def test_norms_of_the_jacobian(name: str) -> None:
    net = network(name)
    x = inputs(net, 2)
    for i in range(len(x)):
        region = LinearRegion.at(net, x[i : i + 1])
        relus = [hyperplanes.node.kind == "relu" for hyperplanes in region.hyperplanes]
        with torch.no_grad():
            found = row_norms(region, 1.5)[0].split([hyperplanes.count for hyperplanes in region.hyperplanes])
        slopes = jacobian(lambda z: tuple(net.preactivations(z)), x[i : i + 1])
        for is_relu, mine, slope in zip(relus, found, slopes, strict=True):
            if is_relu:
                rows = slope.reshape(len(mine), *net.input_shape)
                torch.testing.assert_close(mine, norm(rows, 1.5), rtol=1e-11, atol=1e-12)
    assert any(relus)


@names
@pytest.mark.parametrize("q", QS)
def test_gradients_of_explicit_rows(name: str, q: float) -> None:
    net = network(name)
    region = LinearRegion.at(net, inputs(net, 3))
    weights = list(net.parameters())
    generator = torch.Generator().manual_seed(0)
    weighting = torch.randn(3, region.count, generator=generator, dtype=torch.float64)
    sparse = weighting * (torch.rand(3, region.count, generator=generator) < 0.1)
    one_example = weighting * torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)[:, None]
    for chosen in (weighting, sparse, one_example):
        expected = torch.autograd.grad(
            (norm(explicit(region), q, 2) * chosen).sum(), weights, allow_unused=True, materialize_grads=True
        )
        for budget in (2**30,) if chosen is not sparse else (2**30, 2**16):
            found = torch.autograd.grad(
                (row_norms(region, q, budget) * chosen).sum(), weights, allow_unused=True, materialize_grads=True
            )
            for mine, theirs in zip(found, expected, strict=True):
                assert bool(mine.isfinite().all())
                torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    assert any(bool((part != 0).any()) for part in expected)


def test_gradient_agrees_with_finite_differences() -> None:
    net = network("cnn")
    x = inputs(net, 2)
    patterns = net.pattern(x)
    weight = next(iter(net.parameters()))
    generator = torch.Generator().manual_seed(1)
    weighting = torch.randn(2, LinearRegion(net, patterns, 2).count, generator=generator, dtype=torch.float64)
    direction = torch.randn(weight.shape, generator=generator, dtype=torch.float64)

    def total() -> Tensor:
        return (row_norms(LinearRegion(net, patterns, 2), 2.0) * weighting).sum()

    (slope,) = torch.autograd.grad(total(), weight)
    step = 1e-5
    with torch.no_grad():
        weight += step * direction
        above = total()
        weight -= 2 * step * direction
        below = total()
    expected = float((above - below) / (2 * step))
    assert float((slope * direction).sum()) == pytest.approx(expected, rel=1e-7)


def test_zero_rows_have_zero_norms_and_gradients() -> None:
    module = randomised(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)), 3)
    with torch.no_grad():
        module[0].bias.fill_(-100.0)  # type: ignore[union-attr, operator]
    net = Network(module.double(), (3,)).eval()
    region = LinearRegion.at(net, inputs(net, 3))
    for q in QS:
        found = row_norms(region, q)
        assert bool((found[:, :5] > 0).all())
        assert bool((found[:, 5:] == 0).all())
        slopes = torch.autograd.grad(found.sum(), list(net.parameters()), allow_unused=True, materialize_grads=True)
        assert all(bool(slope.isfinite().all()) for slope in slopes)
        assert bool((slopes[2] == 0).all())  # the second layer's weights


CONVS = {
    "plain": lambda: [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 3, 2), nn.ReLU()],
    "padded": lambda: [nn.Conv2d(1, 2, 3, padding=2), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1), nn.ReLU()],
    "strided": lambda: [nn.Conv2d(1, 2, 3, 2, 1), nn.ReLU(), nn.Conv2d(2, 3, 2, (1, 2), (1, 0)), nn.ReLU()],
    "dilated": lambda: [
        nn.Conv2d(1, 2, 2, padding=1, dilation=2), nn.ReLU(),
        nn.Conv2d(2, 2, (2, 3), stride=(2, 1), padding=2, dilation=(3, 1)), nn.ReLU(),
    ],
    "all at once": lambda: [
        nn.Conv2d(1, 4, (3, 2), stride=(2, 1), padding=(2, 1), dilation=(1, 2)), nn.BatchNorm2d(4), nn.LeakyReLU(0.1),
        nn.Conv2d(4, 4, (2, 3), stride=(1, 2), padding=(1, 2), dilation=(2, 1), groups=2), nn.BatchNorm2d(4), nn.ReLU(),
    ],
    "batch norm": lambda: [nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.BatchNorm2d(2),
                           nn.Conv2d(2, 2, 3, padding=1), nn.ReLU()],
    "far padding": lambda: [nn.Conv2d(1, 2, 2, padding=4), nn.ReLU(), nn.Conv2d(2, 2, 2, padding=1), nn.ReLU()],
    "stride over the kernel": lambda: [nn.Conv2d(1, 2, 1, stride=2), nn.ReLU(), nn.Conv2d(2, 2, 1, stride=3), nn.ReLU()],
}  # fmt: skip


@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("shape", [(1, 6, 6), (1, 7, 5)])
def test_fast_way_of_convolutions(name: str, shape: tuple[int, int, int]) -> None:
    head = nn.Sequential(*CONVS[name]())
    wide = head(torch.zeros(2, *shape)).flatten(1).shape[1]
    tail = [nn.Flatten(), nn.Linear(wide, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)]
    net = Network(randomised(nn.Sequential(*head, *tail), 4).double(), shape, 0.2, 0.4).eval()
    region = LinearRegion.at(net, inputs(net, 3))
    rows = explicit(region).detach()
    sizes = [hyperplanes.count for hyperplanes in region.hyperplanes]
    for q in QS:
        with torch.no_grad():
            fast = chain_norms(region, q, 2**30).hidden
        for mine, expected in zip(fast, norm(rows, q, 2).split(sizes, 1), strict=True):
            assert mine is not None
            torch.testing.assert_close(mine, expected, rtol=1e-11, atol=1e-12)


def test_fast_way_of_matrices() -> None:
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.LeakyReLU(0.3),
        nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3),
    )  # fmt: skip
    net = Network(randomised(module, 5).double(), (2, 2, 2), [0.1, 0.2], [0.5, 2.0]).eval()
    region = LinearRegion.at(net, inputs(net, 4))
    rows = explicit(region).detach()
    for q in QS:
        with torch.no_grad():
            fast = chain_norms(region, q, 2**30).hidden
        assert all(part is not None for part in fast)
        torch.testing.assert_close(torch.cat(fast, 1), norm(rows, q, 2), rtol=1e-11, atol=1e-12)  # type: ignore[arg-type]


class Scaled(nn.Module):
    """Constants of several shapes before, between and behind the weights."""

    def __init__(self, constant: Tensor):
        super().__init__()
        self.register_buffer("constant", constant)
        self.first, self.second, self.fc = nn.Conv2d(2, 2, 2), nn.Conv2d(2, 2, 2), nn.Linear(18, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.first(x * self.constant) * 2.0 - 0.1)
        return self.fc(torch.relu(self.second(z) / 3.0).flatten(1))


@pytest.mark.parametrize("shape", [(), (1,), (2, 1, 1), (1, 5, 5), (5,), (5, 1), (2, 5, 5)])
def test_constants_of_any_shape(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(6)
    constant = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
    net = Network(randomised(Scaled(constant), 7).double(), (2, 5, 5)).eval()
    region = LinearRegion.at(net, inputs(net, 3))
    for q in QS:
        with torch.no_grad():
            torch.testing.assert_close(row_norms(region, q), norm(explicit(region), q, 2), rtol=1e-11, atol=1e-12)
