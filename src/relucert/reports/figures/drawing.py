"""How figures look, and their files: PNG and SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Arguments = ParamSpec("Arguments")

#: Inches of a column and of a page of two columns.
COLUMN, PAGE = 3.35, 6.9
#: Okabe and Ito (2008), in the order of use: blue, vermilion, green, purple, orange, sky blue.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, FAINT, GAP = "#222222", "#8a8a8a", "#b9bfc6"
#: Lines of one figure differ in their dashes as well as in their colours.
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (4, 1.5, 1, 1.5)), (0, (7, 2)), (0, (2, 2)))
DPI = 200
#: Numbers of colours of a PNG, and the bytes above which it has fewer.
PALETTES, LARGE = (64, 24, 12), 300_000

_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 7.5, "axes.titlesize": 8, "axes.labelsize": 7.5, "legend.fontsize": 7,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.edgecolor": INK, "axes.labelcolor": INK, "text.color": INK,
    "xtick.color": INK, "ytick.color": INK, "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "lines.linewidth": 1.4, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "figure.constrained_layout.use": True, "svg.hashsalt": "relucert", "svg.fonttype": "path", "figure.facecolor": "white",
}  # fmt: skip


def styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """A function that draws with the style of all figures, whatever the settings of the process are."""

    @wraps(draw)
    def drawing(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Figure:
        with _style():
            return draw(*args, **kwargs)

    return drawing


def _style() -> AbstractContextManager[None]:
    from matplotlib import rc_context, rcParamsDefault

    settings: dict[Any, Any] = {**rcParamsDefault, "backend": "agg", **_STYLE}
    return rc_context(settings)


def canvas(width: float, height: float) -> Figure:
    """An empty figure of a size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI)


def picture_files(name: str, figure: Figure) -> dict[str, str | bytes]:
    """The two files of a figure by name; equal figures give equal bytes."""
    pixels, vectors = io.BytesIO(), io.BytesIO()
    with _style():
        figure.savefig(pixels, format="png", dpi=DPI)
        figure.savefig(vectors, format="svg", dpi=DPI, metadata={"Date": None, "Creator": None})
    return {f"{name}.png": _with_palette(pixels), f"{name}.svg": vectors.getvalue()}


def _with_palette(pixels: io.BytesIO) -> bytes:
    """A PNG with a palette, which makes it several times smaller: the first of `PALETTES` that does for `LARGE` bytes."""
    from PIL import Image

    small = io.BytesIO()
    with Image.open(pixels) as picture:
        whole = picture.convert("RGB")
    for colours in PALETTES:
        small = io.BytesIO()
        whole.quantize(colours, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(small, "png", optimize=True)
        if small.tell() <= LARGE:
            break
    return small.getvalue()


def bare(axes: Axes) -> None:
    """Remove ticks, and keep a thin frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.5)


def strip(pictures: Sequence[np.ndarray], scale: int = 1) -> np.ndarray:
    """Pictures of one height side by side as one, with gaps of NaN; every pixel becomes `scale` x `scale` pixels.

    Pictures are (height, width) or (height, width, colours).
    """
    large = [picture.repeat(scale, 0).repeat(scale, 1) for picture in pictures]
    height = large[0].shape[0]
    gap = np.full((height, max(1, height // 12), *large[0].shape[2:]), np.nan)
    return np.concatenate([part for picture in large for part in (gap, picture)][1:], 1)


def draw_strip(axes: Axes, picture: np.ndarray, name: str, **settings: Any) -> None:
    """Draw a strip without a frame, and its name on the left; gaps are grey in strips without colours."""
    from matplotlib import colormaps

    if "cmap" in settings:
        settings["cmap"] = colormaps[settings["cmap"]].with_extremes(bad=GAP)
    axes.imshow(picture, interpolation="nearest", **settings)
    axes.set_axis_off()
    axes.text(-0.008, 0.5, name, transform=axes.transAxes, ha="right", va="center", fontsize=7.5)
