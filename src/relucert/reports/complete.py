"""The page of complete verification: robust errors with both ends, what each method adds, and the undecided points."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relucert.reports._markdown import ball, table


@dataclass(frozen=True, kw_only=True)
class VerifiedCase:
    """A network, a ball, the seconds for one point, what was published, and the summary of the verdicts.

    `own`: the network is one of `results/`; only of these the page shows the methods one by one. `twin` is the name of the same
    case in float64, its own name where it is not in float32.
    """

    name: str
    network: str
    data: str
    p: float
    eps: float
    timeout: float
    published: str
    own: bool
    twin: str
    summary: dict[str, Any]

    def cells(self) -> list[str]:
        """The row of the case in the first table."""
        low, high = f"{self.summary['broken_error']:.2%}", f"{self.summary['robust_error']:.2%}"
        return [
            self.name, self.network, self.data, ball(self.p, self.eps), str(self.summary["points"]),
            f"{self.timeout:g} s", low if low == high else f"{low} to {high}", self.published,
            str(len(self.summary["undecided"])), f"{self.summary['seconds']:.0f}",
            ", ".join(f"{stage} {count}" for stage, count in self.summary["by"].items()),
        ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Union:
    """Lower and upper bound of the robust error over the balls of several norms together, and what was published."""

    lower: float
    upper: float
    published: str


def union_error(files: Sequence[Path], points: int) -> tuple[float, float] | None:
    """Lower and upper bound of the robust error over several balls together; None if a file is missing.

    Every file has the numbers of the points that are proved and that are falsified in one ball.
    """
    if not all(file.exists() for file in files):
        return None
    balls = [json.loads(file.read_text()) for file in files]
    falsified = set().union(*(one["broken"] for one in balls))
    proved = set(balls[0]["proved"]).intersection(*(one["proved"] for one in balls[1:]))
    return len(falsified) / points, 1 - len(proved) / points


def page(cases: Sequence[VerifiedCase], union: Union | None, plot: Path | None) -> str:
    """The cases as Markdown; `plot` is the figure of seconds, with its path from the page's folder."""
    lines = [
        "# Complete verification",
        "",
        "Written by `python -m relucert.experiments.complete FOLDER`, where FOLDER has the networks of others. Robust error: "
        "from the share of points that are misclassified or have a witness, to that of points that are misclassified or not "
        "proved. Undecided: neither, in the seconds that one point may take. Seconds are the sum over points, of two "
        "processes.",
        "",
        *table(
            ["case", "network", "data", "norm, eps", "points", "limit", "robust error", "stated", "undecided", "seconds",
             "decided by"],
            [case.cells() for case in cases],
        ),
    ]  # fmt: skip
    if union is not None:
        lines += [
            "",
            f"mmr_universal/mnist, l_inf 0.1, l2 0.3 and l1 1 together: robust error {union.lower:.1%} to {union.upper:.1%} "
            f"(stated: {union.published}).",
        ]
    if plot is not None:
        lines += [
            "",
            "## Against a mixed-integer solver on every point",
            "",
            "Seconds of each of the first 200 points of wk17a_mnist by `auto` and by `mip` alone, as drawn by `python "
            f"benchmarks/bench_complete.py FOLDER/wk17a_mnist.safetensors --plot results/{plot}`; points that are bounded in "
            "one batch share its time.",
            "",
            f"![seconds over unstable units]({plot})",
        ]
    return "\n".join([*lines, *_single(cases), *_methods(cases), *_undecided(cases)]) + "\n"


def _single(cases: Sequence[VerifiedCase]) -> list[str]:
    """Whether verdicts in float32 are those in float64, point by point where both were decided by this version."""
    by_name = {case.name: case.summary for case in cases}
    rows = []
    for case in cases:
        if case.twin == case.name or case.twin not in by_name:
            continue
        single, double = case.summary, by_name[case.twin]
        if "verdicts" in single and "verdicts" in double:
            other = sum(one != two for one, two in zip(single["verdicts"], double["verdicts"], strict=True))
            same = "the same at every point" if other == 0 else f"others at {other} points"
        else:
            ends = ("broken_error", "robust_error")
            same = (
                "the same robust error" if all(single[end] == double[end] for end in ends) else "another robust error"
            )
        rows.append(
            [case.twin, same, str(len(single["undecided"])), f"{single['seconds']:.0f}", f"{double['seconds']:.0f}"]
        )
    if not rows:
        return []
    return [
        "", "## In float32 and in float64", "",
        "Networks as they are stored, in float32, beside the same weights in float64.", "",
        *table(["case", "verdicts", "undecided in float32", "seconds in float32", "seconds in float64"], rows),
    ]  # fmt: skip


def _methods(cases: Sequence[VerifiedCase]) -> list[str]:
    """The robust error, lower and upper end, after every method of the cascade."""
    rows = []
    for case in cases:
        if not case.own:
            continue
        points, falsified, proved = case.summary["points"], 0, 0
        for stage, counts in case.summary["stages"].items():
            falsified, proved = falsified + counts["broken"], proved + counts["robust"]
            low, high = falsified / points, 1 - proved / points
            ends, gap = f"{low:.1%} to {high:.1%}", f"{max(high - low, 0.0):.1%}"
            rows.append([case.name, stage, str(counts["robust"]), str(counts["broken"]), ends, gap])
    if not rows:
        return []
    return [
        "", "## What each method adds", "",
        "In the order of the cascade, each on what those before it have left open.", "",
        *table(["case", "method", "proved", "broken", "robust error so far", "gap"], rows),
    ]  # fmt: skip


def _undecided(cases: Sequence[VerifiedCase]) -> list[str]:
    """The points that were not decided."""
    rows = [
        [
            case.name, str(point["index"]), str(point["unstable"]), f"{point['bound']:.3f}", f"{point['seconds']:.0f}",
        ]
        for case in cases
        for point in case.summary.get("open", ())
    ]  # fmt: skip
    if not rows:
        return []
    return [
        "", "## What is open", "",
        "Unstable: number of unstable units, by CROWN; bound: the proved margin when the clock stopped.", "",
        *table(["case", "point", "unstable", "bound", "seconds"], rows),
    ]  # fmt: skip
