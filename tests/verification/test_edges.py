"""Extreme inputs: absurd scales, unbounded sets, positions that see nothing, no examples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import relucert as rc
from relucert.bounding.methods.crown import CROWN, Alpha
from relucert.bounding.methods.moments import Moments
from relucert.core.properties import class_stays
from relucert.core.results import Verdict
from relucert.networks.network import Network
from relucert.verification.registry import BOUNDING, METHODS
from zoo import inputs, network

ONE = torch.full((1, 1), 0.1, dtype=torch.float64)


def stacked(*layers: tuple[list[list[float]], list[float]]) -> Network:
    parts: list[nn.Module] = []
    for weight, bias in layers:
        linear = nn.Linear(len(weight[0]), len(weight)).double()
        linear.weight.data, linear.bias.data = (torch.tensor(part, dtype=torch.float64) for part in (weight, bias))
        parts += [linear, nn.ReLU()]
    return Network(nn.Sequential(*parts[:-1]), (len(layers[0][0][0]),)).eval()


#: The logits 0.5 and x of one input, by numbers whose squares are no longer numbers.
SCALES = {
    "tiny": (([[1e-170]], [0.0]), ([[0.0], [1e170]], [0.5, 0.0])),
    "huge": (
        ([[1.0], [0.0]], [0.0, -1.0]), ([[1e160, 1e160]], [0.0]), ([[0.0], [1e-160]], [0.5, 0.0]),
    ),
    "both": (
        ([[1e-200], [1e200]], [0.0, -1e308]), ([[1e200, 1e-100]], [0.0]), ([[0.0], [1.0]], [0.5, 0.0]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_numbers_whose_squares_vanish_or_overflow_prove_nothing_wrong(scale: str, p: float, method: str) -> None:
    if method == "mip" and p not in (1.0, math.inf):
        pytest.skip("HiGHS solves linear programs only")
    net = stacked(*SCALES[scale])
    y = net.predict(ONE)
    assert int(y) == 0
    assert int(net.predict(ONE + 0.5)) == 1
    assert rc.certify(net, ONE, y, rc.Ball(p, 0.8), method, timeout=0.5).verdict != [Verdict.ROBUST]


@pytest.mark.parametrize("method", BOUNDING)
def test_balls_whose_radius_has_no_square_prove_nothing_wrong(method: str) -> None:
    net, x = stacked(([[1e170]], [0.0]), ([[0.0], [1.0]], [0.5, 0.0])), torch.zeros(1, 1, dtype=torch.float64)
    assert int(net.predict(x + 1e-170)) == 1
    found = rc.certify(net, x, net.predict(x), rc.Ball(2, 1e-170, None), method)
    assert found.verdict != [Verdict.ROBUST]


@pytest.mark.parametrize("method", BOUNDING)
@pytest.mark.parametrize("name", ["fc deep", "cnn", "residual", "max pool", "leaky"])
def test_bounds_over_a_set_without_an_end_hold(name: str, method: str) -> None:
    """Far points of it are within them, and no bound is something else than a number or infinite."""
    net = network(name)
    x = inputs(net, 2)
    found = rc.bounds(net, x, rc.Ball(2, math.inf, (0.0, math.inf)), method)
    far = x + 100 * torch.rand(30, *x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        seen = [*net.preactivations(far.flatten(0, 1)), net(far.flatten(0, 1))]
    for value, within in zip(seen, [*found.inputs.values(), found.logits], strict=True):
        assert not bool(within.lower.isnan().any() | within.upper.isnan().any())
        value = value.unflatten(0, (30, 2))
        assert bool(((value >= within.lower - 1e-9) & (value <= within.upper + 1e-9)).all())


#: Convolutions behind a convolution of which some positions, or all, see no pixel.
BLIND = {
    "some": (nn.Conv2d(1, 2, 3, 2, 1), nn.ReLU(), nn.Conv2d(2, 2, 1, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)),
    "all": (
        nn.Conv2d(1, 2, (8, 8)), nn.ReLU(), nn.Conv2d(2, 2, (1, 2), padding=(0, 1), dilation=(1, 2)), nn.ReLU(),
        nn.Flatten(), nn.Linear(2, 3),
    ),
}  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize("which", BLIND)
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("box", [None, (0.0, 1.0)])
def test_positions_that_see_no_pixel(which: str, p: float, box: tuple[float, float] | None) -> None:
    net = Network(nn.Sequential(*BLIND[which]).double(), (1, 8, 8)).eval()
    x = inputs(net, 2)
    y, ball = net.predict(x), rc.Ball(p, 0.01, box)
    points = ball.sample(x, torch.Generator().manual_seed(0), 50)
    kept = (net.predict(points.flatten(0, 1)).reshape(2, -1) == y[:, None]).all(1)
    for method in ("region", *BOUNDING):
        robust = rc.certify(net, x, y, ball, method).which(Verdict.ROBUST)
        assert bool(kept[robust].all()), method
    for method in ("region", "kw", "crown"):
        assert bool((rc.radius(net, x, y, p=p, box=box, method=method).lower >= 0).all()), method


def test_margins_of_the_region_theorem_are_below_the_least_one() -> None:
    """Eps is not a float32 number, and its nearest one is smaller: the margin is about the larger one."""
    linear = nn.Linear(6, 2)
    generator = torch.Generator().manual_seed(0)
    linear.weight.data = torch.rand(2, 6, generator=generator) - 0.5
    linear.bias.data = torch.tensor([9.0, 0.0])
    net = Network(nn.Sequential(linear), (6,)).eval()
    x = torch.rand(4, 6, generator=generator)
    weight = linear.weight.detach().double()
    apart = weight[0] - weight[1]
    for eps in (0.7, 0.1, 0.3, 0.9):
        true = x.double() @ apart + 9 - eps * apart.norm()
        margin = rc.certify(net, x, net.predict(x), rc.Ball(2, eps, None), "region").margin
        assert bool((margin.double() <= true).all())
        reach = rc.Ball(2, eps).reach(x)
        assert bool((reach.double() >= eps).all())


@pytest.mark.parametrize("method", [Alpha(steps=2), Alpha(steps=2, inner=2), Moments(steps=3, rank=2)])
def test_bounds_that_carry_gradients_are_taken_as_constants(method: Alpha | Moments) -> None:
    net = network("fc deep")
    x = inputs(net, 2)
    ball, prop = rc.Ball(2, 0.3), class_stays(net.predict(x), net.classes, dtype=torch.float64)
    carrying = CROWN().units(net, x, ball)
    assert carrying.logits.lower.requires_grad
    found = method.proceed(net, carrying, x, ball, prop)[1]
    torch.testing.assert_close(found, method.proceed(net, carrying.detach(), x, ball, prop)[1], rtol=0, atol=0)


@pytest.mark.parametrize("method", BOUNDING)
def test_inputs_on_a_side_of_the_box_that_is_no_float32_number(method: str) -> None:
    net = network("fc", torch.float32)
    x, ball = torch.full((1, 3), 0.1), rc.Ball(math.inf, 0.05, (0.0, 0.1))
    found = rc.bounds(net, x, ball, method)
    with torch.no_grad():
        logits = net(ball.sample(x, torch.Generator().manual_seed(0), 200)[0])
    assert bool((logits >= found.logits.lower - 1e-5).all())
    assert bool((logits <= found.logits.upper + 1e-5).all())


@pytest.mark.parametrize("method", METHODS)
def test_inference_mode_changes_nothing(method: str) -> None:
    net = network("fc deep", torch.float32)
    x = inputs(net, 3)
    y, ball = net.predict(x), rc.Ball(math.inf, 0.05)
    outside = rc.certify(net, x, y, ball, method)
    with torch.inference_mode():
        inside = rc.certify(net, inputs(net, 3), net.predict(x), ball, method)
        rc.radius(net, inputs(net, 1), p=math.inf, method=method)
        if method in BOUNDING:
            rc.bounds(net, inputs(net, 3), ball, method)
    assert inside.verdict == outside.verdict
    torch.testing.assert_close(inside.margin, outside.margin)


def test_attacks_in_inference_mode() -> None:
    net = network("fc deep", torch.float32)
    with torch.inference_mode():
        x = inputs(net, 3)
        y = net.predict(x)
        rc.attack(net, x, y, rc.Ball(2, 0.1), "pgd(steps=3)")
        rc.minimal_attack(net, x, y, p=2, method="ddn(steps=5)")


@pytest.mark.parametrize("name", ["fc", "max pool", "grouped"])
@pytest.mark.parametrize("method", ["region", "crown", "bab", "auto"])
def test_radii_of_no_examples(name: str, method: str) -> None:
    net = network(name)
    assert len(rc.radius(net, inputs(net, 3)[:0], p=2, method=method).lower) == 0
