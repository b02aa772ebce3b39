"""`rc.bounds` holds to the last bit: no point leaves an interval, in real arithmetic or as the network runs."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import relucert as rc
from relucert.bounding.preactivations import UnitBounds
from relucert.core.errors import InvalidInput
from relucert.networks.network import Network, in_double
from relucert.verification.registry import BOUNDING
from zoo import NETWORKS, inputs, network

SHORT = {"alpha": {"steps": 2, "inner": 1}, "sdp": {"steps": 2}, "moments": {"steps": 4, "rank": 2}}
METHODS = {name: kind(**SHORT.get(name, {})) for name, kind in BOUNDING.items()}
UNIT = (0.0, 1.0)


def points_of(net: Network, x: Tensor, ball: rc.Ball, count: int = 60) -> Tensor:
    """Points of the ball, (batch, n, *input): samples, and where first units and logits are smallest and largest.

    The last are corners, at which bounds are attained: there rounding alone decides.
    """
    first = net.graph[net.switches[0].inputs[0]].index if net.switches else len(net.graph) - 1
    rows = []
    for place in {first, len(net.graph) - 1}:
        z = x.clone().requires_grad_()
        values = net.graph.values(z, [place])[place].flatten(1)
        some = range(0, values.shape[1], max(1, values.shape[1] // 20))
        rows += [torch.autograd.grad(values[:, unit].sum(), z, retain_graph=True)[0] for unit in some]
    slopes = torch.stack(rows, 1).detach()
    ends = [ball.minimum(x, sign * slopes, point=True).point for sign in (1, -1)]
    return torch.cat(
        [ball.sample(x, torch.Generator().manual_seed(0), count), *(end for end in ends if end is not None)], 1
    )


@torch.no_grad()
def left(net: Network, points: Tensor, found: UnitBounds) -> float:
    """How far values at the points are outside the bounds, at most; not above 0 if all are inside."""
    every = points.flatten(0, 1)
    farthest = -math.inf
    for value, within in zip(
        [*net.preactivations(every), net(every)], [*found.inputs.values(), found.logits], strict=True
    ):
        value = value.unflatten(0, points.shape[:2]).double()
        outside = torch.maximum(within.lower[:, None].double() - value, value - within.upper[:, None].double())
        farthest = max(farthest, float(outside.max()))
    return farthest


@pytest.mark.share(6)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("p", "box"), [(1.0, UNIT), (2.0, None), (2.0, UNIT), (math.inf, None), (math.inf, UNIT)])
def test_no_value_is_outside_by_a_unit_in_the_last_place(name: str, dtype: torch.dtype, p: float, box) -> None:
    net = network(name, dtype)
    x = inputs(net, 2)
    ball = rc.Ball(p, torch.tensor([0.03, 0.3], dtype=torch.float64), box)
    points = points_of(net, x, ball)
    for method in METHODS.values():
        found = rc.bounds(net, x, ball, method)
        assert left(net, points, found) <= 0, (method.name, "as it runs")
        if dtype == torch.float32:
            assert left(in_double(net), points.double(), found) <= 0, (method.name, "in real arithmetic")


@pytest.mark.parametrize("method", METHODS)
def test_no_exact_value_is_outside(method: str) -> None:
    """Weights with many bits in rational arithmetic, at corners of the ball, where the bounds of a first layer are attained."""
    generator = torch.Generator().manual_seed(3)
    inner, outer = nn.Linear(3, 6), nn.Linear(6, 2)
    for part in (inner, outer):
        part.weight.data = torch.randn(part.weight.shape, generator=generator)
        part.bias.data = torch.randn(part.bias.shape, generator=generator)
    net = Network(nn.Sequential(inner, nn.ReLU(), outer).double(), (3,)).eval()
    x, ball = torch.rand(2, 3, generator=generator, dtype=torch.float64), rc.Ball(math.inf, 0.1, None)
    found = rc.bounds(net, x, ball, METHODS[method])
    (within,) = found.inputs.values()
    points = points_of(net, x, ball, 5)

    def affine(part: nn.Linear, z: list[Fraction]) -> list[Fraction]:
        rows, offsets = part.weight.tolist(), part.bias.tolist()
        return [
            sum((Fraction(a) * b for a, b in zip(row, z, strict=True)), Fraction(offset))
            for row, offset in zip(rows, offsets, strict=True)
        ]

    for example in range(len(x)):
        for point in points[example].tolist():
            units = affine(inner, [Fraction(number) for number in point])
            logits = affine(outer, [max(unit, Fraction(0)) for unit in units])
            for values, ends in ((units, within), (logits, found.logits)):
                lower, upper = ends.lower[example].tolist(), ends.upper[example].tolist()
                assert all(Fraction(a) <= b <= Fraction(c) for a, b, c in zip(lower, values, upper, strict=True))


def test_outward_rounding_costs_next_to_nothing() -> None:
    """Intervals are wider than those as computed, by about a thousandth in float32 and by 1e-12 in float64."""
    for dtype, more in ((torch.float32, 5e-3), (torch.float64, 1e-11)):
        net = network("cnn", dtype)
        x, ball = inputs(net, 3), rc.Ball(math.inf, 0.02)
        found = rc.bounds(net, x, ball, "crown")
        with torch.no_grad():
            plain = rc.CROWN().units(net, x, ball)
        for index, within in found.inputs.items():
            wide, narrow = (part.upper - part.lower for part in (within, plain.inputs[index]))
            assert bool((wide > narrow).all())
            assert bool((wide <= narrow + more * (1 + within.upper.abs() + within.lower.abs())).all())


def test_bounds_have_the_dtype_of_the_network_and_no_gradient() -> None:
    net = network("fc", torch.float32)
    found = rc.bounds(net, inputs(net, 2), rc.Ball(2, 0.1))
    assert found.logits.lower.dtype == torch.float32
    assert not found.logits.lower.requires_grad


@pytest.mark.share(4)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", ["ibp", "kw", "crown"])
@pytest.mark.parametrize("p", [2.0, math.inf])
def test_differentiable_bounds_hold_and_their_gradients_are_those_of_finite_differences(name, method, p):
    net = network(name)
    x, ball = inputs(net, 3), rc.Ball(p, 0.1 if p == 2 else 0.03)
    weights = list(net.parameters())
    generator = torch.Generator().manual_seed(1)
    direction = [torch.randn(weight.shape, generator=generator, dtype=torch.float64) for weight in weights]

    def projected():
        found = rc.bounds(net, x, ball, method, differentiable=True)
        ends = [end for within in (*found.inputs.values(), found.logits) for end in (within.lower, within.upper)]
        draw = torch.Generator().manual_seed(0)
        return found, sum((end * torch.randn(end.shape, generator=draw, dtype=torch.float64)).sum() for end in ends)

    found, value = projected()
    points = points_of(net, x, ball, 20)
    for node, seen in zip(net.switches, net.preactivations(points.flatten(0, 1)), strict=True):
        within, seen = found.inputs[node.index], seen.unflatten(0, points.shape[:2])
        assert bool((seen >= within.lower.unsqueeze(1)).all())
        assert bool((seen <= within.upper.unsqueeze(1)).all())
    slopes = torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True)
    expected = sum(float((slope * along).sum()) for slope, along in zip(slopes, direction, strict=True))
    values = []
    for by in (1e-6, -2e-6):
        with torch.no_grad():
            for weight, along in zip(weights, direction, strict=True):
                weight += by * along
        values.append(float(projected()[1].detach()))
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_methods_without_a_gradient_are_refused_where_one_is_wanted():
    net = network("fc")
    with pytest.raises(
        InvalidInput, match="method must be one of ibp, kw, crown where differentiable is True, got alpha"
    ):
        rc.bounds(net, inputs(net, 2), rc.Ball(2, 0.1), "alpha", differentiable=True)


@pytest.mark.parametrize("method", ["ibp", "kw", "crown"])
def test_bounds_can_be_trained(method):
    net = network("fc deep")
    x, ball = inputs(net, 4), rc.Ball(math.inf, 0.05)
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    widths = []
    for _ in range(20):
        logits = rc.bounds(net, x, ball, method, differentiable=True).logits
        width = (logits.upper - logits.lower).mean()
        widths.append(float(width.detach()))
        optimiser.zero_grad()
        width.backward()
        optimiser.step()
    assert widths[-1] < 0.7 * widths[0]
    assert not rc.bounds(net, x, ball, method).logits.lower.requires_grad
