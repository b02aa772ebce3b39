"""What rows of plain chains are made of: tables of the other classes."""

from __future__ import annotations

import pytest
import torch

from relucert.geometry.row_norms.chain_rows import other_classes, with_own


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_numbers_of_the_other_classes_come_back_to_their_places(classes: int) -> None:
    y = torch.arange(10) % classes
    others = other_classes(y, classes)
    assert others.shape == (10, classes - 1)
    assert [sorted([*row, own]) for row, own in zip(others.tolist(), y.tolist(), strict=True)] == [
        [*range(classes)]
    ] * 10
    norms = torch.rand(10, classes, generator=torch.Generator().manual_seed(0))
    found = with_own(norms.gather(1, others), y)
    own = torch.nn.functional.one_hot(y, classes).bool()
    assert torch.equal(found[~own], norms[~own])
    assert bool((found[own] == 0).all())
