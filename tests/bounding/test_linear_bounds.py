"""Intervals, Kolter-Wong, CROWN and alpha: sound over every network and norm, ordered, and right where the answer is known."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from asserts import assert_sound
from relucert.bounding._inner_slopes import InnerAscent
from relucert.bounding.backward_bounds import BackwardBounds
from relucert.bounding.methods.crown import CROWN, Alpha
from relucert.bounding.methods.ibp import IBP
from relucert.bounding.methods.kw import KW
from relucert.bounding.preactivations import Tightening, unit_bounds
from relucert.bounding.propagation import pull_back
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import class_stays
from relucert.networks.affine_map import chain
from relucert.networks.architectures import mlp
from relucert.networks.network import Network
from relucert.networks.patches import patches
from zoo import NETWORKS, inputs, network, randomised

METHODS = {"ibp": IBP(), "kw": KW(), "crown": CROWN(), "alpha": Alpha(steps=8), "inner": Alpha(steps=4, inner=4)}
names = pytest.mark.parametrize("name", NETWORKS)
norms = pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])


def question(name: str, p: float, eps: float, box: tuple[float, float] | None, dtype: torch.dtype = torch.float64):
    net = network(name, dtype)
    x = inputs(net, 4)
    radii = eps * torch.tensor([0.3, 1.0, 1.0, 2.0], dtype=torch.float64)
    return net, x, Ball(p, radii, box), class_stays(net.predict(x), net.classes, dtype=dtype)


def sampled(ball: Ball, x: Tensor, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.stack([ball.sample(x, generator) for _ in range(count)], 1)


@pytest.mark.share(4)
@names
@norms
@pytest.mark.parametrize("box", [None, (0.0, 1.0)])
def test_sound_and_ordered(name: str, p: float, box: tuple[float, float] | None) -> None:
    for eps in (0.05, 0.3):
        net, x, ball, prop = question(name, p, eps, box)
        points = sampled(ball, x, 40)
        found = {}
        for method, solver in METHODS.items():
            with torch.no_grad():
                bounds, margins = solver.solve(net, x, ball, prop)
            assert_sound(net, x, ball, bounds, prop, margins, points)
            found[method] = margins
        assert bool((found["ibp"] <= found["crown"] + 1e-12).all())
        assert bool((found["crown"] <= found["alpha"]).all())
        assert bool((found["crown"] <= found["inner"]).all())


@names
def test_float32_agrees_with_float64(name: str) -> None:
    for p in (2.0, math.inf):
        found = []
        for dtype in (torch.float32, torch.float64):
            net, x, ball, prop = question(name, p, 0.1, (0.0, 1.0), dtype)
            with torch.no_grad():
                found.append(
                    [METHODS[method].solve(net, x, ball, prop)[1].double() for method in ("ibp", "kw", "crown")]
                )
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.share(2)
@names
@norms
def test_a_point_is_its_own_bound(name: str, p: float) -> None:
    net, x, _, prop = question(name, p, 0.1, None)
    ball = Ball(p, 0.0, None)
    for method, solver in METHODS.items():
        with torch.no_grad():
            torch.testing.assert_close(
                solver.solve(net, x, ball, prop)[1], prop.margins(net(x)), rtol=1e-9, atol=1e-9, msg=method
            )


@names
def test_intervals_are_monotone_in_ball_and_box(name: str) -> None:
    for p in (1.0, 2.0, math.inf):
        net, x, _, prop = question(name, p, 0.1, None)
        before = torch.full((len(x), prop.rows.shape[1]), -math.inf, dtype=torch.float64)
        for eps, box in (
            (0.4, None),
            (0.3, None),
            (0.3, (-0.1, 1.1)),
            (0.2, (-0.1, 1.1)),
            (0.2, (0.0, 1.0)),
            (0.0, (0.0, 1.0)),
        ):
            with torch.no_grad():
                margins = IBP().solve(net, x, Ball(p, eps, box), prop)[1]
            assert bool((margins >= before - 1e-12).all())
            before = margins


def test_kolter_wong_by_hand() -> None:
    """One input z in [-1, 1], logits (relu(z), 0.3): the chord of the ReLU is (z + 1) / 2, and so is the slope below it."""
    module = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2))
    with torch.no_grad():
        for value, tensor in ((1.0, module[0].weight), (0.0, module[0].bias)):
            tensor.fill_(value)  # type: ignore[operator, union-attr]
        module[2].weight.copy_(torch.tensor([[1.0], [0.0]]))  # type: ignore[operator]
        module[2].bias.copy_(torch.tensor([0.0, 0.3]))  # type: ignore[operator]
    net = Network(module.double(), (1,)).eval()
    x, ball = torch.zeros(1, 1, dtype=torch.float64), Ball(2, 1.0, None)
    with torch.no_grad():
        up = class_stays(torch.tensor([0]), 2, dtype=torch.float64)  # relu(z) - 0.3
        down = class_stays(torch.tensor([1]), 2, dtype=torch.float64)  # 0.3 - relu(z)
        assert float(KW().solve(net, x, ball, up)[1]) == pytest.approx(-0.5 - 0.3)
        assert float(KW().solve(net, x, ball, down)[1]) == pytest.approx(0.3 - 1.0)
        assert float(CROWN().solve(net, x, ball, up)[1]) == pytest.approx(-0.3)
        assert float(Alpha().solve(net, x, ball, up)[1]) == pytest.approx(-0.3)


def triangle_program(net: Network, x: Tensor, ball: Ball, prop: Tensor, inputs: dict) -> float:
    """The linear program over all triangle relaxations of a fully connected network (p = inf): the best linear bound."""
    steps = chain(net.graph)
    assert steps is not None
    low, high = (side.flatten().numpy() for side in ball.hull(x))
    size = len(low)
    widths = [int(np.prod(step.shape)) for step in steps[:-1]]
    count = size + sum(widths)
    bounds = [(low[i], high[i]) for i in range(size)] + [(None, None)] * sum(widths)
    rows, limits = [], []
    place, before = size, slice(0, size)
    weights = [step.weight().detach().numpy() for step in steps]
    offsets = []
    for step in steps:
        here = x.new_zeros(1, step.core.op.weight.value.shape[1])  # type: ignore[union-attr]
        offsets.append(step.core.op.apply(here)[0].detach().numpy())  # type: ignore[union-attr]
    for step, switch in enumerate(net.switches):
        within = inputs[switch.index]
        lo, hi = within.lower.flatten().numpy(), within.upper.flatten().numpy()
        for j in range(widths[step]):
            z = np.zeros(count)
            z[before] = weights[step][j]
            y = np.zeros(count)
            y[place + j] = 1.0
            b = offsets[step][j]
            lines = [(-y, 0.0), (z - y, -b)]  # y >= 0, y >= z + b
            if lo[j] >= 0:
                lines = [(z - y, -b), (y - z, b)]
            elif hi[j] <= 0:
                lines = [(y, 0.0), (-y, 0.0)]
            else:
                k = hi[j] / (hi[j] - lo[j])
                lines.append((y - k * z, k * b - k * lo[j]))
            for row, limit in lines:
                rows.append(row)
                limits.append(limit)
        before = slice(place, place + widths[step])
        place += widths[step]
    cost = np.zeros(count)
    functional = prop.numpy() @ weights[-1]
    cost[before] = functional
    answer = linprog(cost, np.array(rows), np.array(limits), bounds=bounds)
    assert answer.status == 0, answer.message
    return float(answer.fun + prop.numpy() @ offsets[-1])


@pytest.mark.parametrize("slope", [0.1, 0.3])
def test_slopes_are_not_rounded_to_another_dtype(slope: float) -> None:
    """Logits (leaky(z), 0) with z in [-0.6, -0.2]: the margin over the second logit is -0.6 slope, to the last digits."""
    module = nn.Sequential(nn.Linear(1, 1), nn.LeakyReLU(slope), nn.Linear(1, 2))
    with torch.no_grad():
        module[0].weight.fill_(1.0)  # type: ignore[operator, union-attr]
        module[0].bias.fill_(0.0)  # type: ignore[operator, union-attr]
        module[2].weight.copy_(torch.tensor([[1.0], [0.0]]))  # type: ignore[operator]
        module[2].bias.copy_(torch.tensor([0.0, 0.0]))  # type: ignore[operator]
    net = Network(module.double(), (1,)).eval()
    x, ball = torch.full((1, 1), -0.4, dtype=torch.float64), Ball(2, 0.2, None)
    prop = class_stays(torch.tensor([0]), 2, dtype=torch.float64)
    for name, method in METHODS.items():
        with torch.no_grad():
            assert float(method.solve(net, x, ball, prop)[1]) == pytest.approx(-0.6 * slope, rel=1e-14), name


def test_no_linear_bound_beats_the_program_over_triangles_and_alpha_comes_close() -> None:
    gaps = []
    for seed in range(6):
        module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
        net = Network(randomised(module, seed).double(), (4,)).eval()
        x = inputs(net, 1, seed)
        ball, prop = Ball(math.inf, 0.3), class_stays(net.predict(x), 3, dtype=torch.float64)
        with torch.no_grad():
            for method in (KW(), CROWN(), Alpha(steps=60)):
                bounds, margins = method.solve(net, x, ball, prop)
                best = [triangle_program(net, x, ball, row, bounds.inputs) for row in prop.rows[0]]
                for mine, most in zip(margins[0].tolist(), best, strict=True):
                    intervals = float(IBP().solve(net, x, ball, prop)[1].max())
                    assert mine <= max(most, intervals) + 1e-7
                if isinstance(method, Alpha):
                    crown = CROWN().solve(net, x, ball, prop)[1][0]
                    gaps += [
                        (most - float(c), most - m) for most, c, m in zip(best, crown, margins[0].tolist(), strict=True)
                    ]
    # Of what CROWN leaves to the program alpha gets most.
    assert sum(after for _, after in gaps) < 0.2 * sum(before for before, _ in gaps)


@pytest.mark.parametrize("name", ["cnn", "cnn colour"])
@norms
@pytest.mark.parametrize("box", [None, (0.0, 1.0)])
def test_patches_give_the_bounds_of_whole_rows(
    name: str, p: float, box: tuple[float, float] | None, monkeypatch
) -> None:
    net, x, ball, _ = question(name, p, 0.2, box)
    found = {}
    for way in ("patches", "rows"):
        if way == "rows":
            monkeypatch.setattr(BackwardBounds, "patched", lambda self, node: False)
        with torch.no_grad():
            rules: tuple[Rule, ...] = "parallel", "adaptive"
            found[way] = [unit_bounds(net, x, ball, Tightening(rule=rule, intervals=False)) for rule in rules]
    for one, other in zip(found["patches"], found["rows"], strict=True):
        for index in one.inputs:
            torch.testing.assert_close(one.inputs[index].lower, other.inputs[index].lower, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(one.inputs[index].upper, other.inputs[index].upper, rtol=1e-9, atol=1e-9)


def test_patches_are_rows_of_the_affine_map() -> None:
    from relucert.geometry.region import LinearRegion

    for name in ("cnn", "cnn colour"):
        net = network(name)
        x = inputs(net, 3)
        region = LinearRegion.at(net, x)
        steps = chain(net.graph)
        assert steps is not None
        first = region.hyperplanes[0].count
        gate = region.patterns[0].double()
        for patch in patches(steps[0], steps[1], net.input_shape, gate, gate):
            maps = steps[1].shape[0]
            units = (
                torch.arange(maps) * steps[1].shape[1] * steps[1].shape[2]
                + patch.place[0] * steps[1].shape[2]
                + patch.place[1]
            )
            rows = region.rows((first + units).expand(3, -1))
            sign = region.patterns[1].flatten(1)[:, units].double() * 2 - 1
            whole = torch.zeros_like(rows)
            whole[:, :, :, patch.window[0], patch.window[1]] = patch.rows
            torch.testing.assert_close(whole, rows * sign[:, :, None, None, None])


@names
def test_answers_do_not_depend_on_the_batch(name: str) -> None:
    net, x, ball, prop = question(name, 2.0, 0.2, (0.0, 1.0))
    with torch.no_grad():
        for method in (KW(), CROWN(), Alpha(steps=3)):
            together = method.solve(net, x, ball, prop)[1]
            for i in range(len(x)):
                one = torch.tensor([i])
                alone = class_stays(net.predict(x[one]), net.classes, dtype=torch.float64)
                mine = method.solve(net, x[one], ball.restrict(one), alone)[1][0]
                torch.testing.assert_close(mine, together[i], rtol=1e-9, atol=1e-9)


@names
def test_a_small_budget_changes_nothing(name: str) -> None:
    net, x, ball, prop = question(name, 2.0, 0.2, (0.0, 1.0))
    with torch.no_grad():
        for one, other in ((KW(), KW(budget=2**12)), (CROWN(), CROWN(budget=2**12))):
            torch.testing.assert_close(
                one.solve(net, x, ball, prop)[1], other.solve(net, x, ball, prop)[1], rtol=1e-10, atol=1e-10
            )


@pytest.mark.parametrize("name", ["fc deep", "cnn", "residual", "max pool", "leaky"])
@pytest.mark.parametrize("method", ["ibp", "kw", "crown"])
def test_gradients_agree_with_finite_differences(name: str, method: str) -> None:
    net, x, ball, prop = question(name, 2.0, 0.1, (0.0, 1.0))
    weights = list(net.parameters())
    generator = torch.Generator().manual_seed(1)
    direction = [torch.randn(weight.shape, generator=generator, dtype=torch.float64) for weight in weights]

    def total() -> Tensor:
        return METHODS[method].solve(net, x, ball, prop)[1].sum()

    slopes = torch.autograd.grad(total(), weights, allow_unused=True, materialize_grads=True)
    expected = sum(float((slope * along).sum()) for slope, along in zip(slopes, direction, strict=True))
    step, values = 1e-6, []
    for by in (step, -2 * step):
        with torch.no_grad():
            for weight, along in zip(weights, direction, strict=True):
                weight += by * along
            values.append(float(total()))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_functionals_of_any_node_can_be_pulled() -> None:
    net, x, ball, _ = question("leaky", 2.0, 0.1, None)
    bounds = unit_bounds(net, x, ball, Tightening(rule="parallel"))
    node = net.switches[-1].inputs[0]
    rows = torch.randn(4, 3, *net.graph[node].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        found = pull_back(net.graph, node, rows, bounds.relaxed(net, "parallel"))
        low, high = found.range(x, ball)
        points = sampled(ball, x, 50)
        value = net.graph.values(points.flatten(0, 1), [node])[node].reshape(4, 50, 1, -1)
        seen = (value * rows.flatten(2)[:, None]).sum(-1)
    assert bool((seen.amin(1) >= low - 1e-10).all())
    assert bool((seen.amax(1) <= high + 1e-10).all())


def test_bad_parameters_are_named() -> None:
    with pytest.raises(InvalidInput, match="steps of alpha must be at least 0, got -1"):
        Alpha(steps=-1)
    with pytest.raises(InvalidInput, match=r"rate of alpha must lie between 0 and 10, got 0\.0"):
        Alpha(rate=0.0)
    with pytest.raises(InvalidInput, match="inner of alpha must be at least 0, got -2"):
        Alpha(inner=-2)
    with pytest.raises(InvalidInput, match=r"seconds of alpha must be at least 0, got -1\.0"):
        Alpha(seconds=-1)


@names
def test_inner_steps_only_tighten(name: str) -> None:
    """Intervals of all units lie within CROWN's, and where a unit has another switch below it some are smaller."""
    net, x, ball, _ = question(name, math.inf, 0.1, (0.0, 1.0))
    with torch.no_grad():
        before, after = CROWN().units(net, x, ball), Alpha(inner=8).units(net, x, ball)
    gained = 0.0
    for index, within in after.inputs.items():
        known = before.inputs[index]
        assert bool(((within.lower >= known.lower) & (within.upper <= known.upper)).all())
        gained += float((within.lower - known.lower).sum() + (known.upper - within.upper).sum())
    if name in ("fc deep", "cnn", "residual"):
        assert gained > 0


def deep(seed: int, layers: int, dtype: torch.dtype = torch.float64) -> Network:
    return Network(randomised(mlp((6,), 3, [12] * layers), seed).to(dtype), (6,)).eval()


def test_inner_slopes_pay_in_deep_chains() -> None:
    """By the rule that stands in the documentation, and margins are larger for it; shallow networks take no inner steps."""
    assert [Alpha().inner_steps(deep(0, layers)) > 0 for layers in (1, 3, 4, 6)] == [False, False, True, True]
    assert Alpha(inner=0).inner_steps(deep(0, 6)) == 0
    for seed in range(3):
        net = deep(seed, 6)
        x = inputs(net, 4)
        ball, prop = Ball(math.inf, 0.3), class_stays(net.predict(x), net.classes, dtype=torch.float64)
        plain, inner = (method.solve(net, x, ball, prop) for method in (Alpha(inner=0), Alpha()))
        assert bool((inner[1] >= CROWN().solve(net, x, ball, prop)[1]).all())
        assert float((inner[1] - plain[1]).mean()) > 0.1 * float(plain[1].abs().mean())
        assert_sound(net, x, ball, *inner[:1], prop, inner[1], sampled(ball, x, 200))


def test_more_inner_steps_keep_what_fewer_have_proved() -> None:
    """Of the first layer behind a ReLU, whose steps are the same ones; later layers see other bounds."""
    net = deep(1, 4)
    x, ball = inputs(net, 3), Ball(math.inf, 0.1)
    second = net.switches[1].index
    found = [Alpha(inner=steps).units(net, x, ball).inputs[second] for steps in (0, 1, 3, 8)]
    for fewer, more in pairwise(found):
        assert bool(((more.lower >= fewer.lower) & (more.upper <= fewer.upper)).all())
    assert float((found[-1].lower - found[0].lower).sum()) > 0


def test_inner_slopes_end_with_the_clock() -> None:
    """Without a second, alpha is crown; bounds of units are those that were known."""
    net = deep(2, 5)
    x, ball = inputs(net, 3), Ball(math.inf, 0.1)
    prop = class_stays(net.predict(x), net.classes, dtype=torch.float64)
    with torch.no_grad():
        late, crown = Alpha(seconds=0.0).solve(net, x, ball, prop), CROWN().solve(net, x, ball, prop)
    assert torch.equal(late[1], crown[1])
    for index, within in late[0].inputs.items():
        assert torch.equal(within.lower, crown[0].inputs[index].lower)


def test_inner_slopes_in_small_pieces_of_memory_prove_the_same() -> None:
    net = deep(3, 5)
    x, ball = inputs(net, 5), Ball(math.inf, 0.1)
    prop = class_stays(net.predict(x), net.classes, dtype=torch.float64)
    whole, pieces = (Alpha(budget=budget).solve(net, x, ball, prop)[1] for budget in (2**29, 2**14))
    torch.testing.assert_close(whole, pieces, rtol=1e-9, atol=1e-9)


def test_examples_with_too_many_unstable_units_keep_their_bounds() -> None:
    """Each example by its own count, whoever shares the batch."""
    net = deep(4, 4)
    x, ball = inputs(net, 6), Ball(math.inf, torch.tensor([0.01, 0.02, 0.05, 0.1, 0.2, 0.4], dtype=torch.float64))
    known = CROWN().units(net, x, ball).detach()
    behind = [node.index for node in net.switches[1:]]
    counts = torch.stack([known.inputs[index].unstable.sum(1) for index in behind]).sum(0)
    most = int(counts.sort().values[3])
    found = InnerAscent(steps=3, rate=0.3, budget=2**29, most=most).refined(net, known, x, ball)
    gained = torch.stack([(found.inputs[i].lower - known.inputs[i].lower).abs().sum(1) for i in behind]).sum(0)
    assert bool((gained[counts > most] == 0).all())
    assert bool((gained[(counts <= most) & (counts > 0)] > 0).any())
    alone = InnerAscent(steps=3, rate=0.3, budget=2**29, most=most).refined(
        net, known.restrict(torch.tensor([2])), x[2:3], ball.restrict(torch.tensor([2]))
    )
    for index in behind:
        torch.testing.assert_close(alone.inputs[index].lower[0], found.inputs[index].lower[2], rtol=0, atol=1e-12)
