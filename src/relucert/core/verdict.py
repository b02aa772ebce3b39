"""`Verdict`: the four possible answers about one example; `Reason`: why the answer is UNKNOWN, in a word."""

from __future__ import annotations

import math
from enum import StrEnum

from relucert.core.errors import InvalidInput

CLOCK = "stopped by the clock: "
"""What the method of an UNKNOWN answer begins with where the clock ended its search."""


class Verdict(StrEnum):
    """ROBUST is proved, VULNERABLE has a counterexample, MISCLASSIFIED is wrong at the input itself; all else is UNKNOWN.

    This module does not import torch, because records and reports use it too.
    """

    ROBUST = "robust"
    VULNERABLE = "vulnerable"
    UNKNOWN = "unknown"
    MISCLASSIFIED = "misclassified"

    @classmethod
    def _missing_(cls, value: object) -> Verdict:
        raise InvalidInput(f"verdict must be one of {', '.join(cls)}, got {value!r}")


class Reason(StrEnum):
    """Why an example is UNKNOWN, where a word says it; solvers have texts of their own.

    TIME: a clock ended the search. NODES: branch and bound has used up its subproblems. MEMORY: the open subproblems took too
    much memory. SUBPROBLEM: a subproblem without ReLUs to split stayed undecided. BOUND: the bound of an incomplete method is
    not positive. ROUNDING: the bound is positive, but not after rounding was charged. INTERRUPTED: the call was interrupted
    before the example was decided.
    """

    TIME = "time"
    NODES = "nodes"
    MEMORY = "memory"
    SUBPROBLEM = "subproblem"
    BOUND = "bound"
    ROUNDING = "rounding"
    INTERRUPTED = "interrupted"


def arithmetic_of(verdict: Verdict, executed: float) -> str:
    """What a proof covers: "executed" where the margin `executed` is positive, else "real"; "" without a proof.

    >>> arithmetic_of(Verdict.ROBUST, 0.1), arithmetic_of(Verdict.ROBUST, -0.1), arithmetic_of(Verdict.UNKNOWN, 0.1)
    ('executed', 'real', '')
    """
    if verdict is not Verdict.ROBUST:
        return ""
    return "executed" if executed > 0 else "real"


def rounding_of(computed: float, margin: float) -> float:
    """What a proved margin was charged for rounding: the computed bound less the margin.

    NaN where one of them is infinite, and where the margin is larger: then it was proved piece by piece, not by that bound.

    >>> rounding_of(0.75, 0.5), rounding_of(0.25, 0.5), rounding_of(0.5, -math.inf)
    (0.25, nan, nan)
    """
    known = math.isfinite(computed) and math.isfinite(margin) and computed >= margin
    return computed - margin if known else math.nan
