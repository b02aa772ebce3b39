"""Every kind of network, norm and number of regions, against one program for each linear piece around the input."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asserts import assert_around, assert_witness
from oracles import box_sides, own_faces, piecewise_distance, polytope_distance
from relucert.geometry.distances import distances
from relucert.geometry.theorem import Region
from relucert.networks.network import Network
from relucert.verification.radius import radius
from zoo import inputs, randomised

PS = [1.0, 2.0, 3.0, math.inf]
UNIT = (0.0, 1.0)
boxes = pytest.mark.parametrize("box", [None, UNIT], ids=["free", "box"])
norms = pytest.mark.parametrize("p", PS)


class Residual(nn.Module):
    """A sum of two branches, twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Conv2d(1, 2, (1, 2)), nn.Conv2d(2, 2, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.first(x))
        return self.out(torch.relu(a + self.second(a)).flatten(1))


def conv(*behind: nn.Module, bias: bool = True) -> nn.Sequential:
    """A convolution with 4 units on 4 pixels, further layers, and 3 classes."""
    return nn.Sequential(nn.Conv2d(1, 2, (1, 2), bias=bias), *behind)


def head(size: int, activation: Callable[[], nn.Module] = nn.ReLU, bias: bool = True) -> tuple[nn.Module, ...]:
    return nn.Flatten(), nn.Linear(size, 3, bias=bias), activation(), nn.Linear(3, 3, bias=bias)


def dead() -> nn.Module:
    """Convolution, ReLU, max pool: the first channel is dead near zero, so the maxima of its windows are ties."""
    module = randomised(conv(nn.ReLU(), nn.MaxPool2d((2, 1)), *head(2)), 5)
    with torch.no_grad():
        module[0].weight[0].abs_()  # type: ignore[index, operator]
        module[0].bias.copy_(torch.tensor([-0.8, 0.2]))  # type: ignore[index, operator]
    return module


KINDS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: randomised(conv(nn.ReLU(), *head(4)), 10),
    "residual": lambda: randomised(Residual(), 7),
    "leaky": lambda: randomised(conv(nn.LeakyReLU(0.2), *head(4, lambda: nn.LeakyReLU(0.05))), 8),
    "any slope": lambda: randomised(conv(nn.PReLU(2), nn.Flatten(), nn.Linear(4, 3)), 9),
    "clipped": lambda: randomised(conv(nn.Hardtanh(-0.2, 0.3), nn.Flatten(), nn.Linear(4, 3)), 11),
    "max pool": lambda: randomised(conv(nn.MaxPool2d((2, 1)), nn.ReLU(), *head(2)), 4),
    "dead windows": dead,
    "no offsets": lambda: randomised(conv(nn.ReLU(), *head(4, bias=False), bias=False), 6),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def kind_of(kind: str) -> tuple[Network, Tensor]:
    net = Network(KINDS[kind]().double(), (1, 2, 2)).eval()
    return net, inputs(net, 2, seed=2)


@cache
def truth(kind: str, p: float, box: Any) -> Tensor:
    net, x = kind_of(kind)
    y = net.predict(x)
    return torch.tensor(
        [piecewise_distance(net, x[i : i + 1], int(y[i]), p, box) for i in range(len(x))], dtype=torch.float64
    )


def check(kind: str, p: float, box: Any, regions: int | None, facets: bool | None = None) -> Tensor:
    net, x = kind_of(kind)
    found = radius(net, x, p=p, box=box, method=Region(regions=regions, facets=facets))
    expected = truth(kind, p, box)
    assert_around(found, expected)
    assert_witness(net, x, net.predict(x), p, box, found)
    if regions is None and facets is None:  # the nearest change may be a tie, which has no witness
        torch.testing.assert_close(found.lower, expected, rtol=1e-6, atol=0)
    return found.lower


@pytest.mark.share(6)
@boxes
@norms
@kinds
def test_intervals_hold_the_truth(kind: str, p: float, box: Any) -> None:
    lower = torch.zeros(2, dtype=torch.float64)
    for regions in (1, 5, None):
        found = check(kind, p, box, regions)
        # Without a limit other programs run, and facets are widened for other radii.
        assert bool((found >= lower * (1 - 1e-8)).all())
        lower = found


@pytest.mark.slow
@boxes
@norms
@kinds
def test_intervals_hold_the_truth_for_every_limit(kind: str, p: float, box: Any) -> None:
    for facets in (None, False):
        for regions in (1, 2, 3, 5, 20, None):
            check(kind, p, box, regions, facets)


@boxes
@norms
@kinds
def test_distances_are_those_of_programs(kind: str, p: float, box: Any) -> None:
    """d_B is the distance to the nearest facet in the box, d_D the distance to the nearest decision hyperplane in the box."""
    net, x = kind_of(kind)
    y = net.predict(x)
    with torch.no_grad():
        found = distances(net, x, y, p, box)
    for i in range(len(x)):
        one = x[i : i + 1]
        rows, limits, sides, v, a = own_faces(net, one)
        centre = one.flatten().numpy()
        low, high = box_sides(box, one)
        ends = np.concatenate([low - centre, centre - high])
        walls = np.concatenate([np.eye(len(centre)), -np.eye(len(centre))])[np.isfinite(ends)]
        ends = ends[np.isfinite(ends)]
        assert sides == 0
        hyperplanes = [
            polytope_distance(np.vstack([rows, -rows[j], walls]), np.concatenate([limits, -limits[j : j + 1], ends]), p)
            for j in range(len(rows))
        ]
        assert float(found.region[i]) == pytest.approx(min(hyperplanes), rel=1e-6)
        classes = [
            polytope_distance(np.vstack([v[s] - v[y[i]], walls]), np.append(a[y[i]] - a[s], ends), p)
            for s in range(len(a))
            if s != int(y[i])
        ]
        assert float(found.decision[i]) == pytest.approx(min(classes), rel=1e-6)


def test_no_change_anywhere() -> None:
    """In a box everything is proved; without a box, rows that are parallel up to rounding leave a huge finite bound."""
    net = Network(randomised(Residual(), 3).double(), (1, 2, 2)).eval()
    x = inputs(net, 2, seed=2)
    assert piecewise_distance(net, x[:1], int(net.predict(x)[0]), 2, UNIT) == math.inf
    found = radius(net, x, p=2, box=UNIT, method=Region(regions=None))
    assert found.lower.tolist() == found.upper.tolist() == [math.inf, math.inf]
    assert found.exact.tolist() == [True, True]
    free = radius(net, x, p=2, box=None, method=Region(regions=None))
    assert bool((free.lower > 1e11).all())
    assert bool(free.upper.isinf().all())
    assert torch.equal(free.exact, free.lower.isinf())
