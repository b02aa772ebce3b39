"""Functions of rows in pieces: the same values and gradients as at once, and rows without a gradient are not made again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from relucert.core.pieces import in_pieces


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_values_and_gradients_do_not_depend_on_the_pieces(size: int, keep: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    leaf = torch.randn(7, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    other = torch.randn(4, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    weights[:, 2] = 0

    def function(rows: Tensor, table: Tensor, matrix: Tensor) -> Tensor:
        made = table[rows] @ matrix
        return torch.stack([made.abs().sum(1), made.square().sum(1)])

    expected = function(torch.arange(7), leaf, 2 * other)
    found = in_pieces(function, 7, size, leaf, 2 * other, keep=keep)
    assert torch.equal(found, expected)
    wanted = torch.autograd.grad((expected * weights).sum(), [leaf, other])
    for one, two in zip(torch.autograd.grad((found * weights).sum(), [leaf, other]), wanted, strict=True):
        torch.testing.assert_close(one, two)


def test_rows_without_a_gradient_are_not_made_again() -> None:
    table, made = torch.ones(5, 2, requires_grad=True), []

    def function(rows: Tensor, table: Tensor) -> Tensor:
        made.append(rows.tolist())
        return table[rows].square().sum(1)[None]

    found = in_pieces(function, 5, 2, table)
    made.clear()
    found[0, [1, 4]].sum().backward()
    assert made == [[1, 4]]
