"""Convolutions and their adjoints have the values and the first and second gradients of torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relucert.networks.layers.convolution import PHASED, Geometry, adjoint, convolved, phased_adjoint, suits
from relucert.networks.network import Network
from relucert.networks.nodes import Affine

# channels, maps, kernel, stride, padding, dilation
SHAPES = {
    "plain": (2, 3, (3, 3), (1, 1), (1, 1), (1, 1)),
    "narrow": (1, 2, (1, 3), (1, 1), (0, 0), (1, 1)),
    "dilated": (2, 2, (3, 2), (1, 1), (2, 1), (2, 1)),
    "padded beyond the filter": (2, 2, (2, 2), (1, 1), (3, 2), (1, 1)),
    "phases": (2, 3, (4, 4), (2, 2), (1, 1), (1, 1)),
    "phases with a rest": (2, 3, (3, 2), (2, 3), (1, 0), (1, 1)),
    "many channels with a stride": (PHASED + 1, 1, (2, 2), (2, 2), (0, 0), (1, 1)),
    "one stride alone": (2, 2, (2, 3), (1, 2), (0, 1), (1, 1)),
    "dilated with a stride": (2, 2, (2, 2), (2, 2), (1, 1), (2, 2)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients_are_those_of_torch(name: str) -> None:
    channels, maps, kernel, stride, padding, dilation = SHAPES[name]
    torch.manual_seed(0)
    geometry = Geometry((channels, 5, 6), stride, padding, dilation)
    z = torch.randn(2, *geometry.size, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(maps, channels, *kernel, dtype=torch.float64, requires_grad=True)
    value = F.conv2d(z, weight, None, stride, padding, dilation)
    y = torch.randn_like(value).requires_grad_()
    (back,) = torch.autograd.grad(value, z, y, create_graph=True)
    assert torch.equal(convolved(z, weight, geometry), value)
    same_twice(convolved(z, weight, geometry), value, (z, weight))
    same_twice(adjoint(y, weight, geometry), back, (y, weight))


def same_twice(found: Tensor, expected: Tensor, leaves: tuple[Tensor, Tensor]) -> None:
    """Values, gradients, and gradients of a function of gradients are the same."""
    torch.testing.assert_close(found, expected)
    ahead = torch.randn_like(expected).requires_grad_()
    first = [torch.autograd.grad(value, leaves, ahead, create_graph=True) for value in (found, expected)]
    torch.testing.assert_close(*first)
    sums = [sum(slope.square().sum() for slope in slopes) for slopes in first]
    second = [torch.autograd.grad(total, (*leaves, ahead)) for total in sums]  # type: ignore[arg-type]
    torch.testing.assert_close(*second)


def test_phases_are_woven_into_the_image() -> None:
    y, weight = torch.randn(3, 2, 3, 3), torch.randn(2, 1, 4, 4)
    expected = F.conv_transpose2d(y, weight, None, 2, 1, 1)
    torch.testing.assert_close(phased_adjoint(y, weight, (2, 2), (1, 1), (1, 7, 7)), expected)


def test_what_belongs_here() -> None:
    assert suits(torch.zeros(2, 1, 3, 3), 1)
    assert not suits(torch.zeros(2, 1, 3, 3), 2)
    assert not suits(torch.zeros(1, 1, 3, 3), 1)
    assert not suits(torch.zeros(2, 1, 3, 3).double(), 1)
    assert not suits(torch.zeros(2, 1, 3, 3, device="meta"), 1)


PARTS = {
    "conv": lambda: nn.Conv2d(2, 3, 3, padding=1),
    "conv with a stride": lambda: nn.Conv2d(2, 3, 4, 2, 1),
    "grouped": lambda: nn.Conv2d(2, 4, 3, groups=2),
    "average": lambda: nn.AvgPool2d(2),
    "average over the edge": lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_inputs_have_the_values_of_few(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = Network(nn.Sequential(PARTS[name](), nn.ReLU(), nn.Flatten()), (2, 8, 8)).to(dtype)
    op = net.graph[1].op
    assert isinstance(op, Affine)
    z = torch.randn(5, 2, 8, 8, dtype=dtype, requires_grad=True)
    many, few = op.linear_of_many(z), op.linear(z)
    torch.testing.assert_close(many, few)
    y = torch.randn_like(few)
    found, expected = (torch.autograd.grad(value, z, y)[0] for value in (many, few))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(op.transpose(y)[0], expected)
