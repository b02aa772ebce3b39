"""Gradients of the loss with respect to inputs: what changes the decision of a network, beside the images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from relucert.reports.figures.drawing import PAGE, bare, canvas, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Gradients of colour images are clipped at so many standard deviations.
DEVIATIONS = 3.0


@styled
def gradients_figure(images: np.ndarray, gradients: Mapping[str, np.ndarray]) -> Figure:
    """Images (n, channels, height, width) in the first row, and below them the gradients of every network, of the same shape.

    Of grey images white is zero, blue negative and red positive, every gradient on a scale of its own; gradients of colour
    images are clipped at three standard deviations and shown in [0, 1].
    """
    rows, columns = 1 + len(gradients), len(images)
    side = PAGE * 0.9 / columns
    figure = canvas(PAGE, side * rows)
    grid = figure.subplots(rows, columns, squeeze=False, gridspec_kw={"wspace": 0.02, "hspace": 0.02})
    for number, (name, values) in enumerate([("image", images), *gradients.items()]):
        for axes, value in zip(grid[number], values, strict=True):
            bare(axes)
            if value.shape[0] == 1 and number:
                most = max(float(np.abs(value).max()), 1e-30)
                axes.imshow(value[0], cmap="bwr", vmin=-most, vmax=most, interpolation="nearest")
            elif value.shape[0] == 1:
                axes.imshow(value[0], cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
            else:
                axes.imshow((scaled(value) if number else value).transpose(1, 2, 0), interpolation="nearest")
        grid[number][0].set_ylabel(name, rotation=0, ha="right", va="center")
    return figure


def scaled(gradient: np.ndarray) -> np.ndarray:
    """A gradient clipped at three standard deviations of its own, in [0, 1] with zero at 0.5.

    >>> scaled(np.zeros((3, 1, 1))).tolist()
    [[[0.5]], [[0.5]], [[0.5]]]
    """
    limit = max(DEVIATIONS * float(gradient.std()), 1e-30)
    return np.clip(gradient, -limit, limit) / (2 * limit) + 0.5
