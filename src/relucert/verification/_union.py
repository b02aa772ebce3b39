"""The union of several balls around every input, as one question: ball after ball, for inputs that are not falsified yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from relucert.core.verdict import Verdict
from relucert.verification.verifier import Budget, Decision, Query

#: The decisions about a query in a budget.
Decide = Callable[[Query, Budget], Iterator[Decision]]


@torch.inference_mode(mode=False)
@torch.no_grad()
def decide_union(queries: Sequence[Query], decide: Decide, budget: Budget, batch: int) -> Iterator[Decision]:
    """Decide whether a property holds over the union of balls: `queries` differ in their balls alone.

    A counterexample in one ball is one in the union, and later balls are not searched. An input is ROBUST if it is in every
    ball, with the smallest margin of all; it is UNKNOWN if it is in some ball and no ball has a counterexample. `Decision.ball`
    is the position of the ball that decides, or that is open. The seconds of an input are those of all balls.
    """
    for index in torch.arange(len(queries[0])).split(batch):
        known: dict[int, list[Decision]] = {place: [] for place in index.tolist()}
        for number, query in enumerate(queries):
            open_ = torch.tensor(sorted(known), dtype=torch.long)
            if len(open_) == 0 or budget.over:
                break
            spent = [sum(decision.seconds for decision in known[place]) for place in open_.tolist()]
            left = budget.restrict(open_).after(torch.tensor(spent, dtype=torch.float64))
            for found in decide(query.restrict(open_.to(query.x.device)), left):
                place = int(open_[found.index])
                known[place].append(replace(found, index=place, ball=number))
                if found.verdict in (Verdict.VULNERABLE, Verdict.MISCLASSIFIED):
                    yield joined(known.pop(place))
        for every in known.values():
            if len(every) == len(queries):
                yield joined(every)


def joined(every: Sequence[Decision]) -> Decision:
    """The decision about the union from those about its balls: the last is about the last ball that was searched."""
    seconds = sum(decision.seconds for decision in every)
    least = [min(getattr(one, name) for one in every) for name in ("margin", "executed", "computed")]
    last = every[-1]
    if last.verdict in (Verdict.VULNERABLE, Verdict.MISCLASSIFIED):
        chosen = last
    else:
        open_ = [decision for decision in every if decision.verdict is Verdict.UNKNOWN]
        chosen = open_[0] if open_ else min(every, key=lambda decision: decision.margin)
    if chosen.verdict is Verdict.MISCLASSIFIED:
        least = [-math.inf] * 3
    # The bound before rounding belongs to the margin; the smallest of others would say nothing.
    computed = chosen.computed if chosen.margin == least[0] else -math.inf
    return replace(
        chosen, margin=least[0], executed=least[1], computed=computed, seconds=seconds, row_margins=None, saved=None
    )
