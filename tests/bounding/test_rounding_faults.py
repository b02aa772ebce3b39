"""Rounding: cases in which charges were once too small, each found by reading the derivation."""

from __future__ import annotations

import copy
import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import relucert as rc
from relucert.bounding.interval import Interval
from relucert.bounding.preactivations import Bounding
from relucert.bounding.relaxation import relax
from relucert.bounding.rounding import Accuracy, Margins, Rounding
from relucert.core.ball import Ball
from relucert.core.properties import Property, class_stays
from relucert.core.results import Verdict
from relucert.core.rounding import gamma
from relucert.networks.network import Network
from relucert.networks.nodes import MaxPool2d
from relucert.verification.registry import BOUNDING

FIRST = Property(torch.tensor([[[1.0, -1.0]]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))


@torch.no_grad()
def proved(net: Network, method: Bounding, x: Tensor, ball: Ball, prop: Property, dtype: torch.dtype) -> Margins:
    """The margins of a method computed in a dtype, for a network that runs in its own."""
    own, x_own, ball = copy.deepcopy(net).to(dtype), x.to(dtype), ball.beside(x)
    return method.prove(own, method.start(own, x_own, ball, net.dtype), x_own, ball, prop.to(dtype))[1]


def linear(weight: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    """A layer with given weights, in float32."""
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        if bias is not None:
            layer.bias.copy_(torch.tensor(bias))
    return layer


@pytest.mark.parametrize("weight", [0.3, -0.7, 1.1])
def test_an_adaptive_pool_that_repeats_entries_adds_up_as_many_coefficients(weight: float) -> None:
    """One pixel becomes 64 x 64, so its coefficient is a sum of 4096; the exact margin is known."""
    side = 64
    mix = nn.Conv2d(2, 1, 1, bias=False)
    last = nn.Linear(side * side, 2, bias=False)
    with torch.no_grad():
        mix.weight.copy_(torch.tensor([1.0, -3.0]).reshape(1, 2, 1, 1))
        last.weight.zero_()
        last.weight[0] = weight
    layers = [nn.AdaptiveAvgPool2d(side), mix, nn.ReLU(), nn.Flatten(), last]
    net = Network(nn.Sequential(*layers), (2, 1, 1)).eval()
    x = torch.tensor([0.75, 0.25 - 2**-15]).reshape(1, 2, 1, 1)
    truth = Fraction(float(last.weight[0, 0].detach())) * side * side * Fraction(3, 2**15)
    found = proved(net, BOUNDING["crown"](), x, Ball(math.inf, 0.0, None), FIRST, torch.float32)
    assert Fraction(float(found.real)) <= truth


@pytest.mark.parametrize("seed", [44, 48, 49, 54])
def test_small_coefficients_of_large_units_go_to_the_ends_of_their_interval(seed: int) -> None:
    """The relaxation over box and ball, with no weight on the ball, is linear however small its slope is."""
    generator, scale = torch.Generator().manual_seed(seed), 1e14
    first, last = nn.Linear(1, 2), nn.Linear(2, 2)
    with torch.no_grad():
        first.weight.copy_(scale * torch.randn(2, 1, generator=generator))
        first.bias.copy_(0.1 * scale * torch.randn(2, generator=generator))
        last.weight.copy_(torch.randn(2, 2, generator=generator) / scale)
        last.bias.zero_()
    net = Network(nn.Sequential(first, nn.ReLU(), last), (1,)).eval()
    x = torch.rand(1, 1, generator=generator)
    prop = class_stays(net.predict(x), 2, dtype=torch.float64)
    found = proved(net, BOUNDING["sdp"](steps=5), x, Ball(2, 1.0, None), prop, torch.float32)
    points = torch.linspace(-1, 1, 401).double()[:, None] + x.double()
    with torch.no_grad():
        margins = copy.deepcopy(net).double()(points) @ prop.rows[0].T
    assert float(found.real.min()) <= float(margins.min()) + 1e-6


def test_offsets_of_maxima_have_either_sign() -> None:
    """A sum of offsets that cancel is rounded by a share of their absolute values."""
    op = MaxPool2d((1, 1, 200), kernel=(1, 2), stride=(1, 2))
    centre = torch.cat([torch.full((100,), 1.0), torch.full((100,), -1.0)]).reshape(1, 1, 1, 200)
    line = relax(op, Interval(centre - 0.1, centre + 0.1), "adaptive", torch.zeros(1, 2, 200))
    pulled = line.pull_back(-torch.ones(1, 1, 1, 1, 100))
    assert pulled.cost is not None
    assert abs(float(pulled.low)) < 0.2 * float(line.offset.abs().sum())
    assert float(pulled.cost[0, 0, 0]) >= gamma(99, torch.float32) * float(line.offset.abs().sum())


def test_an_average_is_a_sum_first_and_may_overflow() -> None:
    net = Network(
        nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), linear([[-1e-38], [0.0]], [10.0, 0.0])), (1, 2, 2)
    ).eval()
    x = torch.full((1, 1, 2, 2), 2e38)
    assert float(net(x).detach()[0, 0]) == -math.inf
    for dtype in (torch.float32, torch.float64):
        found = proved(net, BOUNDING["crown"](), x, Ball(math.inf, 0.0, None), FIRST, dtype)
        assert not float(found.executed) > -math.inf


@pytest.mark.parametrize("tighten", ["crown", "lp"])
@pytest.mark.parametrize("arithmetic", ["executed", "real"])
def test_units_that_only_look_copied_have_rows_with_errors(arithmetic: str, tighten: str) -> None:
    """Large shifts that cancel: in a mixed-integer program the unit is the column before them, but it is not so when rounded.

    Executed in float32 a step of 1e8 loses units; in float64 a shift of 7 between two of 1e17 is lost when multiplied out.
    """
    first, last = linear([[1.0], [1.0]], [0.0, -1004.5]), linear([[1.0, 2**-6], [0.0, 0.0]], [-1001.5, 0.0])
    shifts = [1e8, -1e8] if arithmetic == "executed" else [1e17, -7.0, -1e17]
    inner = [linear([[1.0, 0.0], [0.0, 1.0]], [shift, 0.0]) for shift in shifts]
    dtype = torch.float32 if arithmetic == "executed" else torch.float64
    module = nn.Sequential(nn.ReLU(), first, *inner, nn.ReLU(), last).to(dtype)
    net, x = Network(module, (1,)).eval(), torch.tensor([[1004.5]], dtype=dtype)
    found = rc.certify(
        net, x, torch.tensor([0]), Ball(math.inf, 1.0, None), f"mip(seconds=5, tighten={tighten!r})",
        arithmetic=arithmetic,  # type: ignore[arg-type]
    )  # fmt: skip
    assert found.verdict != [Verdict.ROBUST]


@pytest.mark.parametrize("weight", [7.7e-21, 1.3e-21, 3.1e-21])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scale_that_underflows_is_off_by_the_smallest_number_times_the_input(
    weight: float, dtype: torch.dtype
) -> None:
    """A batch norm with weight / sqrt(variance) below the normal numbers of float32, of inputs around 1e25."""
    norm, last = nn.BatchNorm1d(1), linear([[1e15], [0.0]])
    with torch.no_grad():
        norm.running_var.fill_(3e38)
        norm.weight.fill_(weight)
    net = Network(nn.Sequential(norm, nn.ReLU(), last), (1,)).eval()
    x = torch.tensor([[1e25]])
    exact = (
        Fraction(float(last.weight.detach()[0, 0]))
        * Fraction(float(norm.weight.detach()[0]))
        * Fraction(float(x[0, 0]))
    )
    for sign in (1, -1):
        prop = Property(sign * FIRST.rows, FIRST.offsets)
        found = proved(net, BOUNDING["crown"](), x, Ball(math.inf, 0.0, None), prop, dtype)
        with torch.no_grad():
            assert bool((found.executed.double() <= prop.margins(net(x).double())).all())
        # Of real arithmetic the square root is known to twelve digits.
        root = Fraction(math.sqrt(float(norm.running_var[0]) + norm.eps))
        truth = sign * exact / root
        assert Fraction(float(found.real)) <= truth + abs(truth) * Fraction(1, 10**12)


class Twice(nn.Module):
    """A layer of ReLUs that is read as it is and in another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(3, 4), nn.Linear(4, 2), nn.Conv2d(1, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x).relu()
        return self.left(z) + self.right(z.reshape(-1, 1, 2, 2)).flatten(1)


def test_functionals_that_are_added_up_at_the_input_of_a_permutation_are_charged() -> None:
    net = Network(Twice(), (3,)).eval()
    x = torch.rand(1, 3)
    accuracy = Accuracy(net.graph, Rounding.over(x, Ball(math.inf, 0.1), torch.float32))
    (node,) = [node for node in net.graph.affine_nodes if node.op.permutes and accuracy.readers[node.inputs[0]] > 1]
    drift, wider = accuracy.affine(node, [Interval(torch.ones(1, 4), 2 * torch.ones(1, 4))], [None])
    assert drift is not None
    assert wider is not None
    assert bool((drift[:, 0] > 0).all())


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, math.inf])
@pytest.mark.parametrize("method", ["ibp", "kw", "crown", "alpha", "lipschitz", "sdp"])
def test_a_slack_that_underflows_in_units_of_the_ball_is_charged(p: float, method: str) -> None:
    """The margin is 0.007 - 1e38 z_0, and z_0 moves by 1e-40 in a ball of radius 1e10: at its end the margin is -0.003."""
    net = Network(
        nn.Sequential(linear([[1e38, 0.0], [0.0, 1e-15]]), nn.ReLU(), linear([[0.0, 0.0], [1.0, 0.0]], [0.007, 0.0])),
        (2,),
    ).eval()
    lower, upper = torch.tensor([[0.0, -1e10]]), torch.tensor([[1e-40, 1e10]])
    x = lower / 2 + upper / 2
    end = torch.tensor([[float(upper[0, 0]), 0.0]])
    ball = Ball(p, 1e10, box=(lower, upper))
    assert bool(ball.contains(x, end))
    assert net.predict(end).item() == 1
    found = rc.certify(net, x, torch.tensor([0]), ball, method)
    assert found.verdict[0] is not Verdict.ROBUST


@pytest.mark.parametrize("method", ["lipschitz", "sdp", "crown"])
def test_a_slack_of_a_unit_that_underflows_is_charged(method: str) -> None:
    """The margin is 0.7 - 1e36 relu(z_0), and z_0 moves by 1e-36 in a ball of radius 1e10: at its end the margin is -0.3."""
    layers = [linear([[1.0, 0.0], [0.0, 1.0]]), nn.ReLU(), linear([[0.0, 0.0], [1e36, 0.0]], [0.7, 0.0])]
    net = Network(nn.Sequential(*layers), (2,)).eval()
    lower, upper = torch.tensor([[0.0, -1e10]]), torch.tensor([[1e-36, 1e10]])
    ball = Ball(2, 1e10, box=(lower, upper))
    found = proved(net, BOUNDING[method](), lower / 2 + upper / 2, ball, FIRST, torch.float32)
    assert float(found.real) <= -0.29


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("method", ["ibp", "kw", "crown", "alpha", "lipschitz", "sdp(steps=5)", "bab(nodes=20)"])
def test_halves_of_the_smallest_number_are_charged(dtype: torch.dtype, p: float, method: str) -> None:
    """An interval from 0 to the smallest number has no middle; times a weight that is nearly the largest it is far."""
    step = math.ulp(0.0) if dtype == torch.float64 else 2.0**-149
    weight = torch.finfo(dtype).max / 4
    net = Network(nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2)).to(dtype), (2,)).eval()
    with torch.no_grad():
        values = ([[weight, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 0.0]], [0.7 * weight * step, 0.0])
        for parameter, value in zip(net.parameters(), values, strict=True):
            parameter.copy_(torch.tensor(value, dtype=torch.float64))
    x, z = torch.zeros(1, 2, dtype=dtype), torch.tensor([[step, 0.0]], dtype=torch.float64).to(dtype)
    upper = torch.tensor([[step, 1.0]], dtype=torch.float64).to(dtype)
    assert net.predict(z).item() == 1
    for ball in (Ball(p, step, box=(0, 1)), Ball(p, 1e-3, box=(x, upper))):
        assert bool(ball.contains(x, z))
        assert rc.certify(net, x, torch.tensor([0]), ball, method).verdict[0] is not Verdict.ROBUST
