"""d_B and d_D against line searches in many directions, programs over each facet, and their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oracles import polytope_distance, small_fc
from relucert.core.errors import InvalidInput, WrongMode
from relucert.core.norms import dual, norm
from relucert.core.results import Distances
from relucert.geometry.distances import boundary_distances, decision_distances, distances, nearest_hyperplanes
from relucert.geometry.region import LinearRegion
from relucert.networks.network import Network
from zoo import NETWORKS, inputs, network, randomised

PS = (1.0, 2.0, 3.0, math.inf)
norms = pytest.mark.parametrize("p", PS)
names = pytest.mark.parametrize("name", NETWORKS)


def pattern_change(net: Network, x: Tensor, directions: Tensor, far: float = 20.0) -> Tensor:
    """The distance along every direction at which the pattern of x (1, *input) changes, by bisection."""

    def same(t: Tensor) -> Tensor:
        points = x + t.reshape(-1, *(1,) * (x.dim() - 1)) * directions
        pairs = zip(net.preactivations(points), net.pattern(x), net.switches, strict=True)
        # Compare values, not patterns: ties among dead units are not a change.
        gaps = [
            (node.op.apply(v) - node.op.linear(v, p.expand(len(v), *p.shape[1:]))).abs().flatten(1).amax(1)  # type: ignore[union-attr]
            for v, p, node in pairs
        ]
        return torch.stack(gaps).amax(0) <= 1e-13

    low, high = torch.zeros(len(directions), dtype=torch.float64), torch.full((len(directions),), far).double()
    for _ in range(36):
        middle = (low + high) / 2
        kept = same(middle)
        low, high = torch.where(kept, middle, low), torch.where(kept, high, middle)
    return high


@norms
@names
def test_no_direction_leaves_the_region_before(name: str, p: float) -> None:
    net = network(name)
    if not net.switches:
        found = distances(net, inputs(net, 3), p=p)
        assert bool(found.region.isinf().all())
        return
    x = inputs(net, 2, seed=1)
    found = distances(net, x, p=p).region.detach()
    generator = torch.Generator().manual_seed(0)
    for i in range(len(x)):
        directions = torch.randn(60, *net.input_shape, generator=generator, dtype=torch.float64)
        directions /= norm(directions, p).reshape(-1, *(1,) * (x.dim() - 1))
        assert float(pattern_change(net, x[i : i + 1], directions).min()) >= float(found[i]) * (1 - 1e-6)


@norms
def test_some_direction_leaves_the_region_there(p: float) -> None:
    net = small_fc((2,), [6, 4], 3, seed=3)
    x = inputs(net, 8, seed=2)
    found = distances(net, x, p=p).region.detach()
    angles = torch.linspace(0, 2 * math.pi, 4001, dtype=torch.float64)
    angles = torch.cat([angles, torch.arange(4) * math.pi / 2])
    directions = torch.stack([angles.cos(), angles.sin()], 1)
    corners = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
    directions = torch.cat([directions, corners])
    directions /= norm(directions, p)[:, None]
    for i in range(len(x)):
        assert float(pattern_change(net, x[i : i + 1], directions).min()) == pytest.approx(float(found[i]), rel=1e-2)


@norms
@names
def test_decision_distance_by_its_definition(name: str, p: float) -> None:
    net = network(name)
    x = inputs(net, 3)
    generator = torch.Generator().manual_seed(3)
    y = torch.randint(net.classes, (3,), generator=generator)
    found = distances(net, x, y, p).decision.detach()
    unsigned = distances(net, x, None, p).decision.detach()
    logits = net(x).detach()
    predicted = logits.argmax(1)
    for i in range(3):
        z = x[i : i + 1].clone().requires_grad_()
        slopes = torch.stack([torch.autograd.grad(net(z)[0, s], z)[0][0] for s in range(net.classes)])

        def smallest(c: int, slopes: Tensor = slopes, i: int = i) -> float:
            return min(
                float((logits[i, c] - logits[i, s]) / norm((slopes[c] - slopes[s])[None], dual(p))[0])
                for s in range(net.classes)
                if s != c
            )

        assert float(found[i]) == pytest.approx(smallest(int(y[i])), rel=1e-9)
        assert float(unsigned[i]) == pytest.approx(smallest(int(predicted[i])), rel=1e-9)
    assert bool((unsigned >= 0).all())
    assert bool(((found < 0) == (y != predicted)).all())


@norms
def test_classes_with_equal_rows(p: float) -> None:
    module = randomised(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4)), 1)
    with torch.no_grad():
        module[2].weight[1:] = module[2].weight[0]  # type: ignore[index, union-attr, operator]
        module[2].bias.copy_(torch.tensor([0.0, -1.0, 1.0, 0.0]))  # type: ignore[operator, union-attr]
    net = Network(module.double(), (3,)).eval()
    x = inputs(net, 2)
    region = LinearRegion.at(net, x)
    y = torch.zeros(2, dtype=torch.long)
    found = decision_distances(region, net(x), y, p)
    # The class y, a class with constant positive margin, one with constant negative margin, and one with margin 0.
    expected = torch.tensor([math.inf, math.inf, -math.inf, 0.0], dtype=torch.float64)
    assert torch.equal(found.detach(), expected.expand(2, 4))
    for box in (None, (0.0, 1.0)):
        assert distances(net, x, y, p, box).decision.tolist() == [-math.inf] * 2
        assert distances(net, x, y + 2, p, box).decision.tolist() == [math.inf] * 2
    weights = list(net.parameters())
    slopes = torch.autograd.grad(found[:, 3].sum(), weights, allow_unused=True, materialize_grads=True)
    assert all(bool(slope.isfinite().all()) for slope in slopes)


@norms
def test_dead_directions_are_infinitely_far(p: float) -> None:
    module = randomised(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), 2)
    with torch.no_grad():
        module[0].weight[0] = 0.0  # type: ignore[index, union-attr, operator]
        module[0].bias.fill_(-5.0)  # type: ignore[union-attr, operator]
        module[2].bias[0] = 0.0  # type: ignore[index, union-attr, operator]
    net = Network(module.double(), (2,)).eval()
    x = inputs(net, 2)
    region = LinearRegion.at(net, x)
    far = boundary_distances(region, region.margins(x), p).detach()
    # The unit with zero weights, and the layer after the dead one, even with margin 0.
    assert far.isinf().tolist() == [[True, False, False, True, True, True]] * 2
    found = distances(net, x, p=p, box=(0.0, 1.0))
    assert bool(found.region.isinf().all())  # and the others are not met in the box


def finite_sum(found: Distances) -> Tensor:
    """The sum of all finite distances."""
    return sum((part[part.isfinite()].sum() for part in (found.region, found.decision)), torch.zeros(()))


@norms
@names
def test_gradients_are_finite(name: str, p: float) -> None:
    net = network(name)
    x = inputs(net, 4)
    y = torch.arange(4) % net.classes
    found = distances(net, x, y, p)
    weights = list(net.parameters())
    total = finite_sum(found)
    slopes = torch.autograd.grad(total, weights, allow_unused=True, materialize_grads=True)
    assert all(bool(slope.isfinite().all()) for slope in slopes)
    assert any(bool((slope != 0).any()) for slope in slopes)
    # Away from kinks the gradient agrees with a finite difference.
    generator = torch.Generator().manual_seed(5)
    direction = [torch.randn(weight.shape, generator=generator, dtype=torch.float64) for weight in weights]
    step = 1e-7

    def moved(size: float) -> float:
        with torch.no_grad():
            for weight, part in zip(weights, direction, strict=True):
                weight += size * part
            value = finite_sum(distances(net, x, y, p))
            for weight, part in zip(weights, direction, strict=True):
                weight -= size * part
        return float(value)

    expected = (moved(step) - moved(-step)) / (2 * step)
    along = sum(float((slope * part).sum()) for slope, part in zip(slopes, direction, strict=True))
    assert along == pytest.approx(expected, rel=1e-4, abs=1e-4)


@norms
@pytest.mark.parametrize("name", ["fc", "fc deep", "zero bias", "dead windows"])
def test_box_distances_agree_with_programs_over_every_hyperplane(name: str, p: float) -> None:
    net = network(name)
    x = inputs(net, 3, seed=4)
    y = net.predict(x)
    free, boxed = distances(net, x, y, p), distances(net, x, y, p, (0.0, 1.0))
    assert bool((boxed.region >= free.region * (1 - 1e-12)).all())
    assert bool((boxed.decision >= free.decision * (1 - 1e-12)).all())
    region = LinearRegion.at(net, x)
    margins = region.margins(x).detach()
    rows = region.rows(torch.arange(region.count).expand(3, -1)).detach().flatten(2)
    size = x[0].numel()
    sides = np.concatenate([np.eye(size), -np.eye(size)])
    for i in range(3):
        point = x[i].flatten().numpy()
        limits = np.concatenate([-point, point - 1])
        apart = (margins[i] / norm(rows[i], dual(p))).nan_to_num(math.inf, posinf=math.inf)
        order = apart.argsort()
        best = math.inf
        for j in order[:12].tolist():
            row, margin = rows[i, j].numpy(), float(margins[i, j])
            if math.isfinite(margin) and np.abs(row).max() > 0:
                best = min(best, polytope_distance(np.vstack([sides, -row]), np.append(limits, margin), p))
        # All other hyperplanes are farther away even without the box.
        assert best <= float(apart[order[12:]].min()) if len(order) > 12 else math.isfinite(best)
        assert float(boxed.region[i]) == pytest.approx(best, rel=1e-7)


def test_bad_input() -> None:
    net = network("fc")
    x = inputs(net, 2)
    with pytest.raises(InvalidInput, match="p must be"):
        distances(net, x, p=0.5)
    with pytest.raises(InvalidInput, match="x must have the network's dtype"):
        distances(net, x.float())
    with pytest.raises(InvalidInput, match="y must"):
        distances(net, x, torch.tensor([0, 9]))
    with pytest.raises(InvalidInput, match=r"box|x must"):
        distances(net, x + 3, box=(0.0, 1.0))
    with pytest.raises(WrongMode, match="eval mode"):
        distances(network("residual").train(), inputs(network("residual")))


@norms
@pytest.mark.parametrize("box", [None, (0.0, 1.0)])
def test_a_small_budget_does_not_change_the_result(p: float, box: tuple[float, float] | None) -> None:
    net = network("cnn")
    x, y = inputs(net, 9), torch.arange(9) % 3
    with torch.no_grad():
        whole, pieces = (distances(net, x, y, p, box, budget=budget) for budget in (2**30, 2**14))
    assert torch.allclose(whole.region, pieces.region, rtol=1e-12, atol=0)
    assert torch.allclose(whole.decision, pieces.decision, rtol=1e-12, atol=0)


@norms
def test_the_nearest_hyperplanes_are_sorted_by_distance(p: float) -> None:
    net = network("max pool")
    x = inputs(net, 4)
    region = LinearRegion.at(net, x)
    margins = region.margins(x)
    every = boundary_distances(region, margins, p)
    nearest, places = nearest_hyperplanes(region, margins, p, 7)
    assert torch.equal(nearest, every.sort(1).values[:, :7])
    assert torch.equal(every.gather(1, places), nearest)
    assert torch.allclose(nearest[:, 0], distances(net, x, p=p).region)
    with pytest.raises(InvalidInput, match=r"k must lie in 1\.\."):
        nearest_hyperplanes(region, margins, p, 0)
