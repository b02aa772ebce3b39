"""Rounding goes outwards, and rational arithmetic rounds nothing."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from relucert.checker.arithmetic import Outward, Rational, Refused


def test_gamma_pays_for_sums_in_any_order() -> None:
    draw = np.random.default_rng(0)
    for count in (3, 50, 1000):
        for dtype in ("float32", "float64"):
            a, b = (
                draw.normal(size=count).astype(dtype) * 10 ** draw.uniform(-3, 3, count).astype(dtype) for _ in range(2)
            )
            exactly = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True))
            size = sum(abs(Fraction(float(x)) * Fraction(float(y))) for x, y in zip(a, b, strict=True))
            for order in (np.arange(count), draw.permutation(count)):
                computed = Fraction(float(np.add.accumulate(a[order] * b[order])[-1]))
                assert abs(computed - exactly) <= Fraction(Outward().charge(count, float(size), dtype))


def test_sums_too_long_for_a_dtype_are_refused() -> None:
    with pytest.raises(Refused, match="too long for float32"):
        Outward().charge(1_000_000, 1.0, "float32")


def test_roots_are_rounded_up() -> None:
    for value in (Fraction(2), Fraction(1, 3), Fraction(10**20 + 1), Fraction(0)):
        root = Rational().root(np.array([value], dtype=object))[0]
        assert root * root >= value
        assert root <= Fraction(math.sqrt(value)) * (1 + Fraction(1, 10**12)) + Fraction(1, 10**20)
        rounded = Fraction(float(Outward().root(np.array([float(value)]))[0]))
        assert rounded * rounded >= Fraction(float(value))


def test_rational_numbers_are_the_stored_ones() -> None:
    given = np.array([[0.1, 1 / 3]], dtype=np.float32)
    found = Rational().numbers(given)
    assert found.shape == (1, 2)
    assert found[0, 0] == Fraction(float(np.float32(0.1))) != Fraction(1, 10)
    assert (Rational().numbers(found) == found).all()
    assert (Rational().charge(5, found) == 0).all()
