"""`Outcome`: what a complete method found out about a batch of points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.verification.bab.tree import Tree


@dataclass(eq=False)
class Outcome:
    """What was found out about every point: proved, or broken by a witness (else NaN), or neither.

    `margin` is proved, `seconds` is its share of the time, `nodes` the number of its sub-problems; `timed` says that a clock
    ended the search for it. `trees` may have what is left open of points that are not proved. `reasons` say why points are
    undecided, `claims` name the solver on whose word alone a point is robust; both by the point's place.
    """

    proved: Bool[Tensor, " batch"]
    falsified: Bool[Tensor, " batch"]
    witness: Float[Tensor, " batch *input"]
    margin: Float[Tensor, " batch"]
    seconds: Float[Tensor, " batch"]
    nodes: Int[Tensor, " batch"]
    timed: Bool[Tensor, " batch"]
    trees: dict[int, Tree] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    claims: dict[int, str] = field(default_factory=dict)

    @classmethod
    def nothing(cls, x: Float[Tensor, " batch *input"]) -> Outcome:
        """What is known before the search."""
        none = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        return cls(
            none, none.clone(), torch.full_like(x, math.nan), x.new_full((len(x),), -math.inf), x.new_zeros(len(x)),
            torch.zeros(len(x), dtype=torch.long, device=x.device), none.clone(),
        )  # fmt: skip


#: What hears of points (their places) that a search has decided, with all that is known.
OnDecided = Callable[[Outcome, Sequence[int]], None]
