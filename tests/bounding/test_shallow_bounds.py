"""Bounds from the nearest layers hold, are looser than those from the input, and spare work without changing margins."""

from __future__ import annotations

import math

import pytest
import torch

import relucert as rc
from relucert.bounding import preactivations
from relucert.bounding._shallow_bounds import decided
from relucert.bounding.interval import Interval
from relucert.bounding.methods.crown import CROWN
from relucert.bounding.methods.kw import KW
from zoo import network, problem

BALLS = [rc.Ball(math.inf, 0.05), rc.Ball(2, 0.1), rc.Ball(1, 0.3, None)]
DEEP = ["fc deep", "cnn", "cnn colour", "residual", "leaky", "dense", "grouped", "zero bias"]


def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Interval, Interval]]:
    """What every call of `decided` was given and returned: the node, its bounds before and after."""
    calls = []

    def watched(backward, node, known, *given):
        found = decided(backward, node, known, *given)
        calls.append((node, known, found))
        return found

    monkeypatch.setattr(preactivations, "decided", watched)
    return calls


@torch.no_grad()
@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("ball", BALLS, ids=str)
@pytest.mark.parametrize("method", [CROWN(), KW()], ids=["crown", "kw"])
def test_no_point_of_the_ball_leaves_them(name, ball, method, monkeypatch):
    net, x, _ = problem(name)
    calls = seen(monkeypatch)
    method.start(net, x, ball, net.dtype)
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        points = ball.sample(x, generator)
        values = net.graph.values(points, [node for node, _, _ in calls])
        for node, known, found in calls:
            assert bool((found.lower >= known.lower).all() & (found.upper <= known.upper).all())
            assert bool((values[node] >= found.lower).all() & (values[node] <= found.upper).all())


@torch.no_grad()
def test_they_spare_work(monkeypatch):
    net, x, _ = problem("fc deep", 20)
    calls = seen(monkeypatch)
    CROWN().start(net, x, rc.Ball(math.inf, 0.01), net.dtype)
    before, after = (sum(int(part[i].unstable.sum()) for part in calls) for i in (1, 2))
    assert after < before


@torch.no_grad()
@pytest.mark.parametrize("name", [*DEEP, "max pool", "dead windows"])
@pytest.mark.parametrize("ball", BALLS, ids=str)
def test_kw_is_the_published_method_with_them(name, ball):
    """Units that are unstable have the same bounds, whether all units are bounded or not, and so have margins."""
    net, x, prop = problem(name)
    every, loose = KW().start(net, x, ball), KW().start(net, x, ball, net.dtype)
    for index, within in every.inputs.items():
        other = loose.inputs[index]
        unstable = within.unstable
        sure = ~unstable & (torch.minimum(within.lower.abs(), within.upper.abs()) > 1e-6)
        assert not bool((other.unstable & sure).any())
        torch.testing.assert_close(within.lower[unstable], other.lower[unstable], rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(within.upper[unstable], other.upper[unstable], rtol=1e-7, atol=1e-7)
    plain, charged = (KW().prove(net, known, x, ball, prop)[1].computed for known in (every, loose))
    torch.testing.assert_close(plain, charged, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [*DEEP, "max pool"])
@pytest.mark.parametrize("ball", BALLS, ids=str)
@pytest.mark.parametrize("method", [CROWN(), KW(), KW(intervals=True)], ids=["crown", "kw", "kw with intervals"])
def test_bounds_are_the_same_with_gradients_and_without(name, ball, method):
    net, x, prop = problem(name)
    units, margins = method.solve(net, x, ball, prop)
    assert margins.requires_grad
    with torch.no_grad():
        other, same = method.solve(net, x, ball, prop)
    for index, within in units.inputs.items():
        torch.testing.assert_close(within.lower.detach(), other.inputs[index].lower, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(within.upper.detach(), other.inputs[index].upper, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(margins.detach(), same, rtol=1e-9, atol=1e-9)


def test_gradients_of_bounds_reach_the_weights():
    """Shallow bounds decide signs alone: what is not decided keeps its gradient."""
    net = network("fc deep")
    x = problem("fc deep")[1]
    bounds = CROWN().start(net, x, rc.Ball(math.inf, 0.05))
    sum(part.lower.sum() for part in bounds.inputs.values()).backward()  # type: ignore[union-attr]
    assert all(part.grad is not None for part in list(net.parameters())[:-2])
