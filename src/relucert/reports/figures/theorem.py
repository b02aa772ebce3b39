"""The two cases of the region theorem: the region boundary is nearer than the decision boundary, or the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from relucert.reports.figures.drawing import COLOURS, INK, PAGE, bare, canvas, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A point in the plane: the polygon of its region (n, 2), d_B and d_D in l2, and the nearest points at these distances.

    `decisions` (segments, 2, 2) are the decision boundaries around the point, `hyperplane` (2, 2) two points of the decision
    hyperplane of its region.
    """

    point: np.ndarray
    region: np.ndarray
    d_b: float
    d_d: float
    on_region: np.ndarray
    on_decision: np.ndarray
    hyperplane: np.ndarray
    decisions: np.ndarray


@styled
def theorem_figure(cases: Sequence[Case]) -> Figure:
    """One square for every case."""
    figure = canvas(PAGE / 2 * len(cases), PAGE / 2 + 0.3)
    for axes, case in zip(np.atleast_1d(figure.subplots(1, len(cases))), cases, strict=True):
        _draw(axes, case)
    return figure


def _draw(axes: Axes, case: Case) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Circle, Polygon

    exact = case.d_d <= case.d_b
    radius = min(case.d_b, case.d_d)
    axes.add_patch(Polygon(case.region, facecolor="#eef1f4", edgecolor=INK, linewidth=1.2))
    axes.add_patch(
        Circle(
            (case.point[0], case.point[1]),
            radius,
            facecolor="none",
            edgecolor=COLOURS[0],
            linewidth=1.2,
            linestyle="--",
        )
    )
    axes.plot(*case.hyperplane.T, color=COLOURS[1], linewidth=0.9, linestyle=":")
    axes.add_collection(LineCollection(list(case.decisions), colors=COLOURS[1], linewidths=1.8))
    ways = (case.on_region - case.point, case.on_decision - case.point)
    # Labels stand on the outer sides of the two arrows.
    turn = 1.0 if ways[0][0] * ways[1][1] - ways[0][1] * ways[1][0] >= 0 else -1.0
    for way, name, colour, sign in ((ways[0], "$d_B$", INK, -turn), (ways[1], "$d_D$", COLOURS[1], turn)):
        end = case.point + way
        axes.annotate(
            "", xy=(end[0], end[1]), xytext=(case.point[0], case.point[1]),
            arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
        aside = sign * np.array([-way[1], way[0]]) / max(float(np.linalg.norm(way)), 1e-12)
        at = case.point + 0.6 * way + 0.11 * max(case.d_b, case.d_d) * aside
        axes.text(at[0], at[1], name, color=colour, ha="center", va="center", fontsize=9)
    axes.plot(*case.point, "o", color=COLOURS[0], markersize=4)
    axes.set_title("$d_D \\leq d_B$: $d_D$ is the exact distance" if exact else "$d_B < d_D$: $d_B$ is a lower bound")
    reach = 1.45 * max(case.d_b, case.d_d)
    axes.set_xlim(case.point[0] - reach, case.point[0] + reach)
    axes.set_ylim(case.point[1] - reach, case.point[1] + reach)
    axes.set_aspect("equal")
    bare(axes)
