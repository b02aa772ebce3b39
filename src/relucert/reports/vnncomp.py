"""The page of the verification competition's benchmarks: how many instances are decided, and in how many seconds."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relucert.reports._markdown import table

DECIDED = ("sat", "unsat")
SLOWEST = 10  # instances of a benchmark that have a line of their own


@dataclass(frozen=True)
class Answered:
    """One instance: what was answered in how many seconds; the agreed verdict and the other tool's seconds, if known."""

    word: str
    seconds: float
    agreed: str = ""
    other_seconds: float | None = None
    name: str = ""
    by: str = ""

    @property
    def decided(self) -> bool:
        """Whether the answer is sat or unsat."""
        return self.word in DECIDED

    @property
    def differs(self) -> bool:
        """Whether the answer contradicts the agreed verdict."""
        return {self.word, self.agreed} == set(DECIDED)


def row(name: str, answers: Sequence[Answered]) -> list[str]:
    """The cells of a benchmark: the answers, and medians and sums of seconds.

    Seconds of the other tool are about the instances that are decided and whose seconds are known.

    >>> row("acasxu", [Answered("sat", 1.0, "sat", 6.0), Answered("timeout", 116.0, "unsat")])
    ['acasxu', '2', '1', '0', '0', '1', '0', '0', '1.0', '1.0', '1.0', '6.0', '1 of 1']
    """
    counts = Counter(one.word for one in answers)
    seconds = sorted(one.seconds for one in answers if one.decided)
    both = [one for one in answers if one.decided and one.other_seconds is not None]
    other = f"{statistics.median(one.other_seconds or 0.0 for one in both):.1f}" if both else ""
    faster = sum(one.seconds < (one.other_seconds or 0.0) for one in both)
    return [
        name, str(len(answers)), str(counts["sat"]), str(counts["unsat"]), str(counts["unknown"]), str(counts["timeout"]),
        str(counts["error"]), str(sum(one.differs for one in answers)),
        f"{statistics.median(seconds):.1f}" if seconds else "", f"{statistics.fmean(seconds):.1f}" if seconds else "",
        f"{seconds[-1]:.1f}" if seconds else "", other, f"{faster} of {len(both)}" if both else "",
    ]  # fmt: skip


def page(benchmarks: Mapping[str, Sequence[Answered]], machine: str) -> str:
    """The tables as Markdown."""
    lines = [
        "# Benchmarks of the verification competition",
        "",
        "Written by `python -m relucert.experiments.vnncomp` from the results of `relucert verify --instances`. Every instance "
        "ran in one process with one thread, within the limit of the competition's list, at most two at a time. Every `sat` "
        "has a counterexample that onnxruntime confirms; `different` counts answers that contradict the verdict on which the "
        "tools of the competition agree.",
        "",
        f"Seconds of relucert are from {machine}, without the start of Python. Those of alpha-beta-CROWN are from the "
        "benchmark's list, as the competition has published them, on other hardware (a GPU) and with its start: the "
        "columns cannot be compared directly. Where a list has no such column, there is none.",
        "",
        *table(
            [
                "benchmark", "instances", "sat", "unsat", "unknown", "timeout", "error", "different", "median s", "mean s",
                "longest s", "alpha-beta-CROWN median s", "fewer seconds than it",
            ],
            [row(name, answers) for name, answers in benchmarks.items()],
        ),
        "",
        "## What is open and what took longest",
        "",
        f"Instances without an answer, and the {SLOWEST} of each benchmark that took longest.",
        "",
        *table(
            ["benchmark", "instance", "answer", "agreed", "by", "s", "alpha-beta-CROWN s"],
            [cells for name, answers in benchmarks.items() for cells in _slowest(name, answers)],
        ),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _slowest(name: str, answers: Sequence[Answered]) -> list[list[str]]:
    """The cells of the instances that are open, and of those that took longest."""
    order = sorted(answers, key=lambda one: (one.decided, -one.seconds))
    shown = max(SLOWEST, sum(not one.decided for one in answers))
    return [
        [name, one.name, one.word, one.agreed, one.by, f"{one.seconds:.1f}", _seconds(one.other_seconds)]
        for one in order[:shown]
    ]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
