"""Rounding: what bounds are charged covers real arithmetic and the network as executed, and is not much more than that."""

from __future__ import annotations

import copy
import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import exact
import relucert as rc
from relucert.bounding.interval import Interval
from relucert.bounding.preactivations import Bounding
from relucert.bounding.relaxation import MaxPoolRelaxation, Rule, relax
from relucert.bounding.rounding import Margins, rounding_over
from relucert.core.ball import Ball
from relucert.core.properties import Property, class_stays
from relucert.networks.architectures import mlp
from relucert.networks.network import Network
from relucert.networks.nodes import MaxPool2d, ReLU
from relucert.verification.registry import BOUNDING
from zoo import NETWORKS, inputs, network, randomised

SETTINGS = {"alpha": {"steps": 3, "inner": 2}, "sdp": {"steps": 3}, "moments": {"steps": 10, "rank": 3}}
METHODS: dict[str, Bounding] = {
    name: BOUNDING[name](**SETTINGS.get(name, {}))
    for name in ("ibp", "kw", "crown", "alpha", "lipschitz", "sdp", "moments")
}
PASSES = {"float32": torch.float32, "float64": torch.float64}
BALLS = {
    "a point": (math.inf, 0.0, None),
    "l_inf": (math.inf, 0.05, (0.0, 1.0)),
    "l_2": (2.0, 0.2, (0.0, 1.0)),
    "l_1": (1.0, 0.3, None),
    "l_1.5": (1.5, 0.3, None),
}


def proved(net: Network, method: Bounding, x: Tensor, ball: Ball, prop: Property, dtype: torch.dtype) -> Margins:
    """The margins of a method computed in a dtype, for a network that runs in its own."""
    own = copy.deepcopy(net).to(dtype)
    ball = ball.beside(x)
    with torch.no_grad():
        known = method.start(own, x.to(dtype), ball, net.dtype)
        return method.prove(own, known, x.to(dtype), ball, prop.to(dtype))[1]


def points(x: Tensor, ball: Ball, seed: int = 0) -> Tensor:
    """Points of the balls (n, batch, *input): samples, and corners of the hull that stay in the ball."""
    generator = torch.Generator().manual_seed(seed)
    found = [x, *(ball.sample(x, generator) for _ in range(6))]
    low, high = ball.hull(x)
    for _ in range(4):
        corner = torch.where(torch.rand(x.shape, generator=generator) < 0.5, low, high)
        found.append(ball.project(x, corner))
    return torch.stack(found)


def executions(net: Network, z: Tensor) -> list[Tensor]:
    """The logits of points (batch, *input): together, one by one, from memory in another order, with one and two threads."""
    threads = torch.get_num_threads()
    turned = z.transpose(-1, -2).contiguous().transpose(-1, -2) if z.ndim > 2 else z
    with torch.no_grad():
        found = [
            net(z),
            torch.cat([net(one[None]) for one in z]),
            net(turned),
            net(z.repeat(25, *[1] * (z.ndim - 1)))[: len(z)],
        ]
        torch.set_num_threads(2 if threads == 1 else 1)
        found.append(net(z))
        torch.set_num_threads(threads)
    return found


@pytest.mark.share(5)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", PASSES)
def test_margins_hold_in_real_arithmetic_and_as_executed(name: str, method: str, dtype: str) -> None:
    """No point of a ball has a smaller margin than is proved: exactly, and by the network in float32 however it is run."""
    net = network(name, torch.float32)
    x = inputs(net, 3)
    prop = class_stays(net.predict(x), net.classes, dtype=torch.float64)
    double = copy.deepcopy(net).double()
    for p, eps, box in BALLS.values():
        ball = Ball(p, eps, box)
        found = proved(net, METHODS[method], x, ball, prop, PASSES[dtype])
        assert bool((found.executed <= found.real).all())
        assert bool((found.real <= found.computed).all())
        for z in points(x, ball):
            # A float64 evaluation of these small networks is exact to 1e-12.
            assert bool((found.real.double() <= prop.margins(double(z.double())) + 1e-12).all())
            for logits in executions(net, z):
                assert bool((found.executed.double() <= prop.margins(logits.double())).all())


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", PASSES)
def test_at_a_point_the_proved_margin_is_the_exact_one_less_its_charge(name: str, dtype: str) -> None:
    """Of a ball without a radius all methods know the margin, which rational numbers confirm."""
    net = network(name, torch.float32)
    if any(node.op.kind not in exact.EXACT for node in net.graph.affine_nodes):
        pytest.skip("batch normalisation has no rational value")
    x = inputs(net, 2)
    y = net.predict(x)
    prop = class_stays(y, net.classes, dtype=torch.float64)
    truth = [exact.margin(net, one, int(label)) for one, label in zip(x, y, strict=True)]
    for method in METHODS.values():
        found = proved(net, method, x, Ball(math.inf, 0.0, None), prop, PASSES[dtype])
        for place, value in enumerate(truth):
            real, executed = (Fraction(float(part[place].min())) for part in (found.real, found.executed))
            assert executed <= real <= value
            assert value - executed < Fraction(1, 500), "the charge is small"


@pytest.mark.parametrize("name", NETWORKS)
def test_bounds_of_units_hold_for_the_executed_network(name: str) -> None:
    net = network(name, torch.float32)
    x = inputs(net, 3)
    sources = [node.inputs[0] for node in net.switches]
    for p, eps, box in BALLS.values():
        ball = Ball(p, eps, box)
        for method in ("ibp", "kw", "crown"):
            with torch.no_grad():
                bounds = METHODS[method].start(net, x, ball.beside(x), torch.float32)
                for z in points(x, ball, 1):
                    values = net.graph.values(z, sources)
                    for node in net.switches:
                        within, value = bounds.inputs[node.index], values[node.inputs[0]]
                        assert bool(((within.lower <= value) & (value <= within.upper)).all())


@pytest.mark.parametrize("depth", [2, 6, 12])
def test_charges_do_not_explode_with_depth(depth: int) -> None:
    """What a deep network of random weights is charged stays below a per cent of the size of its logits."""
    net = Network(randomised(mlp((20,), 5, [48] * depth), depth).float(), (20,)).eval()
    x = inputs(net, 4)
    prop = class_stays(net.predict(x), 5, dtype=torch.float64)
    for dtype in PASSES.values():
        found = proved(net, METHODS["crown"], x, Ball(math.inf, 1e-6), prop, dtype)
        size = net(x).detach().abs().amax()
        assert float((found.computed - found.executed).max()) < 0.01 * float(size)
    y = net.predict(x)
    for kind in (torch.float32, torch.float64):
        certificate = rc.certify(net.to(kind), x.to(kind), y, Ball(math.inf, 1e-7), "crown", arithmetic="executed")
        assert certificate.arithmetic == ["executed"] * 4


def test_the_charge_is_of_the_order_of_what_is_seen() -> None:
    """A search for the worst rounding in float32 comes within a factor of 300 of the charge, and never exceeds it."""
    net = Network(randomised(mlp((30,), 4, [40, 40]), 3).float(), (30,)).eval()
    double, worst = copy.deepcopy(net).double(), 0.0
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        z = torch.rand(50, 30, generator=generator)
        prop = class_stays(net.predict(z), 4, dtype=torch.float64)
        found = proved(net, METHODS["crown"], z, Ball(math.inf, 0.0, None), prop, torch.float64)
        charge = found.real - found.executed
        with torch.no_grad():
            gap = (prop.margins(net(z).double()) - prop.margins(double(z.double()))).abs()
        assert bool((gap <= charge).all())
        worst = max(worst, float((gap / charge).max()))
    assert worst > 1 / 300


def test_leaky_slopes_are_rounded_and_products_with_them() -> None:
    """max(z, s z) in float32, with an s half way between two of its numbers, for z whose products are as badly rounded."""
    slope = 1 - 2**-16 - 2**-25 * 0.99
    net = Network(nn.Sequential(nn.LeakyReLU(slope)), (2,)).eval()
    z = torch.stack([-1.01 - torch.arange(100_000) * 2.0**-23, torch.full((100_000,), 1e-9)], 1)
    prop = class_stays(torch.ones(len(z), dtype=torch.long), 2, dtype=torch.float64)
    gap = (prop.margins(net(z).double()) - prop.margins(net(z.double()))).abs().amax(1)
    found = proved(net, METHODS["crown"], z, Ball(2, 0.0, None), prop, torch.float64)
    assert bool((gap > 1.3 * 2**-24 * z[:, 0].abs()).any())  # more than one rounding
    assert bool((gap <= (found.real - found.executed)[:, 0]).all())


@pytest.mark.parametrize("rule", ["parallel", "adaptive", "flat"])
@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_lines_of_a_relu_hold_exactly(rule: Rule, slope: float) -> None:
    """With slopes and offsets as rounded, the lines enclose the ReLU at both ends of the interval and at zero."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.randn(2, 1, 400, generator=generator) * torch.logspace(-20, 3, 400)
    within = Interval(-ends[0].abs(), ends[1].abs())
    line = relax(ReLU((400,), slope), within, rule)
    leak = Fraction(slope)
    for low, high, below, above, offset in zip(
        *(part[0].tolist() for part in (within.lower, within.upper, line.below, line.above, line.offset)), strict=True
    ):
        for z in map(Fraction, (low, 0.0, high)):
            value = max(z, leak * z)
            # A leaky slope itself is rounded to float32, which the charge of the node pays for.
            spare = abs(z) * leak * Fraction(2) ** -24
            assert Fraction(below) * z - spare <= value <= Fraction(above) * z + Fraction(offset) + spare


def test_lines_of_a_maximum_hold_exactly() -> None:
    generator = torch.Generator().manual_seed(1)
    op = MaxPool2d((1, 4, 4), kernel=(2, 2), stride=(2, 2))
    for _ in range(30):
        centre, reach = torch.randn(1, 1, 4, 4, generator=generator), torch.rand(1, 1, 4, 4, generator=generator)
        within = Interval(centre - reach, centre + reach)
        line = relax(op, within, "adaptive")
        assert isinstance(line, MaxPoolRelaxation)
        low, high = (side.flatten().tolist() for side in (within.lower, within.upper))
        for window, places in enumerate(op.windows().tolist()):
            at, slope, offset = (float(part.flatten()[window]) for part in (line.second, line.slope, line.offset))
            for z in (low[int(at)], high[int(at)]):
                others = [Fraction(high[place]) for place in places if place != int(at)]
                assert max([Fraction(z), *others]) <= Fraction(slope) * Fraction(z) + Fraction(offset)


@pytest.mark.parametrize("name", NETWORKS)
def test_charges_of_known_bounds_are_those_of_the_bounds(name: str) -> None:
    """`rounding_over` from the bounds of a method charges no more than the method did."""
    net = network(name)
    x, ball = inputs(net, 3), Ball(math.inf, 0.03)
    bounds = METHODS["crown"].start(net, x, ball, torch.float32)
    again = rounding_over(net, x, ball, bounds.inputs, torch.float32)
    assert bounds.rounding is not None
    for index, drift in bounds.rounding.before.items():
        assert bool((again.before[index] <= drift * (1 + 1e-9)).all())
    assert bool((again.at_logits().drift <= bounds.rounding.at_logits().drift * (1 + 1e-9)).all())
