"""Trials that end early: what others had at the same epoch says whether a trial goes on.

Both figures count. A figure is dominated by another one that is nowhere larger and somewhere smaller.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from relucert.sweeps.journal import Figures

Stop = Literal["none", "median", "halving"]

PATIENT = 4  # figures of others that the median needs
ETA = 3  # halving: one in so many goes on, and the next figures come after so many times the epochs


def checkpoints(stop: Stop, every: int, epochs: int) -> list[int]:
    """The epochs after which a trial is measured; the last one is the end of the run.

    >>> checkpoints("median", 3, 10), checkpoints("halving", 1, 10), checkpoints("none", 3, 10)
    ([3, 6, 9, 10], [1, 3, 9, 10], [10])
    """
    if stop == "none":
        return [epochs]
    if stop == "median":
        return [*range(every, epochs, every), epochs]
    found = []
    while every < epochs:
        found.append(every)
        every *= ETA
    return [*found, epochs]


def stops(stop: Stop, own: Figures, others: Sequence[Figures]) -> bool:
    """Whether a trial ends with its figures, given those of other trials after as many epochs.

    `median`: where both figures are above their medians. `halving`: where more trials dominate it than go on, which is one in
    `ETA` of those that have come so far (asynchronous successive halving).
    """
    if stop == "none":
        return False
    if stop == "median":
        if len(others) < PATIENT:
            return False
        return own.error > statistics.median(
            other.error for other in others
        ) and own.certified_error > statistics.median(other.certified_error for other in others)
    better = sum(dominates(other, own) for other in others)
    return better >= math.ceil((len(others) + 1) / ETA)


def dominates(one: Figures, other: Figures) -> bool:
    """Whether one is nowhere larger and somewhere smaller."""
    pairs = [(one.error, other.error), (one.certified_error, other.certified_error)]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
