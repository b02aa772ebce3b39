"""The page of deep networks: points that are decided in the time of one point, and what rounding costs when executed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relucert.reports._markdown import ball, percent, table

INFINITY = float("inf")
#: Keys of shares and the words of their columns.
_SHARES = {
    f"{kind} {name}": f"{kind}, {words}"
    for kind in ("executed", "all")
    for name, words in (("median", "median"), ("largest", "largest"), ("scale", "largest / median margin"))
}


@dataclass(frozen=True, kw_only=True)
class DecidedPoints:
    """A network, a radius in l_inf, and the summary of the verdicts."""

    network: str
    eps: float
    summary: dict[str, Any]

    def cells(self) -> list[str]:
        """The row of the table."""
        counts, points = self.summary, self.summary["points"]
        by = ", ".join(f"{method} {count}" for method, count in counts["by"].items())
        return [
            self.network, ball(INFINITY, self.eps), str(counts["robust"]), str(counts["vulnerable"]),
            str(counts["misclassified"]), str(counts["unknown"]), percent(points - counts["unknown"], points),
            f"{counts['seconds']:.0f}", by,
        ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Slack:
    """What rounding costs margins, as shares of the margins at the inputs; see `experiments.deep.slack`."""

    network: str
    eps: float
    shares: dict[str, float]


def page(points: Sequence[DecidedPoints], slacks: Sequence[Slack], commands: Sequence[str], *, seconds: float) -> str:
    """The tables as Markdown, and the commands that train the networks."""
    lines = [
        "# Deep networks",
        "",
        "Written by `python -m relucert.experiments.deep decide`. Networks with 2, 4 and 6 hidden layers of 256 units and the "
        "paper's FC10, in float32, adversarially trained on MNIST at l_inf 0.1 with sparse weights (l1 penalty).",
        "",
        f"The first points of the test set by `auto`, {seconds:g} s a point, one process with one thread. Decided: proved, "
        "with a counterexample, or misclassified, in percent. Seconds are the sum over points.",
        "",
        *table(
            ["network", "norm, eps", "robust", "vulnerable", "misclassified", "open", "decided", "seconds", "decided by"],
            [point.cells() for point in points],
        ),
    ]  # fmt: skip
    if slacks:
        lines += [
            "",
            "## What rounding costs",
            "",
            "What a margin by `crown` is charged for rounding, in percent of the margin at the input, over the correctly "
            "classified ones of 100 points: for the executed network alone, and with the computation of the bound in float32. "
            "Points close to a decision boundary have small margins, so the largest charge is compared with the median margin "
            "as well.",
            "",
            *table(
                ["network", "norm, eps", *_SHARES.values()],
                [
                    [one.network, ball(INFINITY, one.eps), *(f"{100 * one.shares[key]:.2g}" for key in _SHARES)]
                    for one in slacks
                ],
            ),
        ]
    return "\n".join([*lines, "", "## How the networks were trained", "", "```", *commands, "```"]) + "\n"
