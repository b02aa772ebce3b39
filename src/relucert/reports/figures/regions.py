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
FEW = 10  # points that are so few are drawn large


@dataclass(frozen=True, kw_only=True, eq=False)
class RegionsOnPlane:
    """All regions of a network on a rectangle.

    `number` counts them, `boundaries` and `decisions` (segments, 2, 2) are the ends of region and of decision boundaries, and
    `corners` the lower left and upper right corner. `vertices` (cells, most, 2) and `count` (cells,) are the polygons
    of the regions, which may be left out; with them regions are filled. `inputs` (n, 2) with `labels` (n,) are drawn as points.
    """

    title: str
    number: int
    boundaries: np.ndarray
    vertices: np.ndarray
    count: np.ndarray
    decisions: np.ndarray
    corners: np.ndarray
    inputs: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(cls, title: str, arrays: dict[str, np.ndarray]) -> RegionsOnPlane:
        """The regions in arrays of these names."""
        names = ("boundaries", "vertices", "count", "decisions", "corners", "inputs", "labels")
        return cls(title=title, number=int(arrays["number"]), **{name: arrays[name] for name in names})


@styled
def regions_figure(networks: Sequence[RegionsOnPlane]) -> Figure:
    """One square for every network, the title with the number of regions above it."""
    figure = canvas(PAGE / 2 * len(networks), PAGE / 2 + 0.05)
    axes = np.atleast_1d(figure.subplots(1, len(networks)))
    for one, network in zip(axes, networks, strict=True):
        _draw(one, network, max(network.number for network in networks))
        one.set_title(f"{network.title}: {network.number:,} regions")
    return figure


def _draw(axes: Axes, network: RegionsOnPlane, most: int) -> None:
    """Draw one network; lines are the thinner, the more regions the most crowded network has."""
    from matplotlib.collections import LineCollection, PolyCollection

    cells = [polygon[:count] for polygon, count in zip(network.vertices, network.count, strict=True)]
    if cells:
        # Neighbours differ in most cases: a hash of the centre chooses the filling.
        centres = np.array([cell.mean(0) for cell in cells])
        choice = (np.abs(np.sin(centres @ np.array([12.9898, 78.233])) * 43758.5453) % 1 * len(_GREYS)).astype(int)
        colours = [_GREYS[i] for i in choice]
        axes.add_collection(
            PolyCollection(cells, facecolors=colours, edgecolors=colours, linewidths=0.2, rasterized=len(cells) > 2000)
        )
    width = 0.6 if most < 1000 else 0.4 if most < 10_000 else 0.15
    axes.add_collection(LineCollection(list(network.boundaries), colors=INK, linewidths=width))
    axes.add_collection(LineCollection(list(network.decisions), colors=COLOURS[2], linewidths=1.6))
    size = 55.0 if len(network.inputs) < FEW else 7.0
    for number, label in enumerate(np.unique(network.labels)):
        chosen = network.inputs[network.labels == label]
        axes.scatter(
            chosen[:, 0], chosen[:, 1], s=size, c=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)],
            edgecolors="white", linewidths=0.1 * size**0.5, zorder=3,
        )  # fmt: skip
    (left, bottom), (right, top) = network.corners
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_aspect("equal")
    bare(axes)
