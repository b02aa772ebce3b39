"""Products in float32: both libraries give sums of rounded products."""

from __future__ import annotations

import pytest
import torch

from relucert.core import products
from relucert.core.products import product
from relucert.core.rounding import gamma_above

SHAPES = [(1, 1, 1), (3, 5, 2), (128, 130, 131), (257, 300, 64)]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_product_is_off_by_rounding_alone(
    shape: tuple[int, int, int], turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, k, n = shape
    generator = torch.Generator().manual_seed(m)
    left, right = (torch.randn(*size, generator=generator) for size in ((m, k), (k, n)))
    if turned:  # as the gradients of products have it
        left, right = left.T.contiguous().T, right.T.contiguous().T
    truth, size = left.double() @ right.double(), left.abs().double() @ right.abs().double()
    for least in (0, 2**62):
        monkeypatch.setattr(products, "LEAST", least)
        assert bool(((product(left, right) - truth).abs() <= gamma_above(k, torch.float32) * size).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_and_other_dtypes(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LEAST", 0)
    left = torch.randn(4, 5, dtype=dtype, requires_grad=True)
    right = torch.randn(5, 3, dtype=dtype)
    (slope,) = torch.autograd.grad(product(left, right).sum(), left)
    torch.testing.assert_close(slope, right.sum(1).expand(4, -1))
    assert product(left.detach()[:0], right).shape == (0, 3)
