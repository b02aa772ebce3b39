"""`Outcome`: what a complete method found out about a batch of points."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(eq=False)
class Outcome:
    """What was found out about every point: proved, or broken by a witness (else NaN), or neither.

    `margin` is proved, `seconds` is its share of the time, `nodes` the number of its sub-problems.
    """

    proved: Bool[Tensor, " batch"]
    broken: Bool[Tensor, " batch"]
    witness: Float[Tensor, " batch *input"]
    margin: Float[Tensor, " batch"]
    seconds: Float[Tensor, " batch"]
    nodes: Int[Tensor, " batch"]
