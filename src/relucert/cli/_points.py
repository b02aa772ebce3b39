"""How verbs print: a table of points from their records, a table of verdicts, and the robust error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from relucert.records.answers import method_of, why
from relucert.records.record import Record, Verdict
from relucert.reports.intervals import EXACT

if TYPE_CHECKING:
    from rich.table import Table

#: Columns of text of a table in a file or a pipe, which have no width of their own.
WIDTH = 120
_LEFT = ("ball", "verdict", "proof", "by")


def print_table(table: Table) -> None:
    """Print a table: as wide as the terminal, or WIDTH in a file or a pipe."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)


def points_table(records: Sequence[Record]) -> Table:
    """A row for every record; columns that would be empty are left out."""
    from rich.table import Table

    several = len({(str(record.ball["p"]), str(record.ball["eps"])) for record in records}) > 1
    columns: dict[str, Callable[[Record], str]] = {
        "point": lambda record: str(record.index),
        "label": lambda record: _text(record.label),
        "predicted": lambda record: _text(record.prediction),
        "ball": lambda record: ball_text(record) if several else "",
        "verdict": lambda record: _text(record.verdict),
        "proof": proof_text,
        "by": lambda record: method_of(record) if record.by else "",
        "bound": _bound,
        "rounding": lambda record: "" if record.rounding is None else f"{record.rounding:.1e}",
        "margin": lambda record: _number(record.margin, 4),
        "lower": lambda record: _number(record.lower, 5),
        "upper": lambda record: _number(record.upper, 5),
        "exact": lambda record: "yes" if is_exact(record) else "",
        "ms": lambda record: "" if record.seconds is None else f"{1000 * record.seconds:.1f}",
    }
    cells = {heading: [column(record) for record in records] for heading, column in columns.items()}
    shown = {heading: column for heading, column in cells.items() if any(column)}
    table = Table()
    for heading in shown:
        table.add_column(heading, justify="left" if heading in _LEFT else "right", no_wrap=True)
    for row in zip(*shown.values(), strict=True):
        table.add_row(*row)
    return table


def verdicts_table(records: Sequence[Record], points: int) -> Table:
    """How many points have which verdict, and by which methods; undecided points by the reason."""
    from rich.table import Table

    table = Table()
    for heading, justify in (("verdict", "left"), ("points", "right"), ("share", "right"), ("by", "left")):
        table.add_column(heading, justify=justify)  # pyright: ignore[reportArgumentType]
    for verdict in Verdict:
        found = [record for record in records if record.verdict is verdict]
        if found:
            by = Counter(_word(record) for record in found)
            words = ", ".join(f"{name} {count}" for name, count in by.most_common())
            table.add_row(str(verdict), str(len(found)), f"{len(found) / points:.1%}", words)
    return table


def print_points(records: Sequence[Record], show: int) -> None:
    """The first points as a table, if any are wanted."""
    if show:
        print_table(points_table(records[:show]))


def error_text(ends: tuple[float, float]) -> str:
    """The robust error, as an interval where it is one."""
    return f"{ends[0]:.2%}" if math.isclose(*ends) else f"{ends[0]:.2%} to {ends[1]:.2%}"


def ball_text(record: Record) -> str:
    """The norm and the radius of a record in words."""
    p, eps = float(record.ball["p"]), float(record.ball["eps"])
    norm = "l_inf" if math.isinf(p) else f"l_{p:g}"
    return norm if math.isinf(eps) else f"{norm} {eps:.4g}"


def proof_text(record: Record) -> str:
    """What the proof covers; for undecided points why there is none."""
    if record.verdict is not Verdict.UNKNOWN or not record.by:
        return record.arithmetic or ""
    if record.claim:
        return f"claim of {record.claim}"
    return f"no: {reason}" if (reason := why(record)) else "no"


def is_exact(record: Record) -> bool:
    """Whether the ends of a record's interval meet."""
    if record.lower is None or record.upper is None or math.isinf(record.upper) or record.prediction != record.label:
        return False
    return record.upper <= record.lower * (1 + EXACT)


def plain(value: Any) -> Any:
    """A value for JSON: numbers that are not finite become text."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def line(record: Record) -> dict[str, Any]:
    """A record as an object of JSON, without what identifies network and software."""
    names = (
        "index", "label", "prediction", "verdict", "method", "lower", "upper", "arithmetic", "margin", "executed",
        "rounding", "by", "seconds", "reason", "claim",
    )  # fmt: skip
    values = {name: plain(getattr(record, name)) for name in names}
    return values | {"data": record.data, "ball": {name: record.ball[name] for name in ("p", "eps")}}


def _word(record: Record) -> str:
    """Who decided a point, or why it is undecided."""
    if record.verdict is Verdict.UNKNOWN:
        return f"claim of {record.claim}" if record.claim else why(record) or method_of(record)
    return "prediction" if record.verdict is Verdict.MISCLASSIFIED else method_of(record)


def _bound(record: Record) -> str:
    """The bound before rounding was charged."""
    margin, charge = record.margin, record.rounding
    return "" if margin is None or charge is None else f"{margin + charge:.4f}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _text(value: object) -> str:
    return "" if value is None else str(value)
