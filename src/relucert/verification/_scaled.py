"""Certificates about balls with a scale, from certificates about balls without."""

from __future__ import annotations

import torch

from relucert.core.errors import InvalidInput
from relucert.core.properties import Property
from relucert.core.results import Certificate, Verdict
from relucert.core.verdict import Reason
from relucert.networks.scaled import ScaledQuestion


def refuse_executed(arithmetic: str) -> None:
    """Raise where a proof about the network as executed is wanted: the network of scaled inputs is not the one that runs."""
    if arithmetic != "real":
        raise InvalidInput(f"arithmetic must be 'real' for a ball with a scale, got {arithmetic!r}")


@torch.no_grad()
def certificate(question: ScaledQuestion, found: Certificate, prop: Property, holds: torch.Tensor) -> Certificate:
    """The certificate of the original network: `holds` says at which inputs it has the property.

    Proofs hold in real arithmetic. Counterexamples are run through the original network, and count if they lie in the
    original ball.
    """
    verdicts, reasons = list(found.verdict), list(found.reason)
    witness, falsified = None, torch.zeros_like(holds)
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
