"""Bounds of a first convolution from receptive fields are those of the rows written out, and charge no more for rounding."""

from __future__ import annotations

import copy
import math
from fractions import Fraction

import pytest
import torch
from torch import nn

from exact import fractions
from relucert.bounding import preactivations
from relucert.bounding.methods.crown import CROWN
from relucert.bounding.preactivations import UnitBounds
from relucert.core.ball import Ball
from relucert.networks.affine_map import leading_convolution
from relucert.networks.network import Network
from zoo import inputs, randomised

CONVOLUTIONS = {
    "plain": nn.Conv2d(2, 3, 3),
    "padded": nn.Conv2d(2, 3, 3, padding=2),
    "strided": nn.Conv2d(2, 4, 4, stride=(2, 3), padding=1),
    "dilated": nn.Conv2d(2, 3, 2, dilation=2, padding=(0, 2)),
    "groups": nn.Conv2d(2, 4, 3, groups=2, padding=1),
}


def net_of(kind: str, dtype: torch.dtype) -> Network:
    """A convolution between a normalisation and a batch norm, then a linear layer."""
    conv = copy.deepcopy(CONVOLUTIONS[kind])
    size = conv(torch.zeros(1, 2, 6, 7)).numel()
    module = nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU(), nn.Flatten(), nn.Linear(size, 3))
    return Network(randomised(module).eval(), (2, 6, 7), mean=(0.3, 0.4), std=(0.5, 0.25)).to(dtype)


def bounds_of(net: Network, x: torch.Tensor, ball: Ball, executed: torch.dtype | None) -> UnitBounds:
    with torch.no_grad():
        return CROWN().start(net, x, ball, executed)


@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("box", [None, (0.1, math.inf)])
def test_bounds_are_those_of_rows_written_out(kind, p, box, monkeypatch):
    for dtype, near in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
        net = net_of(kind, dtype)
        x = inputs(net, 3).clamp(0.1, 1)
        ball = Ball(p, torch.tensor([0.0, 0.2, 5.0]), box)
        first = net.switches[0]
        assert leading_convolution(net.graph, first.inputs[0]) is not None
        for executed in (None, torch.float32):
            found = bounds_of(net, x, ball, executed).inputs[first.index]
            with monkeypatch.context() as patched:
                patched.setattr(preactivations, "leading_convolution", lambda graph, node: None)
                other = bounds_of(net, x, ball, executed).inputs[first.index]
            if executed is None:
                torch.testing.assert_close(found.lower, other.lower, rtol=near, atol=near)
                torch.testing.assert_close(found.upper, other.upper, rtol=near, atol=near)
            else:  # sums on a receptive field have fewer terms
                width = (other.upper - other.lower) * (1 + near) + near * (1 + other.upper.abs())
                assert bool((found.upper - found.lower <= width)[found.unstable].all())
                assert not bool((found.unstable & ~other.unstable).any())


@pytest.mark.parametrize("kind", ["plain", "strided"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("p", [1.0, math.inf])
def test_charged_bounds_hold_exactly(kind, dtype, p):
    """Over l_1 and l_inf balls without a box the ends are known in rational arithmetic: W x + b -+ eps ||w||."""
    conv = randomised(nn.Conv2d(2, 2, 3, stride=2 if kind == "strided" else 1, padding=1), 3)
    net = Network(
        nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(conv(torch.zeros(1, 2, 4, 4)).numel(), 2)), (2, 4, 4)
    ).to(dtype)
    x, eps = inputs(net, 2), 0.3
    node = net.switches[0]
    within = bounds_of(net, x, Ball(p, eps, None), dtype).inputs[node.index]
    op = net.to(torch.float64).graph[node.inputs[0]].op  # probes of a convolution find its weights, exactly
    assert op.kind == "conv2d"
    probes = torch.eye(32, dtype=torch.float64).reshape(32, 2, 4, 4)
    rows = [fractions(row) for row in op.linear(probes).flatten(1).T]
    offsets = fractions(op.offset(probes).flatten())
    for b in range(2):
        centre = fractions(x[b].flatten())
        ends = zip(within.lower[b].flatten().tolist(), within.upper[b].flatten().tolist(), strict=True)
        for row, offset, (lower, upper) in zip(rows, offsets, ends, strict=True):
            value = sum((w * z for w, z in zip(row, centre, strict=True)), offset)
            length = max(map(abs, row)) if p == 1 else sum(map(abs, row), Fraction(0))
            assert Fraction(lower) <= value - Fraction(eps) * length
            assert Fraction(upper) >= value + Fraction(eps) * length
            assert Fraction(upper) - Fraction(lower) <= 2 * Fraction(eps) * length * (1 + Fraction(1, 1000)) + Fraction(
                1, 1000
            )
