"""Calls with wrong shapes are refused, also after calls with right ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from beartype.roar import BeartypeCallHintParamViolation, BeartypeCallHintReturnViolation
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.interval import Interval
from typechecking import checked


@checked
def turned(x: Float[Tensor, "a b"], turn: bool = True, *, y: Float[Tensor, " a"] | None = None) -> Float[Tensor, "b a"]:
    return x.T if turn else x


@checked
def rows(x: Float[Tensor, "a b"], y: Float[Tensor, " b"]) -> Iterator[Tensor]:
    yield from x


@checked
def plain(x: int) -> int:
    return x


@checked
@dataclass
class Pair:
    first: Float[Tensor, "a b"]
    second: Float[Tensor, "a b"]


def test_every_call_has_axes_of_its_own():
    for shape in ((2, 3), (3, 3), (2, 3), (4, 1)):
        assert turned(torch.zeros(shape), y=torch.zeros(shape[0])).shape == shape[::-1]
    assert len(list(rows(torch.zeros(2, 3), torch.zeros(3)))) == 2
    assert not hasattr(plain, "__wrapped__")


def test_wrong_shapes_are_refused():
    turned(torch.zeros(2, 3))
    for _ in range(2):
        with pytest.raises(BeartypeCallHintParamViolation):
            turned(torch.zeros(2))
        with pytest.raises(BeartypeCallHintParamViolation):
            turned(x=torch.zeros(2, 3, dtype=torch.long))
        with pytest.raises(BeartypeCallHintParamViolation):
            turned(torch.zeros(2, 3), y=torch.zeros(3))
        with pytest.raises(BeartypeCallHintReturnViolation):
            turned(torch.zeros(2, 3), False)
        with pytest.raises(BeartypeCallHintParamViolation):
            Pair(torch.zeros(2, 3), torch.zeros(2, 4))
        with pytest.raises(BeartypeCallHintParamViolation):
            next(rows(torch.zeros(2, 3), torch.zeros(2)))


def test_an_error_of_its_own_comes_first():
    def first(x: Float[Tensor, " a"], y: Float[Tensor, " a"]) -> Float[Tensor, " a"]:
        if len(y) > 3:
            raise ValueError("y must have at most 3 entries")
        return x

    refusing = checked(first, refusing=True)
    assert refusing(torch.zeros(2), torch.zeros(2)).shape == (2,)
    with pytest.raises(ValueError, match="at most 3"):
        refusing(torch.zeros(2), torch.zeros(4))
    with pytest.raises(BeartypeCallHintParamViolation):
        refusing(torch.zeros(2), torch.zeros(3))


def test_the_package_is_checked():
    with pytest.raises(BeartypeCallHintParamViolation):
        Interval(torch.zeros(2, 3), torch.zeros(2, 4))
