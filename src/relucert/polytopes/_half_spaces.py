"""Rows and limits of half spaces or hyperplanes, checked and scaled by powers of two to norms from 1/2 to 1, which is exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from relucert.core.errors import InvalidInput
from relucert.polytopes.certificates import Array


@dataclass(frozen=True, kw_only=True)
class HalfSpaces:
    """Rows (n, d) that are not trivial, with limits (n,), Euclidean norms (n,) and positions among the given rows (n,).

    `contradictory`: a row of zeros cannot be satisfied. `exact`: scaling did not round, as it does for rows whose entries
    differ by three hundred orders of magnitude; a bound on rounding errors covers that, a proof of equality does not.
    """

    rows: Array
    limits: Array
    norms: Array
    places: NDArray[np.intp]
    count: int
    contradictory: bool
    exact: bool


def half_spaces(G: ArrayLike, h: ArrayLike) -> HalfSpaces:
    """Return the half spaces G z <= h; G (m, d), h (m,), which may be inf.

    >>> half_spaces([[0.0, 12.0], [0.0, 0.0], [1.0, 0.0]], [3.0, 1.0, np.inf])
    HalfSpaces(rows=array([[0.  , 0.75]]), limits=array([0.1875]), norms=array([0.75]), places=array([0]), count=3, contradictory=False, exact=True)
    """  # noqa: E501
    rows, limits = _checked(G, h, "G", "h")
    zero = ~rows.any(1)
    return _scaled(rows, limits, np.flatnonzero(~zero & (limits < np.inf)), bool((limits[zero] < 0.0).any()))


def hyperplanes(E: ArrayLike | None, e: ArrayLike | None, size: int) -> HalfSpaces:
    """Return the hyperplanes E z = e; E (k, d) or (d,), e (k,) or a number, both None for none.

    >>> hyperplanes([4.0, 0.0], 1.0, 2).limits
    array([0.125])
    """
    if (E is None) != (e is None):
        raise InvalidInput(f"E and e must be given together, got {'E' if e is None else 'e'} alone")
    if E is None or e is None:
        none = np.zeros(0)
        places = np.zeros(0, dtype=np.intp)
        rows = np.zeros((0, size))
        return HalfSpaces(rows=rows, limits=none, norms=none, places=places, count=0, contradictory=False, exact=True)
    rows, limits = _checked(np.atleast_2d(np.asarray(E, dtype=np.float64)), np.atleast_1d(e), "E", "e")
    if rows.shape[1] != size:
        raise InvalidInput(f"E must have {size} columns as G has, got {rows.shape[1]}")
    if not np.isfinite(limits).all():
        raise InvalidInput(f"e must be finite, got {limits}")
    zero = ~rows.any(1)
    return _scaled(rows, limits, np.flatnonzero(~zero), bool(limits[zero].any()))


def _checked(rows: ArrayLike, limits: ArrayLike, row_name: str, limit_name: str) -> tuple[Array, Array]:
    """Return both as float64 after checking shapes and values."""
    matrix, vector = np.asarray(rows, dtype=np.float64), np.asarray(limits, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise InvalidInput(f"{row_name} must be a matrix with at least one column, got the shape {matrix.shape}")
    if vector.shape != matrix.shape[:1]:
        raise InvalidInput(
            f"{limit_name} must have the shape {matrix.shape[:1]} as {row_name} has rows, got {vector.shape}"
        )
    if not np.isfinite(matrix).all():
        raise InvalidInput(f"{row_name} must be finite, got {matrix[~np.isfinite(matrix)][0]}")
    if bool((np.isnan(vector) | np.isneginf(vector)).any()):
        raise InvalidInput(f"{limit_name} must be numbers above -inf, got {vector[~(vector > -np.inf)][0]}")
    return matrix, vector


def _scaled(rows: Array, limits: Array, places: NDArray[np.intp], contradictory: bool) -> HalfSpaces:
    """Keep the rows at the places, scaled."""
    count = len(rows)
    if len(places) < count:
        rows, limits = rows[places], limits[places]
    size = np.abs(rows)
    top = size.max(1, initial=0.0)
    exact = not bool(((size < 1e-250 * top[:, None]) & (size > 0.0)).any())
    by = np.frexp(top)[1]
    by = by + np.frexp(row_norms(np.ldexp(rows, -by[:, None])))[1]
    with np.errstate(over="ignore"):
        limits = np.ldexp(limits, -by)
    if not np.isfinite(limits).all():  # beyond the range of floats: no lower bound needs such a row
        fits = np.isfinite(limits)
        rows, by, limits, places = rows[fits], by[fits], limits[fits], places[fits]
    rows = np.ldexp(rows, -by[:, None])
    return HalfSpaces(
        rows=rows,
        limits=limits,
        norms=row_norms(rows),
        places=places,
        count=count,
        contradictory=contradictory,
        exact=exact,
    )


def row_norms(rows: Array) -> Array:
    """Return the Euclidean norms of the rows."""
    return np.sqrt(np.einsum("ij,ij->i", rows, rows))
