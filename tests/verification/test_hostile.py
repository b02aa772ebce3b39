"""Networks made to fool rounding: rows and constants that cancel, numbers that vanish, numbers beyond the range."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import relucert as rc
from relucert.core.results import Verdict
from relucert.networks.network import Network

CERTIFY = ("region", "universal", "ibp", "crown", "alpha", "lipschitz", "bab(nodes=20)", "mip(seconds=2)")
RADIUS = (
    "region", "region(regions=0)", "region(regions=1)", "region(regions=None)", "region(facets=False)", "universal",
    "crown",
    "bab(nodes=20)", "mip(seconds=0.5)",
)  # fmt: skip


def layers(*pairs: tuple[list[list[float]], list[float]], dtype: torch.dtype = torch.float64) -> list[nn.Linear]:
    """Linear layers with the given weights and biases."""
    made = []
    for weight, bias in pairs:
        layer = nn.Linear(len(weight[0]), len(weight)).to(dtype)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(weight, dtype=dtype))
            layer.bias.copy_(torch.tensor(bias, dtype=dtype))
        made.append(layer)
    return made


def cancelling_row() -> tuple[Network, float, float]:
    """A unit x - 0.3 whose row is computed as zero: 1 + 1e17 - 1e17; the distance from 0.25 is about 0.137."""
    first, second, last = layers(
        ([[1.0]] * 4, [0.0] * 4),
        ([[1.0, 1e17, -1e17, 0.0], [0.0, 0.0, 0.0, 1.0]], [-0.3, 1.0]),
        ([[0.0, 0.0], [100.0, 1.0]], [10.0, 0.0]),
    )
    return Network(nn.Sequential(first, second, nn.ReLU(), last), (1,)).eval(), 0.25, 0.137


def cancelling_constant(weights: list[float]) -> tuple[Network, float, float]:
    """A unit that is constant and on, but computed as zero or off: the class at x itself is another."""
    count = len(weights)
    first, second, last = layers(
        ([[0.0]] * count + [[1.0]], [1.0] * count + [0.0]),
        ([[*weights, 0.0], [0.0] * count + [1.0]], [0.0, 0.0]),
        ([[0.0, 1.0], [1.0, 2.0]], [0.75, 0.0]),
    )
    return Network(nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last), (1,)).eval(), 0.1, 0.0


def vanishing() -> tuple[Network, float, float]:
    """Weights whose products vanish below the smallest number, though the values do not: the class changes at 0.5."""
    parts = layers(
        ([[1e150]], [0.0]), ([[1e150]], [0.0]), ([[1e-170]], [0.0]), ([[0.0], [1e-170]], [0.5e-40, 0.0])
    )  # fmt: skip
    module = nn.Sequential(parts[0], nn.ReLU(), parts[1], nn.ReLU(), parts[2], nn.ReLU(), parts[3])
    return Network(module, (1,)).eval(), 0.25, 0.25


NETWORKS = {
    "cancelling row": cancelling_row,
    "constant computed as zero": lambda: cancelling_constant([1.0, 1e17, -1e17]),
    "constant computed as off": lambda: cancelling_constant([1e17, 7.0, 7.0, -1e17, -13.0]),
    "vanishing products": vanishing,
}


@pytest.mark.parametrize("box", [(0.0, 1.0), None])
@pytest.mark.parametrize("method", RADIUS)
@pytest.mark.parametrize("name", NETWORKS)
def test_radii_do_not_exceed_the_distance(name, method, box):
    net, centre, truth = NETWORKS[name]()
    x, y = torch.tensor([[centre]], dtype=torch.float64), torch.tensor([0])
    if int(net.predict(x)) != 0:
        pytest.skip("the order of summation of this machine makes the executed class another")
    assert float(rc.radius(net, x, y, math.inf, box, method, timeout=1.0).lower) <= truth


@pytest.mark.parametrize("method", CERTIFY)
@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_not_robust_is_not_called_so(name, method):
    net, centre, truth = NETWORKS[name]()
    x, y = torch.tensor([[centre]], dtype=torch.float64), torch.tensor([0])
    found = rc.certify(net, x, y, rc.Ball(math.inf, 1.1 * truth + 0.01), method)
    assert found.verdict[0] is not Verdict.ROBUST


@pytest.mark.parametrize("method", CERTIFY)
def test_values_beyond_the_range_of_the_dtype_prove_nothing_of_the_executed_network(method):
    """In real arithmetic class 0 wins everywhere; in float32 the sum of two infinities makes the executed class another."""
    first, last = layers(
        ([[1e19], [1e19]], [0.0, 0.0]), ([[0.0, 0.0], [1e19, -2e19]], [0.0, -1e37]), dtype=torch.float32
    )
    net = Network(nn.Sequential(first, nn.ReLU(), last), (1,)).eval()
    x, y = torch.tensor([[0.5]]), torch.tensor([0])
    assert int(net.predict(x)) == 0
    assert int(net.predict(torch.tensor([[6.0]]))) == 1
    ball = rc.Ball(math.inf, 10.0, box=(0.0, 20.0))
    assert rc.certify(net, x, y, ball, method).arithmetic[0] != "executed"
    assert rc.certify(net, x, y, ball, method, arithmetic="executed").verdict[0] is not Verdict.ROBUST


class Repeated(nn.Module):
    """One input taken three times by a constant selection, with weights that cancel in the adjoint: 1 + 1e17 - 1e17."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("index", torch.tensor([0, 0, 0]))
        self.first, self.last = layers(
            ([[1.0, 1e17, -1e17], [1.0, 0.0, 0.0]], [-0.3, 1.0]), ([[0.0, 0.0], [100.0, 1.0]], [10.0, 0.0])
        )

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(z[:, self.index])))


@pytest.mark.parametrize(
    "method", ["region", "region(regions=0)", "region(regions=1)", "region(regions=None)", "region(facets=False)"]
)
def test_rows_behind_a_repeated_entry_are_not_taken_for_exact(method):
    net = Network(Repeated(), (1,)).eval()
    x, y = torch.tensor([[0.25]], dtype=torch.float64), torch.tensor([0])
    if int(net.predict(x)) != 0:
        pytest.skip("the order of summation of this machine makes the executed class another")
    assert float(rc.radius(net, x, y, math.inf, (0.0, 1.0), method).lower) <= 0.137
