"""The filters of both convolutions of networks: how sparse they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from relucert.reports.figures.drawing import PAGE, canvas, draw_strip, strip, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Filters of a row: all of the first convolution of the paper's CNN on grey images, five of colour images.
FIRST, FIRST_COLOUR, SECOND = 16, 5, 16
#: Pixels of a drawn filter from top to bottom.
SIDE = 48
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
    rows = [*tops.items(), *lows.items()]
    figure = canvas(PAGE, PAGE * 0.9 / SECOND * (1.2 * len(rows) + 1.4))
    grid = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
    for number, (axes, (name, pictures)) in enumerate(zip(grid, rows, strict=True)):
        most = max(float(np.abs(np.stack(pictures)).max()), 1e-30)
        draw_strip(axes, strip(pictures, SIDE // pictures[0].shape[0]), name, cmap="bwr", vmin=-most, vmax=most)
        if number in (0, len(tops)):
            axes.set_title(TITLES[number > 0], loc="left")
    return figure


def _beside(weights: np.ndarray) -> np.ndarray:
    """The channels of a filter side by side: 4 x 4 x 3 as 4 x 12."""
    return np.concatenate(list(weights), 1)


def _square(weights: np.ndarray) -> np.ndarray:
    """The channels of a filter as a square: 4 x 4 x 16 as 16 x 16."""
    side = max(1, int(len(weights) ** 0.5))
    rows = [np.concatenate(list(weights[start : start + side]), 1) for start in range(0, side * side, side)]
    return np.concatenate(rows, 0)
