"""Radii of every l_p from distances in l_1 and l_inf: below the distances to all hyperplanes, and only without a box."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import relucert as rc
from relucert.core.results import Verdict
from relucert.geometry.exploration.universal import Universal, hull_radius
from relucert.geometry.hyperplane import hyperplane_distance
from relucert.geometry.region import LinearRegion
from zoo import NETWORKS, inputs, network

P = (1.0, 1.2, 2.0, 3.0, 20.0, math.inf)


def support(first: float, last: float, size: int, q: float) -> float:
    """The smallest support function of the hull over directions of dual norm 1: ones, one fraction and zeros attain it."""
    ones = torch.tril(torch.ones(size, size, dtype=torch.float64))
    steps = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None, None] * torch.eye(size).roll(1, 1).double()
    rows: Tensor = torch.cat([(ones + steps.clamp(max=1)).clamp(max=1).flatten(0, 1), ones])
    length = rows.amax(1) if math.isinf(q) else (rows**q).sum(1) ** (1 / q)
    return float((torch.maximum(first * rows.amax(1), last * rows.sum(1)) / length).min())


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("size", [2, 5])
def test_the_formula_is_the_largest_ball_in_the_hull(p, size):
    generator = torch.Generator().manual_seed(size)
    last = torch.rand(10, generator=generator, dtype=torch.float64)
    first = last * (0.5 + (size + 1) * torch.rand(10, generator=generator, dtype=torch.float64))
    found = hull_radius(first, last, size, p)
    q = math.inf if p == 1.0 else 1.0 if math.isinf(p) else p / (p - 1)
    for radius, a, b in zip(found.tolist(), first.tolist(), last.tolist(), strict=True):
        truth = support(a, b, size, q)
        assert truth * (1 - 1e-3) <= radius <= truth * (1 + 1e-12)


def test_radii_of_nothing_and_of_everything():
    zero, one, none = (torch.tensor([value], dtype=torch.float64) for value in (0.0, 1.0, math.inf))
    assert hull_radius(zero, zero, 4, 2.0).tolist() == [0.0]
    assert hull_radius(none, none, 4, 2.0).tolist() == [math.inf]
    # An l_inf ball holds the l_1 ball of its radius, and each of them an l_2 ball.
    assert float(hull_radius(zero, one, 4, 2.0)) == pytest.approx(1.0)
    assert float(hull_radius(one, zero, 4, 2.0)) == pytest.approx(0.5)


def test_distances_inside_a_box_must_not_be_used():
    """x = 0, the hyperplane z_2 - z_1 = 1.5 and the box z_1 >= -0.4: the formula exceeds the true distance."""
    x, row = torch.zeros(1, 2).double(), torch.tensor([[[-1.0, 1.0]]]).double()
    margin = torch.tensor([[-1.5]]).double()
    box = (torch.tensor([-0.4, -9.0]).double(), torch.tensor([9.0, 9.0]).double())

    def distance(p: float, box) -> Tensor:
        return hyperplane_distance(x, row, margin, p, box).distance[0]

    free = hull_radius(distance(1.0, None), distance(math.inf, None), 2, 2.0)
    assert float(free) <= float(distance(2.0, None)) <= float(distance(2.0, box))
    boxed = hull_radius(distance(1.0, box), distance(math.inf, box), 2, 2.0)
    assert float(boxed) == pytest.approx(1.410, abs=1e-3)
    assert float(distance(2.0, box)) == pytest.approx(1.170, abs=1e-3)


@pytest.mark.share(4)
@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("name", NETWORKS)
def test_radii_are_below_the_distances_to_all_hyperplanes(name, p):
    """In every norm at most min(d_B, d_D), in l_1 and l_inf nearly that, whatever box is given.

    Where a hyperplane vanishes with its row, as in windows whose entries are all inactive, the radius is zero.
    """
    net = network(name)
    x = inputs(net, 4)
    found, nearest = rc.radius(net, x, p=p, method="universal"), rc.distances(net, x, p=p)
    truth = torch.minimum(nearest.region, nearest.decision)
    assert bool((found.lower <= truth * (1 + 1e-9)).all())
    if p in (1.0, math.inf):
        region, values, _ = LinearRegion.evaluated(net, x)
        vanishes = (region.margins_of(values, x) == 0).any(1)
        assert bool(torch.where(vanishes, found.lower == 0, found.lower >= truth * (1 - 1e-6)).all())
    assert torch.equal(found.lower, rc.radius(net, x, p=p, box=None, method="universal").lower)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_certified_has_no_counterexample(p, dtype):
    net = network("fc", dtype)
    x = inputs(net, 6)
    y = net.predict(x)
    radii = rc.radius(net, x, y, p, method=Universal())
    ball = rc.Ball(p, radii.lower * (1 - 1e-6))
    found = rc.certify(net, x, y, ball, "universal")
    assert set(found.verdict) == {Verdict.ROBUST}
    assert bool((found.margin > 0).all())
    for prop in (rc.certify(net, x, y, ball, "bab"), rc.certify(net, x, y, ball, "region")):
        assert Verdict.VULNERABLE not in prop.verdict
    larger = rc.certify(net, x, y, rc.Ball(p, radii.lower * 1.01), "universal")
    assert set(larger.verdict) == {Verdict.UNKNOWN}


def test_misclassified_examples_have_the_radius_zero():
    net = network("fc")
    x = inputs(net, 3)
    y = (net.predict(x) + 1) % net.classes
    found = rc.radius(net, x, y, method="universal")
    assert (found.lower.tolist(), found.upper.tolist()) == ([0.0] * 3, [0.0] * 3)
