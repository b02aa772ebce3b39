"""Screened distances: the same loss and gradient as with all rows, for every network, norm and number of hyperplanes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import zoo
from relucert.core import products
from relucert.core.norms import dual
from relucert.geometry.distances import free_distances
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms import chosen_norms
from relucert.geometry.row_norms.chain_rows import gate
from relucert.geometry.row_norms.norm_bounds import Bounds, sums_are_safe
from relucert.geometry.row_norms.row_norms import row_norms
from relucert.geometry.screening import Nearest, _exact_norms, _norm_bounds
from relucert.networks import _block_tables, conv_rows, local_norms, window_norms, windows
from relucert.networks.affine_map import chain
from relucert.networks.local_rows import plan
from relucert.networks.network import Network
from relucert.networks.patches import axes
from relucert.regularizers.mmr import mmr

NORMS = (1.0, 2.0, 3.0, math.inf)


def three_convolutions() -> Network:
    """A chain of three convolutions with strides, padding and dilation, and two matrices behind them."""
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.LeakyReLU(0.1),
        nn.Conv2d(4, 2, 2, padding=1, dilation=2), nn.ReLU(), nn.Flatten(), nn.Linear(40, 6), nn.ReLU(), nn.Linear(6, 3),
    )  # fmt: skip
    return Network(zoo.randomised(module, 11).double(), (1, 9, 8)).eval()


def network(name: str, dtype: torch.dtype) -> Network:
    """A network of the zoo, or three convolutions."""
    return three_convolutions().to(dtype) if name == "three convolutions" else zoo.network(name, dtype)


NETWORKS = tuple(name for name in (*zoo.NETWORKS, "three convolutions") if name != "linear")


def mmr_of_all_rows(net: Network, x: Tensor, y: Tensor, p: float, gamma: float, k_b: int, k_d: int) -> Tensor:
    """The regulariser from the distances to all hyperplanes (equation 4 of the paper)."""
    region, values, logits = LinearRegion.evaluated(net, x)
    units, classes = free_distances(region, region.margins_of(values, x), logits, y, p)
    near = (1 - units.topk(k_b, largest=False).values / gamma).clamp(min=0).sum(1) / k_b
    d_d = classes.topk(k_d, largest=False).values
    hinge = torch.where(d_d == -math.inf, torch.zeros_like(d_d), (1 - d_d / gamma).clamp(min=0))
    return near + hinge.sum(1) / k_d


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", NETWORKS)
def test_loss_and_gradient_are_those_of_all_rows(name: str, dtype: torch.dtype) -> None:
    net = network(name, dtype)
    x = zoo.inputs(net, 4)
    y = torch.arange(4) % net.classes
    count = LinearRegion.at(net, x).count
    weights = list(net.parameters())
    for p in NORMS:
        for gamma, k_b, k_d in ((0.3, max(1, count // 5), net.classes), (10.0, max(1, count // 3), 1), (0.001, 1, 2)):
            one = mmr_of_all_rows(net, x, y, p, gamma, k_b, k_d).mean()
            two = mmr(net, x, y, p, gamma, gamma, k_b, k_d).mean()
            expected, found = (torch.autograd.grad(loss, weights, allow_unused=True) for loss in (one, two))
            size = math.sqrt(sum(float(part.square().sum()) for part in expected if part is not None))
            gap = math.sqrt(
                sum(float((a - b).square().sum()) for a, b in zip(expected, found, strict=True) if a is not None)
            )
            tolerance = 1e-9 if dtype == torch.float64 else 1e-5
            assert abs(float((one - two).detach())) <= tolerance * abs(float(one.detach())), (p, gamma)
            assert gap <= tolerance * size + 1e-12, (p, gamma)


#: What switches between two ways of computing the same: module, name, value on the other side.
SWITCHES = {
    "products by oneDNN": (products, "LEAST", 0),
    "products by torch": (products, "LEAST", 2**62),
    "windows as convolutions": (windows, "LARGEST", 0),
    "one block at a time": (local_norms, "ENTRIES", 1),
    "patterns never shared": (_block_tables, "SHARED", 0.0),
    "patterns always shared": (_block_tables, "SHARED", 1.0),
    "inactive units left out": (chosen_norms, "ACTIVE", 1.0),
    "inactive units counted": (chosen_norms, "ACTIVE", 0.0),
    "gradients by windows": (chosen_norms, "BLOCKS", 0),
    "gradients by blocks": (chosen_norms, "BLOCKS", 2**40),
    "norms from a Gram matrix": (chosen_norms, "gram_pays", lambda *_: True),
    "one row at a time": (window_norms, "PIECE", 1),
    "one functional at a time": (conv_rows, "PIECE", 1),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["cnn", "fc1", "three convolutions"])
@pytest.mark.parametrize("switch", SWITCHES)
def test_both_sides_of_a_switch_are_the_same(
    switch: str, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses and gradients for q = inf, 2, 1.5 and 1."""
    net = network(name, dtype)
    x, y = zoo.inputs(net, 6), torch.arange(6) % net.classes
    count, tolerance = LinearRegion.at(net, x).count, 1e-9 if dtype == torch.float64 else 1e-5
    for p in NORMS:
        found = []
        for turned in (False, True):
            with monkeypatch.context() as patch:
                if turned:
                    patch.setattr(*SWITCHES[switch])
                loss = mmr(net, x, y, p, 5.0, 5.0, max(1, count // 3), net.classes).mean()
                slopes = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
                found.append((loss.detach(), torch.cat([one.flatten() for one in slopes if one is not None])))
        (one, first), (two, second) = found
        assert float(one) > 0, p
        assert abs(float(one - two)) <= tolerance * float(one), p
        assert float((first - second).norm()) <= tolerance * float(first.norm()), p


def twins(dtype: torch.dtype, equal_slopes: bool = True) -> tuple[Network, Tensor, Tensor]:
    """Two convolutions with equal filters, and with filters of zeros; images with empty borders, one of them twice."""
    slopes = nn.ReLU() if equal_slopes else nn.PReLU(4)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 4, 2, 1), slopes, nn.Conv2d(4, 5, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(80, 7), nn.ReLU(),
        nn.Linear(7, 3),
    )  # fmt: skip
    module = zoo.randomised(module, 5).double()
    with torch.no_grad():
        for layer, (same, empty) in ((module[0], (1, 2)), (module[2], (3, 4))):
            for part in (layer.weight, layer.bias):
                part[same] = part[0]
                part[empty] = 0
        if not equal_slopes:
            slopes.weight.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    net = Network(module, (1, 16, 16)).to(dtype).eval()
    x = torch.zeros(5, 1, 16, 16, dtype=dtype)
    x[:, :, 5:11, 5:11] = torch.rand(5, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).to(
        dtype
    )
    x[4] = x[0]
    return net, x, torch.tensor([0, 1, 2, 0, 0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("equal_slopes", [True, False])
def test_equal_units_examples_and_places(dtype: torch.dtype, *, equal_slopes: bool) -> None:
    """Ties at the k-th distance, rows of zeros, more hyperplanes than are near: loss and gradient are those of all rows.

    Equal distances share the gradient in any way, so that gradients are compared where no tie is cut.
    """
    net, x, y = twins(dtype, equal_slopes)
    count = LinearRegion.at(net, x).count
    weights, tolerance = list(net.parameters()), 1e-9 if dtype == torch.float64 else 1e-5
    for p in NORMS:
        for gamma, k_b in ((0.05, count), (10.0, count), (10.0, count // 3), (1e-6, count // 2)):
            one = mmr_of_all_rows(net, x, y, p, gamma, k_b, 3)
            two = mmr(net, x, y, p, gamma, gamma, k_b, 3)
            torch.testing.assert_close(two, one, rtol=tolerance, atol=tolerance)
            if k_b == count:
                first, second = (
                    nn.utils.parameters_to_vector(
                        torch.autograd.grad(loss.sum(), weights, allow_unused=True, materialize_grads=True)
                    )
                    for loss in (one, two)
                )
                assert float((first - second).norm()) <= tolerance * float(first.norm()) + 1e-12, (p, gamma)


def test_patterns_are_shared_where_all_slopes_are_equal() -> None:
    """The tables have a row for every pattern, and each block and example finds its own slopes there."""
    net, x, _ = twins(torch.float64)
    region = LinearRegion.at(net, x)
    steps = chain(net.graph)
    assert steps is not None
    slopes = gate(region, 0)
    filters = (steps[0].weight(), steps[1].weight())
    tables = _block_tables.kind_tables(filters, slopes, plan(*axes(steps[0], steps[1], (1, 16, 16)), 1))
    near = slopes.permute(2, 3, 0, 1).contiguous()
    assert any(table.which is not None for table in tables)
    for table in tables:
        seen = _block_tables.units(near, table.blocks).permute(0, 3, 1, 2, 4).flatten(2)
        every = slice(0, len(table.blocks))
        assert torch.equal(table.spread(table.gates, every, len(x)), seen)
        if table.which is not None:
            assert len(table.gates.unique(dim=0)) == len(table.gates)
    many, few = torch.rand(2, 3, 4, 4, dtype=torch.float64), torch.ones(2, 60, 4, 4)
    assert _block_tables.place_codes(many) is None  # slopes of many values
    assert _block_tables.place_codes(few) is None  # more units than digits


@pytest.mark.parametrize("name", ["cnn", "three convolutions", "twins"])
def test_an_example_costs_the_same_in_every_batch(name: str) -> None:
    net, x, y = twins(torch.float64) if name == "twins" else (network(name, torch.float64), None, None)
    x = zoo.inputs(net, 5) if x is None else x
    y = torch.arange(5) % net.classes if y is None else y
    count = LinearRegion.at(net, x).count
    for p in NORMS:
        together = mmr(net, x, y, p, 0.5, 0.5, count // 4, net.classes)
        alone = torch.cat(
            [mmr(net, x[i : i + 1], y[i : i + 1], p, 0.5, 0.5, count // 4, net.classes) for i in range(5)]
        )
        torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)


def test_tables_that_do_not_fit_into_memory_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = twins(torch.float64)
    found = []
    monkeypatch.setattr(chosen_norms, "BLOCKS", 2**40)
    for kept in (local_norms.KEPT, 0):
        monkeypatch.setattr(local_norms, "KEPT", kept)
        loss = mmr(net, x, y, math.inf, 10.0, 10.0, 60, 3).mean()
        found.append(torch.autograd.grad(loss, list(net.parameters()), allow_unused=True))
    assert any(part is not None and bool(part.any()) for part in found[0])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


def test_squares_that_vanish_are_not_added_up() -> None:
    """With weights of 1e-12 the squares of rows are below float32: the norms of q = 2 come from elsewhere, and are right."""
    net = network("cnn", torch.float32)
    with torch.no_grad():
        for weight in list(net.parameters())[:4:2]:
            weight *= 1e-12
    x, y = zoo.inputs(net, 4), torch.arange(4) % net.classes
    steps = chain(net.graph)
    assert steps is not None
    assert not sums_are_safe(steps, 2.0)
    assert sums_are_safe(steps, 1.0)
    one = mmr_of_all_rows(net, x, y, 2.0, 1e3, 20, net.classes)
    torch.testing.assert_close(mmr(net, x, y, 2.0, 1e3, 1e3, 20, net.classes), one, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["cnn", "three convolutions", "residual"])
def test_rows_that_do_not_fit_into_memory_are_made_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network(name, torch.float64)
    x, y = zoo.inputs(net, 4), torch.arange(4) % net.classes
    found = []
    for kept in (chosen_norms.KEPT, 0):
        monkeypatch.setattr(chosen_norms, "KEPT", kept)
        loss = mmr(net, x, y, math.inf, 0.3, 0.3, 20, net.classes).mean()
        found.append(torch.autograd.grad(loss, list(net.parameters()), allow_unused=True))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", NETWORKS)
def test_bounds_contain_the_norms(name: str, dtype: torch.dtype) -> None:
    """The norms in float64 lie within the bounds, which count the rounding of float32."""
    net = network(name, dtype)
    x = zoo.inputs(net, 4)
    region = LinearRegion.at(net, x)
    exact_net = network(name, torch.float64)
    exact_net.load_state_dict({key: value.double() for key, value in net.state_dict().items()})
    truth_region = LinearRegion(exact_net, region.patterns, len(x))
    for p in NORMS:
        q = dual(p)
        with torch.no_grad():
            truth = row_norms(truth_region, q)
            steps = chain(net.graph)
            bounds, classes, _ = _norm_bounds(
                region, steps, _exact_norms(region, steps, q, 2**30), q, torch.zeros(4).long()
            )
            every = Bounds(*(torch.cat([getattr(b, end) for b in bounds], 1) for end in ("lower", "upper")))
            slack = 1e-12 if dtype == torch.float64 else 2e-6
            # A comparison of an entry with itself or with padding has no hyperplane.
            there = region.margins(x).isfinite()
            assert bool((every.lower <= truth * (1 + slack))[there].all()), (p, "lower")
            assert bool((truth <= every.upper * (1 + slack))[there].all()), (p, "upper")
            if classes is not None:
                rows = truth_region.decision_rows(torch.zeros(4).long()).flatten(2)
                lengths = torch.linalg.vector_norm(rows, q, dim=2)
                assert bool((classes.lower <= lengths * (1 + slack)).all())
                assert bool((lengths <= classes.upper * (1 + slack)).all())


def test_needed_distances() -> None:
    norms = Bounds(torch.tensor([[1.0, 0.5, 1.0, 0.0]]), torch.tensor([[1.0, 2.0, 1.0, 0.0]]))
    margins = torch.tensor([[1.0, 2.0, 3.0, 0.0]])
    # Distances lie in [1, 1], [1, 4], [3, 3]; a zero row has no hyperplane.
    assert Nearest(1, 10.0).needed(margins, norms)[0].tolist() == [[True, True, False, False]]
    assert Nearest(2, 10.0).needed(margins, norms)[0].tolist() == [[True, True, True, False]]
    assert Nearest(2, 0.5).needed(margins, norms)[0].tolist() == [[True, True, False, False]]
    assert Nearest(2, 0.5, smallest=False).needed(margins, norms)[0].tolist() == [[False] * 4]
