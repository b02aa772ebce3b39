"""The page of attacks: PGD against APGD, and distances of attacks against exact distances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from relucert.reports._markdown import table

#: Shares of the sorted ratios, and the heads of their columns.
QUANTILES = {0.0: "least", 0.5: "median", 0.9: "90 %", 0.99: "99 %", 1.0: "largest"}
#: A ratio is near if it is at most 1 + NEAR.
NEAR = 1e-3


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of the sorted values that at least this share of them does not exceed.

    >>> quantile([1.0, 1.0, 1.5, 2.0], 0.75)
    1.5
    """
    return values[max(0, math.ceil(share * len(values)) - 1)]


def page(figures: Mapping[str, dict[str, Any]], points: int, attacks: tuple[str, str], minimal: Sequence[str]) -> str:
    """The figures of every network by name as Markdown.

    `attacks` are PGD and APGD, within eps, on the first `points` test points; `minimal` are the attacks that look for the
    smallest distance.
    """
    counts = {name: found["broken"] for name, found in figures.items()}
    lines = [
        "# Attacks on the trained networks",
        "",
        "Written by `python -m relucert.experiments.attacks`.",
        "",
        "## The same number of gradients",
        "",
        f"Correctly classified points among the first {points} test points that `{attacks[0]}` and `{attacks[1]}` break at "
        "the eps of the network's training.",
        "",
        *table(
            ["network", "correct", "PGD", "apgd"],
            [[name, *(str(count[key]) for key in ("correct", "pgd", "apgd"))] for name, count in counts.items()],
        ),
        "",
        "## Attacks against exact distances",
        "",
    ]
    for name, found in figures.items():
        if "ratios" in found:
            lines += _ratios(name, found["ratios"], minimal)
    return "\n".join(lines).rstrip() + "\n"


def _ratios(name: str, found: dict[str, Any], minimal: Sequence[str]) -> list[str]:
    """Distance found over exact distance, attack by attack, for one network."""
    rows = []
    for method in minimal:
        values: list[float] = found[method]["ratios"]
        near = sum(value <= 1 + NEAR for value in values) / len(values)
        quantiles = [f"{quantile(values, share):.4f}" for share in QUANTILES]
        rows.append(
            [f"`{method}`", *quantiles, f"{fmean(values):.4f}", f"{near:.1%}", f"{found[method]['seconds']:.0f}"]
        )
    return [
        f"{name}: among the first {found['points']} test points the region theorem gives {found['exact']} distances to the "
        f"nearest change of decision exactly; the attacks were run on the first {found['attacked']} of these. Distance found "
        "over exact distance, sorted:",
        "",
        *table(["attack", *QUANTILES.values(), "mean", f"within {NEAR:.1%}", "seconds"], rows),
        "",
    ]
