"""Margins that are proved: bounds in float64 less their own rounding, and what the network's rounding asks of them."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.rounding import bound_error, evaluation_error
from relucert.bounding.units import UnitBounds
from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.networks.network import Network


class Bounding(Protocol):
    """A method that bounds margins over a ball.

    `contains`, if it has that, are cheaper ones which it is never below; then it goes on from the last one's bounds of the
    units if they are given to `solve` beside the rest, as they do one after the other.
    """

    def solve(self, net: Network, x: Tensor, ball: Ball, asked: Property) -> tuple[UnitBounds, Tensor]:
        """Bounds of all units, and lower bounds on the margins, (batch, specs)."""
        ...


def proved_margins(
    double: Network, x: Tensor, ball: Ball, method: Bounding, asked: Property, dtype: torch.dtype
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"], Float[Tensor, " batch specs"]]:
    """The smallest proved margin of every example, and what it must exceed for the network to keep it in its dtype.

    Last, the margins of the single rows that exceed that, -inf for others. Cheaper methods that the method contains go first,
    and what they prove is not looked at again.
    """
    margin, needed = x.new_full((len(x),), -math.inf), x.new_zeros(len(x))
    best, rows = (x.new_full(asked.offsets.shape, -math.inf) for _ in range(2))
    open_ = torch.arange(len(x), device=x.device)
    known: tuple[UnitBounds, ...] = ()
    for one in (*getattr(method, "contains", ()), method):
        here, question = ball.restrict(open_), asked.restrict(open_)
        units, margins = one.solve(double, x[open_], here, question, *known)
        margins = margins - bound_error(double, x[open_], here, units.inputs, question)
        best[open_] = margins = torch.fmax(best[open_], margins)
        every = evaluation_error(double, x[open_], here, units.inputs, question, dtype)
        least, need = narrowest(margins, every)
        margin[open_], needed[open_] = least, need
        rows[open_] = torch.maximum(rows[open_], torch.where(margins > every, margins, -math.inf))
        left = (~(least > need)).nonzero()[:, 0]
        open_, known = open_[left], (units.restrict(left),)
        if len(open_) == 0:
            break
    return margin, needed, rows


def narrowest(margins: Tensor, needed: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest margin of every example, and what it must exceed so that every row's exceeds its own; NaN proves nothing."""
    least, spare = (part.nan_to_num(-math.inf, math.inf, -math.inf).amin(1) for part in (margins, margins - needed))
    return least, (least - spare).nan_to_num(0.0, math.inf, -math.inf)
