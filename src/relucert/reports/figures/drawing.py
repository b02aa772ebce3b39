"""How figures look, and their files: PNG and SVG."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Arguments = ParamSpec("Arguments")

#: Inches of a column and of a page of two columns.
COLUMN, PAGE = 3.35, 6.9
#: Okabe and Ito (2008), in the order of use: blue, vermilion, green, purple, orange, sky blue.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, FAINT = "#222222", "#8a8a8a"
#: Lines of one figure differ in their dashes as well as in their colours.
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (4, 1.5, 1, 1.5)), (0, (7, 2)), (0, (2, 2)))
DPI = 200
PALETTE = 128

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
        from matplotlib import rc_context, rcParamsDefault

        settings: dict[Any, Any] = {**rcParamsDefault, "backend": "agg", **_STYLE}
        with rc_context(settings):
            return draw(*args, **kwargs)

    return drawing


def canvas(width: float, height: float) -> Figure:
    """An empty figure of a size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI)


def picture_files(name: str, figure: Figure) -> dict[str, str | bytes]:
    """The two files of a figure by name; equal figures give equal bytes.

    The PNG has a palette of `PALETTE` colours, which makes it several times smaller.
    """
    from matplotlib import rc_context
    from PIL import Image

    pixels, small, vectors = io.BytesIO(), io.BytesIO(), io.BytesIO()
    with rc_context({"svg.hashsalt": "relucert", "svg.fonttype": "path"}):
        figure.savefig(pixels, format="png", dpi=DPI)
        figure.savefig(vectors, format="svg", dpi=DPI, metadata={"Date": None, "Creator": None})
    with Image.open(pixels) as picture:
        picture.convert("RGB").quantize(PALETTE, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return {f"{name}.png": small.getvalue(), f"{name}.svg": vectors.getvalue()}


def bare(axes: Axes) -> None:
    """Remove ticks, and keep a thin frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.5)
