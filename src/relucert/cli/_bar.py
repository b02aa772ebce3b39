"""The progress bar of verbs that go through points."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from relucert.records.record import Record


def followed(
    records: Iterator[Record], total: int, what: str, *, hidden: bool, word: Callable[[Record], str] | None = None
) -> Iterator[Record]:
    """The records as they come, with a bar on stderr where that is a terminal; `word(record)` is shown beside it.

    An interruption says how many points are done.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    off = hidden or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=off, transient=True) as bar:
        task = bar.add_task(what, total=total)
        done = 0
        try:
            for record in records:
                yield record
                done += 1
                shown = what if word is None else f"{what} ({word(record)})"
                bar.update(task, advance=1, description=shown)
        except KeyboardInterrupt:
            kept = "what is decided is kept in the records, and the same command goes on from there"
            raise KeyboardInterrupt(f"interrupted after {done} of {total} points: {kept}") from None
