"""Interval arithmetic through one node: the cheapest bound there is, and where every other one starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.networks.affine import Affine
from relucert.networks.graph import Node
from relucert.networks.switching import Switching


@dataclass(frozen=True, eq=False)
class Interval:
    """lower <= value <= upper, entry by entry, both (batch, *shape)."""

    lower: Float[Tensor, " batch *shape"]
    upper: Float[Tensor, " batch *shape"]

    def meet(self, other: Interval) -> Interval:
        """The tighter of two: both hold, so what both say holds."""
        return Interval(torch.maximum(self.lower, other.lower), torch.minimum(self.upper, other.upper))

    def restrict(self, batch: Int[Tensor, " n"]) -> Interval:
        """Those of some examples."""
        return Interval(self.lower[batch], self.upper[batch])

    def detach(self) -> Interval:
        """The same as constants."""
        return Interval(self.lower.detach(), self.upper.detach())

    def known(self) -> Interval:
        """The interval, without an end where that is not a number: what overflows must not look as if it stood still."""
        low, high = (
            torch.where(end.isnan(), torch.full_like(end, most), end)
            for end, most in ((self.lower, -torch.inf), (self.upper, torch.inf))
        )
        return Interval(low, high)

    @property
    def unstable(self) -> Bool[Tensor, " batch *shape"]:
        """Where zero lies inside: a ReLU there may be on or off. Of an end that is not a number nothing is known."""
        return ~((self.lower >= 0) | (self.upper <= 0))


def through(node: Node, inputs: Sequence[Interval]) -> Interval:
    """What a node makes of intervals: A c + b -+ |A| r for an affine one, both ends for a (monotone) switching one."""
    op = node.op
    if isinstance(op, Switching):
        return Interval(op.apply(inputs[0].lower), op.apply(inputs[0].upper))
    assert isinstance(op, Affine)
    centre = op.apply(*((part.lower + part.upper) / 2 for part in inputs))
    reach = op.absolute(*((part.upper - part.lower) / 2 for part in inputs))
    return Interval(centre - reach, centre + reach)
