"""Points of a ball lie in it in exact arithmetic, for every p and dtype, and `contains` accepts no other point."""

from __future__ import annotations

import math

import pytest
import torch

from exact import length_at_most
from relucert.core.ball import Ball
from relucert.core.rounding import length_up

P = (1.0, 1.5, 2.0, 3.0, math.inf)
DTYPES = (torch.float32, torch.float64)


def assert_inside(ball: Ball, x: torch.Tensor, z: torch.Tensor) -> None:
    """Every point lies in ball and box in exact arithmetic."""
    lower, upper = ball.bounds(x)
    assert bool(((z >= lower) & (z <= upper)).all())
    radii = ball._radii(x).tolist()
    outside = [i for i, eps in enumerate(radii) if not length_at_most(x[i], z[i], float(ball.p), eps)]
    assert not outside, f"outside by rounding: {outside}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("size", [2, 7, 200])
def test_projections_minimisers_and_samples_lie_in_the_ball(p, dtype, size):
    generator = torch.Generator().manual_seed(size)
    x = torch.rand(12, size, generator=generator, dtype=torch.float64).to(dtype)
    for scale, box in ((1e-3, None), (0.3, (0.0, 1.0)), (1e-290, None), (1e-320, None)):
        if scale < 1e-30 and dtype == torch.float32:
            continue
        eps = scale * (0.5 + torch.rand(12, generator=generator, dtype=torch.float64))
        centre = torch.zeros_like(x) if scale < 1e-30 else x
        ball = Ball(p, eps, box)
        far = (centre.double() + 3 * scale * torch.randn(12, size, generator=generator, dtype=torch.float64)).to(dtype)
        assert_inside(ball, centre, ball.project(centre, far))
        rows = torch.randn(12, size, generator=generator, dtype=torch.float64).to(dtype)
        nearest = ball.minimum(centre, rows, point=True).point
        assert nearest is not None
        assert_inside(ball, centre, nearest)
        assert_inside(ball, centre, ball.sample(centre, generator))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", P)
def test_contains_is_as_strict_as_exact_arithmetic(p, dtype):
    """Points at the radius, up to a few units in the last place: none that lies outside is accepted.

    Where p is a whole number or infinite, none that lies inside is refused either.
    """
    generator, accepted, refused = torch.Generator().manual_seed(3), 0, 0
    for size in (1, 2, 20):
        x = torch.rand(20, size, generator=generator, dtype=torch.float64).to(dtype)
        z = (x.double() + 0.1 * torch.randn(20, size, generator=generator, dtype=torch.float64)).to(dtype)
        upper = length_up(x, z, p)
        # The radius is the length rounded up, and its neighbours below, further and further.
        for step in range(8):
            eps = upper * (1 - step * (1 + size) * 2.0**-54)
            inside = Ball(p, eps, None).contains(x, z).tolist()
            for i, claimed in enumerate(inside):
                truth = length_at_most(x[i], z[i], p, float(eps[i]))
                assert truth or not claimed, (size, step, i)
                assert claimed or not truth or p == 1.5, (size, step, i)
                accepted, refused = accepted + claimed, refused + (not claimed)
    assert accepted > 50
    assert refused > 50


@pytest.mark.parametrize("p", P)
def test_tiny_balls_contain_no_more_than_they_should(p):
    """Far below the smallest normal number squares vanish and errors are not relative any more."""
    generator = torch.Generator().manual_seed(4)
    for scale in (1e-160, 1e-291, 1e-305, 1e-320):
        z = scale * torch.randn(20, 3, generator=generator, dtype=torch.float64)
        x = torch.zeros_like(z)
        for factor in (1 - 1e-15, 1.0, 1 + 1e-15):
            eps = length_up(x, z, p) * factor
            for i, claimed in enumerate(Ball(p, eps, None).contains(x, z).tolist()):
                assert length_at_most(x[i], z[i], p, float(eps[i])) or not claimed


@pytest.mark.parametrize("p", P)
def test_lengths_are_never_below_the_exact_ones(p):
    generator = torch.Generator().manual_seed(5)
    for size in (1, 3, 50):
        for scale in (1e-320, 1e-300, 1e-3, 1.0, 1e150):
            x = scale * torch.randn(8, size, generator=generator, dtype=torch.float64)
            z = scale * torch.randn(8, size, generator=generator, dtype=torch.float64)
            for i, upper in enumerate(length_up(x, z, p).tolist()):
                assert length_at_most(x[i], z[i], p, upper), (size, scale, i)
