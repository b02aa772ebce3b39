"""Branching: the unit at which a subproblem is split.

Candidates are the units with the largest BaBSR scores (`bounding.split_bounds`, Bunel et al. 2020), which cost nothing beside
the bound. Of these the unit is taken whose worse child has the best bound (filtered smart branching, De Palma et al. 2021).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Int
from torch import Tensor

from relucert.verification.bab._subproblems import Leaves, SubProblems

_BETTER = 0.1  # the weight of the better child in the score


def best_split(
    parts: SubProblems, which: Int[Tensor, " n"], leaves: Leaves, units: Int[Tensor, " n candidates"]
) -> Int[Tensor, " n"]:
    """The candidate (-1: none) with the best branching score, min + 0.1 max of the bounds of both children.

    The children of subproblems of the problems `which` are bounded by one backward propagation each, without ascent; all
    positive margins count the same.
    """
    count, tried = units.shape
    if tried == 1:
        return units[:, 0]
    flat = units.clamp(min=0).flatten()
    repeat = torch.arange(count).repeat_interleave(tried)
    many = leaves.restrict(repeat)
    bounds = []
    for sign in (1, -1):
        found = parts.ascend(which[repeat], parts.split(many, flat, sign), 0)
        bounds.append(found.margin.clamp(max=0.0).reshape(count, tried))
    score = torch.minimum(*bounds) + _BETTER * torch.maximum(*bounds)
    return units.gather(1, score.masked_fill(units < 0, -math.inf).argmax(1, keepdim=True))[:, 0]
