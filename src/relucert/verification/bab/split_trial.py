"""Boxes or ReLUs: which kind of split improves bounds more, by a trial of both on as many subproblems of the same cases.

A search of either kind that ends after some subproblems has a proved margin, the least of what it left open. The kind with the
larger margin in most cases is better. The trial looks at no clock but its deadline, so that it has the same result every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from jaxtyping import Int
from torch import Tensor

from relucert.core.verdict import Verdict
from relucert.verification.verifier import Budget, Decision

#: A search about some cases, until a budget ends or it had so many subproblems of each.
Search = Callable[[Int[Tensor, " open"], Budget, int], Iterator[Decision]]

NODES = 64  # subproblems of every case
LEAST = 0.01  # of the margin of the whole box: where boxes gain less (images), ReLUs are better without a trial


@dataclass(eq=False)
class SplitTrial:
    """A trial of the searches over boxes and over ReLUs; `relus` says afterwards whether the latter were better."""

    by_boxes: Search
    by_relus: Search
    budget: Budget
    relus: bool = field(default=False, init=False)

    def run(self, open_: Int[Tensor, " open"]) -> Iterator[Decision]:
        """Compare both kinds of splits on some cases; the decisions on the way, several about a case."""
        whole, boxes, relus = dict[int, float](), dict[int, float](), dict[int, float]()
        yield from _noted(self.by_boxes(open_, self.budget, 1), whole)
        yield from _noted(self.by_boxes(open_, self.budget, NODES), boxes)
        gains = [boxes[case] > margin * (1 - LEAST) for case, margin in whole.items()]
        self.relus = not any(gains)
        if any(gains) and min(boxes.values()) < math.inf:
            yield from _noted(self.by_relus(open_, self.budget, NODES), relus)
            self.relus = 2 * sum(relus[case] > margin for case, margin in boxes.items()) > len(boxes)


def _noted(decisions: Iterator[Decision], margins: dict[int, float]) -> Iterator[Decision]:
    """The same decisions; their margins are noted, infinite where a case is proved."""
    for decision in decisions:
        margins[decision.index] = math.inf if decision.verdict is Verdict.ROBUST else decision.margin
        yield decision
