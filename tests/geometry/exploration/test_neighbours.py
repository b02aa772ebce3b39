"""Exploration: bounds never decrease and end at the distances by enumeration of all activation patterns."""

from __future__ import annotations

import math
import random
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asserts import assert_around, assert_witness
from oracles import enumerate_distances, mip_distance, piecewise_distance, small_fc
from relucert.geometry.theorem import Region
from relucert.networks.architectures import mlp
from relucert.networks.network import Network
from relucert.verification.radius import radius
from zoo import inputs, randomised

PS = [1.0, 2.0, 3.0, math.inf]
UNIT = (0.0, 1.0)
boxes = pytest.mark.parametrize("box", [None, UNIT], ids=["free", "box"])
norms = pytest.mark.parametrize("p", PS)

#: input shape, widths, classes, seed
SMALL = {
    "one layer": ((2,), [6], 3, 1),
    "two layers": ((3,), [4, 3], 3, 2),
    "three layers": ((2,), [4, 3, 2], 3, 4),
}
small = pytest.mark.parametrize("name", SMALL)


@cache
def oracle(name: str, box: Any) -> Tensor:
    """The true distances (norms, 2) of two inputs, by enumeration."""
    net = small_fc(*SMALL[name])
    x = inputs(net, 2)
    y = net.predict(x).tolist()
    found = [enumerate_distances(net, x[i : i + 1], y[i], PS, box) for i in (0, 1)]
    return torch.tensor(found, dtype=torch.float64).T


@pytest.mark.share(2)
@small
@norms
@boxes
def test_intervals_hold_the_truth(name: str, p: float, box: Any) -> None:
    net = small_fc(*SMALL[name])
    x = inputs(net, 2)
    y = net.predict(x)
    truth = oracle(name, box)[PS.index(p)]
    lower, upper = torch.zeros(2), torch.full((2,), math.inf)
    for regions in (3, None):
        found = radius(net, x, p=p, box=box, method=Region(regions=regions, facets=True))
        assert_around(found, truth)
        assert_witness(net, x, y, p, box, found)
        assert bool((found.lower >= lower).all())
        assert bool((found.upper <= upper).all())
        lower, upper = found.lower, found.upper
    assert bool(found.exact.all())
    lower = torch.zeros(2)
    for regions in (20,):
        found = radius(net, x, p=p, box=box, method=Region(regions=regions, facets=False))
        assert_around(found, truth)
        assert_witness(net, x, y, p, box, found)
        assert bool((found.lower >= lower).all())
        lower = found.lower


@pytest.mark.share(2)
@pytest.mark.parametrize("facets", [True, False])
@norms
def test_more_regions_are_never_worse(p: float, facets: bool) -> None:
    net = small_fc((4,), [8, 6], 3, 5)
    x = inputs(net, 4, seed=1)
    lower, upper = torch.zeros(4), torch.full((4,), math.inf)
    grew = False
    for regions in (1, 2, 3, 5, 10):
        found = radius(net, x, p=p, method=Region(regions=regions, facets=facets))
        assert bool((found.lower >= lower).all())
        assert bool((found.upper <= upper).all())
        grew = grew or (bool((found.lower > lower * (1 + 1e-6)).any()) and regions > 1)
        lower, upper = found.lower, found.upper
    assert grew or not facets


def exact_on(seed: int, p: float, box: Any) -> tuple[Network, Tensor, Tensor]:
    """A network with two layers of 10 units and the exact distances of 100 inputs."""
    net = small_fc((3,), [10, 10], 3, seed)
    x = inputs(net, 100, seed=3)
    found = radius(net, x, p=p, box=box, method=Region(regions=None))
    assert int(found.exact.sum()) == 100
    assert_witness(net, x, net.predict(x), p, box, found)
    return net, x, found.lower


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_unlimited_is_exact_on_a_hundred(p: float) -> None:
    net, x, found = exact_on(11, p, UNIT)
    if p == math.inf:
        some = range(0, 100, 25)
        truth = [mip_distance(net, x[i : i + 1], int(net.predict(x[i : i + 1])), p, UNIT) for i in some]
    else:
        some = range(0, 100, 10)
        truth = [piecewise_distance(net, x[i : i + 1], int(net.predict(x[i : i + 1])), p, UNIT) for i in some]
    assert found[list(some)].tolist() == pytest.approx(truth, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "box"), [(11, None), (11, UNIT), (1, None), (1, UNIT), (3, None), (3, UNIT), (7, UNIT)]
)
@norms
def test_unlimited_is_exact_on_a_hundred_everywhere(p: float, seed: int, box: Any) -> None:
    net, x, found = exact_on(seed, p, box)
    for i in range(0, 100, 20):
        truth = piecewise_distance(net, x[i : i + 1], int(net.predict(x[i : i + 1])), p, box)
        assert float(found[i]) == pytest.approx(truth, rel=1e-6)


def lattice(seed: int) -> tuple[Network, Tensor, Any]:
    """A network with few different weights, an input and a box: hyperplanes coincide, meet in corners and pass through x."""
    rng = random.Random(seed)
    size, widths = rng.choice([1, 2, 2, 3]), rng.choice([[3], [4], [3, 2], [2, 3], [2, 2, 2]])
    module = mlp((size,), rng.choice([2, 3]), widths).double()
    for part in module.modules():
        if isinstance(part, nn.Linear):
            weight = [[rng.choice([-2, -1, -1, 0, 1, 1, 2]) for _ in row] for row in part.weight]
            with torch.no_grad():
                part.weight.copy_(torch.tensor(weight))
                part.bias.copy_(torch.tensor([rng.choice([-1, 0, 0, 0.5, 1]) for _ in part.bias]))
    x = torch.tensor([[rng.choice([0, 0, 0.25, 0.5, 1]) for _ in range(size)]], dtype=torch.float64)
    kind = rng.choice(["none", "unit", "flat"])
    if kind != "flat":
        return Network(module, (size,)).eval(), x, None if kind == "none" else UNIT
    low, high = torch.zeros(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64)
    fixed = rng.randrange(size)
    low[fixed] = high[fixed] = x[0, fixed]
    return Network(module, (size,)).eval(), x, (low, high)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_hyperplanes_that_meet_on_a_flat_box(p: float) -> None:
    """With z1 = 0.5 fixed the first two units are both z2 - 0.5; elsewhere they differ."""
    module = mlp((2,), 2, [2]).double()
    first, second = (part for part in module.modules() if isinstance(part, nn.Linear))
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[-2.0, 1.0], [1.0, 1.0]]))
        first.bias.copy_(torch.tensor([0.5, -1.0]))
        second.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
        second.bias.copy_(torch.tensor([0.25, 0.0]))
    net = Network(module, (2,)).eval()
    x = torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    box = (torch.tensor([0.5, 0.0]).double(), torch.tensor([0.5, 1.0]).double())
    for facets in (True, False):
        found = radius(net, x, p=p, box=box, method=Region(regions=None, facets=facets))
        assert_around(found, torch.tensor([0.625], dtype=torch.float64))
    assert radius(net, x, p=p, box=box, method=Region(regions=None)).exact.tolist() == [True]


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", [*range(5), 706])
def test_coinciding_hyperplanes(seed: int) -> None:
    net, x, box = lattice(seed)
    y = net.predict(x)
    ps = [1.0, 2.0, math.inf]
    for p, truth in zip(ps, enumerate_distances(net, x, int(y), ps, box), strict=True):
        for method in (Region(regions=3), Region(regions=None), Region(regions=None, facets=False)):
            found = radius(net, x, p=p, box=box, method=method)
            assert_around(found, torch.tensor([truth], dtype=torch.float64))
            assert_witness(net, x, y, p, box, found)


@pytest.mark.parametrize("p", [1.0, math.inf])
@boxes
def test_no_offsets(p: float, box: Any) -> None:
    module = randomised(mlp((3,), 3, [5, 4]), 6)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
    net = Network(module.double(), (3,)).eval()
    x = inputs(net, 2)
    y = net.predict(x)
    truth = [mip_distance(net, x[i : i + 1], int(y[i]), p, box) for i in (0, 1)]
    found = radius(net, x, p=p, box=box, method=Region(regions=None))
    assert_around(found, torch.tensor(truth, dtype=torch.float64))
    assert_witness(net, x, y, p, box, found)
    # If the nearest change is a tie (all logits are zero at the origin) there is no witness, but the bound reaches it.
    assert found.lower.tolist() == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("p", [1.0, math.inf])
@pytest.mark.parametrize("dead", [0.3, 0.6])
def test_dead_windows(p: float, dead: float) -> None:
    """Convolution, ReLU, max pool: beyond a hyperplane a dead window becomes active, and the new unit is its maximum."""
    module = randomised(
        nn.Sequential(nn.Conv2d(1, 2, (1, 2)), nn.ReLU(), nn.MaxPool2d((2, 1)), nn.Flatten(), nn.Linear(2, 3)), 3
    )
    with torch.no_grad():
        module[0].weight.copy_(module[0].weight.abs() * torch.tensor([1.0, -1.0])[:, None, None, None])  # type: ignore[union-attr, operator]
        module[0].bias.copy_(torch.tensor([-dead, dead / 2]))  # type: ignore[operator]
    net = Network(module.double(), (1, 2, 2)).eval()
    x = torch.cat([0.3 * inputs(net, 1), torch.zeros(1, 1, 2, 2)]).double()
    y = net.predict(x)
    truth = [mip_distance(net, x[i : i + 1], int(y[i]), p, UNIT) for i in range(len(x))]
    found = radius(net, x, p=p, box=UNIT, method=Region(regions=None))
    assert_around(found, torch.tensor(truth, dtype=torch.float64))
    assert_witness(net, x, y, p, UNIT, found)
    assert bool((found.exact | found.upper.isinf()).all())
