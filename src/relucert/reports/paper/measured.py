"""What is known of one network of the paper's tables: its description, its test error, and its records as figures."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from relucert.core.errors import DamagedData, RecordConflict
from relucert.records.record import Record, Verdict
from relucert.records.store import RecordStore
from relucert.records.untrusted import bounded_json, reading
from relucert.reports.intervals import ABOUT_PREDICTION, Point, Subject, subjects, summary
from relucert.reports.published import Key

#: Bytes of a description.
LONGEST = 2**20
KW, THEOREM, IMPROVED, CW = "kw", "theorem", "improved", "cw"
#: Kinds of records about distances, by their methods: the paper looks at five neighbouring regions.
KINDS = {
    CW: re.compile(r"smallest by cw\("),
    KW: re.compile(r"radius by kw\("),
    THEOREM: re.compile(r"radius by region\([^)]*\bregions=0\b"),
    IMPROVED: re.compile(r"radius by region\([^)]*\bregions=5\b"),
}


@dataclass(frozen=True, kw_only=True)
class MeasuredNetwork:
    """A network: its place in the tables, where it comes from, its test error, the radius, and its records.

    `source` is the folder of the run, `command` what trains such a network, `test_error` the share of the whole test set.
    """

    name: str
    key: Key
    model: str
    source: str
    command: str
    epochs: int
    test_error: float
    eps: float | None
    records: Path

    @classmethod
    def read(cls, file: Path) -> MeasuredNetwork:
        """The network that `file`, a description in JSON, is about; its records are in `NAME.jsonl` beside it."""
        with reading(file, "delete the file, it is made again"), file.open("rb") as opened:
            stored = bounded_json(opened.read(LONGEST + 1), "it", longest=LONGEST, deepest=4)
            data, model, scheme, p = stored.pop("key")
            numbers = {"epochs": int, "test_error": float, "eps": (float, type(None))}
            if stored.keys() != {*numbers, "model", "source", "command"}:
                raise DamagedData(f"it must describe a network, got the fields {', '.join(sorted(stored))}")
            for name, value in stored.items():
                if not isinstance(value, numbers.get(name, str)) or isinstance(value, bool):
                    raise DamagedData(f"it must describe a network, got {str(value)[:100]!r}", entry=name)
            key = Key(str(data), str(model), str(scheme), float(p))
            if not 0 <= stored["test_error"] <= 1 or not key.p >= 1:
                raise DamagedData("it must describe a network with a norm and a test error")
            return cls(name=file.stem, key=key, records=file.with_suffix(".jsonl"), **stored)

    def to_json(self) -> str:
        """The description, which `read` reads."""
        key = [*self.key[:3], "inf" if math.isinf(self.key.p) else self.key.p]
        stored: dict[str, Any] = {"key": key, "model": self.model, "source": self.source, "command": self.command}
        stored |= {"epochs": self.epochs, "test_error": self.test_error, "eps": self.eps}
        return json.dumps(stored, indent=1) + "\n"

    @cached_property
    def store(self) -> RecordStore | None:
        """The records; None before there are any. Records of another network are a `RecordConflict`."""
        store = RecordStore(self.records) if self.records.exists() else None
        for record in () if store is None else store.records():
            if record.model != self.model:
                raise RecordConflict(
                    f"{self.records} must hold records of network {self.model[:12]} alone, got some of {record.model[:12]}: "
                    "move the file away, or give another folder with out"
                )
        return store

    @property
    def known(self) -> int:
        """The number of records."""
        return 0 if self.store is None else len(self.store)

    def subject(self, chosen: Callable[[Record], bool] = lambda record: True, *, labels: bool = True) -> Subject | None:
        """The intervals of all points, joined from the chosen records in the network's norm; None without records."""
        if self.store is None:
            return None
        found = subjects([(self.name, self.store)], self.eps, chosen=chosen, labels=labels)
        return next((subject for subject in found if subject.p == self.key.p and subject.data == self.key.data), None)

    @cached_property
    def judged(self) -> Subject | None:
        """The intervals about the labels."""
        return self.subject()

    def errors(self) -> tuple[float, float] | None:
        """Lower and upper bound of the robust error in percent: every counterexample, and every proof."""
        if self.judged is None:
            return None
        found = summary(self.judged)
        return 100 * found.least_error, 100 * found.most_error

    def undecided(self, chosen: Callable[[Record], bool] = lambda record: True) -> list[int]:
        """The points whose verdict at the radius is open, by the chosen records."""
        subject = self.subject(chosen)
        if subject is None:
            return []
        return [point.index for point in subject.points if point.verdict(subject.eps) is Verdict.UNKNOWN]

    def deciders(self) -> dict[tuple[str, str], int]:
        """How many points have which verdict at the radius by which method, the most first."""
        found, judged = Counter[tuple[str, str]](), self.judged
        if judged is None:
            return {}
        for point in judged.points:
            verdict = point.verdict(judged.eps)
            method = {Verdict.VULNERABLE: point.upper_by, Verdict.ROBUST: point.lower_by}.get(verdict)
            found.update([] if method is None else [(str(verdict), method)])
        return dict(found.most_common())

    def distances(self, within: Collection[str], kind: str | None = None) -> tuple[float, float] | None:
        """Mean lower and upper bound of the distance to another class than the predicted one.

        Over the first points, as many as have answers of all the kinds in `within` (`answers`), from all their records, or from
        those of one kind alone. Where CW is one of them, points without a counterexample count in neither mean.
        """
        points = self._averaged(within, kind)
        lowers = [point.lower for point in points if math.isfinite(point.lower)]
        uppers = [point.upper for point in points if math.isfinite(point.upper)]
        return (fmean(lowers), fmean(uppers) if uppers else math.nan) if lowers else None

    def _averaged(self, within: Collection[str], kind: str | None) -> list[Point]:
        """The points over which distances are averaged."""
        count = self.first(within)
        subject = self.subject(
            lambda record: record.index < count and (kind is None or answers(record, kind)), labels=False
        )
        points = () if subject is None else subject.points
        return [point for point in points if CW not in within or math.isfinite(point.upper)]

    def left_out(self, within: Collection[str]) -> int:
        """How many of the first points have no counterexample, so that means leave them out."""
        return self.first(within) - len(self._averaged(within, None))

    def first(self, within: Collection[str]) -> int:
        """How many points, from the first, have answers of all these kinds about the predicted class."""
        return min(self._first(kind) for kind in within)

    def _first(self, kind: str) -> int:
        """How many points, from the first, have an answer of a kind about the predicted class."""
        records = [] if self.store is None else self.store.records()
        known = {record.index for record in records if answers(record, kind) and ABOUT_PREDICTION in record.method}
        return next(index for index in range(len(known) + 1) if index not in known)

    @cached_property
    def optima(self) -> dict[int, float]:
        """The distances that the region theorem proves to be the smallest ones, by point."""
        subject = self.subject(lambda record: answers(record, THEOREM), labels=False)
        return {} if subject is None else {point.index: point.upper for point in subject.points if point.exact}

    def share_optimal(self) -> float | None:
        """The share of points with a proved optimum, in percent."""
        subject = self.subject(lambda record: answers(record, THEOREM), labels=False)
        return None if subject is None or not subject.points else 100 * len(self.optima) / len(subject.points)

    def optimum_excess(self) -> float | None:
        """By how many percent proved optima exceed the bounds of Wong and Kolter, on average over the points with both."""
        subject = self.subject(lambda record: answers(record, KW), labels=False)
        bounds = {} if subject is None else {point.index: point.lower for point in subject.points if point.lower > 0}
        ratios = [100 * (optimum / bounds[i] - 1) for i, optimum in self.optima.items() if i in bounds]
        return sum(ratios) / len(ratios) if ratios else None

    def ratios(self) -> list[float]:
        """Distances of the CW attack over proved optima, the largest first."""
        subject = self.subject(lambda record: answers(record, CW), labels=False)
        found = {} if subject is None else {point.index: point.upper for point in subject.points}
        ratios = [found[i] / optimum for i, optimum in self.optima.items() if math.isfinite(found.get(i, math.inf))]
        return sorted(ratios, reverse=True)

    def seconds(self, chosen: Callable[[Record], bool]) -> float | None:
        """The seconds of the chosen records; None if there are none."""
        found = [record.seconds or 0.0 for record in self.store.records() if chosen(record)] if self.store else []
        return sum(found) if found else None


def answers(record: Record, kind: str) -> bool:
    """Whether a record is of the CW attack, of Wong and Kolter, of the region theorem, or of it with neighbouring regions."""
    return KINDS[kind].match(record.method) is not None


def measured(folder: Path) -> dict[str, MeasuredNetwork]:
    """All networks that a folder describes, by name."""
    found = [MeasuredNetwork.read(file) for file in sorted(folder.glob("*.json"))]
    return {network.name: network for network in found}
