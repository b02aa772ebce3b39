"""The best of several attacks, polished: never worse than any of its members.

It begins with the nearest points behind the decision hyperplanes of the region of x itself: where Theorem 3.1 of the paper is
exact, one of them is the answer. After each member the network is linearised at the best point and x projected onto the
decision hyperplane there, within the box: where that projection lies in the same region, it is the nearest point on that piece
of the boundary. The way from x to the best point is searched once more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from relucert.attacks.base import MinimalAttack
from relucert.attacks.cw import CW
from relucert.attacks.ddn import DDN
from relucert.attacks.fab import FAB
from relucert.attacks.region import RegionAttack
from relucert.attacks.rescue import rescue
from relucert.attacks.scatter import scatter
from relucert.attacks.segment import approach
from relucert.attacks.targets import nearest_classes
from relucert.core.errors import InvalidInput
from relucert.core.methods import parse
from relucert.geometry.region import LinearRegion
from relucert.geometry.witness import Witnesses

MEMBERS: dict[str, type[MinimalAttack]] = {"cw": CW, "ddn": DDN, "fab": FAB, "region": RegionAttack}
LINEARISED = 3  # how often the polish linearises
GUESSED = 9  # classes whose hyperplanes around x are looked behind


@dataclass(frozen=True, kw_only=True)
class Best(MinimalAttack):
    """Several attacks one after the other, each from what those before it have found, and the polish after each.

    `members` are their texts, such as ("ddn(steps=50)", "region(regions=100)"); None chooses for the norm.
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
        """The attacks for a norm."""
        if self.members is not None:
            return [parse(member, MEMBERS) for member in self.members]
        if p == 2.0:
            return [DDN(steps=50, targets=9), FAB(steps=10, restarts=3, targets=3), RegionAttack(regions=10)]
        quick = FAB(steps=20, restarts=2, targets=5)
        return [RegionAttack(regions=6), quick, RegionAttack(regions=10)] if p in (1.0, math.inf) else [quick]

    def check_norm(self, p: float) -> None:
        """Raise InvalidInput if a member does not know the norm."""
        for member in self.chosen(p):
            member.check_norm(p)

    def search(self, found: Witnesses, generator: torch.Generator) -> None:
        """Run the members; help out where one has found nothing, look around, and polish what there is."""
        guess(found)
        for member in self.chosen(found.p):
            member.search(found, generator)
            rescue(found, generator)
            scatter(found, generator)
            polish(found)


def guess(found: Witnesses) -> None:
    """Look behind the decision hyperplanes of the region of x, the nearest classes first."""
    every = torch.arange(len(found.x), device=found.x.device)
    region, _, logits = LinearRegion.evaluated(found.net, found.x)
    eye = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
    for target in nearest_classes(found, GUESSED).T:
        against = eye[found.y] - eye[target]
        found.beyond(every, region.logits_rows(against[:, None])[:, 0], (logits * against).sum(1))


def polish(found: Witnesses) -> None:
    """Move the best points to the nearest ones on their pieces of the boundary."""
    index = found.distance.isfinite().nonzero()[:, 0]
    for _ in range(LINEARISED):
        if len(index) == 0:
            return
        before = found.distance[index]
        region, _, logits = LinearRegion.evaluated(found.net, found.point[index])
        y = found.y[index]
        eye = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
        against = eye[y] - eye[logits.scatter(1, y[:, None], -torch.inf).argmax(1)]
        rows = region.logits_rows(against[:, None])[:, 0]
        ahead = (region.values(found.x[index])[1] * against).sum(1)
        found.beyond(index, rows, ahead)
        approach(found, index, found.point[index])
        index = index[found.distance[index] < before]
