"""Linear regions of networks on a plane, side by side: region boundaries, decision boundaries and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from relucert.reports.figures.drawing import COLOURS, INK, PAGE, bare, canvas, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Fillings of the cells, which tell neighbours apart: greys that stay behind lines and points.
_GREYS = ("#f7f7f7", "#e9edf1", "#dde4ea", "#f0ece6", "#e4ddd3", "#eef3ee")
MARKERS = "os^Dv"
#: Cells are filled where there are at most so many.
MOST_FILLED = 20_000


@dataclass(frozen=True, kw_only=True, eq=False)
class RegionsOnPlane:
    """All regions of a network on a rectangle.

    `vertices` (cells, most, 2) and `count` (cells,) are the polygons of the regions, `decisions` (segments, 2, 2) the ends of
    decision boundaries, `corners` the lower left and upper right corner. `inputs` (n, 2) with `labels` (n,) are drawn as
    points; `spread` says that lines are to be thin because there are many.
    """

    title: str
    vertices: np.ndarray
    count: np.ndarray
    decisions: np.ndarray
    corners: np.ndarray
    inputs: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(cls, title: str, arrays: dict[str, np.ndarray]) -> RegionsOnPlane:
        """The regions in arrays of these names."""
        names = ("vertices", "count", "decisions", "corners", "inputs", "labels")
        return cls(title=title, **{name: arrays[name] for name in names})


@styled
def regions_figure(networks: Sequence[RegionsOnPlane], size: float = 7.0) -> Figure:
    """One square for every network, the title with the number of regions above it; `size` is that of the points."""
    figure = canvas(PAGE / 2 * len(networks), PAGE / 2 + 0.05)
    axes = np.atleast_1d(figure.subplots(1, len(networks)))
    for one, network in zip(axes, networks, strict=True):
        _draw(one, network, size)
        one.set_title(f"{network.title}: {len(network.count):,} regions")
    return figure


def _draw(axes: Axes, network: RegionsOnPlane, size: float) -> None:
    from matplotlib.collections import LineCollection, PolyCollection

    cells = [polygon[:count] for polygon, count in zip(network.vertices, network.count, strict=True)]
    filled = len(cells) <= MOST_FILLED
    width = 0.5 if len(cells) < 500 else 0.25 if len(cells) < 5000 else 0.1
    # Neighbours differ in most cases: a hash of the centre chooses the filling.
    centres = np.array([cell.mean(0) for cell in cells])
    choice = (np.abs(np.sin(centres @ np.array([12.9898, 78.233])) * 43758.5453) % 1 * len(_GREYS)).astype(int)
    axes.add_collection(
        PolyCollection(
            cells, facecolors=[_GREYS[i] for i in choice] if filled else "none", edgecolors=INK, linewidths=width,
            rasterized=len(cells) > 2000,
        )
    )  # fmt: skip
    axes.add_collection(LineCollection(list(network.decisions), colors=COLOURS[2], linewidths=1.6))
    for number, label in enumerate(np.unique(network.labels)):
        chosen = network.inputs[network.labels == label]
        axes.scatter(
            chosen[:, 0], chosen[:, 1], s=size, c=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)],
            edgecolors="white", linewidths=0.3, zorder=3,
        )  # fmt: skip
    (left, bottom), (right, top) = network.corners
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_aspect("equal")
    bare(axes)
