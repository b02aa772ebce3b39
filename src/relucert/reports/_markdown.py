"""Markdown tables, as lists of lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def row(cells: Iterable[str]) -> str:
    """One line of a table.

    >>> row(["mnist", "1.44"])
    '| mnist | 1.44 |'
    """
    return "| " + " | ".join(cells) + " |"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table: the head, the rule below it, and the rows.

    >>> table(["data", "error"], [["mnist", "1.44"]])
    ['| data | error |', '|---|---|', '| mnist | 1.44 |']
    """
    return [row(head), "|---" * len(head) + "|", *(row(cells) for cells in rows)]


def ball(p: float, eps: float) -> str:
    """The norm and the radius of a ball in one cell.

    >>> ball(float("inf"), 0.1)
    'l_inf, 0.1'
    """
    return f"l_{p:g}, {eps:g}"


def percent(count: float, total: float) -> str:
    """A share in percent with one decimal, without the sign.

    >>> percent(123, 1000)
    '12.3'
    """
    return f"{100 * count / total:.1f}"
