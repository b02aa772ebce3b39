"""Records of one network, data set and norm, joined into one interval of the radius for every point.

A verdict at a radius is a bound of the distance to the nearest change of decision: ROBUST at eps is `lower >= eps`, a
counterexample at distance d is `upper <= d`. So all records of a point, whatever verb wrote them, join into
`[lower, upper]`, and the interval gives the verdict at every radius: VULNERABLE where `upper <= eps`, ROBUST where
`lower >= eps`, else UNKNOWN.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from relucert.core.errors import RecordConflict
from relucert.core.verdict import CLOCK
from relucert.records.answers import method_of
from relucert.records.record import Record, Verdict
from relucert.records.store import RecordStore

#: An interval counts as exact where its ends differ by at most this share, the tolerance of float32 networks.
EXACT = 1e-4
_SLACK = 1e-5  # stored distances of counterexamples are rounded up
_BOUNDS = {"ibp", "kw", "crown", "alpha", "lipschitz", "sdp", "moments"}  # methods without counterexamples of their own
#: What the method of a record says that is not about the label.
ABOUT_PREDICTION = ", about the predicted class"


@dataclass(frozen=True, kw_only=True)
class Point:
    """What is known of one test point: the interval of its radius, and who proved which end.

    `lower_by` and `upper_by` are methods, "" where nothing but 0 and infinity is known. `margin` is the largest proved margin
    at the radius `Subject.eps`, `reason` why the point was undecided there. `witness` is where the nearest
    stored counterexample is: a store and the key of a record.
    """

    index: int
    content: str | None
    label: int | None
    prediction: int | None
    correct: bool
    lower: float
    upper: float
    lower_by: str
    upper_by: str
    arithmetic: str | None
    margin: float | None
    reason: str | None
    seconds: float
    witness: tuple[RecordStore, str] | None = field(default=None, compare=False)

    def verdict(self, eps: float) -> Verdict:
        """The verdict at a radius."""
        if not self.correct:
            return Verdict.MISCLASSIFIED
        if self.upper <= eps:
            return Verdict.VULNERABLE
        return Verdict.ROBUST if self.lower >= eps else Verdict.UNKNOWN

    @property
    def exact(self) -> bool:
        """Whether the ends of the interval meet."""
        return self.correct and math.isfinite(self.upper) and self.upper <= self.lower * (1 + EXACT)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One network on one data set in one norm: `points` by index, `eps` the radius at which the network is judged.

    `seconds` is the time of all records by method; `outdated` counts records about other contents of a point; `searched` is
    whether radii were looked for, not verdicts at single radii alone.
    """

    name: str
    model: str
    data: str
    split: str
    p: float
    box: Any
    eps: float
    radii: tuple[float, ...]
    points: tuple[Point, ...]
    seconds: dict[str, float]
    outdated: int
    searched: bool


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures of a subject at one radius; errors are shares of all points.

    The robust error lies between `least_error` (misclassified, or with a counterexample) and `most_error` (all that is not
    proved). Means and `exact` are over correctly classified points; `mean_upper` over those with a counterexample, `witnessed`.
    """

    points: int
    test_error: float
    least_error: float
    most_error: float
    mean_lower: float
    mean_upper: float
    witnessed: int
    exact: float
    seconds: float


def summary(subject: Subject, eps: float | None = None) -> Summary:
    """The figures of a subject at a radius, by default at the one where it is judged."""
    eps = subject.eps if eps is None else eps
    counts = Counter(point.verdict(eps) for point in subject.points)
    right = [point for point in subject.points if point.correct]
    uppers = [point.upper for point in right if math.isfinite(point.upper)]
    total = len(subject.points)
    wrong = counts[Verdict.MISCLASSIFIED]
    return Summary(
        points=total,
        test_error=wrong / total,
        least_error=(wrong + counts[Verdict.VULNERABLE]) / total,
        most_error=1 - counts[Verdict.ROBUST] / total,
        mean_lower=_mean([point.lower for point in right if math.isfinite(point.lower)]),
        mean_upper=_mean(uppers),
        witnessed=len(uppers),
        exact=_mean([float(point.exact) for point in right]),
        seconds=sum(subject.seconds.values()),
    )


def subjects(
    stores: Iterable[tuple[str, RecordStore]],
    eps: float | None = None,
    *,
    chosen: Callable[[Record], bool] = lambda record: True,
    labels: bool = True,
) -> list[Subject]:
    """All networks, data sets and norms in named stores, in the order of the stores; `eps` overrides where they are judged.

    `chosen` says which records count, by default all. With `labels` False intervals are about the predicted class, so that no
    point is misclassified: records about the label of a point that is do not count then. Records that contradict each other (a
    proof beyond a counterexample) are a `RecordConflict`.
    """
    groups: dict[tuple[Any, ...], list[tuple[Record, RecordStore]]] = defaultdict(list)
    names: dict[tuple[Any, ...], str] = {}
    for name, store in stores:
        for record in store.records():
            if not chosen(record) or (not labels and _is_wrong(record) and ABOUT_PREDICTION not in record.method):
                continue
            key = (record.model, record.data, record.split, float(record.ball["p"]), _hashable(record.ball["box"]))
            names.setdefault(key, name)
            groups[key].append((record, store))
    models: dict[str, set[str]] = defaultdict(set)
    for key, name in names.items():
        models[name].add(key[0])
    return [
        _subject(names[key] if len(models[names[key]]) == 1 else f"{names[key]} {key[0][:8]}", key, found, eps, labels)
        for key, found in groups.items()
    ]


def _subject(
    name: str, key: tuple[Any, ...], found: list[tuple[Record, RecordStore]], eps: float | None, labels: bool
) -> Subject:
    model, data, split, p, box = key
    radii = Counter(float(record.ball["eps"]) for record, _ in found if math.isfinite(float(record.ball["eps"])))
    proofs = Counter(float(r.ball["eps"]) for r, _ in found if _is_certify(r) and math.isfinite(float(r.ball["eps"])))
    by_index: dict[int, list[tuple[Record, RecordStore]]] = defaultdict(list)
    for record, store in found:
        by_index[record.index].append((record, store))
    current = {index: _current(every) for index, every in by_index.items()}
    judged = eps
    if judged is None:
        judged = (proofs or radii).most_common(1)[0][0] if radii else _typical(current.values())
    used = [record for every in current.values() for record, _ in every]
    seconds: dict[str, float] = defaultdict(float)
    for record in used:
        seconds[method_of(record)] += record.seconds or 0.0
    return Subject(
        name=name, model=model, data=data, split=split, p=p, box=list(box) if isinstance(box, tuple) else box,
        eps=judged, radii=tuple(sorted(radii)),
        points=tuple(_point(current[index], judged, name, labels) for index in sorted(current)),
        seconds=dict(sorted(seconds.items(), key=lambda pair: -pair[1])), outdated=len(found) - len(used),
        searched=any(math.isinf(float(record.ball["eps"])) for record in used),
    )  # fmt: skip


def _point(every: Sequence[tuple[Record, RecordStore]], eps: float, name: str, labels: bool) -> Point:
    """One point from all its records."""
    first = every[0][0]
    wrong = [labels and _is_wrong(record) for record, _ in every]
    known = {record.prediction for record, _ in every if record.prediction is not None}
    if any(wrong) != all(wrong) or len(known) > 1:
        raise RecordConflict(f"records of {name}, point {first.index}, have several predictions: {sorted(known)}")
    lower, lower_by, arithmetic = 0.0, "", None
    upper, upper_by, witness = math.inf, "", None
    margin, reason = None, None
    for record, store in every if not wrong[0] else ():
        at = float(record.ball["eps"])
        proved = max(record.lower or 0.0, at if record.verdict is Verdict.ROBUST else 0.0)
        if proved > lower:
            lower, lower_by, arithmetic = proved, method_of(record), record.arithmetic
        distance = _distance(record)
        if distance < upper or (distance == upper < math.inf and witness is None):
            upper, upper_by = distance, _finder(record)
            witness = (store, record.key) if "witness" in record.arrays and record.key in store else None
        if at == eps and record.margin is not None and (margin is None or record.margin > margin):
            margin = record.margin
        if at == eps and _is_certify(record) and record.verdict is Verdict.UNKNOWN:
            timed = (record.by or "").startswith(CLOCK)
            reason = "time" if timed else record.reason
    if lower > upper * (1 + _SLACK):
        raise RecordConflict(
            f"records of {name}, point {first.index}, contradict each other: {lower_by} proves the radius {lower}, "
            f"and {upper_by} has a counterexample at distance {upper}"
        )
    return Point(
        index=first.index, content=first.content, label=first.label, prediction=next(iter(known), None),
        correct=not wrong[0], lower=lower, upper=upper, lower_by=lower_by, upper_by=upper_by, arithmetic=arithmetic,
        margin=margin, reason=reason, seconds=sum(record.seconds or 0.0 for record, _ in every), witness=witness,
    )  # fmt: skip


def _current(every: list[tuple[Record, RecordStore]]) -> list[tuple[Record, RecordStore]]:
    """The records about the contents that the last record with a digest is about; those of old schemas only alone."""
    digests = [record.content for record, _ in every if record.content is not None]
    content = digests[-1] if digests else None
    return [pair for pair in every if pair[0].content == content]


def _distance(record: Record) -> float:
    """The distance of a record's counterexample at most, infinity without one."""
    stored = math.inf if record.upper is None else record.upper
    return min(stored, float(record.ball["eps"])) if record.verdict is Verdict.VULNERABLE else stored


def _finder(record: Record) -> str:
    """The method or attack behind the counterexample of a record."""
    method = method_of(record)
    beside = re.search(r" and (\w+)", record.method) if record.method.startswith("radius by ") else None
    if beside is None:
        return method
    return beside[1] if method in _BOUNDS else f"{method} or {beside[1]}"


def _is_certify(record: Record) -> bool:
    return record.method.startswith("certify by ")


def _is_wrong(record: Record) -> bool:
    """Whether the prediction is not the label; records about the predicted class do not call it misclassified."""
    known = record.label is not None and record.prediction is not None
    return record.verdict is Verdict.MISCLASSIFIED or (known and record.label != record.prediction)


def _typical(points: Iterable[list[tuple[Record, RecordStore]]]) -> float:
    """A radius to judge at where no record has one: the median proved radius, to two digits."""
    lowers = sorted(max((record.lower or 0.0) for record, _ in every) for every in points)
    middle = lowers[len(lowers) // 2]
    return float(f"{middle:.2g}") if math.isfinite(middle) else 0.0


def _hashable(box: Any) -> Any:
    return tuple(box) if isinstance(box, list) else box


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
