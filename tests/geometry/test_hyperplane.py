from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.norms import dual, norm
from relucert.geometry.hyperplane import free_distance, hyperplane_distance, hyperplane_projection

P = [1.0, 1.02, 1.5, 2.0, 3.0, 40.0, math.inf]
DTYPES = [torch.float32, torch.float64]
numbers = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-3, 3, width=16, allow_subnormal=False))
pixels = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1, width=16, allow_subnormal=False))


@st.composite
def problems(draw, coarse: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x (1, n), rows (1, 3, n) and margins (1, 3) in float64; with `coarse` multiples of 1/64."""
    n = draw(st.integers(1, 6))
    x = draw(st.lists(pixels, min_size=n, max_size=n))
    rows = [draw(st.lists(numbers, min_size=n, max_size=n)) for _ in range(3)]
    margin = draw(st.lists(numbers, min_size=3, max_size=3))
    points, planes, offsets = (torch.tensor([part], dtype=torch.float64) for part in (x, rows, margin))
    if coarse:
        points, planes, offsets = ((64 * part).round() / 64 for part in (points, planes, offsets))
    return points, planes, offsets


def random_problem(dtype: torch.dtype, batch: int = 4, rows: int = 12, size: int = 150, seed: int = 0):
    """Images with many black and white pixels, hyperplanes near and far."""
    generator = torch.Generator().manual_seed(seed)
    x = (1.6 * torch.rand(batch, size, generator=generator, dtype=torch.float64) - 0.3).clamp(0, 1)
    w = torch.randn(batch, rows, size, generator=generator, dtype=torch.float64)
    w *= torch.randn(batch, rows, size, generator=generator, dtype=torch.float64).exp()
    reach = torch.where(w > 0, w * x[:, None], w * (x[:, None] - 1)).sum(-1)
    margin = reach * torch.linspace(0.001, 0.999, rows, dtype=torch.float64)
    return x.to(dtype), w.to(dtype), margin.to(dtype)


def distance_by_program(x: np.ndarray, w: np.ndarray, m: float, p: float) -> float:
    """The distance for p = 1 and p = inf in the unit box as a linear program; z = x + up - down, t >= every |z_i - x_i|."""
    n = len(x)
    bounds = [(0, side) for side in np.concatenate([1 - x, x])] + [(0, None)]
    cost = np.concatenate([np.ones(2 * n), [0]]) if p == 1 else np.concatenate([np.zeros(2 * n), [1]])
    longest = np.concatenate([np.eye(n), np.eye(n), -np.ones((n, 1))], 1)
    found = linprog(cost, longest if p > 1 else None, np.zeros(n) if p > 1 else None,
                    np.concatenate([w, -w, [0]])[None], [-m], bounds=bounds)  # fmt: skip
    return found.fun if found.status == 0 else math.inf


def certified_distance(x: np.ndarray, w: np.ndarray, m: float, d: np.ndarray, p: float) -> float:
    """A lower bound proved from a candidate d: ||u||_q ||z - x||_p >= <u, z - x> = -t m + <u - t w, z - x> for every u and t.

    The last term is at least its minimum over the box. At the optimum u is the gradient of the norm at d, and t w wherever d is
    not cut off by the box.
    """
    q = dual(p)
    gradient = np.sign(d) * np.abs(d / np.abs(d).max()) ** (p - 1)
    cut = np.abs(d) >= np.where(w * m > 0, x, 1 - x) * (1 - 1e-14)
    bound = 0.0
    for t in np.unique(gradient[w != 0] / w[w != 0]):
        u = np.where(cut, gradient, t * w)
        rest = u - t * w
        least = -t * m - np.where(rest > 0, rest * x, -rest * (1 - x)).sum()
        size = np.abs(u).max()
        if size > 0:
            bound = max(bound, least / (size * ((np.abs(u) / size) ** q).sum() ** (1 / q)))
    return bound


@pytest.mark.parametrize("p", [1.0, math.inf])
@settings(max_examples=40, deadline=None)
@given(problem=problems(coarse=True))  # the solver takes numbers below 1e-7 for zero
def test_the_distance_is_that_of_the_linear_program(p, problem):
    x, rows, margin = problem
    found = hyperplane_distance(x, rows, margin, p, box=(0, 1))
    for w, m, distance in zip(rows[0].numpy(), margin[0].tolist(), found.distance[0].tolist(), strict=True):
        assert distance == pytest.approx(distance_by_program(x[0].numpy(), w, m, p), rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("p", P)
@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_the_distance_is_proved_and_attained(p, problem):
    x, rows, margin = problem
    found = hyperplane_projection(x, rows, margin, p, box=(0, 1))
    assert found.point is not None
    assert bool(((found.point >= 0) & (found.point <= 1)).all())
    assert bool((found.distance >= found.free).all())
    offset = (found.point - x.unsqueeze(1))[0].numpy()
    for i, (w, m, distance) in enumerate(
        zip(rows[0].numpy(), margin[0].tolist(), found.distance[0].tolist(), strict=True)
    ):
        most = np.where(w * np.sign(m) > 0, np.abs(w) * x[0].numpy(), np.abs(w) * (1 - x[0].numpy())).sum()
        if math.isinf(distance):
            assert most < abs(m) * (1 + 1e-9)
            assert (offset[i] == 0).all()
            continue
        assert most >= abs(m) * (1 - 1e-9)
        length = np.abs(offset[i]).max() if math.isinf(p) else (np.abs(offset[i]) ** p).sum() ** (1 / p)
        assert distance == pytest.approx(length, rel=1e-10, abs=1e-14)
        assert w @ offset[i] == pytest.approx(-m, rel=1e-9, abs=1e-12)  # so the distance is at most this length
        if 1 < p < math.inf and length > 0 and most > abs(m) * (1 + 1e-6):
            assert certified_distance(x[0].numpy(), w, m, offset[i], p) >= length * (1 - 1e-8)


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_the_distance_agrees_with_a_general_solver(p):
    x, w, m = np.array([0.0, 0.9, 0.5, 0.2]), np.array([2.0, -1.0, 0.5, 3.0]), 0.7
    found = minimize(
        lambda d: (np.abs(d) ** p).sum(), np.array([0.0, 0.05, -0.2, -0.1]), method="SLSQP",
        jac=lambda d: p * np.sign(d) * np.abs(d) ** (p - 1), bounds=list(zip(-x, 1 - x, strict=True)),
        constraints={"type": "eq", "fun": lambda d: w @ d + m, "jac": lambda d: w},
        options={"ftol": 1e-15, "maxiter": 500},
    )  # fmt: skip
    distance = hyperplane_distance(
        torch.tensor(x)[None], torch.tensor(w)[None, None], torch.tensor([[m]]), p, (0, 1)
    ).distance
    assert distance.item() == pytest.approx(found.fun ** (1 / p), rel=1e-6)


@pytest.mark.parametrize("p", P)
def test_the_minimum_over_the_ball_of_that_radius_just_reaches_the_hyperplane(p):
    x, rows, margin = random_problem(torch.float64)
    found = hyperplane_distance(x, rows, margin, p, box=(0, 1))
    assert found.distance.isfinite().all()
    assert bool((found.distance > found.free * (1 + 1e-6)).any())
    for row in range(rows.shape[1]):
        value = Ball(p, found.distance[:, row]).minimum(x, rows[:, row]).value
        torch.testing.assert_close(value, -margin[:, row], rtol=1e-9, atol=0.0)
    # The distance to the half space beyond is the same, also after mirroring the hyperplane.
    mirrored = hyperplane_distance(x, -rows, -margin, p, box=(0, 1))
    torch.testing.assert_close(mirrored.distance, found.distance, rtol=1e-13, atol=0.0)


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_ball_of_that_radius_goes_beyond_the_hyperplane(p, dtype):
    x, rows, margin = random_problem(dtype, size=10)
    found = hyperplane_distance(x, rows, margin, p, box=(0, 1))
    for row in range(rows.shape[1]):
        points = Ball(p, found.distance[:, row]).sample(x, torch.Generator().manual_seed(row), count=300)
        sides = (rows[:, row, None].double() * (points.double() - x[:, None].double())).sum(-1) + margin[
            :, row, None
        ].double()
        assert bool((sides >= -1e-15 * rows[:, row].double().abs().sum(-1, keepdim=True)).all())


@pytest.mark.parametrize("p", P)
def test_single_precision_is_rounded_down_from_double(p):
    x, rows, margin = random_problem(torch.float32)
    single = hyperplane_distance(x, rows, margin, p, box=(0, 1))
    double = hyperplane_distance(x.double(), rows.double(), margin.double(), p, box=(0, 1))
    for low, high in ((single.distance, double.distance), (single.free, double.free)):
        assert low.dtype == torch.float32
        assert bool((low.double() <= high).all())
        assert bool((torch.nextafter(low, torch.full_like(low, math.inf)).double() > high).all())


@pytest.mark.parametrize("p", P)
def test_an_early_stop_is_between_the_free_and_the_true_distance(p):
    x, rows, margin = random_problem(torch.float64)
    full = hyperplane_distance(x, rows, margin, p, box=(0, 1)).distance
    for steps in (0, 1, 2, 3):
        early = hyperplane_distance(x, rows, margin, p, box=(0, 1), max_iterations=steps)
        assert bool((early.distance >= early.free).all())
        assert bool((early.distance <= full * (1 + 1e-13)).all())


@pytest.mark.parametrize("p", P)
def test_without_a_box_it_is_the_margin_over_the_dual_norm(p):
    x, rows, margin = random_problem(torch.float64)
    found = hyperplane_projection(x, rows, margin, p)
    torch.testing.assert_close(found.distance, margin.abs() / norm(rows, dual(p), 2), rtol=1e-11, atol=0.0)
    assert torch.equal(found.distance, found.free)
    assert found.point is not None
    offset = found.point - x.unsqueeze(1)
    torch.testing.assert_close((rows * offset).sum(-1), -margin, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(norm(offset, p, 2), found.distance, rtol=1e-10, atol=0.0)
    wide = hyperplane_distance(x, rows, margin, p, box=(-1e6, 1e6))
    torch.testing.assert_close(wide.distance, found.distance, rtol=1e-11, atol=0.0)
    endless = hyperplane_distance(x, rows, margin, p, box=(-math.inf, math.inf))
    torch.testing.assert_close(endless.distance, found.distance, rtol=1e-11, atol=0.0)


@pytest.mark.parametrize("box", [None, (0.0, 1.0)])
@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_rows_zero_margins_and_hyperplanes_out_of_reach(p, box, dtype):
    x = torch.tensor([[0.0, 0.5]], dtype=dtype)
    rows = torch.tensor([[[0.0, 0.0], [0.0, 0.0], [1.0, 2.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]], dtype=dtype)
    margin = torch.tensor([[1.0, 0.0, 0.0, 0.25, 0.5, -0.75]], dtype=dtype)
    found = hyperplane_projection(x, rows, margin, p, box)
    expected = [math.inf, 0.0, 0.0, 0.25 if box is None else math.inf, 0.5, 0.75 if box is None else math.inf]
    torch.testing.assert_close(found.distance, torch.tensor([expected], dtype=dtype), rtol=1e-6, atol=0.0)
    assert found.point is not None
    assert found.point.isfinite().all()
    stays = ~found.distance.isfinite() | (found.distance == 0)
    assert bool((found.point == x.unsqueeze(1)).all(-1)[stays].all())


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("power", [-80, -30, 30, 80])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_distance_does_not_depend_on_the_scale_of_the_row(p, power, dtype):
    x, rows, margin = random_problem(dtype, size=30)
    found = hyperplane_distance(x, rows, margin, p, box=(0, 1)).distance
    scaled = hyperplane_distance(x, rows * 2.0**power, margin * 2.0**power, p, box=(0, 1)).distance
    torch.testing.assert_close(scaled, found, rtol=4 * torch.finfo(dtype).eps, atol=0.0)


@pytest.mark.parametrize("p", P)
def test_blocks_and_boxes_of_tensors_do_not_change_the_result(p):
    x, rows, margin = random_problem(torch.float64, size=20)
    before = [part.clone() for part in (x, rows, margin)]
    whole = hyperplane_projection(x, rows, margin, p, box=(0, 1))
    assert all(torch.equal(now, then) for now, then in zip((x, rows, margin), before, strict=True))
    shape = (4, 12, 5, 2, 2)
    parts = hyperplane_projection(
        x.reshape(4, 5, 2, 2),
        rows.reshape(shape),
        margin,
        p,
        (torch.zeros(2, 2), torch.ones(4, 5, 1, 1)),
        budget=1,
    )
    torch.testing.assert_close(parts.distance, whole.distance, rtol=1e-13, atol=0.0)
    assert whole.point is not None
    torch.testing.assert_close(parts.point, whole.point.reshape(shape), rtol=1e-12, atol=1e-14)


def test_the_free_distance_has_gradients_also_with_zero_rows():
    margin = torch.tensor([2.0, -3.0, 0.0, 1.0], requires_grad=True)
    length = torch.tensor([4.0, 1.5, 0.0, 0.0], requires_grad=True)
    distance = free_distance(margin, length)
    assert distance.tolist() == [0.5, 2.0, 0.0, math.inf]
    distance[:3].sum().backward()
    assert margin.grad is not None
    assert length.grad is not None
    torch.testing.assert_close(margin.grad, torch.tensor([0.25, -1 / 1.5, 0.0, 0.0]))
    torch.testing.assert_close(length.grad, torch.tensor([-0.125, -2 / 1.5, 0.0, 0.0]))


@pytest.mark.parametrize(("rows", "margin"), [((2, 3, 5), (2, 3)), ((2, 3, 4), (2, 4)), ((1, 3, 4), (1, 3))])
def test_shapes_that_do_not_fit_are_refused(rows, margin):
    with pytest.raises(InvalidInput, match=r"rows and margin must be \(batch, rows, \*input\) and \(batch, rows\)"):
        hyperplane_distance(torch.zeros(2, 4), torch.zeros(rows), torch.zeros(margin), 2)
    with pytest.raises(InvalidInput, match="x must lie in the box"):
        hyperplane_distance(torch.full((2, 4), 2.0), torch.zeros(2, 3, 4), torch.zeros(2, 3), 2, (0, 1))
