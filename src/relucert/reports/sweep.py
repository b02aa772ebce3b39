"""The leaderboard of a sweep as Markdown and CSV, and its plot: error against certified error, the Pareto front drawn."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from relucert.core.errors import MissingExtra
from relucert.records.atomic import atomic_write, write_atomically

#: Colours that can be distinguished with any colour vision (Okabe and Ito), and shapes that say the same.
STYLES = {
    "done": ("#0072B2", "o", "trained to the end"),
    "stopped": ("#E69F00", "^", "stopped early"),
    "failed": ("#D55E00", "X", "failed later"),
    "open": ("#999999", "s", "not finished"),
}
NAMED = 8  # points of the front that have the number of their trial beside them


@dataclass(frozen=True, kw_only=True)
class Row:
    """A trial: what it has, how it ended, and its last figures, None if it was not measured.

    `front` says whether no other trial is better in one figure without being worse in the other.
    """

    number: int
    values: dict[str, Any] = field(default_factory=dict)
    state: str = "open"
    reason: str = ""
    epoch: int | None = None
    error: float | None = None
    certified_error: float | None = None
    seconds: float | None = None
    front: bool = False


def fronts(rows: Sequence[Row]) -> list[Row]:
    """The rows by certified error, then by error, with those of the Pareto front marked.

    >>> [(row.number, row.front) for row in fronts([
    ...     Row(number=0, error=0.1, certified_error=0.5), Row(number=1, error=0.2, certified_error=0.4),
    ...     Row(number=2, error=0.2, certified_error=0.5), Row(number=3)])]
    [(1, True), (0, True), (2, False), (3, False)]
    """

    def key(row: Row) -> tuple[bool, float, float, int]:
        return row.certified_error is None, row.certified_error or 0.0, row.error or 0.0, row.number

    found: list[Row] = []
    least, last = float("inf"), None
    for row in sorted(rows, key=key):
        pair = (row.certified_error, row.error)
        on_front = row.error is not None and (row.error < least or pair == last)
        if on_front and row.error is not None:
            least, last = row.error, pair
        found.append(replace(row, front=on_front))
    return found


def columns(rows: Sequence[Row]) -> list[str]:
    """The names of the columns: what varies stands last."""
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    return ["trial", "state", "epoch", "error", "certified error", "front", "seconds", *names]


def cells(row: Row, names: Sequence[str]) -> list[str]:
    """The cells of a row, as text."""
    known = {
        "trial": str(row.number),
        "state": row.state,
        "epoch": "" if row.epoch is None else str(row.epoch),
        "error": "" if row.error is None else f"{row.error:.2%}",
        "certified error": "" if row.certified_error is None else f"{row.certified_error:.2%}",
        "front": "yes" if row.front else "",
        "seconds": "" if row.seconds is None else f"{row.seconds:.1f}",
    }
    values = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in row.values.items()}
    return [(known if name in known else values).get(name, "") for name in names]


def write_leaderboard(folder: Path, rows: Sequence[Row]) -> None:
    """Write leaderboard.md and leaderboard.csv."""
    names = columns(rows)
    lines = [names, ["---"] * len(names), *(cells(row, names) for row in rows)]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    note = "Figures are of examples that are held out of the training set; test points are not looked at."
    failed = [f"Trial {row.number} failed: {row.reason}" for row in rows if row.state == "failed"]
    write_atomically(folder / "leaderboard.md", "\n\n".join(["# Leaderboard", note, text, *failed]) + "\n")
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    numbers = ("error", "certified_error", "seconds")
    writer.writerow([name.replace(" ", "_") for name in names])
    for row in rows:
        plain = [getattr(row, name) for name in numbers]
        exact = dict(zip(("error", "certified error", "seconds"), plain, strict=True)) | row.values
        shown = dict(zip(names, cells(row, names), strict=True))
        writer.writerow(["" if (value := (shown | exact).get(name)) is None else value for name in names])
    write_atomically(folder / "leaderboard.csv", table.getvalue())


def write_plot(folder: Path, rows: Sequence[Row]) -> None:
    """Write pareto.png and pareto.svg (extra `sweep`)."""
    figure = _figure(rows)
    for ending in ("png", "svg"):
        with atomic_write(folder / f"pareto.{ending}") as file:
            figure.savefig(file, format=ending, dpi=150, metadata={"Date": None} if ending == "svg" else None)


def require_plots() -> None:
    """Raise unless plots can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra("plots need the extra sweep: pip install 'relucert[sweep]', or leave them out") from error


def _figure(rows: Sequence[Row]) -> Any:
    require_plots()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    measured = [row for row in rows if row.error is not None and row.certified_error is not None]
    front = [row for row in measured if row.front]
    if front:
        axes.step(
            [100 * row.error for row in front if row.error is not None],
            [100 * row.certified_error for row in front if row.certified_error is not None],
            where="post", color="black", linewidth=1, zorder=1, label="Pareto front",
        )  # fmt: skip
    for state, (colour, shape, words) in STYLES.items():
        some = [row for row in measured if row.state == state]
        if some:
            axes.scatter(
                [100 * row.error for row in some if row.error is not None],
                [100 * row.certified_error for row in some if row.certified_error is not None],
                color=colour, marker=shape, edgecolors="black", linewidths=[1.2 if row.front else 0 for row in some],
                label=words, zorder=2,
            )  # fmt: skip
    for row in front[:NAMED]:
        if row.error is not None and row.certified_error is not None:
            place = (100 * row.error, 100 * row.certified_error)
            axes.annotate(str(row.number), place, xytext=(5, 5), textcoords="offset points", fontsize=8)
    axes.set_xlabel("error on held-out examples in %")
    axes.set_ylabel("certified error in %")
    axes.grid(alpha=0.3, linewidth=0.5)
    if measured:
        axes.legend(fontsize=8, frameon=False)
    return figure
