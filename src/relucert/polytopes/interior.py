"""A point in the relative interior of a face: away from all rows of the polytope but those that contain the whole face."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from relucert.core.errors import InvalidInput
from relucert.polytopes._least_distance import MANY_COORDINATES
from relucert.polytopes.certificates import Array, HalfSpaces, hyperplanes
from relucert.polytopes.highs import TINY, Highs, LinearProgram, SparseRows
from relucert.polytopes.polytope import Box, Polytope

ENOUGH = 2.0**-10  # the radius to look for among many coordinates, where the largest takes long to find
FLAT = 1e-9  # a slack, of rows of norm 1, that passes for 0
CLEAR = 1e-7  # a slack, of rows of norm 1, in parts of the sizes involved, beyond rounding
PUSHED = 8  # steps towards the interior that are worth a linear program
PARALLEL = 1e-7  # the part of a row, of norm about 1, along the plane of the face that passes for rounding


@dataclass(frozen=True, kw_only=True)
class InteriorPoint:
    """A point of the relative interior, with the slack (h_i - <g_i, z>) / ||g_i||_2 of every row (m,).

    The slack is 0 if it is for all points of the face, and inf for a row of zeros. Within the plane E z = e the point is in l2
    at least `radius` away from all other rows and sides of the box, up to rounding.
    """

    point: Array
    slack: Array
    radius: float


def interior_point(
    G: ArrayLike,
    h: ArrayLike,
    E: ArrayLike | None = None,
    e: ArrayLike | None = None,
    box: Box | None = None,
    near: ArrayLike | None = None,
) -> InteriorPoint | None:
    """Return a point in the relative interior of {z : G z <= h, E z = e, lower <= z <= upper}, None if that seems empty.

    Few coordinates: the centre of the largest ball of radius at most 1 in the plane E z = e that fits in. Many: the point
    nearest to `near` around which a ball of radius 1/1024 fits in, or a smaller one if need be. If none does, some rows hold
    with equality everywhere: those that keep their slack of 0 however far the face is blown up.
    Shapes are those of `Polytope.distance`, which can prove emptiness, and whose point is a good `near`.

    >>> found = interior_point([[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]], [0.0, 0.0, 0.0, 1.0])
    >>> found.slack, found.radius
    (array([0. , 0. , 0.5, 0.5]), 0.5)
    """
    polytope = Polytope(G, h, box)
    faces, equal = polytope.faces, hyperplanes(E, e, polytope.size)
    if faces.contradictory or equal.contradictory:
        return None
    rows, limits = _with_sides(polytope)
    _, weights, normals = np.linalg.svd(equal.rows, full_matrices=False)
    across = rows @ normals[weights > PARALLEL * weights.max(initial=0.0)].T
    # How fast a step within the plane E z = e uses up the slack of a row; rounding must not make a row of the plane move.
    widths = np.sqrt(np.maximum(np.einsum("ij,ij->i", rows, rows) - np.einsum("ij,ij->i", across, across), 0.0))
    widths[widths < PARALLEL] = 0.0
    found = None
    if polytope.size >= MANY_COORDINATES:
        start = np.zeros(polytope.size) if near is None else np.asarray(near, dtype=np.float64)
        if start.shape != (polytope.size,) or not np.isfinite(start).all():
            raise InvalidInput(f"near must be {polytope.size} finite numbers, got the shape {start.shape} and {start}")
        if polytope.distance(start.clip(polytope.lower, polytope.upper), E, e).status == "infeasible":
            return None
        found = _shrunk(polytope, equal, widths, start)
    if found is None:
        found = _centre(rows, limits, widths, equal)
    if found is None:
        return None
    flat = widths == 0.0
    if found[-1] < FLAT:
        flat |= _always_equal(rows, limits, equal)
        found = _centre(rows, limits, np.where(flat, 0.0, widths), equal)
        if found is None:
            return None
    point = found[:-1].clip(polytope.lower, polytope.upper)
    own = np.maximum((faces.limits - faces.rows @ point) / faces.norms, 0.0)
    own[flat[: len(own)] & (own < FLAT)] = 0.0
    slack = np.full(faces.count, np.inf)
    slack[faces.places] = own
    return InteriorPoint(point=point, slack=slack, radius=float(found[-1]))


def pushed_inside(start: Array, row: Array, rows: Array, offsets: Array, box: tuple[Array, Array]) -> Array | None:
    """Return a point of the plane of `row` through `start` with clearly rows z + offsets > 0 and between the sides, if easy.

    Some steps up the slope of the sum of the logarithms of all slacks, each half way to the nearest side; None if that leads
    nowhere, which says nothing. rows (n, d), offsets (n,), row and start (d,).

    >>> pushed_inside(np.zeros(2), np.array([1.0, 0.0]), np.eye(2), np.array([1.0, 0.0]), (-np.ones(2), np.ones(2))) is not None
    True
    """
    open_ = rows.any(1)
    up, down = np.isfinite(box[1]), np.isfinite(box[0])
    unit = np.eye(len(start))
    every = np.concatenate((rows[open_], -unit[up], unit[down]))
    away = np.concatenate((offsets[open_], box[1][up], -box[0][down]))
    norms = np.sqrt(np.einsum("ij,ij->i", every, every))
    every, away = every / norms[:, None], away / norms
    normal = row / np.sqrt(row @ row)
    flat = every - np.outer(every @ normal, normal)
    least = CLEAR * (1.0 + np.abs(start).max() + np.abs(away))
    point = start
    for _ in range(PUSHED):
        slack = every @ point + away
        if bool((slack > least).all()):
            return point
        slope = (1.0 / np.maximum(slack, least)) @ flat
        change = flat @ slope
        falling = change < 0.0
        far = float(
            (np.maximum(slack, 0.0)[falling] / -change[falling]).min(initial=1.0 / max(np.abs(slope).max(), 1e-300))
        )
        point = point + 0.5 * far * slope
    return None


def _shrunk(polytope: Polytope, equal: HalfSpaces, widths: Array, near: Array) -> Array | None:
    """Return the nearest point with a distance of t to all sides, and t: the first that works of `ENOUGH`, 1/8 of it, .."""
    count = len(polytope.faces.rows)
    up, down = np.isfinite(polytope.upper), np.isfinite(polytope.lower)
    above, below = np.zeros(polytope.size), np.zeros(polytope.size)
    above[up], below[down] = widths[count : count + int(up.sum())], widths[count + int(up.sum()) :]
    radius = ENOUGH
    while radius > 100.0 * FLAT:
        lower, upper = polytope.lower + radius * below, polytope.upper - radius * above
        if bool((lower <= upper).all()):
            limits = polytope.faces.limits - radius * widths[:count]
            inner = Polytope(polytope.faces.rows, limits, (lower, upper))
            answer = inner.distance(near.clip(lower, upper), equal.rows, equal.limits)
            if answer.point is not None:
                return np.append(answer.point, radius)
        radius /= 8.0
    return None


def _with_sides(polytope: Polytope) -> tuple[Array, Array]:
    """Return the rows of the polytope and behind them the finite sides of its box."""
    unit = np.eye(polytope.size)
    up, down = np.isfinite(polytope.upper), np.isfinite(polytope.lower)
    limits = np.concatenate((polytope.faces.limits, polytope.upper[up], -polytope.lower[down]))
    return np.concatenate((polytope.faces.rows, unit[up], -unit[down])), limits


def _centre(rows: Array, limits: Array, widths: Array, equal: HalfSpaces) -> Array | None:
    """Maximise t <= 1 with rows z + t widths <= limits; return (z, t)."""
    count, size = rows.shape
    cost = np.zeros(size + 1)
    cost[-1] = -1.0
    low, high = np.append(np.full(size, -np.inf), 0.0), np.append(np.full(size, np.inf), 1.0)
    on = np.append(equal.rows, np.zeros((len(equal.rows), 1)), axis=1)
    every = np.append(rows, widths[:, None], axis=1)
    program = Highs(LinearProgram(cost, low, high, SparseRows.of(on), equal.limits, equal.limits), TINY)
    program.add_rows(SparseRows.of(every), np.full(count, -np.inf), limits)
    best = program.optimum()
    return None if best is None else best.x


def _always_equal(rows: Array, limits: Array, equal: HalfSpaces) -> NDArray[np.bool_]:
    """Return the rows that hold with equality on the whole face.

    In {(z, a) : rows z + s <= a limits, a >= 1}, the cone over the face, every row that is slack somewhere reaches the slack 1,
    all of them at once: one linear program tells them apart.
    """
    count, size = rows.shape
    cost = np.concatenate((np.zeros(size + 1), -np.ones(count)))
    low = np.concatenate((np.full(size, -np.inf), [1.0], np.zeros(count)))
    high = np.concatenate((np.full(size + 1, np.inf), np.ones(count)))
    matrix = np.zeros((len(equal.rows) + count, size + 1 + count))
    matrix[:, :size] = np.concatenate((equal.rows, rows))
    matrix[:, size] = -np.concatenate((equal.limits, limits))
    matrix[len(equal.rows) :, size + 1 :] = np.eye(count)
    row_low = np.concatenate((np.zeros(len(equal.rows)), np.full(count, -np.inf)))
    program = LinearProgram(cost, low, high, SparseRows.of(matrix), row_low, np.zeros(len(matrix)))
    best = Highs(program, TINY).optimum()
    return np.zeros(count, dtype=bool) if best is None else best.x[size + 1 :] < 0.5
