"""What the demo prints on the terminal: a table whose figures are all better when higher, and a sentence on what is proved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


#: What the words of the table mean.
LEGEND = (
    "plain is ordinary training, at is training on adversarial examples, mmr is the paper's regulariser, l_inf or l_2 the norm "
    "trained for.",
    "correct: right at the image itself; survives: still right after an attack (PGD) within the radius; proved: right for "
    "every image within the radius.",
)


@dataclass(frozen=True, kw_only=True)
class DemoRow:
    """Shares of all test images, of one network: classified correctly, and for each ball survived (PGD) and proved.

    `last`: the last network of its group.
    """

    name: str
    correct: float
    shares: tuple[tuple[float, float], ...]
    last: bool


def table(balls: Iterable[str], rows: Iterable[DemoRow]) -> Table:
    """The table of the demo: two columns for each ball, every figure a share of images of which more is better."""
    from rich.table import Table

    title = "Digits, 8 x 8 pixels: shares of test images, higher is better"
    drawn = Table(title=title, title_justify="left")
    drawn.add_column("training")
    for heading in ("correct", *(f"{share}\n{ball}" for ball in balls for share in ("survives", "proved"))):
        drawn.add_column(heading, justify="right")
    for row in rows:
        cells = [f"{share:.1%}" for pair in row.shares for share in pair]
        drawn.add_row(row.name, f"{row.correct:.1%}", *cells, end_section=row.last)
    return drawn


def sentence(rows: Sequence[DemoRow], eps: float, images: int) -> str:
    """What was proved for the network with the most proofs in the first ball, beside plain training (the first row).

    >>> plain = DemoRow(name="plain", correct=0.98, shares=((0.5, 0.02),), last=True)
    >>> mmr = DemoRow(name="mmr", correct=0.95, shares=((0.8, 0.79),), last=True)
    >>> print(sentence([plain, mmr], 0.1, 100))  # doctest: +NORMALIZE_WHITESPACE
    Just proved: for 79 of 100 test images, no change of the pixels by up to 0.1 each can change the correct answer of the
    network trained with mmr; for the plainly trained network this is proved for 2.
    """
    best = max(rows, key=lambda row: row.shares[0][1])
    counts = [round(images * row.shares[0][1]) for row in (best, rows[0])]
    return (
        f"Just proved: for {counts[0]} of {images} test images, no change of the pixels by up to {eps:g} each can change the "
        f"correct answer of the network trained with {best.name}; for the plainly trained network this is proved for "
        f"{counts[1]}."
    )
