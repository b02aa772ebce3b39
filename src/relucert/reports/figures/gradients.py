"""Gradients of the loss with respect to inputs: what changes the decision of a network, beside the images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from relucert.reports.figures.drawing import PAGE, canvas, draw_strip, strip, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Gradients of colour images are clipped at so many standard deviations.
DEVIATIONS = 3.0
#: Pixels of a figure for a pixel of an image, so that gaps are narrower than that.
SCALE = 4


@styled
def gradients_figure(images: np.ndarray, gradients: Mapping[str, np.ndarray]) -> Figure:
    """Images (n, channels, height, width) in the first row, and below them the gradients of every network, of the same shape.

    Of grey images white is zero, blue negative and red positive, every gradient on a scale of its own; gradients of colour
    images are clipped at three standard deviations and shown in [0, 1].
    """
    grey = images.shape[1] == 1
    rows = {"image": [image[0] if grey else image.transpose(1, 2, 0) for image in images]}
    for name, values in gradients.items():
        rows[name] = [relative(value[0]) if grey else scaled(value).transpose(1, 2, 0) for value in values]
    figure = canvas(PAGE, PAGE * 0.9 / len(images) * len(rows) * 1.13)
    grid = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
    for number, (axes, (name, pictures)) in enumerate(zip(grid, rows.items(), strict=True)):
        picture = strip(pictures, SCALE)
        if not grey:
            draw_strip(axes, np.nan_to_num(picture, nan=1.0), name)
        elif number:
            draw_strip(axes, picture, name, cmap="bwr", vmin=-1, vmax=1)
        else:
            draw_strip(axes, picture, name, cmap="gray_r", vmin=0, vmax=1)
    return figure


def relative(gradient: np.ndarray) -> np.ndarray:
    """A gradient over its largest absolute entry.

    >>> relative(np.array([[0.5, -2.0]])).tolist()
    [[0.25, -1.0]]
    """
    return gradient / max(float(np.abs(gradient).max()), 1e-30)


def scaled(gradient: np.ndarray) -> np.ndarray:
    """A gradient clipped at three standard deviations of its own, in [0, 1] with zero at 0.5.

    >>> scaled(np.zeros((3, 1, 1))).tolist()
    [[[0.5]], [[0.5]], [[0.5]]]
    """
    limit = max(DEVIATIONS * float(gradient.std()), 1e-30)
    return np.clip(gradient, -limit, limit) / (2 * limit) + 0.5
