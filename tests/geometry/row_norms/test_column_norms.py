"""Norms from columns are those of explicit rows, with their gradients, within a budget, for graphs of every kind."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from relucert.core.norms import norm
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms import column_norms
from relucert.geometry.row_norms.column_norms import ColumnNorms, Plan, plan, with_column_norms
from relucert.geometry.row_norms.row_norms import hyperplane_norms
from relucert.networks.affine_map import chain
from relucert.networks.colouring import Colouring, Stages
from relucert.networks.network import Network
from zoo import NETWORKS, inputs, network, randomised

SWITCHING = [name for name in NETWORKS if name != "linear"]
QS = (1.0, 1.5, 2.0, 3.0, math.inf)


class Block(nn.Module):
    """A residual block, with a convolution in its short cut."""

    def __init__(self, channels: int, maps: int, stride: int):
        super().__init__()
        self.near = nn.Conv2d(channels, maps, 3, stride, 1)
        self.far, self.short = nn.Conv2d(maps, maps, 3, padding=1), nn.Conv2d(channels, maps, 1, stride)

    def forward(self, z: Tensor) -> Tensor:
        return torch.relu(self.short(z) + self.far(torch.relu(self.near(z))))


class Joined(nn.Module):
    """Layers that read all layers before."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.cat([x, torch.relu(self.one(x))], 1)
        return torch.relu(self.two(z))


def _conv(channels: int, maps: int, *args: int, **given: object) -> list[nn.Module]:
    return [nn.Conv2d(channels, maps, *args, **given), nn.ReLU()]  # type: ignore[arg-type]


#: Graphs with convolutions, images of odd sizes, all that lies between: name -> layers before the last matrices
GRAPHS = {
    "three": lambda: [*_conv(1, 2, 3, padding=1), *_conv(2, 3, 3, padding=1), *_conv(3, 2, 3, padding=1)],
    "strided": lambda: [*_conv(1, 3, 3, stride=2, padding=1), *_conv(3, 2, 2, stride=2), *_conv(2, 2, 2, padding=1)],
    "dilated": lambda: [*_conv(1, 2, 2, dilation=2), *_conv(2, 2, 2, dilation=(1, 2)), *_conv(2, 2, 2, padding=2)],
    "grouped": lambda: [*_conv(1, 4, 3, padding=1), *_conv(4, 4, 3, groups=2), *_conv(4, 4, 1, groups=4)],
    "max pool": lambda: [*_conv(1, 2, 3, padding=1), nn.MaxPool2d(2), *_conv(2, 2, 2)],
    "overlapping max pools": lambda: [*_conv(1, 2, 2), nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.MaxPool2d(2, 1)],
    "average pools": lambda: [*_conv(1, 2, 3), nn.AvgPool2d(2, 1), *_conv(2, 2, 2), nn.AvgPool2d(3, 2, 1)],
    "batch norm": lambda: [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.LeakyReLU(0.1), *_conv(2, 2, 2), *_conv(2, 2, 2)],
    "residual": lambda: [*_conv(1, 2, 3, padding=1), Block(2, 3, 2), Block(3, 2, 1)],
    "concatenated": lambda: [Joined(), *_conv(2, 2, 2)],
    "transposed": lambda: [*_conv(1, 2, 3, stride=2), nn.ConvTranspose2d(2, 2, 2, stride=2), nn.ReLU(), *_conv(2, 2, 3)],
}  # fmt: skip


def graph(name: str) -> Network:
    """A network of the table, with two matrices behind it."""
    shape = (1, 9, 8)
    head = nn.Sequential(*GRAPHS[name]())
    wide = head(torch.zeros(2, *shape)).flatten(1).shape[1]
    module = nn.Sequential(head, nn.Flatten(), nn.Linear(wide, 5), nn.ReLU(), nn.Linear(5, 3))
    return Network(randomised(module, 3).double(), shape, 0.2, 0.7).eval()


def every(name: str) -> Network:
    return graph(name) if name in GRAPHS else network(name)


def whole(region: LinearRegion) -> Plan:
    """A plan of all switching nodes."""
    graph = region.net.graph
    periods = tuple(max(sizes) for sizes in zip(*(windows.widths for windows in graph.windows), strict=True))
    places = tuple(range(len(region.hyperplanes)))
    colouring = Colouring(region.net.input_shape, periods)
    return Plan(places, colouring, Stages.of(graph, places), colouring.count, (1,) * len(places))


def explicit(region: LinearRegion) -> Tensor:
    """All rows, pulled back at once; zero where an entry of a max pool is compared with padding, which is no hyperplane."""
    net = region.net
    there = LinearRegion.at(net, inputs(net, len(region))).margins(inputs(net, len(region))).isfinite()
    rows = region.rows(torch.arange(region.count).expand(len(region), -1))
    return rows * there.reshape(*there.shape, *(1,) * len(net.input_shape))


@pytest.mark.parametrize("name", [*GRAPHS, *SWITCHING])
def test_norms_and_gradients_of_explicit_rows(name: str) -> None:
    net = every(name)
    region = LinearRegion.at(net, inputs(net, 3))
    weights, chosen = list(net.parameters()), whole(region)
    generator = torch.Generator().manual_seed(0)
    weighting = torch.randn(3, region.count, generator=generator, dtype=torch.float64)
    one_example = weighting * torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)[:, None]
    rows = explicit(region)
    for q in QS:
        expected = norm(rows, q, 2)
        theirs = torch.autograd.grad(
            (expected * one_example).sum(), weights, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        # All kept; made again, some examples at a time; made again, some colours at a time.
        for budget in {1.5: (2**30, 2**22), math.inf: (2**30, 2**19)}.get(q, (2**30,)):
            found = ColumnNorms.apply(region, chosen, q, budget, *weights)
            torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-9, atol=1e-11)  # type: ignore[union-attr]
            mine = torch.autograd.grad((found * one_example).sum(), weights)  # type: ignore[operator]
            for one, two in zip(mine, theirs, strict=True):
                torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)
    assert any(bool((part != 0).any()) for part in theirs)


def test_the_gradient_can_be_taken_twice() -> None:
    """The first one uses up what was kept."""
    net = every("max pool")
    region = LinearRegion.at(net, inputs(net, 2))
    norms = ColumnNorms.apply(region, whole(region), math.inf, 2**30, *net.parameters())
    one, two = (torch.autograd.grad(norms.sum(), list(net.parameters())[:4], retain_graph=True) for _ in range(2))  # type: ignore[union-attr]
    for first, second in zip(one, two, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", GRAPHS)
def test_few_rows_have_gradients_of_their_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient through columns and that through single rows, whichever costs less, are the same."""
    net = every(name)
    region = LinearRegion.at(net, inputs(net, 3))
    weights, chosen = list(net.parameters()), whole(region)
    generator = torch.Generator().manual_seed(1)
    few = (torch.rand(3, region.count, generator=generator) < 0.05).double()
    few = few * region.margins(inputs(net, 3)).isfinite()  # a comparison with padding is no hyperplane
    found = []
    for pulled in (0, 2**40):
        monkeypatch.setattr(column_norms, "PULLED", pulled)
        norms = ColumnNorms.apply(region, chosen, 2.0, 2**30, *weights)
        found.append(torch.autograd.grad((norms * few).sum(), weights, materialize_grads=True, allow_unused=True))  # type: ignore[operator]
    assert any(bool((part != 0).any()) for part in found[0])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["three", "max pool", "residual", "overlapping max pools", "average pools"])
def test_layers_that_see_windows_take_columns(name: str) -> None:
    net = every(name)
    region = LinearRegion.at(net, inputs(net, 2))
    chosen = plan(region, range(1, len(region.hyperplanes)))
    assert chosen is not None
    rows = sum(
        h.count * cost for h, cost in zip([region.hyperplanes[i] for i in chosen.places], chosen.rows, strict=True)
    )
    assert chosen.cost < column_norms.PULLED * rows
    assert all(0 < colouring.count <= chosen.colouring.count for colouring in chosen.stages.colourings.values())
    norms, _ = hyperplane_norms(region, torch.zeros(2).long(), 2.0)
    there = region.margins(inputs(net, 2)).isfinite()
    torch.testing.assert_close(norms[there], norm(explicit(region), 2.0, 2)[there], rtol=1e-9, atol=1e-11)


def test_narrow_layers_and_chains_with_ways_of_their_own_take_none() -> None:
    for name in ("fc deep", "cnn"):
        net = network(name)
        region = LinearRegion.at(net, inputs(net, 2))
        known: list[Tensor | None] = [None] * len(region.hyperplanes)
        assert with_column_norms(region, known, chain(net.graph), 2.0, 2**30) == known
    net = Network(randomised(nn.Sequential(nn.Linear(40, 2), nn.ReLU(), nn.Linear(2, 2)), 0), (40,)).eval()
    assert plan(LinearRegion.at(net, inputs(net, 2)), [0]) is None


@pytest.mark.parametrize("budget", [2**18, 2**22])
def test_columns_stay_within_the_budget(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is pushed at a time, forward and for the gradient, with all its values, fits into the budget."""
    net = every("residual")
    region = LinearRegion.at(net, inputs(net, 16))
    largest = 0
    pushed = column_norms.push_columns

    def counted(linear, columns, keep, stages=None):
        nonlocal largest
        numbers = sum(math.prod(node.shape) for node in net.graph)
        most = columns.shape[1] if stages is None else max(each.count for each in stages.colourings.values())
        largest = max(largest, 8 * numbers * len(linear) * most)
        return pushed(linear, columns, keep, stages)

    monkeypatch.setattr(column_norms, "push_columns", counted)
    norms = ColumnNorms.apply(region, whole(region), 1.0, budget, *net.parameters())
    norms.sum().backward()  # type: ignore[union-attr]
    assert 0 < largest <= budget
    expected = norm(explicit(region), 1.0, 2)
    torch.testing.assert_close(norms.detach(), expected.detach(), rtol=1e-9, atol=1e-11)  # type: ignore[union-attr]


def test_frozen_weights_and_no_examples() -> None:
    net = every("max pool")
    region = LinearRegion.at(net, inputs(net, 2))
    net.requires_grad_(False)
    assert not ColumnNorms.apply(region, whole(region), 2.0, 2**30).requires_grad  # type: ignore[union-attr]
    empty = LinearRegion.at(net, inputs(net, 2)[:0])
    assert ColumnNorms.apply(empty, whole(empty), 2.0, 2**30).shape == (0, region.count)  # type: ignore[union-attr]


def test_rows_of_zeros_have_no_gradient() -> None:
    net = every("three")
    with torch.no_grad():
        next(net.parameters()).zero_()
    region = LinearRegion.at(net, inputs(net, 2))
    for q in QS:
        norms = ColumnNorms.apply(region, whole(region), q, 2**30, *net.parameters())
        slopes = torch.autograd.grad(norms.sum(), list(net.parameters()), allow_unused=True)  # type: ignore[union-attr]
        assert all(bool(slope.isfinite().all()) for slope in slopes if slope is not None)
        assert bool((norms == 0).all())
