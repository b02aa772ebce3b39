"""The radius theorem: intervals around the distance that mixed-integer programs find, for every kind of network."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asserts import assert_around, assert_below_attack, assert_witness
from oracles import TINY, mip_distance, tiny
from relucert.attacks.pgd import PGD
from relucert.attacks.problem import attack
from relucert.core.ball import Ball
from relucert.core.errors import Contradiction, InvalidInput, WrongMode
from relucert.geometry.distances import distances
from relucert.geometry.exploration.search import RegionSearch
from relucert.geometry.theorem import Region
from relucert.networks.network import Network
from relucert.verification.radius import radius
from zoo import NETWORKS, inputs, network

UNIT = (0.0, 1.0)


@cache
def oracle(name: str, p: float, box: Any) -> Tensor:
    """The true distances of the two inputs of a tiny network."""
    net = tiny(name)
    x = inputs(net, 2)
    y = net.predict(x).tolist()
    return torch.tensor([mip_distance(net, x[i : i + 1], y[i], p, box) for i in (0, 1)], dtype=torch.float64)


@pytest.mark.share(5)
@pytest.mark.parametrize("box", [None, UNIT], ids=["free", "box"])
@pytest.mark.parametrize("p", [1.0, math.inf])
@pytest.mark.parametrize("name", TINY)
def test_intervals_hold_the_truth(name: str, p: float, box: Any) -> None:
    net = tiny(name)
    x = inputs(net, 2)
    y = net.predict(x)
    truth = oracle(name, p, box)
    for method in (Region(regions=4), Region(regions=8, facets=False)):
        found = radius(net, x, p=p, box=box, method=method)
        assert_around(found, truth)
        assert_witness(net, x, y, p, box, found)
        assert bool((found.lower > 0).all())


@pytest.mark.parametrize("name", ["fc", "residual", "max pool", "dead windows"])
@pytest.mark.parametrize("p", [1.0, math.inf])
def test_float32(name: str, p: float) -> None:
    net = tiny(name, torch.float32)
    x = inputs(net, 2)
    y = net.predict(x)
    # The true distance is that of the float32 weights in real arithmetic.
    exact = tiny(name)
    exact.load_state_dict({key: value.double() for key, value in net.state_dict().items()})
    truth = [mip_distance(exact, x[i : i + 1].double(), int(y[i]), p, UNIT) for i in (0, 1)]
    for regions in (1, 3):
        found = radius(net, x, p=p, box=UNIT, method=Region(regions=regions))
        assert found.lower.dtype == found.upper.dtype == torch.float32
        for low, high, sure, d in zip(found.lower, found.upper, found.exact, truth, strict=True):
            assert float(low) <= d * (1 + 1e-9)
            assert float(high) >= d * (1 - 1e-4)  # where the network's own rounding may change the decision
            assert not bool(sure) or float(high) == pytest.approx(d, rel=1e-4)
        assert_witness(net, x, y, p, UNIT, found)


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("name", NETWORKS)
def test_one_region_is_the_theorem(name: str, p: float, dtype: torch.dtype) -> None:
    net = network(name, dtype)
    x = inputs(net, 4, seed=3)
    y = net.predict(x)
    for box in (None, UNIT):
        found = radius(net, x, p=p, box=box, method=Region(regions=0, facets=False))
        with torch.no_grad():
            d = distances(net, x, y, p, box)
        expected = torch.minimum(d.region, d.decision)
        slack = 1e-8 if dtype == torch.float64 else 1e-3
        torch.testing.assert_close(found.lower, expected, rtol=slack, atol=slack / 100)
        assert_witness(net, x, y, p, box, found)
        if dtype == torch.float64:  # in float32 a decision that is won by rounding alone is no witness
            inside = (d.decision < d.region * (1 - slack)) & d.decision.isfinite()
            assert bool(found.exact[inside].all())
            torch.testing.assert_close(found.upper[inside], d.decision[inside], rtol=1e-6, atol=0)


@pytest.mark.share(2)
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("name", ["fc deep", "cnn", "residual", "max pool", "dead windows", "zero bias"])
def test_no_attack_below(name: str, p: float) -> None:
    net = network(name)
    x = inputs(net, 10, seed=5)
    y = net.predict(x)
    found = radius(net, x, p=p, box=UNIT, method=Region(regions=5, facets=False))
    eps = torch.where(found.lower.isfinite(), found.lower, torch.ones_like(found.lower))
    for factor in (0.999, 1.5, 4.0):
        attacked = attack(net, x, y, Ball(p, eps * factor + 1e-9, UNIT), PGD(steps=20, restarts=2))
        assert_below_attack(found, attacked)


def test_misclassified() -> None:
    net = tiny("fc")
    x = inputs(net, 4)
    predicted = net.predict(x)
    y = predicted.clone()
    y[1] = (y[1] + 1) % net.classes
    y[2] = (y[2] + 2) % net.classes
    found = radius(net, x, y, p=2, method="region")
    assert found.lower[1:3].tolist() == found.upper[1:3].tolist() == [0.0, 0.0]
    assert found.exact[1:3].tolist() == [False, False]  # a wrong decision has no distance to be exact about
    assert found.witness is not None
    assert torch.equal(found.witness[1:3], x[1:3])
    rest = radius(net, x, p=2, method="region")
    assert torch.equal(found.lower[[0, 3]], rest.lower[[0, 3]])
    assert bool((rest.lower > 0).all())


def test_no_change_anywhere_is_infinite() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    with torch.no_grad():
        module[2].weight[1] = module[2].weight[0]  # type: ignore[index, operator]
        module[2].bias.copy_(torch.tensor([1.0, 0.0]))  # type: ignore[operator]
    net = Network(module, (2,)).eval()
    found = radius(net, inputs(net, 3), p=2, box=None, method=Region(regions=None))
    assert found.lower.tolist() == found.upper.tolist() == [math.inf] * 3
    assert found.exact.tolist() == [True] * 3
    assert found.witness is None or bool(found.witness.isnan().all())


def test_a_tie_has_the_lower_bound_zero() -> None:
    module = nn.Sequential(nn.Linear(2, 2)).double()
    with torch.no_grad():
        module[0].weight.copy_(torch.eye(2))  # type: ignore[operator]
        module[0].bias.zero_()  # type: ignore[operator, union-attr]
    net = Network(module, (2,)).eval()
    found = radius(net, torch.full((1, 2), 0.5, dtype=torch.float64), p=2, method="region")
    assert found.lower.tolist() == [0.0]


def test_a_box_of_tensors_and_a_split_batch() -> None:
    net = network("cnn")
    x = inputs(net, 5)
    low, high = (x - 0.1).clamp(min=0).amin(0), (x + 0.1).clamp(max=1).amax(0)
    whole = radius(net, x, p=2, box=(low, high), method=Region(regions=3, facets=False))
    assert_witness(net, x, net.predict(x), 2, (low, high), whole)
    pieces = radius(net, x, p=2, box=(low, high), method=Region(regions=3, facets=False, budget=2**20))
    alone = [radius(net, x[i : i + 1], p=2, box=(low, high), method=Region(regions=3, facets=False)) for i in range(5)]
    torch.testing.assert_close(pieces.lower, whole.lower, rtol=1e-9, atol=0)
    torch.testing.assert_close(torch.cat([one.lower for one in alone]), whole.lower, rtol=1e-9, atol=0)
    assert len(radius(net, x[:0])) == 0


def test_five_regions_by_default() -> None:
    net = network("fc deep")
    x = inputs(net, 6)
    whole, five, one = (
        radius(net, x, p=2, method=method) for method in ("region", Region(regions=5), Region(regions=0))
    )
    assert torch.equal(whole.lower, five.lower)
    assert bool((whole.lower > one.lower).any())


def test_bad_input() -> None:
    net = tiny("fc")
    x = inputs(net, 2)
    with pytest.raises(InvalidInput, match="regions of region must be at least 0"):
        Region(regions=-1)
    with pytest.raises(InvalidInput, match="budget of region"):
        Region(budget=1)
    with pytest.raises(InvalidInput, match="p must be"):
        radius(net, x, p=0.5)
    with pytest.raises(InvalidInput, match="x must be a batch"):
        radius(net, x[0])
    with pytest.raises(InvalidInput, match="x must have the network's dtype"):
        radius(net, x.float())
    with pytest.raises(InvalidInput, match="x must be finite"):
        radius(net, x * math.nan)
    with pytest.raises(InvalidInput, match="y must"):
        radius(net, x, torch.tensor([0]))
    with pytest.raises(InvalidInput, match=r"outside|box"):
        radius(net, x + 2)
    with pytest.raises(InvalidInput):
        radius(net, x, method="nonsense")
    with pytest.raises(WrongMode, match="eval mode"):
        radius(network("residual").train(), inputs(network("residual"), 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_proof_beyond_a_witness_is_refused(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    net = network("fc", dtype)
    x = inputs(net, 4)
    run = RegionSearch.run

    def wrong(self: RegionSearch) -> None:
        run(self)
        self.lower += 1.0

    monkeypatch.setattr(RegionSearch, "run", wrong)
    with pytest.raises(Contradiction, match="exceeds the distance"):
        radius(net, x, method=Region(regions=5))
