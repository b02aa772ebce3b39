"""The semidefinite bound against points of the ball, against closed forms, and against Grothendieck's inequality."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import relucert as rc
from oracles import least_margins
from relucert.bounding.methods.crown import Alpha
from relucert.bounding.methods.moments import Moments
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import Property, class_stays
from relucert.networks.network import Network
from zoo import NETWORKS, problem

BALLS = [Ball(math.inf, 0.08), Ball(math.inf, 0.5, box=None), Ball(2, 0.4), Ball(1.5, 0.6, box=None), Ball(3, 0.3)]


@pytest.mark.share(5)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("ball", BALLS, ids=repr)
def test_no_point_of_the_ball_has_a_smaller_margin(name: str, ball: Ball) -> None:
    """Soundness for every network and norm; never below alpha."""
    net, x, prop = problem(name)
    least = least_margins(net, x, ball, prop)
    found = Moments(steps=30, rank=4).solve(net, x, ball, prop)[1]
    assert bool((found <= least + 1e-12).all())
    assert bool((found >= Alpha().solve(net, x, ball, prop)[1]).all())


def absolute(matrix: Tensor, offset: float) -> Network:
    """Logits offset and sum |matrix x|: a ReLU for either sign of every row."""
    units, size = matrix.shape
    first, second = nn.Linear(size, 2 * units), nn.Linear(2 * units, 2)
    with torch.no_grad():
        first.weight.copy_(torch.cat([matrix, -matrix]))
        first.bias.zero_()
        second.weight.copy_(torch.stack([torch.zeros(2 * units), torch.ones(2 * units)]))
        second.bias.copy_(torch.tensor([offset, 0.0]))
    return rc.Network(nn.Sequential(first, nn.ReLU(), second), (size,)).double().eval()


def bound(net: Network, ball: Ball, method: Moments | Alpha) -> float:
    """The bound on the first logit's lead around zero."""
    x = torch.zeros(1, *net.input_shape, dtype=torch.float64)
    return float(method.solve(net, x, ball, class_stays(torch.tensor([0]), 2, dtype=torch.float64))[1])


@pytest.mark.parametrize(("p", "true", "relaxed", "linear"), [(math.inf, 2, math.sqrt(8), 4), (2, 2, 2, math.sqrt(8))])
def test_two_absolute_values(p: float, true: float, relaxed: float, linear: float) -> None:
    """|x + y| + |x - y|: by moments at most sqrt(a) + sqrt(b), a + b = 2 E(x^2 + y^2); by lines each by itself."""
    net, ball = absolute(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), 0.0), Ball(p, 1.0, box=None)
    assert bound(net, ball, Alpha()) == pytest.approx(-linear, rel=1e-6)
    found = bound(net, ball, Moments())
    assert found <= -true
    assert found == pytest.approx(-relaxed, rel=1e-3)


@pytest.mark.parametrize("seed", range(6))
def test_grothendieck(seed: int) -> None:
    """Over the box sum |A x| is largest at a corner, and the relaxation is at most 1.783 times that: lines know no factor."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(6 + 4 * seed, 10, generator=generator)
    corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=10)))
    true = float((corners @ matrix.T).abs().sum(1).max())
    ball = Ball(math.inf, 1.0, box=None)
    found = -bound(absolute(matrix, 0.0), ball, Moments())
    assert true <= found <= 1.783 * true
    assert found < 0.8 * -bound(absolute(matrix, 0.0), ball, Alpha())


def test_decides_what_lines_can_not() -> None:
    """A network of 200 units that may all switch: UNKNOWN by alpha, ROBUST by moments and by auto, which says so."""
    matrix = torch.randn(100, 12, generator=torch.Generator().manual_seed(0))
    corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=12)))
    true = float((corners @ matrix.T).abs().sum(1).max())
    net = absolute(matrix, 1.3 * true)
    x, y, ball = torch.zeros(1, 12, dtype=torch.float64), torch.tensor([0]), Ball(math.inf, 1.0, box=None)
    verdicts = {method: str(rc.certify(net, x, y, ball, method).verdict[0]) for method in ("alpha", "moments")}
    assert verdicts == {"alpha": "unknown", "moments": "robust"}
    found = rc.certify(net, x, y, ball, "auto")
    assert (str(found.verdict[0]), found.method[0].split("(")[0]) == ("robust", "moments")
    near = absolute(matrix, 0.999 * true)
    assert str(rc.certify(near, x, y, ball, "moments").verdict[0]) != "robust"


def test_planted_counterexamples_are_never_proved() -> None:
    """Margins that end from 1e-2 down to 1e-9 below zero at one corner, and as far above it."""
    matrix = torch.randn(1, 8, generator=torch.Generator().manual_seed(2))
    true = float(matrix.double().abs().sum())
    x, y, ball = torch.zeros(1, 8, dtype=torch.float64), torch.tensor([0]), Ball(math.inf, 1.0, box=None)
    for exponent in range(2, 10):
        net = absolute(matrix, 0.0)
        with torch.no_grad():
            net.module[2].bias[0] = true * (1 - 10.0**-exponent)
        assert str(rc.certify(net, x, y, ball, "moments").verdict[0]) != "robust"
    with torch.no_grad():
        net.module[2].bias[0] = true * 1.01
    assert str(rc.certify(net, x, y, ball, "moments").verdict[0]) == "robust"


def test_rows_and_points_do_not_know_of_each_other() -> None:
    """The bound of a point is independent of the other points and rows in its batch."""
    net, x, prop = problem("fc", 4)
    ball = Ball(math.inf, 0.3)
    together = Moments().solve(net, x, ball, prop)[1]
    for point in range(4):
        here = torch.tensor([point])
        alone = Moments().solve(net, x[here], ball, Property(prop.rows[here], prop.offsets[here]))[1]
        torch.testing.assert_close(alone[0], together[point], rtol=1e-6, atol=1e-6)


def test_single_precision_networks_are_bounded_in_double() -> None:
    net, x, prop = problem("fc")
    found = Moments().solve(net.float(), x.float(), Ball(math.inf, 0.3), prop.to(torch.float32))[1]
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found.double(), Moments().solve(net.double(), x, Ball(math.inf, 0.3), prop)[1], rtol=0.02, atol=0.02
    )


def test_whole() -> None:
    """Networks with one layer of ReLUs, however it is reached, and others."""
    flat = rc.Network(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.ReLU(), nn.Linear(32, 3)), (1, 6, 6))
    deep = rc.Network(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (4,))
    assert Moments.whole(flat)
    assert not Moments.whole(deep)


@pytest.mark.parametrize(("given", "rule"), [({"steps": -1}, "steps of moments must be at least 0, got -1"),
                                             ({"rank": 1}, "rank of moments must be at least 2, got 1")])  # fmt: skip
def test_mistakes(given: dict[str, int], rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        Moments(**given)


def test_a_clock_ends_the_search_and_not_the_bound() -> None:
    """Without a second to spare it is alpha's bound; with time it is more."""
    net, x, prop = problem("fc")
    ball = Ball(math.inf, 0.3)
    stopped, whole = (method.solve(net, x, ball, prop)[1] for method in (Moments(seconds=0), Moments()))
    assert torch.equal(stopped, Alpha().solve(net, x, ball, prop)[1])
    assert bool((whole >= stopped).all())
    assert bool((whole > stopped).any())
    with pytest.raises(InvalidInput, match="seconds of moments must be at least 0, got -1"):
        Moments(seconds=-1)
