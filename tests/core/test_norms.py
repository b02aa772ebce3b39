from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relucert.core.errors import InvalidInput
from relucert.core.norms import check_p, dual, norm, steepest

P = [1.0, 1.01, 1.5, 2.0, 3.0, 17.0, 300.0, math.inf]
vectors = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=7).map(
    lambda values: torch.tensor([values], dtype=torch.float64)
)


def longdouble_norm(v: torch.Tensor, p: float) -> float:
    """The norm by its definition in extended precision, for the vector divided by a power of 2 near its largest entry."""
    size = np.abs(v.numpy().astype(np.longdouble))
    if math.isinf(p) or size.max() == 0:
        return float(size.max())
    scale = np.longdouble(2) ** np.floor(np.log2(size.max()))
    return float(((size / scale) ** p).sum() ** (np.longdouble(1) / np.longdouble(p)) * scale)


@pytest.mark.parametrize("value", [2, 1, 1.5, math.inf, "inf", "2", np.float32(3)])
def test_a_valid_p_becomes_a_float(value):
    assert check_p(value) == float(value)
    assert type(check_p(value)) is float


@pytest.mark.parametrize("value", [0.5, 0, -1, -math.inf, math.nan, "two", None, True, [2]])
def test_an_invalid_p_is_named(value):
    with pytest.raises(InvalidInput, match=r"p must be a number of at least 1 or inf, got ") as error:
        check_p(value)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("p", P)
def test_the_dual_of_the_dual_is_p(p):
    q = dual(p)
    assert 1 / p + 1 / q == pytest.approx(1, abs=1e-15)
    assert dual(q) == pytest.approx(p, rel=1e-12)


@pytest.mark.parametrize("p", P)
@settings(max_examples=40, deadline=None)
@given(v=vectors)
def test_the_norm_agrees_with_its_definition(p, v):
    assert norm(v, p).item() == pytest.approx(longdouble_norm(v, p), rel=1e-13, abs=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("power", [-120, -60, 60, 120])
@pytest.mark.parametrize("p", P)
def test_the_norm_neither_overflows_nor_underflows(p, power, dtype):
    v = torch.tensor([[0.5, -1.25, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]], dtype=dtype)
    scaled = (v * 2.0**power).requires_grad_()
    found = norm(scaled, p)
    torch.testing.assert_close(found, norm(v, p) * 2.0**power, rtol=16 * torch.finfo(dtype).eps, atol=0.0)
    # A norm is homogeneous, and its gradient does not depend on the length.
    found.sum().backward()
    base = v.clone().requires_grad_()
    norm(base, p).sum().backward()
    assert scaled.grad is not None
    assert base.grad is not None
    # The dual norm of the gradient is 1, which is the scale of errors.
    torch.testing.assert_close(scaled.grad, base.grad, rtol=0.0, atol=4 * min(p, 512.0) * torch.finfo(dtype).eps)
    assert (scaled.grad[2] == 0).all()


def test_the_norm_runs_over_all_dimensions_but_the_batch():
    v = torch.arange(24.0).reshape(2, 3, 2, 2)
    assert norm(v, 1).tolist() == [66.0, 210.0]
    assert norm(v, math.inf, 2).tolist() == [[3.0, 7.0, 11.0], [15.0, 19.0, 23.0]]
    torch.testing.assert_close(norm(v, 2, 2), v.flatten(2).square().sum(-1).sqrt())
    with pytest.raises(InvalidInput, match="batch_dims must be at least 0 and below the 4 dimensions of v, got 4"):
        norm(v, 2, 4)


@pytest.mark.parametrize("p", P)
@settings(max_examples=40, deadline=None)
@given(g=vectors)
def test_the_steepest_direction_attains_the_dual_norm(p, g):
    direction = steepest(g, p)
    assert norm(direction, p).item() <= 1 + 1e-14
    # Hoelder: <g, d> <= ||g||_q ||d||_p, so a direction that attains it is a maximiser.
    assert (g * direction).sum().item() == pytest.approx(norm(g, dual(p)).item(), rel=1e-13, abs=0)


@pytest.mark.parametrize("p", P)
def test_a_zero_gradient_has_no_direction(p):
    g = torch.tensor([[[0.0, 0.0]], [[0.0, -3.0]]])
    direction = steepest(g, p)
    assert direction.shape == g.shape
    assert (direction[0] == 0).all()
    assert direction[1].tolist() == [[0.0, -1.0]]


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0, 17.0])
@settings(max_examples=30, deadline=None)
@given(v=vectors.filter(lambda v: bool(v.abs().max() > 1e-3)))
def test_the_gradient_of_a_norm_is_the_steepest_direction_of_its_dual(p, v):
    v = v.clone().requires_grad_()
    norm(v, p).sum().backward()
    assert v.grad is not None
    torch.testing.assert_close(v.grad, steepest(v.detach(), dual(p)), rtol=1e-12, atol=1e-14)
