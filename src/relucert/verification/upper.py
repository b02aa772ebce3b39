"""The upper ends of radii by attacks: a witness that is nearer than what is known takes its place."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relucert.attacks.problem import minimal_attack
from relucert.core.errors import Contradiction
from relucert.core.methods import Method
from relucert.core.results import RadiusInterval, meets
from relucert.networks.network import Network

ROUNDING = 1e-6  # relative, of a proved radius and the distance of a witness


def attacked(
    net: Network, x: Tensor, y: Tensor, p: float, box: Any, found: RadiusInterval, attack: str | Method
) -> RadiusInterval:
    """The intervals with the nearer of the known witness and the attack's as their upper ends.

    A witness changes the decision in real arithmetic, too, so none lies nearer than a proof allows, but for the rounding of
    the two numbers.
    """
    if len(x) == 0:
        return found
    started = time.perf_counter()
    result = minimal_attack(net, x, y, p, box, attack)
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
    return RadiusInterval(lower, upper, exact, witness, seconds, found.method)


def refuse_contradictions(lower: Tensor, upper: Tensor, methods: list[str], slack: float = 0.0) -> None:
    """Refuse to answer where a witness lies inside a certified ball, deeper than `slack` explains."""
    gap = lower > upper * (1 + slack) + 1e-3 * slack
    if bool(gap.any()):
        at = int(gap.nonzero()[0])
        raise Contradiction(
            f"example {at}: {methods[at]} certifies the radius {float(lower[at])}, but a witness is at {float(upper[at])}; "
            "this is a fault of relucert, or of a solver that it asked: please report it with the network"
        )
