"""The page of bounds: published figures of networks that others have trained, and what better bounds and the box add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relucert.reports._markdown import ball, percent, table


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """The robust error of a network by Wong and Kolter's relaxation, as published and as computed, in percent."""

    network: str
    p: float
    eps: float
    box: bool
    points: int
    published: float
    computed: float


@dataclass(frozen=True, kw_only=True)
class ProvedPoints:
    """How many points one method proves, without the box and with the box."""

    p: float
    eps: float
    method: str
    free: int
    boxed: int
    points: int


def page(reproductions: Sequence[Reproduction], network: str, proved: Sequence[ProvedPoints]) -> str:
    """The reproduced figures, and the points of one network that each method proves, as Markdown."""
    points = proved[0].points
    lines = [
        "# Bounds of networks of others",
        "",
        "Written by `python -m relucert.experiments.bounds FOLDER`, where FOLDER has the networks.",
        "",
        "## Wong and Kolter's relaxation, as published",
        "",
        "Robust error in percent: misclassified, or not proved by the relaxation.",
        "",
        *table(
            ["network", "norm, eps", "box", "points", "stated", "here"],
            [
                [
                    case.network, ball(case.p, case.eps), "yes" if case.box else "no", str(case.points),
                    f"{case.published:g}", f"{case.computed:.2f}",
                ]
                for case in reproductions
            ],
        ),
        "",
        f"## What methods and the box add: {network}",
        "",
        f"Shares of the first {points} points, in percent, that are classified correctly and proved, with room for the "
        "rounding of the bound and of the network.",
        "",
        *table(
            ["norm, eps", "method", "proved, no box", "proved, box"],
            [
                [ball(one.p, one.eps), one.method, percent(one.free, one.points), percent(one.boxed, one.points)]
                for one in proved
            ],
        ),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
