"""Many small least distance problems at once: the facets of regions, each with its region's other faces and the box.

The same as `least_distance`, non-negative least squares after Lawson and Hanson, with every step taken for all problems
together. No answer is trusted: multipliers become proofs in `certified_distances`, an infeasible step is dropped, and open
problems are left to `polytope`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from relucert.polytopes.certificates import Array

STEPS = 12  # additions of a row, for each coordinate
GAIN = 1e-12  # the slope of a column, of about norm 1, that is worth an addition
CHUNK = 2**22  # numbers in the matrices that are treated together


class Steps(NamedTuple):
    """The shortest steps (n, d), NaN for none; multipliers of rows (n, rows) and of the sides of the box (n, d)."""

    step: Array
    multipliers: Array
    paid: Array


def least_distances(rows: Array, limits: Array, equal: NDArray[np.intp], slacks: tuple[Array, Array]) -> Steps:
    """Return the smallest d in l2 with rows d <= limits, row `equal` with equality, and -below <= d <= above.

    rows (n, rows, d), limits (n, rows), which may be inf, equal (n,), slacks = (below, above) (n, d), 0 to inf. Multipliers of
    inequalities and of sides are at least 0; where the step is NaN they may prove that there is none.

    >>> rows, limits = np.array([[[-1.0, -1.0], [1.0, 0.0]]]), np.array([[-2.0, 0.5]])
    >>> wide = np.full((1, 2), np.inf)
    >>> least_distances(rows, limits, np.array([0]), (wide, wide)).step.round(9)
    array([[0.5, 1.5]])
    """
    count, many, size = rows.shape
    width = many + 1 + 2 * size
    step, multipliers, paid = np.full((count, size), np.nan), np.zeros((count, many)), np.zeros((count, size))
    length = max(1, CHUNK // ((size + 1) * width))
    for start in range(0, count, length):
        part = slice(start, start + length)
        step[part], multipliers[part], paid[part] = _solved(
            rows[part], limits[part], equal[part], (slacks[0][part], slacks[1][part])
        )
    return Steps(step, multipliers, paid)


def _solved(rows: Array, limits: Array, equal: NDArray[np.intp], slacks: tuple[Array, Array]) -> Steps:
    """Build the systems [columns; limits] u = -(0, .., 0, 1), solve them, and read off steps and multipliers."""
    count, many, size = rows.shape
    at = np.arange(count)
    unit = np.broadcast_to(np.eye(size), (count, size, size))
    every = np.concatenate((rows, -rows[at, equal][:, None], unit, -unit), 1)
    ends = np.concatenate((limits, -limits[at, equal][:, None], slacks[1], slacks[0]), 1)
    norms = np.sqrt(np.einsum("nij,nij->ni", every, every))
    real = np.isfinite(ends) & (norms > 0.0)
    norms[~real] = 1.0
    every = np.where(real[..., None], every, 0.0) / norms[..., None]
    ends = np.where(real, ends, 0.0) / norms
    length = -ends.min(1, initial=0.0)
    length[length == 0.0] = 1.0
    system = np.concatenate((every, (ends / length[:, None])[..., None]), 2)  # (n, columns, size + 1)
    found = _non_negative(system)
    rest = np.einsum("nij,ni->nj", system, found)
    rest[:, -1] += 1.0
    gap = np.einsum("ni,ni->n", rest, rest)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        step = rest[:, :-1] * (-length / gap)[:, None]
    found = found / norms
    own = found[:, :many].copy()
    own[at, equal] -= found[:, many]
    sides = np.where(
        (own[:, None] @ rows)[:, 0] < 0.0, found[:, many + 1 : many + 1 + size], found[:, many + 1 + size :]
    )
    return Steps(step, own, sides)


def _non_negative(system: Array) -> Array:
    """Return the u >= 0 (n, columns) for which sum_i u_i system_i (n, size + 1) comes nearest to (0, .., 0, -1)."""
    answer = np.zeros(system.shape[:2])
    todo = np.arange(len(system))
    found, used = answer.copy(), np.zeros(answer.shape, dtype=bool)
    limit = system.shape[2]
    for _ in range(STEPS * limit):
        rest = -np.einsum("nij,ni->nj", system, found)
        rest[:, -1] -= 1.0
        slope = np.einsum("nij,nj->ni", system, rest)
        slope[used] = -np.inf
        best = slope.argmax(1)
        at = np.arange(len(todo))
        size = np.sqrt(np.einsum("ni,ni->n", rest, rest))
        going = (slope[at, best] > GAIN * size) & (used.sum(1) < limit) & (size > 1e-14)
        if not going.all():
            answer[todo[~going]] = found[~going]
            todo, system, found, used, best = todo[going], system[going], found[going], used[going], best[going]
            if len(todo) == 0:
                return answer
        used[np.arange(len(todo)), best] = True
        found, used = _without_negative(system, found, used)
    answer[todo] = found
    return answer


def _without_negative(system: Array, found: Array, used: NDArray[np.bool_]) -> tuple[Array, NDArray[np.bool_]]:
    """Move to the least squares solution of the used columns, dropping those that reach zero on the way."""
    open_ = np.arange(len(found))
    for _ in range(system.shape[2] + 1):
        now, own = found[open_], used[open_]
        aimed = _least_squares(system[open_], own)
        falling = own & (aimed <= 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(falling, now / (now - aimed), np.inf)
        share = shares.min(1)
        done = ~falling.any(1)
        share[done] = 1.0
        share = np.nan_to_num(share, nan=0.0)
        moved = now + share[:, None] * (aimed - now)
        dropped = falling & (shares <= share[:, None])
        moved[dropped] = 0.0
        found[open_] = np.where(own, np.maximum(moved, 0.0), 0.0)
        used[open_] = own & ~dropped
        open_ = open_[~done]
        if len(open_) == 0:
            break
    return found, used


def _least_squares(system: Array, used: NDArray[np.bool_]) -> Array:
    """Return the combination of the used columns nearest to (0, .., 0, -1), refined once."""
    limit = min(int(used.sum(1).max()), system.shape[1])
    order = np.argsort(~used, axis=1, kind="stable")[:, :limit]
    real = np.take_along_axis(used, order, 1)
    columns = np.take_along_axis(system, order[..., None], 1) * real[..., None]  # (n, limit, size + 1)
    gram = columns @ columns.transpose(0, 2, 1)
    diagonal = np.arange(limit)
    gram[:, diagonal, diagonal] += np.where(real, 1e-15, 1.0)
    target = -columns[..., -1]
    solved = _combination(gram, target[..., None])
    again = target[..., None] - columns @ (columns.transpose(0, 2, 1) @ solved)
    solved = (solved + _combination(gram, again))[..., 0] * real
    out = np.zeros(used.shape)
    np.put_along_axis(out, order, solved, 1)
    return out


def _combination(gram: Array, target: Array) -> Array:
    """Return gram^-1 target, by the pseudo-inverse where a column that is a multiple of another leaves no inverse."""
    try:
        return np.asarray(np.linalg.solve(gram, target), dtype=np.float64)
    except np.linalg.LinAlgError:
        inverse = np.asarray(np.linalg.pinv(gram, hermitian=True), dtype=np.float64)
        return inverse @ target
