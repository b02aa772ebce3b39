"""Minimal attacks against exact distances, on networks where these are known."""

import math

import pytest
import torch
from torch import Tensor, nn

import relucert as rc
from asserts import assert_below_attack
from oracles import polytope_distance, small_fc
from relucert.attacks._local_program import LocalProgram, Scales
from relucert.geometry.region import LinearRegion
from zoo import inputs, randomised

NORMS = [1.0, 2.0, math.inf]
NETS = [small_fc((4,), [10], 3, 3), small_fc((4,), [8, 6], 3, 5)]


@pytest.mark.parametrize("p", NORMS)
def test_attacks_come_near_the_exact_minimum_and_never_below(p):
    near = {"best": 0.01, "region(regions=12)": 0.02}
    excess: dict[str, list[Tensor]] = {method: [] for method in near}
    for net in NETS:
        x = inputs(net, 12, seed=5)
        exact = rc.radius(net, x, p=p, method=rc.Region(regions=None))
        has = exact.upper.isfinite()
        assert bool(exact.exact.all())
        for method in near:
            found = rc.minimal_attack(net, x, p=p, method=method)
            assert_below_attack(exact, found)
            assert bool(found.success[has].all())
            excess[method].append((found.distance / exact.upper - 1)[has])
    for method, mean in near.items():
        assert sum(map(len, excess[method])) >= 15
        assert float(torch.cat(excess[method]).mean()) <= mean, method


def test_ddn_is_the_published_algorithm():
    net = small_fc((6,), [12], 3, 3)
    x = inputs(net, 8)
    found = rc.minimal_attack(net, x, method=rc.DDN(steps=40, start=0.7, rate=1 / 0.7, gamma=0.1))
    for i in range(len(x)):
        centre, y = x[i : i + 1], net.predict(x[i : i + 1])
        offset, length, best = torch.zeros_like(centre), 0.7, math.inf
        for step in range(41):
            offset.requires_grad_()
            logits = net(centre + offset)
            (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(logits, y), offset)
            changed = int(logits.argmax()) != int(y)
            if changed:
                best = min(best, float(offset.detach().norm()))
            rate = 0.01 + 0.99 * (1 + math.cos(math.pi * step / 40)) / 2
            offset = offset.detach() + rate * gradient / gradient.norm()
            length *= 0.9 if changed else 1.1
            offset = (centre + offset * length / offset.norm()).clamp(0, 1) - centre
        assert float(found.distance[i]) == pytest.approx(best, rel=1e-6)


def test_cw_solves_linear_classifiers():
    net = rc.Network(randomised(nn.Sequential(nn.Linear(6, 3)), 3).double(), (6,)).eval()
    x = inputs(net, 4)
    for box in ((0.0, 1.0), None):
        exact = rc.radius(net, x, box=box, method="region")
        method = rc.CW(searches=6, iterations=150, constant=0.3, rate=0.03)
        found = rc.minimal_attack(net, x, box=box, method=method)
        assert bool(found.success.all())
        assert 0 <= float((found.distance / exact.upper - 1).mean()) < 0.02


@pytest.mark.parametrize("p", NORMS)
def test_the_best_is_never_worse_than_a_member(p):
    net = small_fc((8,), [20, 12], 4, 3)
    x = inputs(net, 10)
    alone = rc.minimal_attack(net, x, p=p, method="fab(steps=5, targets=2)")
    best = rc.minimal_attack(net, x, p=p, method="best(members=('fab(steps=5, targets=2)', 'region(regions=3)'))")
    assert bool((best.distance <= alone.distance).all())
    assert_below_attack(rc.radius(net, x, p=p, method="region"), best)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, math.inf])
def test_linear_classifiers_are_solved_exactly(p):
    net = rc.Network(randomised(nn.Sequential(nn.Linear(6, 3)), 3).double(), (6,)).eval()
    x = inputs(net, 20)
    x[:, :3] = x[:, :3].round()
    exact = rc.radius(net, x, p=p, method="region")
    has = (exact.exact & exact.upper.isfinite()).nonzero()[:, 0]
    found = rc.minimal_attack(net, x[has], p=p, method="best(members=('fab(steps=3)',))")
    torch.testing.assert_close(found.distance, exact.upper[has], rtol=1e-5, atol=0)


def test_programs_find_the_nearest_point_of_the_region():
    # One region without a box: the nearest point beyond a decision hyperplane inside the region, by enumeration of constraints.
    net = small_fc((5,), [8], 3, 1)
    x = inputs(net, 6)
    region, _, logits = LinearRegion.evaluated(net, x)
    y, target = logits.argmax(1), logits.argsort(1)[:, 1]
    program = LocalProgram(region, y, target, Scales(region))
    start = x.new_zeros(6, region.count + 1)
    with torch.no_grad():
        z, multipliers = program.solve(x, lambda point: point, start, 1000, x.new_zeros(6))
        left = program.margins(z).amin(1)
    every = torch.arange(region.count).expand(6, -1)
    rows, margins = region.rows(every), region.margins(x)
    for i in range(6):
        decision = region.decision_rows(y)[i, target[i]]
        a = torch.cat([rows[i], -decision[None]]).detach().numpy()
        b = torch.cat([-margins[i], (logits[i, y[i]] - logits[i, target[i]])[None]]).detach().numpy()
        distance = polytope_distance(a, b, 2.0)
        if math.isfinite(distance):
            assert float((z[i] - x[i]).norm()) == pytest.approx(distance, rel=1e-3)
            assert float(left[i]) > -1e-3
        else:
            assert float(multipliers[i].max()) > 10
