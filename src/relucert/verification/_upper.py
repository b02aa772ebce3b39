"""The upper ends of radii by attacks: the nearest witness counts."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from relucert.attacks.problem import minimal_attack
from relucert.core.errors import Contradiction
from relucert.core.methods import Method
from relucert.core.results import RadiusInterval, meets
from relucert.verification.verifier import Query

ROUNDING = 1e-6  # relative, of a proved radius and the distance of a witness


def attacked(query: Query, found: RadiusInterval, attack: str | Method) -> RadiusInterval:
    """The intervals with the nearer of the known witness and the attack's as their upper ends.

    A witness changes the decision in real arithmetic, too, so none lies nearer than a proof allows, but for the rounding of
    both numbers.
    """
    x = query.x
    started = time.perf_counter()
    result = minimal_attack(query.net, x, query.y, query.p, query.sides, attack)
    seconds = found.seconds + (time.perf_counter() - started) / len(x)
    nearer = result.distance < found.upper
    if not bool(nearer.any()):
        return replace(found, seconds=seconds)
    upper = torch.minimum(found.upper, result.distance)
    refuse_contradictions(found.lower, upper, found.method, ROUNDING)
    lower = torch.minimum(found.lower, upper)
    exact = torch.where(nearer, meets(lower, upper) & meets(upper, found.lower), found.exact)
    known = torch.full_like(x, torch.nan) if found.witness is None else found.witness
    witness = torch.where(nearer.reshape(-1, *(1,) * (x.dim() - 1)), result.x, known)
    return RadiusInterval(lower, upper, exact, witness, seconds, found.method, found.arithmetic)


def refuse_contradictions(lower: Tensor, upper: Tensor, methods: list[str], slack: float = 0.0) -> None:
    """Refuse to answer where a witness lies inside a certified ball, deeper than `slack` explains."""
    gap = lower > upper * (1 + slack) + 1e-3 * slack
    if bool(gap.any()):
        at = int(gap.nonzero()[0])
        raise Contradiction(
            f"example {at}: {methods[at]} certifies the radius {float(lower[at])}, but a witness is at {float(upper[at])}; "
            "this is a fault of relucert, or of a solver: please report it with the network"
        )
