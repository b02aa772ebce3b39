"""Minutes of verification, and lower and upper bounds of the robust error, over lambda, the weight of MMR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relucert.reports.figures.drawing import COLOURS, DASHES, PAGE, canvas, styled
from relucert.reports.paper.claims import Verified

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def verifiability_figure(networks: Sequence[Verified]) -> Figure:
    """Minutes on a logarithmic scale on the left, robust errors on the right; networks stand in the order of lambda."""
    from matplotlib.ticker import LogFormatter

    figure = canvas(PAGE, PAGE / 2.9)
    left, right = figure.subplots(1, 2)
    places = range(len(networks))
    left.plot(places, [one.minutes for one in networks], "o-", color=COLOURS[0], markersize=4)
    left.set_yscale("log")
    for ticks in (left.yaxis.set_major_formatter, left.yaxis.set_minor_formatter):
        ticks(LogFormatter(minor_thresholds=(2, 0.5)))  # numbers, not powers; some between them where the axis is short
    left.set_ylabel("minutes for 1000 points")
    right.plot(
        places, [one.upper for one in networks], "s", color=COLOURS[1], markersize=4, ls=DASHES[0], label="upper bound"
    )
    right.plot(
        places, [one.lower for one in networks], "o", color=COLOURS[0], markersize=4, ls=DASHES[1], label="lower bound"
    )
    right.fill_between(
        places,
        [one.lower for one in networks],
        [one.upper for one in networks],
        color=COLOURS[1],
        alpha=0.12,
        linewidth=0,
    )
    right.set_ylabel("robust error, %")
    right.set_ylim(0, 103)
    right.legend()
    for axes in (left, right):
        axes.set_xticks(list(places), [f"{one.lam:g}" if one.lam else "0\n(plain)" for one in networks])
        axes.set_xlabel("$\\lambda$, weight of MMR")
        axes.grid(axis="y", linewidth=0.3, alpha=0.6)
    return figure
