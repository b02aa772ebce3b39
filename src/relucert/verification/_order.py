"""The order of the verifiers of `auto`: attacks and bounds are merged by what they decide at what cost.

Attacks falsify and bounds prove, so what the one decides the other never does. An attack before a bound costs less than behind
it if and only if

    (inputs that the attack decides) / (its cost)  >  (inputs that the bound decides) / (its cost).

Attacks among themselves, and bounds among themselves, keep their order from cheap to expensive, since the expensive ones decide
what the cheap ones decide. So both lists are merged by the best ratio that a beginning of each has. The numbers of inputs are
those of the first inputs of a call, the costs are nominal ones: forward passes for one input. The order follows from the
verdicts alone, and not from any clock. Every input that stays open is seen by all verifiers in any order, so verdicts do not
depend on it; the method that decides first does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relucert.attacks.apgd import APGD
from relucert.attacks.pgd import PGD
from relucert.bounding.methods.crown import Alpha
from relucert.bounding.methods.moments import Moments
from relucert.bounding.methods.sdp import SDP
from relucert.verification._incomplete import Attack, Bound, TimedBound

Incomplete = Attack | Bound | TimedBound

#: Forward passes that a bound without steps is worth: one for every unstable unit and row, about.
PASSES = 100
#: A forward pass with its gradient costs as much as so many without.
GRADIENT = 3
#: A pass of a bound that works on few inputs between two looks at the clock costs as much as so many of others.
TIMED = 10


def passes(stage: Incomplete, rows: int) -> int:
    """The nominal cost of a verifier for an input and a property of so many rows, in forward passes."""
    method = stage.method
    if isinstance(method, PGD | APGD):
        return GRADIENT * method.steps * method.restarts
    steps = method.steps if isinstance(method, Alpha | SDP | Moments) else 0
    return (PASSES + GRADIENT * steps * rows) * (TIMED if isinstance(stage, TimedBound) else 1)


def merged(stages: Sequence[Incomplete], decided: Mapping[str, int], rows: int) -> tuple[Incomplete, ...]:
    """The verifiers in the order of least cost, for inputs like those of which each has decided so many, by its name.

    Where two are equal the cheaper one goes first.
    """
    lists = [[stage for stage in stages if isinstance(stage, Attack) is kind] for kind in (False, True)]
    found: list[Incomplete] = []
    while any(lists):
        best = max((part for part in lists if part), key=lambda part: _ratio(part, decided, rows))
        found.append(best.pop(0))
    return tuple(found)


def _ratio(stages: Sequence[Incomplete], decided: Mapping[str, int], rows: int) -> tuple[float, int]:
    """The largest ratio of inputs decided and cost that a beginning of the verifiers has, and minus the cost of the first."""
    ratios, gain, cost = [], 0, 0
    for stage in stages:
        gain, cost = gain + decided.get(stage.name, 0), cost + passes(stage, rows)
        ratios.append(gain / cost)
    return max(ratios), -passes(stages[0], rows)
