"""Proofs for mixed-integer programs: a tree of linear programs, each closed by multipliers that are evaluated with rounding.

Columns of whole numbers are split, first the column that the linear program leaves furthest from whole. A leaf is closed when
the multipliers of its linear program prove the cutoff (`proved_minimum`), or when a ray of multipliers proves that the leaf has
no point (Farkas' lemma). The claims of the solver about either are not used.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relucert.polytopes.highs import Highs, Options
from relucert.verification.mip._problem import TOLERANCE, Problem
from relucert.verification.mip._scaling import Scaling
from relucert.verification.mip._tightening import proved_minimum

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Proof:
    """Whether no point of a program costs `cutoff` or less, and the number of linear programs."""

    proved: bool
    nodes: int


def prove_cutoff(problem: Problem, cutoff: float, seconds: float, nodes: int) -> Proof:
    """Search for a proof that every point of a program costs more than `cutoff`, with at most `nodes` linear programs.

    Whole numbers are between 0 and 1. Quadratic rows are left out, which makes the program larger and a proof no less valid.
    """
    if not problem.finite:
        return Proof(False, 0)
    deadline, spent = time.monotonic() + seconds, 0
    whole = np.flatnonzero(problem.integer)
    scaling = Scaling.of(problem)
    loose = replace(scaling.scaled(problem), integer=np.zeros_like(problem.integer), squares=None)
    highs = Highs(loose.linear, Options(tolerance=TOLERANCE, presolve=False, simplex=True))
    if not highs.accepted:
        return Proof(False, 0)
    open_ = [(problem.lower[whole], problem.upper[whole])]
    while open_:
        left = deadline - time.monotonic()
        if left <= 0 or spent >= nodes:
            return Proof(False, spent)
        low, high = open_.pop()
        spent += 1
        lower, upper = problem.lower.copy(), problem.upper.copy()
        lower[whole], upper[whole] = low, high
        leaf = replace(problem, lower=lower, upper=upper)
        highs.change_bounds(whole, low, high)
        highs.solve(left)
        if _closed(highs, leaf, scaling, cutoff):
            continue
        values = highs.values()
        parts = np.abs(values[whole] - np.round(values[whole])) if len(values) else np.zeros(len(whole))
        parts = np.where(low < high, np.maximum(parts, TOLERANCE), -1.0)
        if not len(whole) or parts.max() < 0:
            return Proof(False, spent)  # no column is left to split: the leaf has a point at the cutoff, or nearly
        at = int(parts.argmax())
        sides = []
        for value in (0.0, 1.0):
            one, other = low.copy(), high.copy()
            one[at] = other[at] = value
            sides.append((one, other))
        # The side nearer to the linear program's value is harder to close: it comes first, so that a failure shows early.
        nearer = bool(len(values)) and values[whole][at] >= 0.5
        open_ += sides if nearer else sides[::-1]
    return Proof(True, spent)


def _closed(highs: Highs, leaf: Problem, scaling: Scaling, cutoff: float) -> bool:
    """Whether the multipliers of a solved linear program prove the cutoff, or that the leaf has no point (Farkas)."""
    multipliers = highs.multipliers()
    if multipliers is not None and proved_minimum(leaf, leaf.cost, scaling.multipliers(multipliers)) > cutoff:
        return True
    ray = highs.ray()
    if ray is None:
        return False
    ray = scaling.multipliers(ray)
    ray = ray / max(float(np.abs(ray).max(initial=0.0)), math.ulp(0.0))
    nothing = np.zeros_like(leaf.cost)
    return any(proved_minimum(leaf, nothing, sign * ray) > 0 for sign in (1.0, -1.0))
