"""The page of the verification competition's benchmarks: how many instances are decided, and in how many seconds."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relucert.reports._markdown import table

DECIDED = ("sat", "unsat")


@dataclass(frozen=True)
class Answered:
    """One instance: what was answered in how many seconds; the agreed verdict and the other tool's seconds, if known."""

    word: str
    seconds: float
    agreed: str = ""
    other_seconds: float | None = None

    @property
    def differs(self) -> bool:
        """Whether the answer contradicts the agreed verdict."""
        return {self.word, self.agreed} == set(DECIDED)


def row(name: str, answers: Sequence[Answered]) -> list[str]:
    """The cells of a benchmark.

    >>> row("acasxu", [Answered("sat", 1.0, "sat", 6.0), Answered("timeout", 116.0, "unsat")])
    ['acasxu', '2', '1', '0', '0', '1', '0', '0', '1.0', '1.0', '6.0']
    """
    counts = Counter(one.word for one in answers)
    seconds = sorted(one.seconds for one in answers if one.word in DECIDED)
    both = [one for one in answers if one.word in DECIDED and one.other_seconds is not None]
    other = f"{statistics.median(one.other_seconds or 0.0 for one in both):.1f}" if both else ""
    return [
        name, str(len(answers)), str(counts["sat"]), str(counts["unsat"]), str(counts["unknown"]), str(counts["timeout"]),
        str(counts["error"]), str(sum(one.differs for one in answers)),
        f"{statistics.median(seconds):.1f}" if seconds else "", f"{seconds[-1]:.1f}" if seconds else "", other,
    ]  # fmt: skip


def page(benchmarks: Mapping[str, Sequence[Answered]], machine: str) -> str:
    """The table as Markdown."""
    lines = [
        "# Benchmarks of the verification competition",
        "",
        "Written by `python -m relucert.experiments.vnncomp` from the results of `relucert verify --instances`. Every instance "
        "ran alone in one process with one thread, within the limit of the competition's list. Every `sat` has a "
        "counterexample that onnxruntime confirms; `different` counts answers that contradict the verdict on which the tools "
        "of the competition agree.",
        "",
        f"Seconds of relucert are from {machine}, without the start of Python. The seconds of alpha-beta-CROWN are those that "
        "the competition has published, on other hardware (a GPU) and with its start: the columns cannot be compared directly.",
        "",
        *table(
            [
                "benchmark", "instances", "sat", "unsat", "unknown", "timeout", "error", "different", "median s", "longest s",
                "alpha-beta-CROWN median s",
            ],
            [row(name, answers) for name, answers in benchmarks.items()],
        ),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
