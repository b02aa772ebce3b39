"""The progress bar of verbs that go through points."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator

from relucert.core.progress import followed as shown
from relucert.records.record import Record


def followed(
    records: Iterator[Record], total: int, what: str, *, hidden: bool, word: Callable[[Record], str] | None = None
) -> Iterator[Record]:
    """The records as they come, with a bar on stderr where that is a terminal; `word(record)` is shown beside it.

    An interruption says how many points are done.
    """
    off, done = hidden or not sys.stderr.isatty(), 0
    try:
        for record in records if off else shown(records, total, what, after=0.0, word=word):
            yield record
            done += 1
    except KeyboardInterrupt:
        kept = "what is decided is kept in the records, and the same command goes on from there"
        raise KeyboardInterrupt(f"interrupted after {done} of {total} points: {kept}") from None


def verdict_counts() -> Callable[[Record], str]:
    """A function of the records, one after the other, that says how many there are of each verdict so far."""
    counts: Counter[str] = Counter()

    def word(record: Record) -> str:
        counts[str(record.verdict)] += 1
        return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())

    return word
