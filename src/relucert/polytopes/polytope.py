"""The l_p distance of a point to a polytope or to one of its faces, with a proof of the lower end.

    min ||z - x||_p   subject to   G z <= h,  E z = e,  lower <= z <= upper

With a row of the polytope as E this is the distance to a facet. The lower end is no claim of a solver: it is evaluated from
multipliers with bounds on all rounding errors (`certificates`), as is a proof that no z exists (`farkas`).
The solvers see few of many rows: the most violated ones first, then those that their answer violates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from relucert.core.errors import InvalidInput
from relucert.core.norms import check_p
from relucert.polytopes._least_distance import Nearest, least_distance
from relucert.polytopes._linear_distance import MaximumSolver, TaxicabSolver
from relucert.polytopes._power_distance import power_distance
from relucert.polytopes.certificates import (
    EPS,
    Array,
    HalfSpaces,
    certified_distance,
    half_spaces,
    hyperplanes,
    vector_norm,
)
from relucert.polytopes.farkas import certified_empty
from relucert.polytopes.highs import TINY, Highs, LinearProgram, SparseRows

SMALL = 8192  # entries of G up to which the solvers see all rows
ADDED = 32  # rows that join the working set at a time
FEASIBLE = 1e-9  # the violation of a row, in parts of the distance, with which a point passes for feasible
OPTIMAL = 1e-7  # the relative gap between the ends of an answer called optimal

Box = tuple[ArrayLike, ArrayLike]
Solver = Callable[[Array, Array, int, Array, Array], Nearest | None]


@dataclass(frozen=True, kw_only=True)
class PolytopeDistance:
    """An interval around the distance: `lower` is proved, `upper` is that of `point`, which is feasible up to rounding only.

    "optimal": upper <= lower (1 + 1e-7), or both differ by no more than rounding; "infeasible": proved, lower = upper = inf and
    point None; "unknown": lower is valid, and the point may be None with upper = inf.
    """

    lower: float
    point: Array | None
    upper: float
    status: Literal["optimal", "infeasible", "unknown"]


class Polytope:
    """The polytope {z : G z <= h, lower <= z <= upper}, prepared for many questions about its faces.

    G (m, d) and h (m,), which may be inf; box = (lower, upper), numbers or arrays that broadcast to (d,), may be infinite too.

    >>> corner = Polytope([[-1.0, 0.0], [0.0, -1.0]], [-3.0, -4.0])
    >>> answer = corner.distance([0.0, 0.0], p=2)
    >>> answer.point, answer.upper, answer.status, bool(4.999999 < answer.lower <= 5.0)
    (array([3., 4.]), 5.0, 'optimal', True)
    """

    def __init__(self, G: ArrayLike, h: ArrayLike, box: Box | None = None) -> None:
        self.faces = half_spaces(G, h)
        lower, upper = (-np.inf, np.inf) if box is None else box
        self.size = self.faces.rows.shape[1]
        self.lower, self.upper = self._side(lower, "lower"), self._side(upper, "upper")
        wrong = self.lower > self.upper
        if bool(wrong.any()):
            at = int(np.argmax(wrong))
            found = f"{self.lower[at]} > {self.upper[at]} at coordinate {at}"
            raise InvalidInput(f"box must have lower <= upper, got {found}")

    def _side(self, value: ArrayLike, name: str) -> Array:
        side = np.asarray(value, dtype=np.float64)
        if side.shape not in ((), (self.size,)) or bool(np.isnan(side).any()):
            raise InvalidInput(f"{name} of box must be one number or {self.size}, got {side}")
        return np.broadcast_to(side, (self.size,))

    def distance(
        self, x: ArrayLike, E: ArrayLike | None = None, e: ArrayLike | None = None, p: float = 2.0
    ) -> PolytopeDistance:
        """Return the l_p distance of x (d,) to the points z of the polytope with E z = e; E (k, d) or (d,), e (k,) or a number.

        x must lie in the box. A row of G as E asks for the distance to that facet; "infeasible" proves that it is none.
        """
        p = check_p(p)
        point = np.asarray(x, dtype=np.float64)
        if point.shape != (self.size,) or not np.isfinite(point).all():
            raise InvalidInput(f"x must be {self.size} finite numbers, got the shape {point.shape} and {point}")
        outside = (point < self.lower) | (point > self.upper)
        if bool(outside.any()):
            at = int(np.argmax(outside))
            found = f"{point[at]} outside [{self.lower[at]}, {self.upper[at]}] at coordinate {at}"
            raise InvalidInput(f"x must lie in the box, got {found}")
        equal = hyperplanes(E, e, self.size)
        if self.faces.contradictory or equal.contradictory:
            return _NOWHERE
        with np.errstate(over="ignore", invalid="ignore"):  # beyond the range of floats nothing is proved or feasible
            return _Question(self, equal, point, p).answer()

    def proved_empty(self, E: ArrayLike, e: ArrayLike) -> bool:
        """Return whether a linear program for the least violation of the rows proves that no z of the polytope has E z = e.

        For faces that are nearly empty, of which `distance` says "unknown".
        """
        equal = hyperplanes(E, e, self.size)
        if self.faces.contradictory or equal.contradictory:
            return True
        if not (self.faces.exact and equal.exact):
            return False
        rows = np.concatenate((equal.rows, -equal.rows, self.faces.rows))
        limits = np.concatenate((equal.limits, -equal.limits, self.faces.limits))
        cost = np.append(np.zeros(self.size), 1.0)
        low, high = np.append(self.lower, 0.0), np.append(self.upper, np.inf)
        every = SparseRows.of(np.append(rows, np.full((len(rows), 1), -1.0), axis=1))
        best = Highs(LinearProgram(cost, low, high, every, np.full(len(rows), -np.inf), limits), TINY).optimum()
        if best is None:
            return False
        count = len(equal.rows)
        every_multiplier = best.multipliers.clip(min=0.0)
        multipliers = np.concatenate(
            (every_multiplier[:count] - every_multiplier[count : 2 * count], every_multiplier[2 * count :])
        )
        centre = best.x[:-1].clip(self.lower, self.upper)
        slacks = (centre - self.lower) * (1.0 + EPS), (self.upper - centre) * (1.0 + EPS)
        own = np.concatenate((equal.rows, self.faces.rows)), np.concatenate((equal.limits, self.faces.limits))
        return certified_empty(*own, multipliers, count, centre, slacks)


_NOWHERE = PolytopeDistance(lower=math.inf, point=None, upper=math.inf, status="infeasible")


def polytope_distance(
    x: ArrayLike,
    G: ArrayLike,
    h: ArrayLike,
    E: ArrayLike | None = None,
    e: ArrayLike | None = None,
    box: Box | None = None,
    p: float = 2.0,
) -> PolytopeDistance:
    """Return the l_p distance of x to {z : G z <= h, E z = e, lower <= z <= upper}, with a proved lower end.

    See `Polytope`, which spares the preparation for several questions about one polytope.

    >>> polytope_distance([0.0, 0.0], [[1.0, 0.0]], [0.0], E=[1.0, 0.0], e=1.0, box=(-1.0, 1.0)).status
    'infeasible'
    """
    return Polytope(G, h, box).distance(x, E, e, p)


class _Question:
    """One point, one face and one norm: the solvers look for the step from x, in units of the distance of the farthest row."""

    def __init__(self, polytope: Polytope, equal: HalfSpaces, x: Array, p: float) -> None:
        self.polytope, self.faces, self.equal, self.x, self.p = polytope, polytope.faces, equal, x, p
        self.excess = self.faces.rows @ x - self.faces.limits
        self.equal_excess = equal.rows @ x - equal.limits
        # Rounded up: a room that is too large only makes a lower bound smaller.
        self.slacks = (x - polytope.lower) * (1.0 + EPS), (polytope.upper - x) * (1.0 + EPS)
        self.rounding = 4.0 * (len(x) + 16) * EPS

    def answer(self) -> PolytopeDistance:
        """Return the interval, or "unknown" with what is proved so far where a solver gives up."""
        if self.fits(self.x, 0.0):
            return PolytopeDistance(lower=0.0, point=self.x.copy(), upper=0.0, status="optimal")
        distances = self.excess / self.faces.norms
        apart = np.abs(self.equal_excess) / self.equal.norms
        self.unit = max(float(distances.max(initial=0.0)), float(apart.max(initial=0.0)))
        chosen = np.arange(len(distances))
        if self.faces.rows.size > SMALL:
            chosen = np.argsort(-distances)[:ADDED]
        lower, found = 0.0, None
        try:
            found, chosen = self.settled(least_distance, chosen)
            lower = self.proved(found, chosen)
            if found is not None and found.step is None:
                if math.isinf(lower) or self.empty(found, chosen):
                    return _NOWHERE
            elif found is not None and self.p != 2.0:
                found, chosen = self.settled(self.solver(lower / self.unit), chosen)
                lower = max(lower, self.proved(found, chosen))
        except (RuntimeError, np.linalg.LinAlgError):
            found = None
        if found is None or found.step is None:
            return PolytopeDistance(lower=lower, point=None, upper=math.inf, status="unknown")
        return self.judged(found.step * self.unit, lower)

    def solver(self, least: float) -> Solver:
        """Return the solver for p, which for l_inf starts from a lower bound."""
        if self.p == 1.0:
            return TaxicabSolver()
        if math.isinf(self.p):
            return MaximumSolver(least)
        return partial(power_distance, p=self.p)

    def settled(self, solver: Solver, chosen: NDArray[np.intp]) -> tuple[Nearest | None, NDArray[np.intp]]:
        """Solve for the chosen rows, and add those that the answer violates until it violates none."""
        low, high = -self.slacks[0] / self.unit, self.slacks[1] / self.unit
        excess = self.excess / self.unit
        while True:
            rows = np.concatenate((self.equal.rows, self.faces.rows[chosen]))
            limits = np.concatenate((self.equal_excess / -self.unit, -excess[chosen]))
            found = solver(rows, limits, len(self.equal.rows), low, high)
            if found is None or found.step is None or len(chosen) == len(excess):
                return found, chosen
            violation = (excess + self.faces.rows @ found.step) / self.faces.norms
            violation[chosen] = -np.inf
            worst = np.argsort(-violation)[:ADDED]
            worst = worst[violation[worst] > 0.01 * FEASIBLE * max(1.0, float(np.abs(found.step).max()))]
            if not len(worst):
                return found, chosen
            chosen = np.concatenate((chosen, worst))

    def certificate(self, found: Nearest, chosen: NDArray[np.intp]) -> tuple[Array, Array, Array]:
        """Return the rows, limits and multipliers that count; those of inequalities are not negative."""
        multipliers = found.multipliers.copy()
        multipliers[len(self.equal.rows) :] = multipliers[len(self.equal.rows) :].clip(min=0.0)
        used = np.flatnonzero(multipliers[len(self.equal.rows) :])
        rows = np.concatenate((self.equal.rows, self.faces.rows[chosen[used]]))
        limits = np.concatenate((self.equal.limits, self.faces.limits[chosen[used]]))
        return (
            rows,
            limits,
            np.concatenate((multipliers[: len(self.equal.rows)], multipliers[len(self.equal.rows) + used])),
        )

    def proved(self, found: Nearest | None, chosen: NDArray[np.intp]) -> float:
        """Return the distance that the multipliers prove."""
        if found is None:
            return 0.0
        return certified_distance(*self.certificate(found, chosen), self.x, self.slacks, self.p)

    def empty(self, found: Nearest, chosen: NDArray[np.intp]) -> bool:
        """Return whether the multipliers lead to a proof that the face is empty."""
        if not (self.faces.exact and self.equal.exact):
            return False
        return certified_empty(*self.certificate(found, chosen), len(self.equal.rows), self.x, self.slacks)

    def fits(self, z: Array, length: float) -> bool:
        """Return whether z, at the given l2 distance of x, satisfies all rows up to rounding and `FEASIBLE`."""
        size = vector_norm(np.abs(z), 2.0)
        inside = self.faces.rows @ z - self.faces.limits
        on = np.abs(self.equal.rows @ z - self.equal.limits)
        return all(
            bool((excess <= FEASIBLE * length + self.rounding * (size + np.abs(rows.limits))).all())
            for excess, rows in ((inside, self.faces), (on, self.equal))
        )

    def judged(self, step: Array, lower: float) -> PolytopeDistance:
        """Return the interval with the end of the step as its point, if that is feasible."""
        point = (self.x + step).clip(self.polytope.lower, self.polytope.upper)
        moved = np.abs(point - self.x)
        if not np.isfinite(moved).all() or not self.fits(point, vector_norm(moved, 2.0)):
            return PolytopeDistance(lower=lower, point=None, upper=math.inf, status="unknown")
        upper = vector_norm(moved, self.p)
        tiny = self.rounding * vector_norm(np.abs(self.x), self.p)
        if upper < lower * (1.0 - OPTIMAL) - tiny:  # rows that are nearly parallel: a small violation goes a long way
            return PolytopeDistance(lower=lower, point=None, upper=math.inf, status="unknown")
        close = upper <= lower * (1.0 + OPTIMAL) + tiny
        # A point that is feasible up to rounding may be nearer than all that are so exactly, by as little.
        return PolytopeDistance(
            lower=min(lower, upper), point=point, upper=upper, status="optimal" if close else "unknown"
        )
