"""`auto`: the cascade, cheapest first; every stage sees only what is still undecided.

Prediction, the region theorem, a short attack, CROWN, a long attack, alpha, in l2 SDP-CROWN, for networks with one layer of
ReLUs the semidefinite bound of `moments`, then branch and bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from relucert.attacks.apgd import APGD
from relucert.attacks.pgd import PGD
from relucert.bounding.methods.alpha import Alpha
from relucert.bounding.methods.crown import CROWN
from relucert.bounding.methods.moments import Moments
from relucert.bounding.methods.sdp import SDP
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method
from relucert.geometry.theorem import Region
from relucert.verification.bab.bab import BaB

Stage = Region | PGD | APGD | CROWN | Alpha | SDP | Moments | BaB


@dataclass(frozen=True, kw_only=True)
class Auto(Method):
    """`nodes` limits the sub-problems of branch and bound for each point; `restarts` those of the attack."""

    name = "auto"
    nodes: int = 20_000
    restarts: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("nodes", "restarts"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} of auto must be at least 1, got {getattr(self, name)}")

    def stages(self, p: float, *, single: bool = False) -> tuple[Stage, ...]:
        """What is tried, in order, for a ball of l_p; `single` says that the network has one layer of ReLUs."""
        bounds: tuple[Stage, ...] = (CROWN(), Alpha(), SDP()) if p == 2 else (CROWN(), Alpha())
        if single:
            bounds = (*bounds, Moments())
        quick, long = PGD(steps=20, alike=True), APGD(steps=50, restarts=self.restarts, alike=True)
        return (Region(regions=1), quick, bounds[0], long, *bounds[1:], BaB(nodes=self.nodes))
