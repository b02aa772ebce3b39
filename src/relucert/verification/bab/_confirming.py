"""Which points count as counterexamples: for a query those that falsify it as executed and in real arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.networks.prediction import falsified
from relucert.verification.verifier import Query

#: Which points are counterexamples to the property of the input at a position; they may be moved a little.
Confirm = Callable[[Float[Tensor, " n *input"], int], Bool[Tensor, " n"]]


def falsifying(query: Query) -> Confirm:
    """Points that falsify the property for the network as executed and in real arithmetic."""

    def confirm(points: Tensor, owner: int) -> Tensor:
        own = torch.full((len(points),), owner)
        rounded = query.ball.restrict(own).project(query.x[own], points.to(query.x.dtype))
        points.copy_(rounded.double())
        return falsified(query.net, query.double, rounded, query.prop.restrict(own))

    return confirm
