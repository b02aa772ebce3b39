"""Norms of decision hyperplanes from a Gram matrix are those of explicit rows in float64, also where terms cancel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms import _gram_norms, row_norms
from relucert.geometry.row_norms._gram_norms import GramNorms, gram, gram_pays, rotation_pays
from relucert.geometry.row_norms.row_norms import hyperplane_norms
from relucert.networks.network import Network
from zoo import randomised

BATCH, CLASSES, UNITS, INPUTS = 9, 5, 37, 90


def network(kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of two layers in float64, and slopes of the units between them."""
    generator = torch.Generator().manual_seed(3)
    first = torch.randn(UNITS, INPUTS, generator=generator, dtype=torch.float64)
    last = torch.randn(CLASSES, UNITS, generator=generator, dtype=torch.float64)
    slopes = (torch.rand(BATCH, UNITS, generator=generator) < 0.6).double()
    if kind == "nearly equal units":  # and weights that cancel, so that rows are a thousandth of their terms
        first = first[:1] + 1e-3 * first
        slopes[1:] = 1.0
        last -= last.mean(1, keepdim=True)
    elif kind == "small":
        first *= 1e-25
    elif kind == "large":
        first *= 1e25
    elif kind == "dead":
        slopes[2] = 0.0
        first[3] = 0.0
        last[1] = last[2]
    elif kind == "leaky":
        slopes = slopes.clamp(min=0.1)
    return last.float().double(), first.float().double(), slopes


def questions() -> tuple[Tensor, Tensor, Tensor]:
    """All decision hyperplanes: examples, labels, other classes."""
    labels = torch.arange(BATCH) % CLASSES
    batch, other = (labels[:, None] != torch.arange(CLASSES)).nonzero(as_tuple=True)
    return batch, labels[batch], other


def of_rows(last: Tensor, first: Tensor, slopes: Tensor, rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The lengths of explicit rows."""
    batch, y, other = rows
    made = ((last[y] - last[other]) * slopes[batch]) @ first
    scale = made.detach().abs().amax(1).masked_fill_((made == 0).all(1), 1.0)
    void = (made == 0).all(1)
    return (made / scale[:, None]).masked_fill(void[:, None], 1.0).norm(dim=1) * scale * ~void


def gap(one: Tensor, two: Tensor) -> float:
    return float((one.double() - two).norm() / two.norm())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["random", "leaky", "dead", "small", "large", "nearly equal units"])
def test_norms_and_gradients_of_explicit_rows(kind: str, dtype: torch.dtype) -> None:
    last, first, slopes = network(kind)
    rows = questions()
    weight = torch.linspace(-1, 2, len(rows[0]), dtype=torch.float64)
    weight[::3] = 0.0  # hinges that are not active
    exact = [last.clone().requires_grad_(), first.clone().requires_grad_()]
    expected = of_rows(*exact, slopes, rows)
    slope = torch.autograd.grad((expected * weight).sum(), exact)
    given = [part.detach().to(dtype).requires_grad_() for part in exact]
    found = GramNorms.apply(*given, slopes.to(dtype), rows)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    # Rows of a thousandth of their terms lose three digits, however they are made.
    tolerance *= 1e3 if kind == "nearly equal units" else 1
    errors = (found.detach().double() - expected.detach()).abs()
    assert bool((errors <= tolerance * expected.detach()).all())
    for one, two in zip(torch.autograd.grad((found * weight.to(dtype)).sum(), given), slope, strict=True):
        assert gap(one, two) <= 5 * tolerance


def test_the_matrix_alone_is_not_enough_where_terms_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    last, first, slopes = (part.float() for part in network("nearly equal units"))
    rows = questions()
    expected = of_rows(last.double(), first.double(), slopes.double(), rows)
    with_rows = GramNorms.apply(last, first, slopes, rows)
    monkeypatch.setattr(_gram_norms, "LEAST_SHARE", 0.0)
    without = GramNorms.apply(last, first, slopes, rows)
    largest = [float(((norms - expected).abs() / expected).max()) for norms in (with_rows, without)]
    assert largest[0] < 1e-4
    assert largest[1] > 1e-2


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 64, 101])
def test_the_matrix_is_complete(count: int) -> None:
    rows = torch.randn(count, 6, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    torch.testing.assert_close(gram(rows), rows @ rows.T)


def test_no_rows() -> None:
    last, first, slopes = network("random")
    none = torch.zeros(0, dtype=torch.long)
    last.requires_grad_()
    found = GramNorms.apply(last, first, slopes, (none, none, none))
    assert found.shape == (0,)
    assert not torch.autograd.grad(found.sum(), last)[0].any()


def test_the_matrix_pays_where_inputs_are_many_and_rows_more_than_units() -> None:
    assert gram_pays(128 * 42, 1024, 3072)
    assert not gram_pays(128 * 9, 1024, 784)
    assert not gram_pays(10, 1024, 3072)
    assert not gram_pays(10**6, 1024, 1000)


def deep(*, dependent: bool) -> Network:
    """Three hidden layers of matrices behind more inputs; `dependent` has equal rows and a row of zeros in the first."""
    between = nn.LeakyReLU(0.1)
    layers = [nn.Linear(40, 6), nn.ReLU(), nn.Linear(6, 5), between, nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)]
    module = randomised(nn.Sequential(*layers), 5).double()
    if dependent:
        with torch.no_grad():
            module[0].weight[1] = -2 * module[0].weight[0]
            module[0].weight[2] = 0.0
    return Network(module, (40,)).eval()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dependent", [False, True])
def test_norms_and_gradients_in_few_coordinates(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, *, dependent: bool
) -> None:
    """Of a chain of matrices, against the rows by float64 autograd through the graph."""
    net = deep(dependent=dependent)
    x = torch.randn(12, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.arange(12) % 3
    region = LinearRegion.at(net, x)
    places = torch.arange(region.count).expand(len(x), -1)
    rows = torch.cat([region.rows(places), region.decision_rows(y)], 1)
    void = (rows == 0).all(2)
    expected = rows.masked_fill(void[:, :, None], 1.0).norm(dim=2).masked_fill(void, 0.0)
    weight = torch.rand(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weights = [layer.weight for layer in net.module if isinstance(layer, nn.Linear)]
    slopes = torch.autograd.grad((expected * weight).sum(), weights)
    same = deep(dependent=dependent).to(dtype)
    used: list[int] = []
    monkeypatch.setattr(row_norms, "rotation_pays", lambda *sizes: used.append(len(sizes)) or rotation_pays(*sizes))
    found = torch.cat(hyperplane_norms(LinearRegion(same, region.patterns, len(x)), y, 2.0), 1)
    assert used
    assert rotation_pays(12 * 12, 6, 40)
    tolerance = 1e-11 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found.detach().double(), expected.detach(), rtol=tolerance, atol=tolerance)
    given = [layer.weight for layer in same.module if isinstance(layer, nn.Linear)]
    for one, two in zip(torch.autograd.grad((found * weight.to(dtype)).sum(), given), slopes, strict=True):
        assert gap(one, two) <= tolerance
