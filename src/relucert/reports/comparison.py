"""Two networks, or two evaluations of one, point by point: who proves more, and where they differ."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from relucert.core.errors import InvalidInput
from relucert.core.verdict import Verdict
from relucert.reports.intervals import Point, Subject, Summary, summary


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What two subjects say of the points that both have, at one radius.

    `verdicts` counts pairs of verdicts, first and second; `differing` has the pairs of points whose verdicts differ.
    """

    first: Subject
    second: Subject
    eps: float
    figures: tuple[Summary, Summary]
    verdicts: Counter[tuple[Verdict, Verdict]]
    differing: list[tuple[Point, Point]]

    @property
    def shared(self) -> int:
        """How many points both have."""
        return sum(self.verdicts.values())


def comparisons(first: list[Subject], second: list[Subject], eps: float | None = None) -> list[Comparison]:
    """Every subject of `first` beside the subject of `second` about the same data, norm and box.

    `eps` is the radius of the verdicts; by default the one where the first is judged.
    """
    found = [
        _comparison(one, other, one.eps if eps is None else eps)
        for one in first
        for other in second
        if (one.data, one.split, one.p, one.box) == (other.data, other.split, other.p, other.box)
    ]
    if not found:
        raise InvalidInput(
            f"sources must have records about the same data and norm, got {_about(first)} and {_about(second)}"
        )
    return found


def _comparison(first: Subject, second: Subject, eps: float) -> Comparison:
    others = {(point.index, point.content): point for point in second.points}
    pairs = [(point, others[key]) for point in first.points if (key := (point.index, point.content)) in others]
    verdicts = Counter((one.verdict(eps), other.verdict(eps)) for one, other in pairs)
    return Comparison(
        first=first, second=second, eps=eps, figures=(summary(first, eps), summary(second, eps)), verdicts=verdicts,
        differing=[pair for pair in pairs if pair[0].verdict(eps) is not pair[1].verdict(eps)],
    )  # fmt: skip


def _about(subjects: list[Subject]) -> str:
    return " and ".join(f"{subject.data} in l_{subject.p:g}" for subject in subjects) or "no records"
