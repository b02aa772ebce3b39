"""Boxes of inputs as subproblems: halves, clipping by linear bounds, and the open ones of a search."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

#: Pays for the division and the sum that make a side of a clipped box, besides one step outwards.
_WIDER = 1 + 1e-14


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes [lower, upper] of the free inputs, each with the input of the query that it belongs to and its open clauses.

    A clause is open in a box as long as it is not proved there. `margin` is the smallest proved margin of a clause over the
    box that this one was cut from.
    """

    lower: Float[Tensor, " n free"]
    upper: Float[Tensor, " n free"]
    owner: Int[Tensor, " n"]
    open: Bool[Tensor, " n clauses"]
    margin: Float[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def width(self) -> Float[Tensor, " n free"]:
        """The lengths of the sides."""
        return self.upper - self.lower

    def restrict(self, which: Tensor | slice) -> Boxes:
        """Some of the boxes."""
        return Boxes(*(part[which] for part in (self.lower, self.upper, self.owner, self.open, self.margin)))

    @staticmethod
    def joined(parts: list[Boxes]) -> Boxes:
        """Several boxes one after the other."""
        columns = zip(*((one.lower, one.upper, one.owner, one.open, one.margin) for one in parts), strict=True)
        return Boxes(*(torch.cat(column) for column in columns))

    def halves(self, side: Int[Tensor, " n"]) -> Boxes:
        """Both halves of every box, cut in the middle of one side each."""
        place = side[:, None]
        low, high = self.lower.gather(1, place), self.upper.gather(1, place)
        middle = low / 2 + high / 2
        left = Boxes(self.lower, self.upper.scatter(1, place, middle), self.owner, self.open, self.margin)
        right = Boxes(self.lower.scatter(1, place, middle), self.upper, self.owner, self.open, self.margin)
        return Boxes.joined([left, right])

    def divisible(self) -> Bool[Tensor, " n free"]:
        """Which sides have a number between their ends."""
        middle = self.lower / 2 + self.upper / 2
        return (self.lower < middle) & (middle < self.upper)


def clipped(
    lower: Float[Tensor, " n free"],
    upper: Float[Tensor, " n free"],
    rows: Float[Tensor, " n rows free"],
    margins: Float[Tensor, " n rows"],
) -> tuple[Float[Tensor, " n rows free"], Float[Tensor, " n rows free"]]:
    """The part of a box where a margin may be negative or zero, as a box for every row; a proved row has an empty one.

    Over the box the margin is at least m + sum_i |a_i| t_i, with m its proved minimum (`margins`), a its linear bound (`rows`)
    and t_i >= 0 the distance from the side where a_i z_i is smallest. So a point with margin <= 0 has t_i <= -m / |a_i|.

    >>> low, high = clipped(torch.zeros(1, 1), torch.ones(1, 1), torch.tensor([[[2.0]]]), torch.tensor([[-1.0]]))
    >>> float(low), round(float(high), 6)
    (0.0, 0.5)
    """
    size = rows.abs()
    reach = torch.where(size > 0, (-margins).unsqueeze(2).clamp(min=0) / size, math.inf) * _WIDER
    reach = reach.nan_to_num(math.inf, math.inf, math.inf)
    low, high = lower.unsqueeze(1).expand(rows.shape), upper.unsqueeze(1).expand(rows.shape)
    top = torch.nextafter(low + reach, torch.full_like(reach, math.inf))
    bottom = torch.nextafter(high - reach, torch.full_like(reach, -math.inf))
    above = torch.where(rows > 0, torch.minimum(high, top), high)
    below = torch.where(rows < 0, torch.maximum(low, bottom), low)
    proved = (margins > 0).unsqueeze(2)
    return torch.where(proved, math.inf, below), torch.where(proved, -math.inf, above)


class BoxFrontier:
    """The open boxes of a search: a stack, from which the last ones are taken, so that it stays short."""

    def __init__(self) -> None:
        self.parts: list[Boxes] = []

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def add(self, boxes: Boxes) -> None:
        """Put boxes on top."""
        if len(boxes):
            self.parts.append(boxes)

    def take(self, count: int) -> Boxes:
        """Remove the `count` boxes on top."""
        taken: list[Boxes] = []
        while self.parts and count > 0:
            top = self.parts.pop()
            if len(top) > count:
                self.parts.append(top.restrict(slice(0, len(top) - count)))
                top = top.restrict(slice(len(top) - count, len(top)))
            taken.append(top)
            count -= len(top)
        return Boxes.joined(taken)

    def keep(self, wanted: Bool[Tensor, " batch"]) -> None:
        """Drop the boxes of inputs that are decided."""
        kept = [part.restrict(wanted[part.owner]) for part in self.parts]
        self.parts = [part for part in kept if len(part)]
