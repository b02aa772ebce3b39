"""Verdicts about the union of several balls on a data set's test points, made of the records of single balls.

Every ball has records of its own, those of a run about that ball alone: whatever is known of one ball is not computed again.
Points that are falsified in one ball are not searched in the next.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace

from relucert.evaluation.certify import CertifyTask, Verdicts
from relucert.evaluation.config import CertifyConfig
from relucert.records.record import Record, Verdict

#: Verdicts about one ball that decide the union.
FINAL = (Verdict.MISCLASSIFIED, Verdict.VULNERABLE)


class UnionTask:
    """Verdicts about the union of the balls of a configuration, `config.balls`; its length is the number of points."""

    def __init__(self, config: CertifyConfig):
        balls = [replace(config, union=None, p=p, eps=eps) for p, eps in config.balls]
        self.tasks = [CertifyTask(one) for one in balls]

    def __len__(self) -> int:
        return len(self.tasks[0])

    def records(self) -> Generator[Record, None, None]:
        """The record of every point as soon as the union is decided there; what single balls have is stored before.

        The record is that of the ball that decides, or that is open, with the smallest margin and the seconds of all balls. The
        record itself is not stored.
        """
        known: dict[int, list[Record]] = {index: [] for index in range(len(self))}
        for number, task in enumerate(self.tasks):
            with closing(task.records(only=sorted(known))) as records:
                for record in records:
                    known[record.index].append(record)
                    if record.verdict in FINAL or number + 1 == len(self.tasks):
                        yield joined(known.pop(record.index))
            # Points that were not reached in time stay without a verdict.
            known = {index: every for index, every in known.items() if len(every) == number + 1}


def joined(every: list[Record]) -> Record:
    """The record about a union from those about its balls, of which the last decides if it is final."""
    chosen = every[-1]
    if chosen.verdict not in FINAL:
        open_ = [record for record in every if record.verdict == Verdict.UNKNOWN]
        chosen = open_[0] if open_ else min(every, key=lambda record: _or_least(record.margin))
    margin = min(_or_least(record.margin) for record in every)
    executed = min(_or_least(record.executed) for record in every)
    robust = chosen.verdict == Verdict.ROBUST
    return replace(
        chosen, margin=margin, executed=executed, rounding=chosen.rounding if chosen.margin == margin else None,
        arithmetic=("executed" if executed > 0 else "real") if robust else None,
        seconds=sum(record.seconds or 0.0 for record in every),
    )  # fmt: skip


def _or_least(value: float | None) -> float:
    return -math.inf if value is None else value


def union_verdicts(config: CertifyConfig) -> Verdicts:
    """Certify test points for the union of the balls of a configuration."""
    task = UnionTask(config)
    with closing(task.records()) as records:
        return Verdicts.of(records, len(task))
