"""Networks with one hidden layer: bounds from combined half spaces hold, grow, and end at the distances by enumeration."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import relucert.geometry.exploration.search as search_module
from asserts import assert_around, assert_witness
from oracles import piecewise_distance, polytope_distance, small_fc
from relucert.geometry.exploration import neighbours
from relucert.geometry.exploration._separation import Box, HalfSpaces, ascend, combined, dual, paired
from relucert.geometry.exploration.arrangement import ArrangementSearch, has_one_layer
from relucert.geometry.hyperplane import hyperplane_distance
from relucert.geometry.theorem import Region
from relucert.networks.architectures import mlp
from relucert.networks.network import Network
from relucert.verification.radius import radius
from zoo import inputs, network, randomised

PS = [1.0, 2.0, 3.0, math.inf]
UNIT = (0.0, 1.0)
boxes = pytest.mark.parametrize("box", [None, UNIT], ids=["free", "box"])
norms = pytest.mark.parametrize("p", PS)


def planes(weight: Any, bias: Any, last: Any) -> Network:
    """A network with one hidden layer of given rows, offsets and last weights; the last offsets are zero."""
    first, second = (torch.tensor(rows, dtype=torch.float64) for rows in (weight, last))
    module = nn.Sequential(
        nn.Linear(first.shape[1], len(first)), nn.ReLU(), nn.Linear(len(first), len(second))
    ).double()
    with torch.no_grad():
        module[0].weight.copy_(first)  # type: ignore[operator]
        module[0].bias.copy_(torch.tensor(bias))  # type: ignore[operator]
        module[2].weight.copy_(second)  # type: ignore[operator]
        module[2].bias.copy_(torch.tensor([0.1, *[0.0] * (len(second) - 1)]))  # type: ignore[operator]
    return Network(module, (first.shape[1],)).eval()


def without_offsets() -> Network:
    module = randomised(mlp((3,), 3, [5]), 8)
    nn.init.zeros_(module[1].bias if isinstance(module[1], nn.Linear) else module[0].bias)  # type: ignore[index, arg-type, union-attr]
    return Network(module.double(), (3,)).eval()


def leaky() -> Network:
    module = randomised(nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.25), nn.Linear(4, 3)), 4)
    return Network(module.double(), (3,)).eval()


NETWORKS = {
    "three inputs": lambda: small_fc((3,), [5], 3, 1),
    "far": lambda: small_fc((2,), [6], 3, 3),
    "no offsets": without_offsets,
    "leaky": leaky,
    # Equal and opposite hyperplanes, one that vanishes identically, one that is constant.
    "coinciding": lambda: planes(
        [[1, 1], [2, 2], [-1, -1], [1, -1], [0, 0], [0, 0]], [-0.5, -1, 0.5, 0, 0, 0.5],
        [[1, -1, 0, 1, 3, 0], [0, 1, 1, -1, -3, 0.1]],
    ),
}  # fmt: skip
nets = pytest.mark.parametrize("name", NETWORKS)


@cache
def truths(name: str, box: Any) -> Tensor:
    """The true distances (norms, 2) of two inputs."""
    net = NETWORKS[name]()
    x = inputs(net, 2, seed=3)
    y = net.predict(x).tolist()
    found = [[piecewise_distance(net, x[i : i + 1], y[i], p, box) for i in (0, 1)] for p in PS]
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.share(3)
@nets
@norms
@boxes
def test_intervals_hold_the_truth_and_never_get_wider(name: str, p: float, box: Any) -> None:
    net = NETWORKS[name]()
    assert has_one_layer(net, 2**30)
    x = inputs(net, 2, seed=3)
    truth = truths(name, box)[PS.index(p)]
    lower, upper = torch.zeros(2, dtype=torch.float64), torch.full((2,), math.inf, dtype=torch.float64)
    for regions in (0, 1, 4, None):
        found = radius(net, x, p=p, box=box, method=Region(regions=regions, facets=False))
        assert_around(found, truth)
        assert_witness(net, x, net.predict(x), p, box, found)
        assert bool((found.lower >= lower).all())
        assert bool((found.upper <= upper).all())
        lower, upper = found.lower, found.upper
    if p == 2 and box is not None:
        assert lower.tolist() == pytest.approx(truth.tolist(), rel=1e-5)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_units_that_leave_the_box_on_one_side(p: float) -> None:
    """The distance to a hyperplane in the box depends on the side on which x lies."""
    net = small_fc((3,), [4], 3, 4)
    x = inputs(net, 2, seed=4)[:1]
    truth = piecewise_distance(net, x, int(net.predict(x)), p, UNIT)
    for regions in (1, 3, 8):
        found = radius(net, x, p=p, box=UNIT, method=Region(regions=regions, facets=False))
        assert_around(found, torch.tensor([truth], dtype=torch.float64))


def half_spaces(seed: int, count: int, size: int) -> tuple[HalfSpaces, Tensor, Tensor]:
    """Half spaces that x misses, multipliers, and x in the unit box."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(1, count, size, generator=generator, dtype=torch.float64)
    margins = torch.rand(1, count, generator=generator, dtype=torch.float64) * 0.4
    x = torch.rand(1, size, generator=generator, dtype=torch.float64)
    zero = torch.zeros_like(margins)
    multipliers = torch.rand(1, count, generator=generator, dtype=torch.float64)
    return HalfSpaces(rows, margins, zero, zero, rows.abs().sum(2)), multipliers, x


def oracle(spaces: HalfSpaces, x: Tensor, p: float) -> float:
    """The distance of x to an intersection in the unit box, inf if it is empty."""
    size = x.shape[1]
    eye = torch.eye(size, dtype=torch.float64)
    a = torch.cat([-spaces.rows[0], -eye, eye])
    b = torch.cat([spaces.margins[0], x[0] - 1, -x[0]])
    return polytope_distance(a.numpy(), b.numpy(), p)


@pytest.mark.parametrize("seed", range(6))
def test_every_combination_is_a_proof_and_the_best_is_exact(seed: int) -> None:
    spaces, multipliers, x = half_spaces(seed, 3, 4)
    box = Box(x, 1 - x, torch.full((1,), 2.0, dtype=torch.float64))
    enough = torch.full((1,), 50.0, dtype=torch.float64)
    best = ascend(spaces, torch.zeros_like(multipliers), box, enough)
    pair = paired(*(combined(HalfSpaces(*(part[:, i : i + 1] for part in spaces)), torch.ones(1, 1).double()) for i in (0, 1)),
                  x, 1.0, (torch.zeros_like(x), torch.ones_like(x)))  # fmt: skip
    for p, mu in itertools.product(PS, (multipliers, best, torch.cat([pair, torch.zeros(1, 1)], 1))):
        space, truth = combined(spaces, mu), oracle(spaces, x, p)
        distance = hyperplane_distance(x, space.row[:, None], space.margin.clamp(min=0)[:, None], p, UNIT).distance
        assert float(distance) <= truth * (1 + 1e-9)
        if p == 2:
            value = float(dual(space, box).value)
            assert math.sqrt(2 * value) <= truth * (1 + 1e-9)
    truth = oracle(spaces, x, 2.0)
    found = float((2 * dual(combined(spaces, best), box).value).sqrt())
    assert found == pytest.approx(truth, rel=1e-6) if math.isfinite(truth) else found > 2.0


@pytest.mark.parametrize("name", ["fc", "fc deep", "max pool", "dead windows", "zero bias"])
@pytest.mark.parametrize("facets", [None, False])
def test_a_search_from_a_certified_radius_is_never_below_it(name: str, facets: bool | None) -> None:
    net = network(name)
    x = inputs(net, 2)
    for p in (2.0, math.inf):
        start = radius(net, x, p=p, method="crown")
        alone = radius(net, x, p=p, method=Region(regions=4, facets=facets))
        both = radius(net, x, p=p, method=Region(regions=4, facets=facets, start="crown"))
        assert bool((both.lower >= torch.maximum(start.lower, alone.lower * (1 - 1e-9))).all())
        assert bool((both.lower <= torch.minimum(both.upper, alone.upper)).all())
        assert_witness(net, x, net.predict(x), p, UNIT, both)


@pytest.mark.parametrize("facets", [True, False])
@pytest.mark.parametrize("widths", [[8], [6, 5]])
def test_what_is_proved_when_the_time_is_over_is_returned(widths: list[int], facets: bool, monkeypatch: Any) -> None:
    net = small_fc((4,), widths, 3, 5)
    x = inputs(net, 2)
    whole = radius(net, x, method=Region(regions=12, facets=facets))
    now = itertools.count()
    monkeypatch.setattr(search_module.time, "monotonic", lambda: float(next(now)))
    lower = torch.zeros(2, dtype=torch.float64)
    for seconds in (0.5, 4.0, 1e6):
        found = radius(net, x, method=Region(regions=12, facets=facets, seconds=seconds))
        assert bool((found.lower >= lower).all())
        assert bool((found.lower <= whole.lower).all())
        lower = found.lower
    assert lower.tolist() == whole.lower.tolist()
    short = radius(net, x, method=Region(regions=12, facets=facets, seconds=0.5))
    assert bool((short.lower < whole.lower).any())


def test_the_memory_ends_the_search(monkeypatch: Any) -> None:
    net = small_fc((4,), [12], 3, 5)
    x = inputs(net, 2)
    whole = radius(net, x, method=Region(regions=None, facets=False))
    monkeypatch.setattr(ArrangementSearch, "_begin", _small_budget(ArrangementSearch._begin))
    found = radius(net, x, method=Region(regions=None, facets=False))
    assert bool((found.lower <= whole.lower).all())
    assert bool((found.lower < whole.lower).any())


def _small_budget(begin: Any) -> Any:
    def begun(self: ArrangementSearch) -> None:
        begin(self)
        self.budget = 3000

    return begun


def test_decisions_outside_their_region_do_not_end_the_search(monkeypatch: Any) -> None:
    net = small_fc((3,), [8, 6], 3, 2)
    x = inputs(net, 8, seed=1)
    y = net.predict(x)
    method = Region(regions=30, facets=False)
    found = radius(net, x, p=2, method=method)
    truth = radius(net, x, p=2, method=Region(regions=None)).lower
    assert_around(found, truth)
    assert_witness(net, x, y, 2, UNIT, found)
    monkeypatch.setattr(neighbours, "GROWN", 0)
    stopped = radius(net, x, p=2, method=method)
    one_ulp = 1 - torch.finfo(torch.float64).eps  # the same radius, proved on two ways that round differently
    assert bool((found.lower >= stopped.lower * one_ulp).all())
    assert bool((found.lower > stopped.lower * (1 + 1e-6)).any())
