"""The inequality of one layer against brute force, and the margins of whole networks against points of the ball."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from oracles import least_margins
from relucert.bounding._ball_relaxation import BallRelaxation
from relucert.bounding.backward_bounds import BackwardBounds
from relucert.bounding.methods.crown import CROWN
from relucert.bounding.methods.lipschitz import Lipschitz, deviations
from relucert.bounding.methods.sdp import SDP, ball_relaxations
from relucert.bounding.propagation import pull_back
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.norms import norm
from relucert.core.properties import class_stays
from relucert.networks.network import Network
from zoo import NETWORKS, inputs, network, problem

BALLS = [Ball(2, 0.05, box=None), Ball(2, 0.4), Ball(2, 1.0, box=None), Ball(math.inf, 0.08)]


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("ball", BALLS, ids=repr)
def test_no_point_of_the_ball_has_a_smaller_margin(name: str, ball: Ball) -> None:
    """Soundness of all l2 methods, and their order: neither crown nor lipschitz is above sdp."""
    net, x, prop = problem(name)
    least = least_margins(net, x, ball, prop)
    units, best = SDP(steps=3).solve(net, x, ball, prop)
    plain, local, crown = (
        method.solve(net, x, ball, prop)[1] for method in (Lipschitz(inner="ibp"), Lipschitz(), CROWN())
    )
    for found in (best, plain, local):
        assert bool((found <= least + 1e-12).all())
    assert bool((best >= torch.maximum(crown, local)).all())
    points = ball.sample(x, torch.Generator().manual_seed(5), 100)
    values = net.graph.values(points.flatten(0, 1), [node.inputs[0] for node in net.switches])
    for node in net.switches:
        value, within = values[node.inputs[0]].unflatten(0, (3, 100)), units.inputs[node.index]
        assert bool((value >= within.lower[:, None] - 1e-12).all())
        assert bool((value <= within.upper[:, None] + 1e-12).all())


@pytest.mark.parametrize("ball", BALLS, ids=repr)
@pytest.mark.parametrize(("groups", "padding", "slope"), [(1, 1, 0.0), (2, 0, 0.1)])
def test_patches_are_the_walk(ball: Ball, groups: int, padding: int, slope: float) -> None:
    """Patches bound a convolution behind a convolution exactly as backward propagation from single units does."""
    torch.manual_seed(3)
    first = nn.Conv2d(1, 4, 3, stride=2, padding=padding)
    second = nn.Conv2d(4, 6, 3, stride=2, padding=padding, groups=groups)
    size = math.prod(second(first(torch.zeros(1, 1, 12, 12))).shape)
    switch = nn.LeakyReLU(slope) if slope else nn.ReLU()
    module = nn.Sequential(first, switch, second, switch, nn.Flatten(), nn.Linear(size, 3)).double()
    net, x = Network(module, (1, 12, 12)), torch.rand(5, 1, 12, 12, dtype=torch.float64)
    moved, every = deviations(net, x, ball, CROWN().units(net, x, ball)), torch.arange(5)
    lines = ball_relaxations(net, moved, every, 60)  # with few rounds rounding may lead the search for lam elsewhere
    source = net.switches[1].inputs[0]
    backward = BackwardBounds(net.graph, x, ball, 2**20)
    assert backward.patched(source)
    found = backward.local(lines, None)
    picked = torch.eye(size, dtype=torch.float64).reshape(1, size, *net.graph[source].shape).expand(5, *[-1] * 4)
    assert bool(moved.inputs[net.switches[0].index].unstable.any())
    low = pull_back(net.graph, source, picked, lines).minimum(x, ball)
    high = -pull_back(net.graph, source, -picked, lines).minimum(x, ball)
    torch.testing.assert_close(found.lower.flatten(1), low, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.upper.flatten(1), high, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_examples_are_no_answers(name: str) -> None:
    net, x, prop = problem(name)
    none = torch.arange(0)
    units, margins = SDP().solve(net, x[none], Ball(2, 0.1), prop.restrict(none))
    assert margins.shape == (0, net.classes - 1)
    assert all(within.lower.shape[0] == 0 for within in units.inputs.values())


def layer(seed: int, units: int, slope: float, *, wide: bool = False) -> tuple[BallRelaxation, Tensor, Tensor]:
    """A layer with random box, ball and slopes, and functionals; `wide` puts the box far outside of the ball."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    low, high = -draw(1, units) - 1e-3, draw(1, units) + 1e-3
    centre = low + (high - low) * draw(1, units)
    reach = 0.05 + draw(1)
    if wide:
        low, high = low - 50, high + 50
    rows = 2 * draw(1, 3, units) - 1
    slopes = slope + (1 - slope) * draw(1, 3, units)
    unstable = torch.ones_like(low, dtype=torch.bool)
    return (
        BallRelaxation(slope, (slopes, slopes), unstable, centre, low - centre, high - centre, reach, 20, True),
        rows,
        slopes,
    )


@given(seed=st.integers(0, 2**30), units=st.integers(1, 6), slope=st.sampled_from([0.0, 0.1, 0.5]))
@settings(max_examples=60, deadline=None)
def test_inequality_of_one_layer(seed: int, units: int, slope: float) -> None:
    """c' phi(z) >= g' z + what is paid, at points all over the ball cut with the box and at those descent leads to."""
    lines, rows, slopes = layer(seed, units, slope)
    back, paid, _, _ = lines.pull_back(rows)
    torch.testing.assert_close(back, rows * slopes)
    ball = Ball(2, lines.reach, box=(lines.low[0] + lines.centre[0], lines.high[0] + lines.centre[0]))
    z = ball.sample(lines.centre, torch.Generator().manual_seed(seed), 2000)[0]
    for row, less, bound in zip(rows[0], back[0], paid[0], strict=True):

        def gap(z: Tensor, row: Tensor = row, less: Tensor = less) -> Tensor:
            # The product g = slope * c is rounded, as are those below: `bound_error` has room for it, not the payment.
            terms = torch.nn.functional.leaky_relu(z, slope) * row - z * less
            room = (units + 4) * torch.finfo(z.dtype).eps * (z.abs() * (row.abs() + less.abs())).sum(1).detach()
            return terms.sum(1) + room

        worst = z[gap(z).topk(20, largest=False).indices].requires_grad_()
        assert float(gap(z).amin()) >= float(bound)
        (gradient,) = torch.autograd.grad(gap(worst).sum(), worst)
        for size in (0.01, 0.1, 1.0):
            moved = ball.restrict([0] * 20).project(lines.centre.expand(20, -1), worst.detach() - size * gradient)
            assert float(gap(moved).amin()) >= float(bound)


@given(seed=st.integers(0, 2**30), units=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_without_the_box_it_is_sdp_crowns_bound(seed: int, units: int) -> None:
    """At least what the published formula gives at any lam, and no more than at its best: the search for lam works."""
    lines, rows, slopes = layer(seed, units, 0.0, wide=True)
    paid = lines.pull_back(rows)[1][0]
    c, g, centre = rows[0], (rows * slopes)[0], lines.centre[0]

    def formula(lam: Tensor) -> Tensor:
        worst = torch.minimum(c - g - lam * centre, g + lam * centre).clamp(max=0).square().sum(2)
        return -0.5 * (lam[..., 0] * (lines.reach**2 - centre.square().sum()) + worst / lam[..., 0])

    grid = torch.logspace(-9, 4, 2000, dtype=torch.float64)
    near = grid[formula(grid[:, None, None]).argmax(0)]
    best = formula(near[:, None] * torch.linspace(0.98, 1.02, 4001, dtype=torch.float64)[:, None, None]).amax(0)
    scale = norm(c, 2) * lines.reach
    assert bool((paid <= best + 1e-4 * scale).all())  # what the grid can miss
    assert bool((paid >= best - 0.02 * scale).all())


@given(seed=st.integers(0, 2**30), units=st.integers(1, 20), slope=st.sampled_from([0.0, 0.3]))
@settings(max_examples=40, deadline=None)
def test_with_a_ball_around_the_box_it_is_the_box_alone(seed: int, units: int, slope: float) -> None:
    """Then the term of every unit is the least of its values at the three corners: CROWN's offset at CROWN's slopes."""
    lines, rows, slopes = layer(seed, units, slope)
    far = replace(lines, reach=torch.full((1,), 1e3, dtype=torch.float64))
    low, high = lines.low + lines.centre, lines.high + lines.centre
    ends = torch.minimum((rows * (slope - slopes)) * low[:, None], (rows * (1 - slopes)) * high[:, None]).clamp(max=0)
    torch.testing.assert_close(far.pull_back(rows)[1], ends.sum(2), rtol=0, atol=1e-8)


def small_network(depth: int, width: int, seed: int = 0) -> Network:
    """Random layers of spectral norm one."""
    generator, sizes, parts = torch.Generator().manual_seed(seed), [32, *[width] * depth, 5], []
    for narrow, wide in pairwise(sizes):
        part = nn.Linear(narrow, wide).double()
        weight = torch.randn(wide, narrow, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            part.weight.copy_(weight / torch.linalg.matrix_norm(weight, 2))
            part.bias.copy_(0.1 * torch.randn(wide, generator=generator, dtype=torch.float64))
        parts += [part, nn.ReLU()]
    return Network(nn.Sequential(*parts[:-1]), (32,)).eval()


@pytest.mark.parametrize(("depth", "share"), [(1, 0.62), (2, 0.5), (3, 0.5)])
def test_small_norms_are_where_it_gains(depth: int, share: float) -> None:
    """What a margin loses over the ball is bounded much closer than by crown, and closer than by lipschitz."""
    net = small_network(depth, 100)
    x, ball = inputs(net, 4), Ball(2, 2.0, box=None)
    prop = class_stays(net.predict(x), net.classes, dtype=torch.float64)
    lost = [
        float((prop.margins(net(x)) - method.solve(net, x, ball, prop)[1]).detach().mean())
        for method in (SDP(), CROWN(), Lipschitz())
    ]
    assert lost[0] < share * lost[1]
    assert lost[0] < share * lost[2]


@pytest.mark.parametrize("name", ["cnn", "residual", "leaky", "dead windows"])
def test_more_steps_never_lose(name: str) -> None:
    net, x, prop = problem(name)
    few, many = (SDP(steps=steps).solve(net, x, Ball(2, 0.4), prop)[1] for steps in (2, 7))
    assert bool((many >= few).all())
    assert bool((many > few + 1e-4).any())


@pytest.mark.parametrize("name", ["fc deep", "cnn colour", "max pool"])
def test_pieces_are_the_same_as_the_whole(name: str) -> None:
    """A small budget cuts batch, rows and units into pieces; each example alone is the same as in the batch."""
    net, x, prop = problem(name)
    ball = Ball(2, torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64))
    method = SDP(steps=3)
    units, whole = method.solve(net, x, ball, prop)
    tiny = SDP(steps=3, budget=2**15)
    start, lines = tiny.solve(net, x, ball, prop)[0], units
    for i in range(3):
        one = slice(i, i + 1)
        alone = method.solve(net, x[one], ball.restrict(one), prop.restrict(one))[1]
        torch.testing.assert_close(alone, whole[one], rtol=1e-6, atol=1e-8)
    for index, within in lines.inputs.items():
        # What fills up the rows of a piece differs, so that some stable units are bounded more closely: never an unstable one.
        both = within.unstable & start.inputs[index].unstable
        torch.testing.assert_close(start.inputs[index].lower[both], within.lower[both], rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("name", ["linear", "fc", "cnn", "max pool"])
def test_nothing_moves_in_a_ball_of_one_point(name: str) -> None:
    net, x, prop = problem(name)
    _, margins = SDP(steps=2).solve(net, x, Ball(2, 0.0), prop)
    torch.testing.assert_close(margins, prop.margins(net(x)), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["fc deep", "leaky", "max pool"])
def test_float32(name: str) -> None:
    net, x, prop = problem(name)
    single, ball = network(name, torch.float32), Ball(2, 0.2)
    units, margins = SDP(steps=3).solve(single, x.float(), ball, prop.to(torch.float32))
    assert margins.dtype == units.logits.lower.dtype == torch.float32
    wide = SDP(steps=3).solve(net, x, ball, prop)[1]
    torch.testing.assert_close(margins.double(), wide, rtol=5e-3, atol=5e-3)
    assert bool((margins.double() <= least_margins(net, x, ball, prop) + 1e-5).all())


def test_weights_are_left_as_they_were() -> None:
    net, x, prop = problem("fc")
    net.module[1].weight.requires_grad_(False)  # type: ignore[index]
    before = [weight.requires_grad for weight in net.parameters()]
    with torch.no_grad():  # as a certificate is computed
        margins = SDP(steps=2).solve(net, x, Ball(2, 0.3), prop)[1]
    assert [weight.requires_grad for weight in net.parameters()] == before
    assert all(weight.grad is None for weight in net.parameters())
    assert not margins.requires_grad


def test_an_unbounded_ball_proves_nothing_it_should_not() -> None:
    net, x, prop = problem("fc deep")
    margins = SDP(steps=1).solve(net, x, Ball(2, math.inf, box=None), prop)[1]
    far = 1e3 * torch.randn(20000, 1, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert not bool(margins.isnan().any())
    assert bool((margins <= prop.margins(net(far)[:, None].expand(-1, 3, -1)).amin(0)).all())


@pytest.mark.parametrize("wrong", [{"steps": -1}, {"rate": 0.0}])
def test_parameters_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        SDP(**wrong)  # type: ignore[arg-type]


def test_a_clock_ends_the_search_and_not_the_bound() -> None:
    """Without a second to spare it is still no less than crown and lipschitz, and sound; with time it is more."""
    net, x, prop = problem("cnn")
    ball = Ball(2, 0.4)
    least, stopped, whole = (
        least_margins(net, x, ball, prop),
        SDP(seconds=0).solve(net, x, ball, prop)[1],
        SDP().solve(net, x, ball, prop)[1],
    )
    for cheaper in (CROWN(), Lipschitz()):
        assert bool((stopped >= cheaper.solve(net, x, ball, prop)[1]).all())
    assert bool((stopped <= least + 1e-12).all())
    assert bool((whole >= stopped - 1e-9).all())
    assert bool((whole > stopped + 1e-6).any())
    with pytest.raises(InvalidInput, match="seconds of sdp must be at least 0, got -1"):
        SDP(seconds=-1)
