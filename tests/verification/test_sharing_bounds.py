"""Verifiers of a cascade start from the pre-activation bounds of those before them; float64 goes on from those of float32."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import nn

import exact
import relucert as rc
from relucert.bounding.interval import Interval
from relucert.bounding.methods.crown import CROWN, Alpha
from relucert.bounding.preactivations import KnownUnits, SharedUnits, UnitBounds
from relucert.networks.network import Network, in_double
from relucert.networks.unpooled import unpooled
from relucert.verification import registry
from relucert.verification._incomplete import proved_margins, started
from relucert.verification.bab.bab import BaB
from relucert.verification.verifier import Budget, Query
from zoo import NETWORKS, inputs, network, randomised

EPS = {1.0: 0.5, 2.0: 0.25, math.inf: 0.08}


def query_of(name: str, p: float, dtype: torch.dtype, count: int = 10) -> Query:
    net = network(name, dtype)
    x = inputs(net, count)
    radii = EPS[p] * torch.linspace(0.3, 1.5, count, dtype=torch.float64)
    return Query.of(net, x, net.predict(x), rc.Ball(p, radii))


def sharing(query: Query) -> Query:
    return Query(
        **{name: getattr(query, name) for name in query.__dataclass_fields__ if name != "units"},
        units=SharedUnits.about((query.net, query.double), query.x, query.ball),
    )


@torch.no_grad()
@pytest.mark.share(8)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("p", EPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_shared_is_what_a_method_starts_from(name, p, dtype):
    query = sharing(query_of(name, p, dtype))
    alone = query_of(name, p, dtype)
    proved_margins(query, CROWN())
    assert query.units is not None
    left = (~(proved_margins(alone, CROWN(), alone=False).executed > 0).all(1)).nonzero()[:, 0]
    if len(left) == 0:
        return
    part = query.restrict(left)
    shared = part.units.of(query.net, part.x, part.ball)
    own = CROWN().start(query.net, part.x, part.ball, dtype)
    assert shared is not None
    begun = started(part, Alpha(), query.net, part.x)
    for index, within in own.inputs.items():
        for found in (shared.inputs[index], begun.inputs[index]):
            # Examples that others stand beside are computed in other blocks.
            torch.testing.assert_close(found.lower, within.lower, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(found.upper, within.upper, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(begun.drift(index), own.drift(index), rtol=1e-3, atol=0)
    more = proved_margins(part, Alpha(steps=3), alone=False)
    before = proved_margins(alone.restrict(left), Alpha(steps=3), alone=False)
    assert bool(((more.real > 0) >= (before.real > 0)).all())
    assert bool(((more.executed > 0) >= (before.executed > 0)).all())


@torch.no_grad()
def test_bounds_of_other_inputs_and_balls_are_not_known():
    query = sharing(query_of("fc deep", 2.0, torch.float64))
    proved_margins(query, CROWN())
    some = torch.tensor([9, 7])
    x, ball, units = query.x[some], query.ball.restrict(some), query.units.restrict(some)
    net = query.double
    assert units.of(net, x, ball) is not None
    assert units.of(network("fc deep", torch.float32), x, ball) is None
    assert units.of(net, x.flip(0), ball) is None
    assert units.of(net, x, ball.with_eps(ball.eps * (1 + 1e-12))) is None
    assert units.of(net, x, ball.without_box()) is None
    assert units.of(net, x, rc.Ball(2, ball.eps, (0.0, 1.0 + 1e-12))) is None
    assert units.of(net, x, rc.Ball(1, ball.eps)) is None
    other = in_double(network("fc", torch.float32))
    units.add(other, x, ball, units.known[torch.float64])
    assert units.of(other, x, ball) is None


@torch.no_grad()
def test_bounds_of_a_network_are_not_those_of_the_same_one_without_max_pools():
    query = sharing(query_of("max pool", 2.0, torch.float64))
    proved_margins(query, CROWN())
    assert query.units is not None
    part = query.restrict(query.units.known[torch.float64].parts[0][0])
    assert part.units.of(part.double, part.x, part.ball) is not None
    assert part.units.of(unpooled(part.double), part.x, part.ball) is None


def test_bounds_in_the_order_in_which_they_are_wanted():
    def of(*numbers: float) -> UnitBounds:
        low = torch.tensor(numbers)[:, None]
        return UnitBounds({1: Interval(low, low + 1)}, Interval(low, low))

    known = KnownUnits()
    known.add(torch.tensor([4, 1, 2]), of(4.0, 1.0, 2.0))
    known.add(torch.tensor([2, 7]), of(2.5, 7.0))
    assert known.of(torch.tensor([7, 2, 4])).inputs[1].lower.flatten().tolist() == [7.0, 2.5, 4.0]
    assert known.of(torch.tensor([7, 3])) is None
    known.add(torch.tensor([], dtype=torch.long), of())
    assert len(known.parts) == 2


def test_narrower_dtypes_are_rounded_outwards():
    ends = torch.tensor([[0.1, -0.1, 1e300, 0.0, math.inf]], dtype=torch.float64)
    narrow = Interval(ends, ends).to(torch.float32)
    assert bool((narrow.lower.double() <= ends).all())
    assert bool((narrow.upper.double() >= ends).all())
    assert bool((narrow.upper.double() - narrow.lower.double() < 1e-8)[:, [0, 1, 3]].all())


@pytest.mark.share(8)
@pytest.mark.parametrize("name", ["fc", "fc deep", "cnn", "residual", "max pool", "leaky"])
@pytest.mark.parametrize("p", EPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_auto_decides_with_sharing_what_it_decides_without(name, p, dtype, monkeypatch):
    if name not in NETWORKS:
        pytest.skip("no such network")
    query = query_of(name, p, dtype, 8)
    found = rc.certify(query.net, query.x, query.y, query.ball, registry.Auto(nodes=60, restarts=1))
    monkeypatch.setattr(registry, "SHARED", 0)
    before = rc.certify(query.net, query.x, query.y, query.ball, registry.Auto(nodes=60, restarts=1))
    for now, then, margin, old in zip(found.verdict, before.verdict, found.margin, before.margin, strict=True):
        assert now == then or then is rc.Verdict.UNKNOWN
        assert margin >= old - 1e-5 * (1 + abs(old)) or now is not rc.Verdict.ROBUST


def test_stages_compute_pre_activation_bounds_once(monkeypatch):
    query, starts = query_of("cnn", 2.0, torch.float64, 6), Counter()
    start = CROWN.start

    def counted(self, net, x, ball, executed=None):
        starts.update(tuple(row) for row in x.flatten(1).tolist())
        return start(self, net, x, ball, executed)

    monkeypatch.setattr(CROWN, "start", counted)
    stages = (registry.CHEAP_BOUND, registry.Bound(registry.ALPHA, alone=False), BaB(nodes=1))
    decided = list(registry.cascade(stages, query, Budget(), "bab"))
    assert len(decided) == 6
    # Branch and bound looks at the balls without the box as well.
    assert sum(count for count in starts.values()) > 0
    assert max(starts.values()) <= 2
    starts.clear()
    monkeypatch.setattr(registry, "SHARED", 0)
    assert len(list(registry.cascade(stages, query, Budget(), "bab"))) == 6
    assert max(starts.values()) >= 3


@torch.no_grad()
@pytest.mark.parametrize("p", [1.0, math.inf])
@pytest.mark.parametrize("seed", range(3))
def test_margins_of_both_dtypes_hold_exactly(p, seed):
    """What float64 proves from the bounds of float32 is below the least margin in rational arithmetic."""
    module = randomised(nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)), seed)
    net = Network(module, (2,)).to(torch.float32)
    x = torch.rand(6, 2, generator=torch.Generator().manual_seed(seed))
    y, eps = net.predict(x), 0.05
    query = sharing(Query.of(net, x, y, rc.Ball(p, eps)))
    for method in (CROWN(), Alpha(steps=3)):
        margins = proved_margins(query, method)
        for i in range(len(x)):
            truth = exact.least_margin(net, x[i], int(y[i]), p, eps, (0.0, 1.0))
            assert float(margins.real[i].amin()) <= truth
            if bool((margins.real[i] > 0).all()):
                assert truth > 0


@torch.no_grad()
@pytest.mark.parametrize("name", ["fc deep", "cnn", "residual"])
@pytest.mark.parametrize("p", EPS)
def test_bounds_handed_from_float32_to_float64_contain_those_of_float64(name, p):
    """Charged bounds of float32 hold in both dtypes, and what float64 is charged for the bound itself is far less."""
    query = query_of(name, p, torch.float32, 4)
    single = CROWN().start(query.net, query.x, query.ball, torch.float32)
    double = single.charged(query.double, query.wide, query.ball, torch.float32)
    points = query.ball.sample(query.x, torch.Generator().manual_seed(0), 50).flatten(0, 1)
    for executed, graph in ((points, query.net.graph), (points.double(), query.double.graph)):
        sources = [node.inputs[0] for node in query.net.switches]
        values = graph.values(executed, sources)
        for node in query.net.switches:
            value = values[node.inputs[0]].double().unflatten(0, (4, 50))
            within = double.inputs[node.index]
            assert bool((value >= within.lower[:, None]).all())
            assert bool((value <= within.upper[:, None]).all())
    for index in double.inputs:
        # What the computation of the bound rounds is charged anew; what the network rounds stays.
        assert float((double.drift(index)[:, 0] / single.drift(index)[:, 0]).amax()) < 1e-6
        torch.testing.assert_close(double.drift(index)[:, 1].float(), single.drift(index)[:, 1], rtol=1e-2, atol=1e-12)
