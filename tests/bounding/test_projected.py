"""Margins by random projections: they approach Kolter and Wong's as the number of projections grows."""

from __future__ import annotations

import math

import pytest
import torch

import zoo
from relucert.bounding.methods.kw import KW
from relucert.bounding.projected import projected_margins
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput, UnsupportedLayer


@pytest.mark.parametrize("name", ["fc deep", "cnn", "leaky", "dense", "grouped"])
@pytest.mark.parametrize(("p", "eps", "box"), [(math.inf, 0.03, (0, 1)), (2.0, 0.1, None)])
def test_estimates_approach_the_bound(name: str, p: float, eps: float, box: tuple[int, int] | None) -> None:
    net, x, prop = zoo.problem(name)
    ball = Ball(p, eps, box)
    exact = KW().solve(net, x, ball, prop)[1].detach()
    width = (KW().solve(net, x, ball.with_eps(1e-9), prop)[1].detach() - exact).amax()
    gaps = []
    for projections in (10, 4000):
        found = projected_margins(net, x, ball, prop, projections, torch.Generator().manual_seed(0))
        gaps.append(float((found.detach() - exact).abs().max() / width))
    assert gaps[1] < 0.1
    assert gaps[1] < gaps[0]


def test_estimates_have_gradients() -> None:
    net, x, prop = zoo.problem("cnn")
    margins = projected_margins(net, x, Ball(math.inf, 0.05), prop, 20, torch.Generator().manual_seed(0))
    gradients = torch.autograd.grad(margins.sum(), list(net.parameters()))
    assert all(bool(gradient.isfinite().all()) and bool((gradient != 0).any()) for gradient in gradients)


def test_what_has_no_estimate_is_refused() -> None:
    net, x, prop = zoo.problem("fc")
    with pytest.raises(InvalidInput, match="p must be 2 or inf"):
        projected_margins(net, x, Ball(1, 0.1), prop, 5, torch.Generator())
    net, x, prop = zoo.problem("max pool")
    with pytest.raises(UnsupportedLayer, match="max_pool"):
        projected_margins(net, x, Ball(math.inf, 0.1), prop, 5, torch.Generator())
