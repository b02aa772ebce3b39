"""The best of several minimal attacks, refined: never worse than any of its members.

The first candidates lie just beyond the decision hyperplanes of the region of x: if Theorem 3.1 of the paper is exact, one of
them is the nearest adversarial point. After each member the network is linearised at the best point and x is projected onto the
decision hyperplane there, within the box: if the projection lies in the same region, it is the nearest point on that piece of
the decision boundary. Then the segment from x to the best point is searched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from relucert.attacks._rescue import rescue
from relucert.attacks._scatter import scatter
from relucert.attacks._segment import approach
from relucert.attacks._targets import nearest_classes
from relucert.attacks.base import MinimalAttack
from relucert.attacks.cw import CW
from relucert.attacks.ddn import DDN
from relucert.attacks.fab import FAB
from relucert.attacks.region import RegionAttack
from relucert.core.errors import InvalidInput
from relucert.core.methods import parse
from relucert.geometry.region import LinearRegion
from relucert.geometry.witness import Witnesses

MEMBERS: dict[str, type[MinimalAttack]] = {"cw": CW, "ddn": DDN, "fab": FAB, "region": RegionAttack}
LINEARISED = 3  # linearisations of one refinement
GUESSED = 9  # classes whose decision hyperplanes in the region of x give first candidates


@dataclass(frozen=True, kw_only=True)
class Best(MinimalAttack):
    """Several attacks in sequence, each starting from the witnesses of the previous ones, with a refinement after each.

    `members` are their texts, such as ("ddn(steps=50)", "region(regions=100)"); None selects members by the norm.
    """

    name = "best"
    members: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.members is not None:
            if len(self.members) == 0:
                raise InvalidInput("members of best must be at least one, or None to choose for the norm, got none")
            for member in self.members:
                parse(member, MEMBERS)

    def chosen(self, p: float) -> list[MinimalAttack]:
        """The attacks that are run for the norm p."""
        if self.members is not None:
            return [parse(member, MEMBERS) for member in self.members]
        if p == 2.0:
            return [DDN(steps=50, targets=9), FAB(steps=10, restarts=3, targets=3), RegionAttack(regions=10)]
        quick = FAB(steps=20, restarts=2, targets=5)
        return [RegionAttack(regions=6), quick, RegionAttack(regions=10)] if p in (1.0, math.inf) else [quick]

    def check_norm(self, p: float) -> None:
        """Raise InvalidInput if a member does not support the norm."""
        for member in self.chosen(p):
            member.check_norm(p)

    def search(self, witnesses: Witnesses, generator: torch.Generator) -> None:
        """Run the members, each followed by `rescue`, `scatter` and `polish`."""
        guess(witnesses)
        for member in self.chosen(witnesses.p):
            member.search(witnesses, generator)
            rescue(witnesses, generator)
            scatter(witnesses, generator)
            polish(witnesses)


def guess(witnesses: Witnesses) -> None:
    """Offer points just beyond the decision hyperplanes of the region of x, the nearest classes first."""
    every = torch.arange(len(witnesses.x), device=witnesses.x.device)
    region, _, logits = LinearRegion.evaluated(witnesses.net, witnesses.x)
    eye = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
    for target in nearest_classes(witnesses, GUESSED).T:
        against = eye[witnesses.y] - eye[target]
        witnesses.beyond(every, region.logits_rows(against[:, None])[:, 0], (logits * against).sum(1))


def polish(witnesses: Witnesses) -> None:
    """Project x onto the decision hyperplane of the region of the best point, and search the segment, some times."""
    index = witnesses.distance.isfinite().nonzero()[:, 0]
    for _ in range(LINEARISED):
        if len(index) == 0:
            return
        before = witnesses.distance[index]
        region, _, logits = LinearRegion.evaluated(witnesses.net, witnesses.point[index])
        y = witnesses.y[index]
        eye = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
        against = eye[y] - eye[logits.scatter(1, y[:, None], -torch.inf).argmax(1)]
        rows = region.logits_rows(against[:, None])[:, 0]
        ahead = (region.values(witnesses.x[index])[1] * against).sum(1)
        witnesses.beyond(index, rows, ahead)
        approach(witnesses, index, witnesses.point[index])
        index = index[witnesses.distance[index] < before]
