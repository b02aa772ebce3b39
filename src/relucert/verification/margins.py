"""Margins that are proved: bounds in float64 less their own rounding, and what the network's rounding asks of them."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.base import Bounding
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.rounding import bound_error, evaluation_error
from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.networks.network import Network


def proved_margins(
    double: Network, x: Tensor, ball: Ball, method: Bounding, prop: Property, dtype: torch.dtype
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"], Float[Tensor, " batch specs"]]:
    """The smallest proved margin of every example, and what it must exceed for the network to keep it in its dtype.

    Last, the margins of the single rows that exceed that, -inf for others. Cheaper methods that the method contains go first,
    each from the units' bounds of the one before it, and what they prove is not looked at again.
    """
    margin, needed = x.new_full((len(x),), -math.inf), x.new_zeros(len(x))
    best, rows = (x.new_full(prop.offsets.shape, -math.inf) for _ in range(2))
    open_ = torch.arange(len(x), device=x.device)
    known: UnitBounds | None = None
    for one in (*method.contains, method):
        here, question = ball.restrict(open_), prop.restrict(open_)
        known = one.start(double, x[open_], here) if known is None else known
        known, margins = one.proceed(double, known, x[open_], here, question)
        margins = margins - bound_error(double, x[open_], here, known.inputs, question)
        best[open_] = margins = torch.fmax(best[open_], margins)
        every = evaluation_error(double, x[open_], here, known.inputs, question, dtype)
        least, need = narrowest(margins, every)
        margin[open_], needed[open_] = least, need
        rows[open_] = torch.maximum(rows[open_], torch.where(margins > every, margins, -math.inf))
        left = (~(least > need)).nonzero()[:, 0]
        open_, known = open_[left], known.restrict(left)
        if len(open_) == 0:
            break
    return margin, needed, rows


def narrowest(margins: Tensor, needed: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest margin of every example, and what it must exceed so that every row's exceeds its own; NaN proves nothing."""
    least, spare = (part.nan_to_num(-math.inf, math.inf, -math.inf).amin(1) for part in (margins, margins - needed))
    return least, (least - spare).nan_to_num(0.0, math.inf, -math.inf)
