"""Answers about balls with a scale, from answers about balls without."""

from __future__ import annotations

import torch
from torch import Tensor

from relucert.core.errors import InvalidInput
from relucert.core.properties import Property
from relucert.core.results import Certificate, RadiusInterval, Verdict, meets
from relucert.core.rounding import rounded_down
from relucert.core.verdict import Reason
from relucert.networks.scaled import ScaledQuestion


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
        exact | wrong,
        shown if bool(reached.success.any()) else None,
        found.seconds.to(x.dtype),
        found.method,
    )


@torch.no_grad()
def certificate(question: ScaledQuestion, found: Certificate, prop: Property, holds: Tensor) -> Certificate:
    """The certificate of the original network: `holds` says at which inputs it has the property.

    Proofs hold in real arithmetic. Counterexamples are run through the original network, and count if they lie in the
    original ball.
    """
    verdicts, reasons = list(found.verdict), list(found.reason)
    witness, falsified, back = None, torch.zeros_like(holds), question.centre
    if found.witness is not None:
        points = torch.where(found.witness.isnan(), question.x, found.witness)
        back, falsified = question.counterexamples(points, prop)
        witness = torch.full_like(question.centre, torch.nan)
    margin = found.margin.clone()
    for i, verdict in enumerate(found.verdict):
        if not bool(holds[i]):
            verdicts[i] = Verdict.MISCLASSIFIED
        elif verdict is Verdict.MISCLASSIFIED or (verdict is Verdict.VULNERABLE and not bool(falsified[i])):
            verdicts[i], reasons[i] = Verdict.UNKNOWN, str(Reason.ROUNDING)
        elif verdict is Verdict.VULNERABLE:
            assert witness is not None
            witness[i] = back[i]
        if verdicts[i] in (Verdict.MISCLASSIFIED, Verdict.UNKNOWN) and verdicts[i] is not verdict:
            margin[i] = -torch.inf
    shown = witness if Verdict.VULNERABLE in verdicts else None
    reasons = ["" if v is not Verdict.UNKNOWN else r for v, r in zip(verdicts, reasons, strict=True)]
    claims = [c if v is Verdict.UNKNOWN else "" for v, c in zip(verdicts, found.claim, strict=True)]
    return Certificate(verdicts, margin, shown, found.method, found.seconds.to(question.centre.dtype), reasons, claims)
