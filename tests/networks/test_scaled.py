"""Balls with a scale: proofs hold all over them, counterexamples lie in them, and a scale of one changes nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import relucert as rc
from relucert.core.errors import InvalidInput
from relucert.networks.network import Network
from relucert.networks.scaled import scaled
from zoo import inputs, network, randomised

SCALE = torch.tensor([0.1, 3.0, 0.0, 700.0])


def table(dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Network, torch.Tensor]:
    """A network of columns of very different sizes, and rows."""
    module = randomised(nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3)), seed)
    sizes = torch.tensor([0.3, 10.0, 1.0, 2000.0])
    net = Network(module.to(dtype), (4,), 0.0, sizes).eval()
    return net, (inputs(net, 8, seed) * 2 - 1) * sizes.to(dtype)


def points_of(x: torch.Tensor, ball: rc.Ball, count: int) -> torch.Tensor:
    """Random points of the scaled ball, from its definition."""
    assert ball.scale is not None
    unit = rc.Ball(ball.p, ball.eps, None)
    steps = unit.sample(torch.zeros_like(x).double(), torch.Generator().manual_seed(0), count)
    return x.double()[:, None] + steps * ball.scale


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "method", ["ibp", "crown", "alpha(steps=3)", "region", "bab(nodes=50)", "auto(nodes=50)", "mip"]
)
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_verdicts_are_true_of_the_scaled_ball(method: str, p: float, dtype: torch.dtype) -> None:
    if method == "mip" and p == 2:
        method = "crown"
    net, x = table(dtype)
    y, ball = net.predict(x), rc.Ball(p, 1.5, None, scale=SCALE)
    found = rc.certify(net, x, y, ball, method)
    double = Network(net.module, (4,), net.mean, net.std).double().eval() if dtype == torch.float64 else None
    points = points_of(x, ball, 300)
    wide = (net if double is None else double).double()
    changed = (wide.predict(points.flatten(0, 1)).reshape(8, 300) != y[:, None]).any(1)
    assert not bool((found.which(rc.Verdict.ROBUST) & changed).any())
    assert set(found.arithmetic) <= {"", "real"}
    for i in found.which(rc.Verdict.VULNERABLE).nonzero()[:, 0].tolist():
        assert found.witness is not None
        step = found.witness[i].double() - x[i].double()
        assert step[2] == 0
        moving = SCALE > 0
        assert float(torch.linalg.vector_norm(step[moving] / SCALE[moving], p)) <= 1.5 * (1 + 1e-12)
        assert int(wide.predict(found.witness[i : i + 1].double())) != int(y[i])
    if method == "auto(nodes=50)":
        assert rc.Verdict.UNKNOWN not in found.verdict
        assert len(set(found.verdict)) > 1


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_a_scale_of_ones_changes_nothing(p: float) -> None:
    net = network("fc")
    x = inputs(net, 6)
    y = net.predict(x)
    with_scale, plain = rc.Ball(p, 0.1, scale=[1.0, 1.0, 1.0]), rc.Ball(p, 0.1)
    one, other = (rc.certify(net, x, y, ball, "auto(nodes=50)") for ball in (with_scale, plain))
    assert one.verdict == other.verdict
    both = (rc.output_range(net, x, ball) for ball in (with_scale, plain))
    ranges, expected = both
    torch.testing.assert_close(ranges.lower, expected.lower, rtol=1e-9, atol=1e-9)
    assert rc.attack(net, x, y, with_scale).success.tolist() == rc.attack(net, x, y, plain).success.tolist()


def test_scales_are_units() -> None:
    """The network of x with scale s and the network of x / s with scale 1 are one question."""
    net, x = table()
    sizes = torch.tensor([0.5, 4.0, 1.0, 1024.0]).double()  # exact
    other = Network(net.module, (4,), 0.0, net.std / sizes).eval()  # type: ignore[operator]
    y = net.predict(x)
    one = rc.certify(net, x, y, rc.Ball(2, 0.1, None, scale=sizes), "crown")
    two = rc.certify(other, x / sizes, y, rc.Ball(2, 0.1, None), "crown")
    assert one.verdict == two.verdict
    torch.testing.assert_close(one.margin, two.margin, rtol=1e-9, atol=1e-9)


def test_attacks_stay_in_ball_and_box_and_ranges_hold() -> None:
    net, x = table(torch.float32)
    lower, upper = x - torch.tensor([0.02, 0.5, 5.0, 100.0]), x + 1e6
    ball = rc.Ball(2, 3.0, (lower, upper), scale=SCALE)
    found = rc.attack(net, x, None, ball)
    assert bool(found.success.any())
    assert bool((found.x >= lower).all())
    assert bool((found.x[:, 2] == x[:, 2]).all())
    assert bool((found.distance[found.success] <= 3.0).all())
    assert bool((net.predict(found.x) != net.predict(x))[found.success].all())
    ends = rc.output_range(net, x, ball, "alpha(steps=3)")
    points = points_of(x, ball, 200)
    kept = (points >= lower[:, None]).all(2)
    values = net.double()(points.flatten(0, 1)).reshape(8, 200, 3)
    assert bool(((values >= ends.lower[:, None]) & (values <= ends.upper[:, None]))[kept].all())


@pytest.mark.share(3)
@pytest.mark.parametrize("method", ["region(regions=50)", "crown", "bab(nodes=100)"])
@pytest.mark.parametrize("p", [2.0, math.inf])
def test_radii_are_in_units_of_the_scale(method: str, p: float) -> None:
    net, x = table()
    x = x[:4]
    sizes = torch.tensor([0.5, 4.0, 1.0, 1024.0]).double()  # exact
    other = Network(net.module, (4,), 0.0, net.std / sizes).eval()  # type: ignore[operator]
    one = rc.radius(net, x, p=p, box=None, method=method, scale=sizes)
    two = rc.radius(other, x / sizes, p=p, box=None, method=method)
    torch.testing.assert_close(one.lower, two.lower, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(one.upper, two.upper, rtol=1e-6, atol=1e-9)
    fixed = rc.radius(net, x, p=p, box=None, method=method, scale=SCALE, attack="best")
    y = net.predict(x)
    for i in range(4):
        ball = rc.Ball(p, float(fixed.lower[i]) * (1 - 1e-9), None, scale=SCALE)
        assert bool((net.predict(points_of(x[i : i + 1], ball, 200)[0]) == y[i]).all())
        if fixed.upper[i].isfinite():
            assert fixed.witness is not None
            step = fixed.witness[i] - x[i]
            assert step[2] == 0
            length = torch.linalg.vector_norm(step[SCALE > 0] / SCALE[SCALE > 0], p)
            assert float(length) <= float(fixed.upper[i]) <= float(length) * (1 + 1e-9)
            assert int(net.predict(fixed.witness[i : i + 1])) != int(y[i])


def test_images_of_all_points_lie_in_the_ball_without_a_scale() -> None:
    net, x = table()
    for p in (1.0, 2.0, math.inf):
        ball = rc.Ball(p, 0.7, None, scale=SCALE)
        question = scaled(net, x, ball)
        points = points_of(x, ball, 100)
        factor = torch.where(SCALE == 0, 1.0, SCALE)
        assert bool(question.ball.contains(question.x, points / factor, slack=1e-12).all())
        torch.testing.assert_close(question.net(question.x), net(x), rtol=1e-9, atol=1e-9)


def test_what_does_not_take_a_scale_says_so() -> None:
    net, x = table()
    ball = rc.Ball(2, 0.1, None, scale=SCALE)
    with pytest.raises(InvalidInput, match="ball must have no scale here"):
        rc.certify(net, x, net.predict(x), [ball, ball])
    with pytest.raises(InvalidInput, match="p must be a norm, or a ball of infinite radius"):
        rc.minimal_attack(net, x, p=ball)
    with pytest.raises(InvalidInput, match="ball must have no scale here"):
        ball.sample(x, torch.Generator())
    with pytest.raises(InvalidInput, match="ball must have no scale to be recorded"):
        ball.key()
    with pytest.raises(InvalidInput, match="arithmetic must be 'real' for a ball with a scale"):
        rc.certify(net, x, net.predict(x), ball, arithmetic="executed")
    for scale, message in (([1.0, -1.0], "finite and at least 0"), ("wide", "must be numbers"), ([math.nan], "finite")):
        with pytest.raises(InvalidInput, match=message):
            rc.Ball(2, 0.1, scale=scale)
    with pytest.raises(InvalidInput, match=r"scale must broadcast to one input \(4,\)"):
        rc.certify(net, x, net.predict(x), rc.Ball(2, 0.1, None, scale=[1.0, 2.0]))


#: Public functions that take a ball: what they say of a network, inputs, labels and a ball, as tensors.
QUESTIONS = {
    "certify": lambda net, x, y, ball: _numbers(rc.certify(net, x, y, ball, "crown")),
    "certify targets": lambda net, x, y, ball: _numbers(
        rc.certify(net, x, y, ball, "alpha(steps=3)", targets=((y + 1) % 3)[:, None])
    ),
    "decisions": lambda net, x, y, ball: torch.tensor(
        [found.margin for found in sorted(rc.decisions(net, x, y, ball, "kw"), key=lambda found: found.index)]
    ),
    "attack": lambda net, x, y, ball: rc.attack(net, x, y, ball, "pgd(steps=20)").success,
    "bounds": lambda net, x, y, ball: torch.cat(
        [end.flatten(1) for within in (*rc.bounds(net, x, ball).inputs.values(),) for end in (within.lower, within.upper)], 1
    ),
    "output_range": lambda net, x, y, ball: rc.output_range(net, x, ball).lower,
    "minimal_attack": lambda net, x, y, ball: rc.minimal_attack(net, x, y, replace(ball, eps=math.inf)).distance,
    "radius": lambda net, x, y, ball: rc.radius(net, x, y, ball.p, ball.box, "crown", scale=ball.scale).lower,
    "radius auto": lambda net, x, y, ball: rc.radius(net, x, y, ball.p, ball.box, "auto(nodes=50)", scale=ball.scale).lower,
    "intervals": lambda net, x, y, ball: _ordered(rc.intervals(net, x, y, ball.p, ball.box, "crown", scale=ball.scale)),
}  # fmt: skip
#: Searches whose answers are near those of the same problem in other units, and not equal to them.
SEARCHES = {"minimal_attack", "radius", "radius auto", "intervals"}


def _ordered(found) -> torch.Tensor:
    return torch.stack([interval.lower[0] for _, interval in sorted(found, key=lambda pair: pair[0])])


def _numbers(found: rc.Certificate) -> torch.Tensor:
    codes = torch.tensor([list(rc.Verdict).index(verdict) for verdict in found.verdict])
    return torch.stack([codes.double(), found.margin.nan_to_num(0, 0, 0)])


@pytest.mark.share(2)
@pytest.mark.parametrize("p", [2.0, math.inf])
@pytest.mark.parametrize("question", QUESTIONS)
def test_every_function_takes_a_scale(question: str, p: float) -> None:
    """A ball with a scale is the ball without one, of the network whose first layer is rescaled, around x / scale."""
    net, x = table()
    scale = torch.tensor([0.1, 3.0, 0.5, 700.0], dtype=torch.float64)
    module = net.module
    assert isinstance(module, nn.Sequential)
    first = nn.Linear(4, 12).double()
    with torch.no_grad():
        first.weight.copy_(module[0].weight * scale / net.std)
        first.bias.copy_(module[0].bias)
    inner = Network(nn.Sequential(first, *module[1:]), (4,)).eval()
    y = net.predict(x)
    with_scale = QUESTIONS[question](net, x, y, rc.Ball(p, 0.4, None, scale=scale))
    plain = QUESTIONS[question](inner, x / scale, y, rc.Ball(p, 0.4, None))
    size = 0.03 if question in SEARCHES else 1e-6
    torch.testing.assert_close(with_scale, plain, rtol=size, atol=1e-9)
