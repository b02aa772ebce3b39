from __future__ import annotations

import math
import weakref
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from torch.utils._python_dispatch import TorchDispatchMode

from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.linear_minimum import linear_minimum, linear_range
from relucert.core.norms import norm
from relucert.core.rounding import relative_rounding

P = [1.0, 1.02, 1.5, 2.0, 3.0, 40.0, math.inf]
DTYPES = [torch.float32, torch.float64]
numbers = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-3, 3, width=16))
slacks = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 2, width=16))
radii = st.one_of(st.sampled_from([0.0, 0.5]), st.floats(2.0**-7, 6, width=16))


@st.composite
def problems(draw, coarse: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows (1, 3, n), eps (1,) and slacks (1, n) in float64; with `coarse` multiples of 1/64."""
    n = draw(st.integers(1, 6))
    rows = [draw(st.lists(numbers, min_size=n, max_size=n)) for _ in range(3)]
    below, above = (draw(st.lists(slacks, min_size=n, max_size=n)) for _ in range(2))
    c, eps, down, up = (torch.tensor([part], dtype=torch.float64) for part in (rows, draw(radii), below, above))
    if coarse:
        c, eps, down, up = ((64 * part).round() / 64 for part in (c, eps, down, up))
    return c, eps, down, up


def digits_like(batch: int, rows: int, size: int, dtype: torch.dtype, seed: int = 0):
    """Images with many black and white pixels; rows of several orders of magnitude, one of them zero and one sparse."""
    generator = torch.Generator().manual_seed(seed)
    x = (1.6 * torch.rand(batch, size, generator=generator, dtype=torch.float64) - 0.3).clamp(0, 1)
    spread = torch.randn(batch, rows, size, generator=generator, dtype=torch.float64).exp()
    c = torch.randn(batch, rows, size, generator=generator, dtype=torch.float64) * spread
    c[:, 0] = 0.0
    c[:, 1, : size // 2] = 0.0
    return x.to(dtype), c.to(dtype)


def gain_by_program(c: np.ndarray, eps: float, below: np.ndarray, above: np.ndarray, p: float) -> float:
    """The minimum for p = 1 and p = inf as a linear program, d = up - down."""
    bounds = [(0, side) for side in np.concatenate([above, below])]
    length = np.ones((1, 2 * len(c))) if p == 1 else np.concatenate([np.eye(len(c)), np.eye(len(c))], 1)
    found = linprog(np.concatenate([c, -c]), length, np.full(len(length), eps), bounds=bounds)
    assert found.success
    return found.fun


def dual_norm(a: np.ndarray, p: float) -> float:
    """||a||_q, computed from powers of numbers of at most 1."""
    q, size = p / (p - 1), np.abs(a).max()
    return float(size * ((np.abs(a) / size) ** q).sum() ** (1 / q)) if size > 0 else 0.0


def certified_lower_bound(
    c: np.ndarray, d: np.ndarray, eps: float, below: np.ndarray, above: np.ndarray, p: float
) -> float:
    """A lower bound proved from a candidate: min <c, d> >= min_ball <a, d> + min_box <c - a, d> for every a.

    Both sides are equal at the minimiser with a_i = c_i where d_i is not clipped and |a_i| = mu |d_i|^(p - 1) where it is, with
    the multiplier mu of the ball, which is |c_i| / |d_i|^(p - 1) for every d_i that is not clipped.
    """
    cut = np.abs(d) >= np.where(c > 0, below, above) * (1 - 1e-14)
    bound = -eps * dual_norm(c, p)  # a = c
    scale = (np.abs(d) / eps if eps > 0 else 0.0 * d) ** (p - 1)
    moved = scale > 1e-200
    for mu in {0.0, *(np.abs(c[moved]) / scale[moved])}:
        a = np.where(cut, np.sign(c) * np.minimum(mu * scale, np.abs(c)), c if mu > 0 else 0.0)
        rest = c - a
        bound = max(bound, -eps * dual_norm(a, p) - np.where(rest > 0, rest * below, -rest * above).sum())
    return bound


@pytest.mark.parametrize("p", [1.0, math.inf])
@settings(max_examples=40, deadline=None)
@given(problem=problems(coarse=True))  # the solver treats costs below 1e-7 as zero
def test_the_minimum_is_that_of_the_linear_program(p, problem):
    rows, eps, below, above = problem
    value, _ = linear_minimum(rows, p, eps, below, above)
    for c, found in zip(rows[0].numpy(), value[0].tolist(), strict=True):
        expected = gain_by_program(c, eps.item(), below[0].numpy(), above[0].numpy(), p)
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("p", [1.02, 1.5, 2.0, 3.0, 40.0])
@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_the_minimum_has_a_certificate_on_both_sides(p, problem):
    rows, eps, below, above = problem
    value, minimisers = linear_minimum(rows, p, eps, below, above)
    offset = minimisers()
    assert bool(((offset >= -below) & (offset <= above)).all())
    assert bool((norm(offset, p, 2) <= eps * (1 + 1e-12)).all())
    for c, d, found in zip(rows[0].numpy(), offset[0].numpy(), value[0].tolist(), strict=True):
        low = certified_lower_bound(c, d, eps.item(), below[0].numpy(), above[0].numpy(), p)
        high = float(c @ d)
        assert low <= high + 1e-12
        assert high - low <= 1e-10 * (1 + abs(high))
        assert found == pytest.approx(high, rel=1e-11, abs=1e-11)


def test_the_minimum_agrees_with_a_general_solver():
    c, eps = np.array([2.0, -1.0, 0.5, 3.0]), 0.8
    below, above = np.array([0.3, 1.0, 1.0, 0.2]), np.array([1.0, 0.6, 0.1, 1.0])
    for p in (1.5, 2.0, 3.0):
        found = minimize(
            lambda d: c @ d, np.zeros(4), jac=lambda d: c, method="SLSQP", bounds=list(zip(-below, above, strict=True)),
            constraints={"type": "ineq", "fun": lambda d, p=p: eps**p - (np.abs(d) ** p).sum(),
                         "jac": lambda d, p=p: -p * np.sign(d) * np.abs(d) ** (p - 1)},
            options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        problem = (
            torch.tensor(c)[None, None],
            p,
            torch.tensor([eps]),
            torch.tensor(below)[None],
            torch.tensor(above)[None],
        )
        assert linear_minimum(*problem)[0].item() == pytest.approx(found.fun, abs=1e-7)


@pytest.mark.parametrize("p", P)
def test_the_value_and_the_point_meet_at_convergence(p):
    x, rows = digits_like(6, 12, 200, torch.float64)
    eps = torch.tensor([0.01, 0.1, 0.5, 2.0, 10.0, 1000.0], dtype=torch.float64)
    value, minimisers = linear_minimum(rows, p, eps, x, 1 - x)
    offset = minimisers()
    torch.testing.assert_close((rows * offset).sum(-1), value, rtol=1e-11, atol=1e-14)
    assert bool((norm(offset, p, 2) <= eps[:, None] * (1 + 1e-12)).all())
    assert (value[:, 0] == 0).all()
    assert (value[:, 1:] < 0).all()


@pytest.mark.parametrize("p", P)
def test_single_precision_is_off_by_its_rounding_only(p):
    x, rows = digits_like(6, 12, 200, torch.float32)
    eps = torch.tensor([0.01, 0.1, 0.5, 2.0, 10.0, 1000.0])
    value, _ = linear_minimum(rows, p, eps, x, 1 - x)
    exact, _ = linear_minimum(rows.double(), p, eps.double(), x.double(), (1 - x).double())
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), exact, rtol=relative_rounding(200, torch.float32), atol=0.0)


@pytest.mark.parametrize("p", [1.02, 1.5, 2.0, 3.0, 40.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_early_stop_is_still_a_lower_bound(p, dtype):
    x, rows = digits_like(6, 12, 200, dtype)
    eps = torch.tensor([0.01, 0.1, 0.5, 2.0, 5.0, 10.0], dtype=dtype)
    exact, _ = linear_minimum(rows.double(), p, eps.double(), x.double(), (1 - x).double())
    free, _ = linear_minimum(rows.double(), p, eps.double())
    rounding = relative_rounding(200, dtype) * exact.abs()
    values = [linear_minimum(rows, p, eps, x, 1 - x, max_iterations=steps) for steps in (0, 1, 2, 4, 100)]
    for value, minimisers in values:
        assert bool((value.double() <= exact + rounding).all())
        assert bool((norm(minimisers().double(), p, 2) <= eps[:, None] * (1 + 4 * relative_rounding(200, dtype))).all())
    if p >= 1.5:  # for smaller p a bisection finds the scale
        assert bool((values[1][0] >= free * (1 + 1e-6)).all())
    assert bool((values[0][0][:, 1:].double() < exact[:, 1:] * (1 + 1e-9)).any())
    torch.testing.assert_close(values[-1][0].double(), exact, rtol=2 * relative_rounding(200, dtype), atol=0.0)


@pytest.mark.parametrize("p", P)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), eps=st.floats(0.01, 4), dtype=st.sampled_from(DTYPES))
def test_no_point_of_the_set_is_below_the_minimum(p, seed, eps, dtype):
    x, rows = digits_like(2, 4, 9, dtype, seed)
    ball = Ball(p, eps)
    points = ball.sample(x, torch.Generator().manual_seed(seed), count=200)
    reached = torch.einsum("bsi,bni->bsn", rows.double(), points.double() - x.double()[:, None])
    value = ball.minimum(x, rows).value.double()
    assert bool((reached >= (value - relative_rounding(9, dtype) * value.abs()).unsqueeze(-1)).all())


@pytest.mark.parametrize("p", P)
def test_without_a_box_it_is_the_dual_norm(p):
    _, rows = digits_like(3, 5, 20, torch.float64)
    eps = torch.tensor([0.0, 0.3, 2.0], dtype=torch.float64)
    value, minimisers = linear_minimum(rows, p, eps)
    offset = minimisers()
    torch.testing.assert_close((rows * offset).sum(-1), value, rtol=1e-13, atol=0.0)
    wide = torch.full((3, 20), math.inf, dtype=torch.float64)
    torch.testing.assert_close(linear_minimum(rows, p, eps, wide, wide)[0], value, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("p", P)
def test_an_infinite_eps_leaves_the_box(p):
    below, above = torch.tensor([[0.5, math.inf, 1.0]]), torch.tensor([[0.25, 2.0, math.inf]])
    rows = torch.tensor([[[1.0, 0.0, 1.0], [-1.0, -1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, -1e-30], [0.0, 0.0, 0.0]]])
    value, minimisers = linear_minimum(rows, p, torch.tensor([math.inf]), below, above)
    offset = minimisers()
    torch.testing.assert_close(value, torch.tensor([[-1.5, -3.25, -math.inf, -math.inf, 0.0]]))
    assert offset.isfinite().all()
    # Finite and infinite eps in one batch; eps = inf without a box is unbounded unless the row is zero.
    two, _ = linear_minimum(
        rows.repeat(2, 1, 1), p, torch.tensor([math.inf, 0.0]), below.repeat(2, 1), above.repeat(2, 1)
    )
    torch.testing.assert_close(two, torch.stack([value[0], torch.zeros(5)]))
    assert linear_minimum(rows, p, torch.tensor([math.inf]))[0].tolist() == [[-math.inf] * 4 + [0.0]]


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("power", [-90, -30, 30, 90])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_minimum_scales_with_the_rows_and_with_the_lengths(p, power, dtype):
    x, rows = digits_like(2, 6, 30, dtype)
    eps = torch.tensor([0.2, 1.5], dtype=dtype)
    value, _ = linear_minimum(rows, p, eps, x, 1 - x)
    tolerance = 4 * relative_rounding(30, dtype)
    scaled, _ = linear_minimum(rows * 2.0**power, p, eps, x, 1 - x)
    torch.testing.assert_close(scaled, value * 2.0**power, rtol=tolerance, atol=0.0)
    longer, _ = linear_minimum(rows, p, eps * 2.0**power, x * 2.0**power, (1 - x) * 2.0**power)
    torch.testing.assert_close(longer, value * 2.0**power, rtol=tolerance, atol=0.0)


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("budget", [1, 40_000])
def test_blocks_do_not_change_the_result(p, budget):
    x, rows = digits_like(3, 7, 50, torch.float64)
    eps = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    before = [part.clone() for part in (x, rows, eps)]
    whole, whole_minimisers = linear_minimum(rows, p, eps, x, 1 - x)
    assert all(torch.equal(now, then) for now, then in zip((x, rows, eps), before, strict=True))
    parts, parts_minimisers = linear_minimum(rows, p, eps, x, 1 - x, budget=budget)
    torch.testing.assert_close(parts, whole, rtol=1e-13, atol=0.0)
    torch.testing.assert_close(parts_minimisers(), whole_minimisers(), rtol=1e-12, atol=1e-15)


class PeakOfTemporaries(TorchDispatchMode):
    """The peak number of bytes in tensors that are created inside and share no memory with the given ones."""

    def __init__(self, *given: torch.Tensor):
        super().__init__()
        self.given = {tensor.untyped_storage().data_ptr() for tensor in given}
        self.users: Counter[tuple[int, int]] = Counter()
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.given:
                memory = (tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
                self.users[memory] += 1
                weakref.finalize(tensor, self.users.subtract, [memory])
        self.peak = max(self.peak, sum(size for (_, size), count in self.users.items() if count > 0))
        return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [1.0, 1.02, 2.0, 3.0, math.inf])
def test_the_temporaries_stay_within_the_budget(p, dtype):
    x, rows = digits_like(2, 40, 400, dtype)
    eps, budget = torch.tensor([0.3, 3.0], dtype=dtype), 2**18
    with PeakOfTemporaries(x, rows, eps) as measured:
        linear_minimum(rows, p, eps, x, 1 - x, budget=budget)
    # Tensors for the examples, rather than for the rows, are not part of the budget.
    assert budget / 4 < measured.peak <= budget + 16 * x.nbytes


@pytest.mark.parametrize("box", [True, False])
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, math.inf])
def test_the_gradient_is_the_minimiser(p, box):
    x, rows = digits_like(2, 4, 12, torch.float64)
    eps = torch.tensor([0.3, 1.0], dtype=torch.float64)
    sides = (x, 1 - x) if box else (None, None)
    rows = rows[:, 1:].clone().requires_grad_()
    value, minimisers = linear_minimum(rows, p, eps, *sides)
    offset = minimisers()
    weights = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, 1.0]], dtype=torch.float64)
    (value * weights).sum().backward()
    assert rows.grad is not None
    torch.testing.assert_close(rows.grad, offset * weights.unsqueeze(-1), rtol=1e-9, atol=1e-12)
    # The minimum is concave in the row: every tangent lies above it.
    with torch.no_grad():
        other = rows + 0.1 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert bool(
            (linear_minimum(other, p, eps, *sides)[0] <= value + ((other - rows) * offset).sum(-1) + 1e-12).all()
        )


def test_a_negative_number_of_iterations_is_refused():
    x, rows = digits_like(1, 2, 3, torch.float32)
    with pytest.raises(InvalidInput, match="max_iterations must be at least 0, got -1"):
        linear_minimum(rows, 2, torch.ones(1), x, x, max_iterations=-1)


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("boxed", [True, False])
def test_a_range_is_two_minima_with_their_gradients(p, dtype, boxed):
    x, c = digits_like(3, 5, 20, dtype)
    eps = torch.tensor([0.0, 0.3, 2.0], dtype=dtype)
    slacks = (x, 1 - x) if boxed else (None, None)
    weights = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = []
    for both in (
        lambda rows: linear_range(rows, p, eps, *slacks),
        lambda rows: (linear_minimum(rows, p, eps, *slacks)[0], -linear_minimum(-rows, p, eps, *slacks)[0]),
    ):
        rows = c[:, 2:].clone().requires_grad_()  # the gradient is not unique at zero rows
        least, greatest = both(rows)
        ((least * weights[0, :, 2:]).sum() + (greatest * weights[1, :, 2:]).sum()).backward()
        found.append((least.detach(), greatest.detach(), rows.grad))
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


@given(problems())
@settings(max_examples=100, deadline=None)
def test_a_range_over_a_box_holds_its_corners(problem):
    c, eps, below, above = problem
    least, greatest = linear_range(c, math.inf, eps, below, above)
    corners = torch.stack([-torch.minimum(below, eps[:, None]), torch.minimum(above, eps[:, None])], 2)
    picks = torch.cartesian_prod(*[torch.arange(2)] * c.shape[2]).reshape(-1, c.shape[2])
    values = torch.stack([(c * corners[:, torch.arange(c.shape[2]), pick][:, None]).sum(2) for pick in picks])
    torch.testing.assert_close(least, values.amin(0))
    torch.testing.assert_close(greatest, values.amax(0))


def test_a_range_without_end_is_infinite():
    rows, slack = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[math.inf, 1.0]])
    least, greatest = linear_range(rows, math.inf, torch.tensor([math.inf]), slack, slack)
    assert (float(least), float(greatest)) == (-math.inf, math.inf)
