"""Functionals pass the lines of ReLUs as the formula says, in blocks or not, and so do their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from relucert.bounding import relaxation as line_pull
from relucert.bounding.relaxation import pull_through_relu


def drawn(by_row: bool, batch: int = 3, rows: int = 4, units: int = 5) -> tuple[Tensor, ...]:
    """Rows, slopes below and above, offsets."""
    source = torch.Generator().manual_seed(7)
    shapes = ((batch, rows, units), (batch, rows if by_row else 1, units), (batch, 1, units), (batch, 1, units))
    return tuple(torch.randn(*shape, generator=source, dtype=torch.float64).requires_grad_() for shape in shapes)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("at_once", [None, 1, 2], ids=["whole", "row by row", "two rows"])
def test_values_and_gradients(by_row: bool, at_once: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, below, above, offset = drawn(by_row)
    if at_once is not None:
        monkeypatch.setattr(line_pull, "_BUDGET", at_once * 8 * 5 * 8)
    back, low, none = pull_through_relu(rows, below, above, offset)
    assert none is None
    expected = torch.where(rows > 0, below, above) * rows
    torch.testing.assert_close(back, expected)
    torch.testing.assert_close(low, (rows.clamp(max=0) * offset).sum(2))
    assert torch.autograd.gradcheck(lambda *given: pull_through_relu(*given)[:2], (rows, below, above, offset))


def test_gradients_of_what_is_asked_alone() -> None:
    rows, below, above, offset = drawn(by_row=True)
    back, low, _ = pull_through_relu(rows.detach(), below, above.detach(), offset.detach())
    (back.sum() + low.sum()).backward()
    assert below.grad is not None
    torch.testing.assert_close(below.grad, rows.detach().clamp(min=0))
    assert rows.grad is None
    assert above.grad is None
