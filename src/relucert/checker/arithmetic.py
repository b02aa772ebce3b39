"""Two arithmetics with one interface: float64 with every bound rounded outwards, or rational numbers without rounding.

A sum of n products of float64 numbers, in any order and with or without fused operations, is off by at most gamma_n = n u /
(1 - n u) times the sum of absolute products, u = 2^-53. Formulas are written once: where they charge gamma_n, exact arithmetic
charges 0.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24}
#: Below these a product may lose its relative accuracy, or be flushed to zero.
SMALLEST = {"float64": 2.0**-1022, "float32": 2.0**-126}
#: More than all underflows of a float64 computation (of squares as well) can add up to, for numbers of at most `LARGEST`.
UNDERFLOW, LARGEST = 1e-100, 1e30


class Refused(Exception):
    """The certificate is no proof, or is none that this checker can follow: the text names the first step that fails."""


def require(holds: Any, text: str) -> None:
    """Raise `Refused` unless the condition holds."""
    if not bool(holds):
        raise Refused(text)


class Outward:
    """float64; results that bound something are moved outwards by more than they may have been rounded."""

    exact = False

    def numbers(self, values: Any) -> Array:
        """Numbers in float64: those of float32 are kept exactly."""
        return np.asarray(values).astype(np.float64)

    def gamma(self, terms: int, dtype: str = "float64") -> float:
        """More than gamma_n of a dtype."""
        unit = terms * ROUNDOFF[dtype]
        require(unit < 0.01, f"sums of {terms} terms are too long for {dtype}")
        return 1.02 * unit

    def raised(self, charge: Array) -> Array:
        """More than a sum of at most 10^12 terms that are not negative, from its computed value."""
        return charge * 1.001 + UNDERFLOW

    def up(self, values: Array) -> Array:
        """The next larger numbers."""
        return np.nextafter(values, math.inf)

    def down(self, values: Array) -> Array:
        """The next smaller numbers."""
        return np.nextafter(values, -math.inf)

    def root_up(self, value: Array) -> Array:
        """At least the square root."""
        return self.up(np.sqrt(value))


class Rational(Outward):
    """Arrays of fractions: for small networks, without any rounding."""

    exact = True

    def numbers(self, values: Any) -> Array:
        values = np.asarray(values)
        if values.dtype == object:
            return values
        flat = [Fraction(value) for value in values.astype(np.float64).ravel().tolist()]
        found = np.empty(len(flat), dtype=object)
        found[:] = flat
        return found.reshape(values.shape)

    def gamma(self, terms: int, dtype: str = "float64") -> Any:
        return 0

    def raised(self, charge: Array) -> Array:
        return charge

    def up(self, values: Array) -> Array:
        return values

    def down(self, values: Array) -> Array:
        return values

    def root_up(self, value: Array) -> Array:
        """Fractions at least as large as the square roots, and hardly larger."""
        scale = 1 << 80
        roots = [Fraction(math.isqrt(math.floor(square * scale * scale)) + 1, scale) for square in np.ravel(value)]
        return self.numbers(np.array(roots, dtype=object)).reshape(np.shape(value))
