from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.linear_minimum import linear_minimum
from relucert.core.norms import norm
from relucert.core.offsets import projected_offset
from relucert.core.rounding import cast_up, relative_rounding, rounded_inwards, sum_up

P = [1.0, 1.02, 1.1, 1.5, 2.0, 3.0, 40.0, math.inf]
DTYPES = [torch.float32, torch.float64]
numbers = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-3, 3, width=32))
pixels = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1, width=32))
radii = st.one_of(st.sampled_from([0.0, 0.5]), st.floats(2.0**-7, 6, width=32))


@st.composite
def problems(draw) -> tuple[torch.Tensor, torch.Tensor, float, tuple[float, float] | None]:
    """x and z (1, n), eps and box."""
    n = draw(st.integers(1, 6))
    x, z = (torch.tensor([draw(st.lists(part, min_size=n, max_size=n))]) for part in (pixels, numbers))
    return x.double(), z.double(), draw(radii), draw(st.sampled_from([None, (0.0, 1.0)]))


@pytest.mark.parametrize("p", P)
@settings(max_examples=40, deadline=None)
@given(problem=problems(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 1000))
def test_the_projection_is_in_the_set_and_no_point_of_the_set_is_nearer(p, problem, dtype, seed):
    x, z, eps, box = problem
    x, z, ball = x.to(dtype), z.to(dtype), Ball(p, eps, box)
    near = ball.project(x, z)
    assert near.dtype == dtype
    assert ball.contains(x, near).all()
    assert torch.equal(ball.project(x, near), near)
    # A point of a convex set is the nearest one to z if and only if the set lies behind the hyperplane through the point with
    # normal z - near. The farthest point of the set along that normal is a linear minimum, which proves optimality.
    normal = z.double() - near.double()
    wide = Ball(p, eps, box)
    farthest = -wide.minimum(x.double(), -normal.unsqueeze(1)).value[0, 0]
    excess = farthest - (normal * (near.double() - x.double())).sum()
    assert excess.item() <= 64 * torch.finfo(dtype).eps * (1 + normal.abs().sum().item()) * x.shape[1]
    points = ball.sample(x, torch.Generator().manual_seed(seed), count=20).double()
    ahead = ((points - near.double()) * normal).sum(-1)
    assert bool((ahead <= 64 * torch.finfo(dtype).eps * (1 + normal.abs().sum()) * x.shape[1]).all())


@pytest.mark.parametrize("p", P)
def test_the_projection_has_a_certificate_in_many_dimensions(p):
    generator = torch.Generator().manual_seed(0)
    shape = (60, 100)
    v = torch.randn(shape, generator=generator, dtype=torch.float64)
    v *= torch.logspace(-1, 2, 60, dtype=torch.float64)[:, None]
    below, above = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    below *= torch.rand(shape, generator=generator) < 0.7
    eps = torch.logspace(-2, 2, 60, dtype=torch.float64)[torch.randperm(60, generator=generator)]
    near = projected_offset(v, p, eps, below, above)
    assert bool(((near >= -below) & (near <= above)).all())
    assert bool((norm(near, p) <= eps * (1 + 1e-12)).all())
    normal = v - near
    farthest, _ = linear_minimum(-normal.unsqueeze(1), p, eps, below, above)
    touching = (normal * near).sum(-1)
    torch.testing.assert_close(-farthest.squeeze(1), touching, rtol=1e-11, atol=1e-12)
    assert (
        5 < int((norm(near, p) > eps * (1 - 1e-9)).sum()) < 60
    )  # the ball is active in some rows and inactive in others


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_the_projection_agrees_with_a_general_solver(p):
    x, z, eps = np.array([0.0, 0.9, 0.5, 0.2]), np.array([-0.7, 1.4, 1.1, 0.9]), 0.6
    found = minimize(
        lambda y: ((y - z) ** 2).sum(), np.clip(x, 0.01, 0.99), jac=lambda y: 2 * (y - z), method="SLSQP",
        bounds=[(0, 1)] * 4,
        constraints={"type": "ineq", "fun": lambda y: eps**p - (np.abs(y - x) ** p).sum(),
                     "jac": lambda y: -p * np.sign(y - x) * np.abs(y - x) ** (p - 1)},
        options={"ftol": 1e-15, "maxiter": 500},
    )  # fmt: skip
    near = Ball(p, eps).project(torch.tensor(x)[None], torch.tensor(z)[None])
    np.testing.assert_allclose(near[0].numpy(), found.x, atol=1e-6)


def test_the_projection_onto_the_cross_polytope_by_hand():
    x = torch.zeros(1, 3, dtype=torch.float64)
    near = Ball(1, 1.0, (-1, 0.25)).project(x, torch.tensor([[2.0, -0.9, 0.3]], dtype=torch.float64))
    torch.testing.assert_close(near, torch.tensor([[0.25, -0.675, 0.075]], dtype=torch.float64), rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("dtype", DTYPES)
def test_eps_is_per_example_and_infinite_eps_leaves_the_box(p, dtype):
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(5, 1, 3, 3, generator=generator, dtype=dtype)
    z = 3 * torch.randn(5, 1, 3, 3, generator=generator, dtype=dtype)
    eps = torch.tensor([0.0, 0.1, 0.7, 50.0, math.inf], dtype=torch.float64)
    together = Ball(p, eps).project(x, z)
    assert torch.equal(together[0], x[0])
    assert torch.equal(together[4], z[4].clamp(0, 1))
    for i in range(5):
        assert torch.equal(Ball(p, eps[i].item()).project(x[i : i + 1], z[i : i + 1])[0], together[i])


@pytest.mark.parametrize("p", P)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), dtype=st.sampled_from(DTYPES), power=st.integers(-30, 10), size=st.integers(1, 40))
def test_rounding_inwards_ends_inside_and_moves_by_little(p, seed, dtype, power, size):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(4, size, generator=generator, dtype=dtype)
    eps = 2.0**power * torch.rand(4, generator=generator, dtype=torch.float64)
    direction = torch.randn(4, size, generator=generator, dtype=torch.float64)
    offset = direction * (eps / norm(direction, p))[:, None]
    wide = x.double() + offset * (1 + 1e-7)
    near = rounded_inwards(x, wide, p, eps, None, None)
    assert bool((norm(near.double() - x.double(), p) <= eps).all())
    spacing = torch.finfo(dtype).eps * (x.abs().double() + offset.abs())
    lost = 1e-6 + 4 * norm(spacing, p) / eps if math.isfinite(p) else torch.full_like(eps, 1e-6)
    assert bool(((near.double() - wide).abs() <= 2 * spacing + offset.abs() * lost[:, None]).all())


def test_sums_are_rounded_up():
    generator = torch.Generator().manual_seed(4)
    a, b = (torch.randn(2000, generator=generator, dtype=torch.float64) for _ in range(2))
    total = sum_up(a, b * 1e-3)
    exact = [np.longdouble(p) + np.longdouble(q) for p, q in zip(a.tolist(), (b * 1e-3).tolist(), strict=True)]
    assert all(found >= value for found, value in zip(total.tolist(), exact, strict=True))
    assert bool((total <= torch.nextafter(a + b * 1e-3, torch.full_like(a, math.inf))).all())
    assert sum_up(torch.tensor([0.5], dtype=torch.float64), torch.tensor([0.25], dtype=torch.float64)).item() == 0.75


def test_casts_are_rounded_up_to_the_next_number():
    values = torch.randn(2000, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    cast = cast_up(values, torch.float32)
    assert bool((cast.double() >= values).all())
    assert bool((torch.nextafter(cast, torch.full_like(cast, -math.inf)).double() < values).all())
    assert torch.equal(cast_up(cast.double(), torch.float32), cast)


def test_the_relative_rounding_covers_sums_in_any_order():
    generator = torch.Generator().manual_seed(6)
    values = torch.rand(3000, generator=generator)
    exact = math.fsum(values.tolist())
    for order in (values, values.flip(0), values.sort().values, values.sort(descending=True).values):
        total = np.float32(0)
        for value in order.numpy():
            total = np.float32(total + value)
        assert abs(float(total) - exact) <= relative_rounding(3000, torch.float32) * exact


@pytest.mark.parametrize(
    ("z", "message"),
    [
        (torch.zeros(2, 4), r"z must have the shape \(2, 3\) of x, got \(2, 4\)"),
        (torch.tensor([[0.0, 0.0, 0.0], [0.0, math.nan, 0.0]]), "z must be finite, got nan in example 1"),
    ],
)
def test_a_wrong_point_is_refused(z, message):
    with pytest.raises(InvalidInput, match=message):
        Ball(2, 0.5).project(torch.zeros(2, 3), z)
