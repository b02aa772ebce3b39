"""Radii of all nodes hold over the ball, locally and without matrices; the theorems are those of `bounds.lipschitz`."""

from __future__ import annotations

import copy
import gc
import math
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from relucert.bounding import _spectral as spectral
from relucert.bounding._spectral import affine_part, local_norm_bounds, node_bound, norm_bounds
from relucert.bounding.methods.crown import CROWN
from relucert.bounding.methods.ibp import IBP
from relucert.bounding.methods.lipschitz import Deviations, Lipschitz, Maps, deviations, input_radius
from relucert.core.ball import Ball
from relucert.core.norms import norm
from relucert.core.properties import class_stays
from relucert.networks.network import Network
from relucert.networks.nodes import Affine
from zoo import NETWORKS, inputs, network, problem, randomised

BALLS = [Ball(2, 0.05, box=None), Ball(2, 0.4), Ball(math.inf, 0.05), Ball(1, 0.7, box=None), Ball(3, 0.2)]


def assert_radii(net: Network, x: Tensor, ball: Ball, moved: Deviations) -> None:
    """No point of the ball, sampled or pushed outwards, takes a node farther than its radius or out of its interval."""
    points = ball.sample(x, torch.Generator().manual_seed(1), 100).flatten(0, 1)
    centre = x.repeat_interleave(100, 0)
    balls = ball.restrict(torch.arange(len(x)).repeat_interleave(100))
    for node in net.switches:
        ends = [node.inputs[0], node.index]
        away = points
        at = net.graph.values(centre, ends)
        for step in range(3):
            away = away.clone().requires_grad_()
            values = net.graph.values(away, ends)
            shift = values[ends[0]] - at[ends[0]]
            before = norm(shift * moved.inputs[node.index].unstable.repeat_interleave(100, 0), 2)
            after = norm(values[ends[1]] - at[ends[1]], 2)
            slack = 1e-12
            assert bool((before <= moved.before[node.index].repeat_interleave(100) + slack).all())
            assert bool((after <= moved.after[node.index].repeat_interleave(100) + slack).all())
            low, high = (side.repeat_interleave(100, 0) for side in
                         (moved.inputs[node.index].lower, moved.inputs[node.index].upper))  # fmt: skip
            assert bool(((values[ends[0]] >= low - slack) & (values[ends[0]] <= high + slack)).all())
            (gradient,) = torch.autograd.grad((shift.square().sum() if step % 2 else after.sum()), away)
            length = norm(gradient, 2).clamp(min=1e-30).reshape(-1, *[1] * (x.dim() - 1))
            away = balls.project(centre, away.detach() + gradient / length)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("ball", BALLS, ids=repr)
def test_no_point_of_the_ball_goes_farther(name: str, ball: Ball) -> None:
    net = network(name)
    x = inputs(net, 3)
    assert_radii(net, x, ball, deviations(net, x, ball, CROWN().units(net, x, ball)))


@pytest.mark.parametrize("name", ["cnn", "residual", "dense", "max pool", "grouped"])
def test_no_point_goes_farther_without_matrices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectral, "ENTRIES", 0)
    net, ball = network(name), Ball(2, 0.1)
    x = inputs(net, 3)
    assert_radii(net, x, ball, deviations(net, x, ball, IBP().units(net, x, ball)))


@pytest.mark.parametrize("name", NETWORKS)
def test_parts_multiplied_out_are_the_network(name: str) -> None:
    """The matrices of a part give its differences, their norms are close to numpy's and below the product of the nodes'."""
    net = network(name)
    for node in net.switches:
        part = affine_part(net.graph, node.inputs[0])
        if part is None:
            assert not isinstance(net.graph[node.inputs[0]].op, Affine)
            continue
        values = net.graph.values(inputs(net, 2), [node.inputs[0], *part.matrices])
        moved = sum(matrix @ (values[root][1] - values[root][0]).flatten() for root, matrix in part.matrices.items())
        torch.testing.assert_close(moved, (values[node.inputs[0]][1] - values[node.inputs[0]][0]).flatten())
        for root, matrix in part.matrices.items():
            truth = float(np.linalg.svd(matrix.numpy(), compute_uv=False)[0])
            assert truth <= part.norms[root] <= 1.01 * truth
        whole = float(np.linalg.svd(torch.cat([*part.matrices.values()], 1).numpy(), compute_uv=False)[0])
        assert whole <= part.joint <= 1.01 * whole


def test_convolution_and_batch_norm_are_one() -> None:
    module = randomised(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)))
    net = Network(module.double(), (1, 6, 6)).eval()
    part = affine_part(net.graph, 2)
    assert part is not None
    conv, scale = net.graph[1], net.graph[2]
    assert isinstance(conv.op, Affine)
    assert isinstance(scale.op, Affine)
    assert part.joint < 0.97 * node_bound(conv.op, conv.shape) * node_bound(scale.op, scale.shape)


@given(seed=st.integers(0, 2**20), rows=st.integers(1, 30), columns=st.integers(1, 30), batch=st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_local_norms_against_svd(seed: int, rows: int, columns: int, batch: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    weights = torch.rand(batch, rows, generator=generator, dtype=torch.float64).mul(2).floor().clamp(min=0.0)
    weights[0] = torch.rand(rows, generator=generator, dtype=torch.float64)
    moving = torch.rand(batch, columns, generator=generator) < 0.6
    found = local_norm_bounds(matrix, 0.0, weights, moving)
    for weight, mask, bound in zip(weights, moving, found.tolist(), strict=True):
        truth = float(np.linalg.svd((weight[:, None] * matrix * mask).numpy(), compute_uv=False)[0])
        if math.isinf(bound):
            assert bool((weight == 1).all())
            assert bool(mask.all())
        else:
            assert truth * (1 - 1e-13) <= bound <= truth * 1.01


def test_units_that_are_off_leave_the_bound() -> None:
    """Only the third unit can be on: the bound is that of a network which has no other."""
    first, last = nn.Linear(2, 3).double(), nn.Linear(3, 2, bias=False).double()
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 3.0], [1.0, 1.0]]))
        first.bias.copy_(torch.tensor([-9.0, -9.0, 0.1]))
        last.weight.copy_(torch.tensor([[5.0, 5.0, 1.0], [0.0, 0.0, 0.0]]))
    net = Network(nn.Sequential(first, nn.ReLU(), last), (2,)).eval()
    x, ball = torch.full((1, 2), 0.5).double(), Ball(2, 0.3, box=None)
    moved = deviations(net, x, ball, IBP().units(net, x, ball))
    assert float(moved.after[2]) == pytest.approx(0.3 * math.sqrt(2), rel=1e-3)
    _, margins = Lipschitz(inner="ibp").solve(net, x, ball, class_stays(torch.tensor([0]), 2, dtype=torch.float64))
    assert float(margins) == pytest.approx(1.1 - 0.3 * math.sqrt(2), rel=1e-3)


def test_overlapping_max_pool_is_not_a_contraction() -> None:
    """One pixel that four windows see moves them all: the radius doubles, and no less would be true."""
    net = Network(nn.Sequential(nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(4, 2).double()), (1, 3, 3)).eval()
    x, ball = torch.zeros(1, 1, 3, 3).double(), Ball(2, 1.0, box=None)
    moved = deviations(net, x, ball, IBP().units(net, x, ball))
    z = x.clone()
    z[0, 0, 1, 1] = 1.0
    values = net.graph.values(torch.cat([x, z]), [1])[1]
    assert float(norm(values[1:] - values[:1], 2)) == 2.0
    assert 2.0 <= float(moved.after[1]) <= 2.0 + 1e-9


@given(
    p=st.sampled_from([1, 1.5, 2, 3, 8, math.inf]), eps=st.floats(0.01, 2), box=st.booleans(), seed=st.integers(0, 999)
)
@settings(max_examples=40, deadline=None)
def test_input_radius_holds_the_set(p: float, eps: float, box: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(2, 5, generator=generator, dtype=torch.float64)
    ball = Ball(p, eps, box=(0.0, 1.0) if box else None)
    points = ball.sample(x, generator, 300)
    far = norm((points - x[:, None]).flatten(0, 1), 2).reshape(2, 300).amax(1)
    assert bool((far <= input_radius(x, ball)).all())
    if math.isinf(p) and not box:
        torch.testing.assert_close(input_radius(x, ball), torch.full((2,), eps * math.sqrt(5)).double())


@pytest.mark.parametrize("name", NETWORKS)
def test_nothing_moves_in_a_ball_of_one_point(name: str) -> None:
    net = network(name)
    x = inputs(net, 3)
    prop = class_stays(net.predict(x), net.classes, dtype=torch.float64)
    _, margins = Lipschitz().solve(net, x, Ball(2, 0.0), prop)
    torch.testing.assert_close(margins, prop.margins(net(x)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["fc deep", "cnn", "dense", "max pool"])
def test_float32_agrees_with_float64(name: str) -> None:
    net, single = network(name), network(name, torch.float32)
    x, ball = inputs(net, 3).float(), Ball(2, 0.2)
    prop = class_stays(net.predict(x.double()), net.classes, dtype=torch.float64)
    units, margins = Lipschitz().solve(single, x, ball, prop.to(torch.float32))
    _, wide = Lipschitz().solve(net, x.double(), ball, prop)
    assert margins.dtype == units.logits.lower.dtype == torch.float32
    torch.testing.assert_close(margins.double(), wide, rtol=2e-3, atol=2e-3)


def test_one_example_alone_is_the_same_as_in_a_batch() -> None:
    net = network("cnn")
    x, ball = inputs(net, 4), Ball(2, torch.tensor([0.05, 0.1, 0.2, 0.4]).double())
    prop = class_stays(net.predict(x), net.classes, dtype=torch.float64)
    _, together = Lipschitz().solve(net, x, ball, prop)
    for i in range(3):
        one = slice(i, i + 1)
        _, alone = Lipschitz().solve(net, x[one], ball.restrict(one), prop.restrict(one))
        torch.testing.assert_close(alone, together[one], rtol=1e-9, atol=1e-9)


def test_without_end_nothing_is_proved() -> None:
    """An unbounded ball gives minus infinity unless no activation can hurt; weights that overflow always do. No NaN."""
    net = network("fc deep")
    x = inputs(net, 2)
    prop = class_stays(net.predict(x), net.classes, dtype=torch.float64)
    _, margins = Lipschitz(inner="ibp").solve(net, x, Ball(2, math.inf, box=None), prop)
    far = 1e3 * torch.randn(10000, 1, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert bool((margins <= prop.margins(net(far)[:, None].expand(-1, 2, -1)).amin(0)).all())
    rows = prop.rows @ net.module[-1].weight  # type: ignore[index]
    assert (margins == -math.inf).tolist() == (rows < 0).any(2).tolist() == [[True, False]] * 2
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(1e200)
    _, margins = Lipschitz(inner="ibp").solve(net, x, Ball(2, 0.1), prop)
    assert bool((margins == -math.inf).all())


def test_bounds_of_norms_of_parts_are_used_as_they_are() -> None:
    """With one hidden layer and all units on, the margin is the product of the exact row norm and the proved norm."""
    net = network("fc")
    with torch.no_grad():
        net.module[1].bias.fill_(50.0)  # type: ignore[index]
    x, ball = inputs(net, 2), Ball(2, 0.1, box=None)
    prop = class_stays(net.predict(x), net.classes, dtype=torch.float64)
    moved = deviations(net, x, ball, IBP().units(net, x, ball))
    node = net.switches[0]
    part = affine_part(net.graph, node.inputs[0])
    assert part is not None
    bound = float(norm_bounds(part.matrices[0][None])) * 0.1
    rounded = norm(moved.rounding.before[node.index].sum(1), 2)
    assert bool((moved.after[node.index] <= (bound + rounded) * (1 + 1e-12)).all())
    _, margins = Lipschitz().solve(net, x, ball, prop)
    rows = (prop.rows @ net.module[3].weight).detach()  # type: ignore[index]
    assert bool((margins >= prop.margins(net(x)) - norm(rows, 2, 2) * bound - 1e-9).all())


def test_norms_are_those_of_the_weights_as_they_are_now() -> None:
    """Affine parts are remembered for as long as the weights stay; also a change behind torch's back is seen."""
    net, x, prop = problem("cnn")
    ball = Ball(2, 0.1)
    first = Lipschitz().solve(net, x, ball, prop)[1]
    assert Maps.of(net) is Maps.of(net)
    again = Lipschitz().solve(net, x, ball, prop)[1]
    assert torch.equal(first, again)
    before = Maps.of(net)
    next(iter(net.parameters())).data.view(-1)[0] += 0.5
    assert Maps.of(net) is not before
    changed, fresh = (Lipschitz().solve(one, x, ball, prop)[1] for one in (net, copy.deepcopy(net)))
    assert torch.equal(changed, fresh)
    assert not torch.equal(changed, first)


def test_remembered_norms_do_not_keep_a_network_alive() -> None:
    net, x, prop = problem("cnn")
    net = copy.deepcopy(net)
    Lipschitz().solve(net, x, Ball(2, 0.1), prop)
    there = weakref.ref(net)
    del net
    gc.collect()
    assert there() is None
