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
    """A method that bounds margins over a ball."""

    def solve(self, net: Network, x: Tensor, ball: Ball, asked: Property) -> tuple[UnitBounds, Tensor]:
        """Bounds of all units, and lower bounds on the margins, (batch, specs)."""
        ...


def proved_margins(
    double: Network, x: Tensor, ball: Ball, method: Bounding, asked: Property, dtype: torch.dtype
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """The smallest proved margin of every example, and what it must exceed for the network to keep it in its dtype."""
    units, margins = method.solve(double, x, ball, asked)
    margins = margins - bound_error(double, x, ball, units.inputs, asked)
    needed = evaluation_error(double, x, ball, units.inputs, asked, dtype)
    return narrowest(margins, needed)


def narrowest(margins: Tensor, needed: Tensor) -> tuple[Tensor, Tensor]:
    """The margin of every example that is nearest to what it must exceed, and that; NaN proves nothing."""
    short = (margins - needed).nan_to_num(-math.inf).argmin(1, keepdim=True)
    margin, need = margins.gather(1, short)[:, 0], needed.gather(1, short)[:, 0]
    return margin.nan_to_num(-math.inf, math.inf, -math.inf), need
