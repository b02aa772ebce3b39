"""`relucert compare A B`: two evaluations side by side, and the points on which they differ."""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from relucert.core.errors import InvalidInput
from relucert.core.verdict import Verdict

if TYPE_CHECKING:
    from rich.table import Table

    from relucert.reports.comparison import Comparison
    from relucert.reports.intervals import Summary


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Compare two networks, or two evaluations of one: errors, radii, and the points on which verdicts differ."""

    first: tyro.conf.Positional[Path]
    """A run's folder or a .jsonl file of records."""
    second: tyro.conf.Positional[Path]
    """Another one, about the same data and norm."""
    eps: float | None = None
    """The radius of the verdicts. By default that of the first records."""
    show: int = 0
    """Print the first N points on which the verdicts differ."""
    json: bool = False
    """Print JSON: a line for every data set and norm."""

    def __post_init__(self) -> None:
        if self.eps is not None and not self.eps >= 0:
            raise InvalidInput(f"eps must be a number >= 0, got {self.eps}")


CONFIG = Compare
EXAMPLES = ("relucert compare runs/plain runs/mmr --eps 0.1",)
_ROWS: dict[str, Callable[[Summary], str]] = {
    "points": lambda figures: str(figures.points),
    "test error": lambda figures: f"{figures.test_error:.2%}",
    "robust error, at least": lambda figures: f"{figures.least_error:.2%}",
    "robust error, at most": lambda figures: f"{figures.most_error:.2%}",
    "mean radius, lower": lambda figures: _radius(figures.mean_lower),
    "mean radius, upper": lambda figures: _radius(figures.mean_upper),
    "exact": lambda figures: f"{figures.exact:.1%}",
    "seconds": lambda figures: f"{figures.seconds:.1f}",
}


def _radius(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.5f}"


def run(config: Compare) -> int:
    """Print figures side by side, how verdicts move, and points on request."""
    from relucert.cli._next import next_line
    from relucert.cli._points import print_table
    from relucert.cli._text import say
    from relucert.reports.comparison import comparisons
    from relucert.reports.intervals import subjects
    from relucert.reports.sources import named_stores

    stores = named_stores([config.first, config.second])
    for found in comparisons(subjects(stores[:1]), subjects(stores[1:]), config.eps):
        if config.json:
            print(json_format.dumps(_json(found)))
            continue
        say(
            f"{found.first.data}, l_{found.first.p:g} {found.eps:.4g}, verdicts on the {found.shared} points that both have:"
        )
        print_table(_figures(found))
        say(f"how many points have which verdicts; rows: {found.first.name}, columns: {found.second.name}")
        print_table(_moves(found))
        if config.show and found.differing:
            print_table(_points(found, config.show))
        if not found.differing:
            say("no verdict differs")
    if not config.json:
        print(next_line("report", config.first, config.second, "-o", "report.html"))
    return 0


def _figures(found: Comparison) -> Table:
    from rich.table import Table

    table = Table("")
    for name in (found.first.name, found.second.name):
        table.add_column(name, justify="right")
    for name, text in _ROWS.items():
        table.add_row(name, *map(text, found.figures))
    return table


def _moves(found: Comparison) -> Table:
    """How many points have which pair of verdicts."""
    from rich.table import Table

    table = Table("")
    for other in Verdict:
        table.add_column(str(other), justify="right")
    for one in Verdict:
        table.add_row(str(one), *(str(found.verdicts[one, other] or "") for other in Verdict))
    return table


def _points(found: Comparison, show: int) -> Table:
    """The first points whose verdicts differ, with both intervals."""
    from rich.table import Table

    table = Table("point", "label", found.first.name, "interval", found.second.name, "interval")
    for one, other in found.differing[:show]:
        table.add_row(
            str(one.index), str(one.label), str(one.verdict(found.eps)), f"{one.lower:.4f} to {one.upper:.4f}",
            str(other.verdict(found.eps)), f"{other.lower:.4f} to {other.upper:.4f}",
        )  # fmt: skip
    return table


def _json(found: Comparison) -> dict[str, object]:
    from relucert.cli._points import plain

    sides = (found.first, found.second)
    return {
        "data": found.first.data, "p": plain(found.first.p), "eps": found.eps, "shared": found.shared,
        "models": [
            {"name": side.name} | {name: plain(value) for name, value in asdict(figures).items()}
            for side, figures in zip(sides, found.figures, strict=True)
        ],
        "verdicts": [{"first": one, "second": other, "points": count} for (one, other), count in found.verdicts.items()],
        "differing": [one.index for one, _ in found.differing],
    }  # fmt: skip
