"""A problem of branch and bound: one point and one row of its property, with its open subproblems."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(eq=False)
class Problem:
    """One point and one row of its property: its open subproblems (margin, order of arrival, slot), worst first."""

    point: int
    row: int
    leaves: list[tuple[float, int, int]] = field(default_factory=list)
    closed: bool = False
    proved: list[float] = field(default_factory=lambda: [math.inf] * 3)

    def close(self, *margins: float) -> None:
        """A subproblem is proved: the problem's margins (real, executed, computed) are the smallest of its subproblems'."""
        self.proved = [min(least, margin) for least, margin in zip(self.proved, margins, strict=True)]

    def least(self) -> float:
        """The margin in real arithmetic that is proved over all subproblems, open or closed."""
        return min([self.proved[0], *(margin for margin, _, _ in self.leaves)])
