"""Distances of an attack over the smallest ones, sorted: how far an attack overestimates robustness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from relucert.reports.figures.drawing import COLOURS, COLUMN, FAINT, canvas, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The paper draws the largest ratios alone.
MOST = 4000
#: Ratios from which on an attack counts as too long, and which are marked.
MARKS = (1.1, 1.2)


@styled
def ratios_figure(ratios: Sequence[float], attack: str) -> Figure:
    """The largest ratios, of which the first is the largest, with the numbers of points above 1.1 and 1.2."""
    found = np.sort(np.asarray(ratios, dtype=float))[::-1]
    figure = canvas(COLUMN, COLUMN * 0.72)
    axes = figure.subplots()
    shown = found[:MOST]
    axes.fill_between(np.arange(1, len(shown) + 1), 1, shown, color=COLOURS[0], alpha=0.15, linewidth=0)
    axes.plot(np.arange(1, len(shown) + 1), shown, color=COLOURS[0])
    for mark in MARKS:
        count = int((found >= mark).sum())
        axes.axhline(mark, color=FAINT, linewidth=0.6, linestyle=":")
        axes.annotate(
            f"{count:,} of {len(found):,} at least {mark:g}", xy=(1, mark), xycoords=("axes fraction", "data"),
            xytext=(0, 1.5), textcoords="offset points", ha="right", va="bottom", fontsize=6.5, color=FAINT,
        )  # fmt: skip
    axes.set_xlim(1, max(2, len(shown)))
    axes.set_ylim(1, max(1.3, float(shown[0]) * 1.05))
    axes.set_xlabel("points with a proved optimum, sorted")
    axes.set_ylabel(f"distance of {attack} / optimum")
    return figure
