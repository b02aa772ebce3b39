"""The filters of both convolutions of networks: how sparse they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from relucert.reports.figures.drawing import PAGE, bare, canvas, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Filters of a row: all of the first convolution of the paper's CNN on grey images, five of colour images.
FIRST, FIRST_COLOUR, SECOND = 16, 5, 16
TITLES = ("first convolution", "second convolution")


@styled
def filters_figure(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> Figure:
    """Filters (filters, channels, height, width) of the first convolution above, of the second below, a row for each network.

    White is zero, blue negative and red positive, every row on a scale of its own. The channels of a colour filter stand side
    by side; those of a filter of the second convolution as a square.
    """
    tops = {
        name: [_beside(one) for one in filters[: FIRST if filters.shape[1] == 1 else FIRST_COLOUR]]
        for name, filters in first.items()
    }
    lows = {name: [_square(one) for one in filters[:SECOND]] for name, filters in second.items()}
    rows = len(tops) + len(lows)
    figure = canvas(PAGE, (PAGE * 0.9 / SECOND) * (rows + 1.2))
    parts = np.atleast_1d(np.asarray(figure.subfigures(2, 1)))
    for part, title, filters in zip(parts, TITLES, (tops, lows), strict=True):
        columns = max(map(len, filters.values()))
        grid = part.subplots(len(filters), columns, squeeze=False, gridspec_kw={"wspace": 0.04, "hspace": 0.04})
        part.suptitle(title, fontsize=8, x=0.01, ha="left")
        for row, (name, pictures) in zip(grid, filters.items(), strict=True):
            most = max(float(np.abs(np.stack(pictures)).max()), 1e-30)
            for axes, picture in zip(row, pictures, strict=True):
                axes.imshow(picture, cmap="bwr", vmin=-most, vmax=most, interpolation="nearest")
                bare(axes)
            row[0].set_ylabel(name, rotation=0, ha="right", va="center")
    return figure


def _beside(weights: np.ndarray) -> np.ndarray:
    """The channels of a filter side by side: 4 x 4 x 3 as 4 x 12."""
    return np.concatenate(list(weights), 1)


def _square(weights: np.ndarray) -> np.ndarray:
    """The channels of a filter as a square: 4 x 4 x 16 as 16 x 16."""
    side = max(1, int(len(weights) ** 0.5))
    rows = [np.concatenate(list(weights[start : start + side]), 1) for start in range(0, side * side, side)]
    return np.concatenate(rows, 0)
