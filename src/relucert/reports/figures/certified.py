"""Certified accuracy over the radius: the share of points proved correct within every radius, from records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from relucert.reports.figures.drawing import COLOURS, COLUMN, DASHES, canvas, styled
from relucert.reports.intervals import Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def proved_and_attacked(subject: Subject) -> tuple[np.ndarray, np.ndarray]:
    """The radii up to which points are proved, and at which they have counterexamples; -1 for misclassified points.

    Both are sorted, the largest first.
    """
    lowers = [point.lower if point.correct else -1.0 for point in subject.points]
    uppers = [point.upper if point.correct else -1.0 for point in subject.points]
    return np.sort(lowers)[::-1], np.sort(uppers)[::-1]


@styled
def certified_figure(subjects: Mapping[str, Subject]) -> Figure:
    """One colour a network: certified accuracy as a full line, and the accuracy under attacks as a thin one."""
    figure = canvas(COLUMN * 1.35, COLUMN * 0.78)
    axes = figure.subplots()
    right = 0.0
    for number, (name, subject) in enumerate(subjects.items()):
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        proved, attacked = proved_and_attacked(subject)
        axes.plot(*_steps(proved), color=colour, linestyle=dashes, label=name)
        axes.plot(*_steps(attacked), color=colour, linestyle=dashes, linewidth=0.6, alpha=0.9)
        known = attacked[np.isfinite(attacked)]
        right = max(right, float(proved[0]), float(np.quantile(known, 0.9)) if len(known) else 0.0)
    p = next(iter(subjects.values())).p
    axes.set_xlim(0, right * 1.02 if right > 0 else 1)
    axes.set_ylim(0, 101)
    axes.set_xlabel(f"radius, $l_{{{'∞' if math.isinf(p) else f'{p:g}'}}}$".replace("∞", "\\infty"))
    axes.set_ylabel("accuracy, %")
    axes.legend(
        title="thick: proved\nthin: under attack", title_fontsize=6.5, loc="upper left", bbox_to_anchor=(1.01, 1)
    )
    return figure


def _steps(radii: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The corners of the curve of the share of radii that are at least eps, for growing eps, from eps 0."""
    ends = np.sort(radii[radii >= 0])
    total = len(radii)
    left = np.arange(len(ends), 0, -1)
    finite = np.where(np.isfinite(ends), ends, 1e9)
    x = np.concatenate([[0.0], np.repeat(finite, 2)])
    y = np.concatenate([np.repeat(np.concatenate([left, [0]]), 2)[:-1]]) if len(ends) else np.array([0.0])
    return x, 100 * y / total
