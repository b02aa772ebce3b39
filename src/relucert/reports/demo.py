"""The table that the demo prints on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class DemoRow:
    """A network's test error, and for each ball its PGD error and the share of points that are proved.

    `last`: the last network of its group.
    """

    name: str
    test_error: float
    shares: tuple[tuple[float, float], ...]
    last: bool


def table(balls: Iterable[str], rows: Iterable[DemoRow]) -> Table:
    """The table of the demo: two columns for each ball."""
    from rich.table import Table

    drawn = Table(title="Digits (8 x 8 pixels, 10 classes), one hidden layer of 1024 units", title_justify="left")
    drawn.add_column("training")
    for heading in ("test error", *(f"{share}\n{ball}" for ball in balls for share in ("PGD error", "proved"))):
        drawn.add_column(heading, justify="right")
    for row in rows:
        cells = [f"{share:.1%}" for pair in row.shares for share in pair]
        drawn.add_row(row.name, f"{row.test_error:.1%}", *cells, end_section=row.last)
    return drawn
