"""Interval arithmetic: the cheapest bound there is, and where every other one starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.rounding import cast_up, rounded_down
from relucert.networks.nodes import Affine, Switching
from relucert.networks.traversal import ForwardRule, Node


@dataclass(frozen=True, eq=False)
class Interval:
    """lower <= value <= upper, entry by entry, both (batch, *shape)."""

    lower: Float[Tensor, " batch *shape"]
    upper: Float[Tensor, " batch *shape"]

    def meet(self, other: Interval) -> Interval:
        """The tighter of two: both hold, so what both say holds."""
        return Interval(torch.maximum(self.lower, other.lower), torch.minimum(self.upper, other.upper))

    def join(self, other: Interval) -> Interval:
        """The smallest interval around two."""
        return Interval(torch.minimum(self.lower, other.lower), torch.maximum(self.upper, other.upper))

    def restrict(self, batch: Int[Tensor, " n"]) -> Interval:
        """Those of some examples."""
        return Interval(self.lower[batch], self.upper[batch])

    def detach(self) -> Interval:
        """The same as constants."""
        return Interval(self.lower.detach(), self.upper.detach())

    def to(self, dtype: torch.dtype) -> Interval:
        """The same in another dtype, rounded outwards."""
        if torch.promote_types(self.lower.dtype, dtype) == dtype:
            return Interval(self.lower.to(dtype), self.upper.to(dtype))
        return Interval(rounded_down(self.lower, dtype), cast_up(self.upper, dtype))

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


class IntervalPropagation(ForwardRule[Interval]):
    """Interval arithmetic: A c + b -+ |A| r for an affine node, both ends for a ReLU or a max pool, which are monotone."""

    def affine(self, node: Node[Affine], inputs: list[Interval]) -> Interval:
        centre = node.op.apply(*((part.lower + part.upper) / 2 for part in inputs))
        reach = node.op.absolute(*((part.upper - part.lower) / 2 for part in inputs))
        return Interval(centre - reach, centre + reach)

    def switching(self, node: Node[Switching], value: Interval) -> Interval:
        return Interval(node.op.apply(value.lower), node.op.apply(value.upper))
