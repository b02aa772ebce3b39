"""Answers about balls with a scale, from answers about balls without."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from relucert.core.errors import InvalidInput
from relucert.core.properties import Property
from relucert.core.results import RadiusInterval, Verdict, meets
from relucert.core.rounding import rounded_down
from relucert.core.verdict import Reason
from relucert.networks.scaled import ScaledQuestion
from relucert.verification.verifier import Decision


def refuse_executed(arithmetic: str) -> None:
    """Raise where a proof about the network as executed is wanted: the network of scaled inputs is not the one that runs."""
    if arithmetic != "real":
        raise InvalidInput(f"arithmetic must be 'real' for a ball with a scale, got {arithmetic!r}")


@torch.no_grad()
def scaled_interval(question: ScaledQuestion, found: RadiusInterval, y: Tensor) -> RadiusInterval:
    """The intervals of the original network, in units of the scale.

    A proved radius holds around the centre that rounding has moved, so it is reduced by that move; witnesses are those that
    change the decision of the original network, with their distances from the original inputs.
    """
    x = question.centre
    known = found.upper.isfinite().reshape(-1, *(1,) * (x.dim() - 1))
    points = question.x if found.witness is None else torch.where(known, found.witness, question.x)
    reached = question.adversarial(points, y)
    wrong = question.original(x).argmax(1) != y
    down = (found.lower.double() - question.shift) * (1 - 1e-15)
    lower = rounded_down(torch.nextafter(down, torch.full_like(down, -torch.inf)).clamp(min=0), x.dtype)
    lower = torch.where(wrong, 0.0, lower)
    shown = torch.where(reached.success.reshape(known.shape), reached.x, torch.nan)
    exact = found.exact & reached.success & meets(lower, reached.distance)
    return RadiusInterval(
        lower,
        reached.distance,
        exact & ~wrong,
        shown if bool(reached.success.any()) else None,
        found.seconds.to(x.dtype),
        found.method,
    )


@torch.no_grad()
def scaled_decision(question: ScaledQuestion, found: Decision, prop: Property, holds: bool) -> Decision:
    """The decision about an input of the original network, at which it has the property or not (`holds`).

    Proofs hold in real arithmetic. A counterexample is run through the original network, and counts if it lies in the original
    ball.
    """
    found = replace(found, executed=-math.inf, row_margins=None, saved=None)
    if not holds:
        return Decision(found.index, Verdict.MISCLASSIFIED, -math.inf, "prediction", found.seconds)
    if found.verdict is Verdict.VULNERABLE:
        assert found.witness is not None
        one = torch.tensor([found.index], device=question.x.device)
        points, falsified = question.restrict(one).counterexamples(found.witness[None], prop.restrict(one))
        if bool(falsified[0]):
            return replace(found, witness=points[0])
    elif found.verdict is not Verdict.MISCLASSIFIED:
        return found
    return replace(
        found, verdict=Verdict.UNKNOWN, margin=-math.inf, computed=-math.inf, witness=None, reason=Reason.ROUNDING
    )
