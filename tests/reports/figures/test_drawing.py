"""Figures have the same bytes whatever the settings of the process are, and are small."""

from __future__ import annotations

import io

import numpy as np
from matplotlib import rc_context
from PIL import Image

from relucert.reports.figures.drawing import COLUMN, DPI, canvas, picture_files, styled


@styled
def line():
    figure = canvas(COLUMN, 2.0)
    figure.subplots().plot([0, 1], [0, 1])
    return figure


def test_equal_figures_have_equal_bytes():
    first = picture_files("a", line())
    with rc_context({"font.size": 30, "lines.linewidth": 9, "svg.fonttype": "none"}):
        assert picture_files("a", line()) == first
    assert set(first) == {"a.png", "a.svg"}
    assert b"<svg" in first["a.svg"]


def test_the_picture_is_as_wide_as_a_column():
    with Image.open(io.BytesIO(picture_files("a", line())["a.png"])) as picture:
        assert picture.size == (round(COLUMN * DPI), 2 * DPI)
        assert np.asarray(picture.convert("L")).std() > 1
