"""On its region a network is V z + a, and the region is where all functionals of its hyperplanes are >= 0."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asserts import assert_affine_on_region
from relucert.geometry.region import LinearRegion
from relucert.networks.network import Network
from zoo import NETWORKS, inputs, network

names = pytest.mark.parametrize("name", NETWORKS)


def inside(net: Network, x: Tensor, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points of the regions of x and the indices of x: random steps, halved until the pattern is that of x."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.arange(len(x)).repeat(count)
    step = 4 * torch.randn(len(index), *x.shape[1:], generator=generator, dtype=torch.float64)
    at_x = [pattern[index] for pattern in net.pattern(x)]
    for _ in range(60):
        here = net.pattern(x[index] + step)
        same = [(a == b).flatten(1).all(1) for a, b in zip(here, at_x, strict=True)]
        bad = ~torch.stack(same).all(0) if same else torch.zeros(len(index), dtype=torch.bool)
        if not bool(bad.any()):
            break
        step[bad] /= 2
    assert not bool(bad.any())
    return x[index] + step, index


@names
def test_affine_on_region(name: str) -> None:
    net = network(name)
    x = inputs(net, 6)
    z, index = inside(net, x, 10)
    assert_affine_on_region(net, x[index], z)


@names
def test_contains_exactly_the_points_with_the_pattern(name: str) -> None:
    net = network(name)
    x = inputs(net, 4)
    z, index = inside(net, x, 10)
    region = LinearRegion.at(net, x).restrict(index)
    assert bool(region.contains(z).all())
    assert bool((region.margins(z) >= 0).all())
    # Other points have another pattern or lie on the boundary; ties among dead units do not count.
    generator = torch.Generator().manual_seed(1)
    away = x[index] + 0.5 * torch.randn(z.shape, generator=generator, dtype=torch.float64)
    values, logits = region.values(away)
    agrees = torch.stack(
        [
            (node.op.apply(v) - node.op.linear(v, p)).abs().flatten(1).amax(1) < 1e-12  # type: ignore[union-attr]
            for node, v, p in zip(net.switches, values, region.patterns, strict=True)
        ]
    ).all(0) if net.switches else torch.ones(len(away), dtype=torch.bool)  # fmt: skip
    assert torch.equal(region.contains(away, 1e-13), agrees)
    assert bool(torch.isclose(logits, net(away), rtol=1e-9, atol=1e-9).all(1)[agrees].all())
    if net.switches:
        assert not bool(agrees.all())


@names
def test_backward_propagation_is_the_adjoint_of_forward(name: str) -> None:
    net = network(name)
    x = inputs(net, 3)
    region = LinearRegion.at(net, x)
    generator = torch.Generator().manual_seed(2)
    for node in net.graph.nodes[1:]:
        d = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        c = torch.randn(len(x), 2, *node.shape, generator=generator, dtype=torch.float64)
        pushed = region.map.push(d, [node.index])[node.index]
        left = (region.map.pull_back(node.index, c) * d[:, None]).flatten(2).sum(2)
        right = (c * pushed[:, None]).flatten(2).sum(2)
        torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-11)


@names
def test_rounding_errors_are_bounded(name: str) -> None:
    exact, net = network(name), network(name, torch.float32)
    # The same weights in both dtypes, so that the difference is rounding error only.
    exact.load_state_dict({key: value.double() for key, value in net.state_dict().items()})
    x = inputs(net, 20)
    generator = torch.Generator().manual_seed(3)
    region = LinearRegion.at(net, x)
    twin = LinearRegion(exact, region.patterns, len(x))
    places = list(range(len(net.graph)))
    for scale in (1.0, 100.0):  # in the region and far outside of it
        z = x + scale * torch.randn(x.shape, generator=generator)
        values, errors = region.map.values_with_errors(z, places)
        with torch.no_grad():
            truth = twin.map.values(z.double(), places)
        for place in places:
            gap = (values[place].double() - truth[place]).abs()
            assert bool((gap <= errors[place].double()).all()), net.graph[place].name
            # The bound is useful: small compared to the largest intermediate value.
            largest = max(float(value.abs().max()) for value in truth.values())
            assert float(errors[place].detach().max()) <= 1e-3 * largest


@names
def test_functionals_give_the_margins(name: str) -> None:
    net = network(name)
    x = inputs(net, 3)
    region = LinearRegion.at(net, x)
    if region.count == 0:
        pytest.skip("a network without switches has no hyperplanes")
    margins = region.margins(x)
    assert margins.shape == (3, region.count)
    assert bool((margins >= 0).all())
    generator = torch.Generator().manual_seed(4)
    places = torch.stack([torch.randperm(region.count, generator=generator) for _ in x])
    rows = region.rows(places)
    d = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    change = (region.margins(x + d) - margins).gather(1, places)
    along = (rows * d[:, None]).flatten(2).sum(2)
    finite = margins.gather(1, places).isfinite()
    torch.testing.assert_close(change[finite], along[finite], rtol=1e-10, atol=1e-10)
    # Only comparisons of a maximum with itself or with padding are void: at least one in every window of a max pool.
    windows = sum(
        hyperplanes.count // hyperplanes.windows.shape[1]
        for hyperplanes in region.hyperplanes
        if hyperplanes.node.kind != "relu"
    )
    assert bool(((~finite).sum(1) >= windows).all())
    assert bool(finite.all()) == (windows == 0)


def test_logits_map_without_switches() -> None:
    net = network("linear")
    x = inputs(net, 3)
    region = LinearRegion.at(net, x)
    rows, offsets = region.logits_map()
    torch.testing.assert_close(torch.einsum("bki,bi->bk", rows, x) + offsets, net(x))
    assert region.count == 0
    assert region.margins(x).shape == (3, 0)
    assert bool(region.contains(x + 100).all())
