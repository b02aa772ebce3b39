"""Kolter-Wong bounds for training: losses and gradients are those of backward propagation under autograd."""

from __future__ import annotations

import math

import pytest
import torch

import zoo
from geometry.test_screening import NETWORKS, network
from relucert.bounding import _gradient_bounds
from relucert.bounding._gradient_bounds import GradientBounds
from relucert.core.ball import Ball
from relucert.training._schedules import Tightening
from relucert.training.losses.bounded import Bounded, worst_cross_entropy


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", NETWORKS)
def test_loss_and_gradient_are_those_of_autograd(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network(name, dtype)
    x = zoo.inputs(net, 4)
    y = torch.arange(4) % net.classes
    weights = list(net.parameters())
    for p, eps in ((1.0, 0.5), (2.0, 0.2), (3.0, 0.2), (math.inf, 0.05)):
        for box in ((0, 1), None):
            loss = Bounded(method="kw", ball=Ball(p, eps, box), tightening=Tightening(0, 0.4))
            found = worst_cross_entropy(loss.margins(net, x, y)).mean()
            with monkeypatch.context() as patch:
                patch.setattr(GradientBounds, "serves", lambda self, relaxations: False)
                expected = worst_cross_entropy(loss.margins(net, x, y)).mean()
            one, two = (torch.autograd.grad(value, weights, allow_unused=True) for value in (expected, found))
            size = math.sqrt(sum(float(part.square().sum()) for part in one if part is not None))
            gap = math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(one, two, strict=True) if a is not None))
            tolerance = 1e-9 if dtype == torch.float64 else 1e-5
            assert abs(float((expected - found).detach())) <= tolerance * float(expected.detach()), (p, box)
            assert gap <= tolerance * size, (p, box)


@pytest.mark.parametrize("name", ["cnn", "fc deep"])
def test_rows_that_do_not_fit_into_memory_are_made_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network(name, torch.float64)
    x, y = zoo.inputs(net, 4), torch.arange(4) % net.classes
    loss = Bounded(method="kw", ball=Ball(math.inf, 0.05), tightening=Tightening(0, 0.4))
    found = []
    for kept in (_gradient_bounds.KEPT, 0):
        monkeypatch.setattr(_gradient_bounds, "KEPT", kept)
        value = worst_cross_entropy(loss.margins(net, x, y)).mean()
        found.append(torch.autograd.grad(value, list(net.parameters())))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)
