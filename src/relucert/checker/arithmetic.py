"""Two arithmetics with one interface: float64 where every sum is charged for its rounding, or rational numbers.

A sum of n products of float64 numbers, in any order and with or without fused operations, is off by at most gamma_n = n u /
(1 - n u) times the sum of absolute products, u = 2^-53. Formulas are written once: exact arithmetic charges 0.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
#: More than all underflows of a float64 computation (of squares as well) add up to, for numbers of at most LARGEST.
UNDERFLOW, LARGEST = 1e-100, 1e30


class Refused(Exception):
    """The certificate is no proof, or is none that this checker can follow: the text names the first step that fails."""


def require(holds: Any, text: str) -> None:
    """Raise `Refused` unless the condition holds."""
    if not bool(holds):
        raise Refused(text)


class Outward:
    """float64: results that bound something are moved by `charge`."""

    def numbers(self, values: Any) -> Array:
        """Numbers in float64: those of float32 are kept exactly."""
        return np.asarray(values).astype(np.float64)

    def charge(self, terms: int, size: Any, dtype: str = "float64") -> Any:
        """More than a sum of `terms` products may be off whose absolute values add up to `size`, itself a computed sum."""
        unit = terms * 2.0 ** (-53 if dtype == "float64" else -24)
        require(unit < 0.01, f"sums of {terms} terms are too long for {dtype}")
        return 1.03 * unit * size + UNDERFLOW

    def root(self, value: Any) -> Any:
        """At least the square root."""
        return np.sqrt(value) * (1 + 2.0**-50)

    def length(self, values: Array) -> Any:
        """At least the l2 norm of a vector or the Frobenius norm of a matrix."""
        square = np.sum(values * values)
        return self.root(square + self.charge(values.size + 4, square))


class Rational(Outward):
    """Arrays of fractions: for small networks."""

    def numbers(self, values: Any) -> Array:
        flat = [value if isinstance(value, Fraction) else Fraction(float(value)) for value in np.ravel(values)]
        return np.array(flat, dtype=object).reshape(np.shape(values))

    def charge(self, terms: int, size: Any, dtype: str = "float64") -> Any:
        return 0 * size

    def root(self, value: Any) -> Any:
        """Fractions at least as large as the square roots, and hardly larger."""
        scale = 1 << 80
        roots = [Fraction(math.isqrt(math.floor(square * scale * scale)) + 1, scale) for square in np.ravel(value)]
        return np.array(roots, dtype=object).reshape(np.shape(value))
