"""`relucert show RECORDS`: points of records, by verdict, class or method."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from pathlib import Path

import tyro

from relucert.core.errors import InvalidInput
from relucert.core.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Show:
    """Print points of records as a table: all of them, or those of a verdict, a class, a method."""

    records: tyro.conf.Positional[Path]
    """A run's folder or a .jsonl file of records."""
    verdict: str | None = None
    """Only these: robust, vulnerable, unknown or misclassified."""
    label: int | None = None
    """Only points of this class."""
    by: str | None = None
    """Only what this method decided, such as crown or bab."""
    method: str | None = None
    """Only records whose method contains this text, such as "radius"."""
    index: tuple[int, ...] = ()
    """Only these points, by their number in the data set."""
    most: int = 100
    """Rows to print at most."""
    json: bool = False
    """Print JSON: a line for every record."""

    def __post_init__(self) -> None:
        if self.verdict is not None and self.verdict not in list(Verdict):
            raise InvalidInput(f"verdict must be one of {', '.join(Verdict)}, got {self.verdict!r}")
        if self.most < 1:
            raise InvalidInput(f"most must be at least 1, got {self.most}")


CONFIG = Show
COMMON = ("verdict", "label", "by", "index", "most")
EXAMPLES = ("relucert show runs/mnist-fc1-mmr-inf --verdict unknown",)


def run(config: Show) -> int:
    """Print the points that are wanted, and how many there are."""
    from relucert.cli._next import next_line
    from relucert.cli._points import line, points_table, print_table
    from relucert.cli._text import say
    from relucert.records.answers import method_of
    from relucert.reports.sources import open_records

    store = open_records(config.records)
    found = [
        record
        for record in store.records()
        if (config.verdict is None or record.verdict == config.verdict)
        and (config.label is None or record.label == config.label)
        and (config.by is None or method_of(record) == config.by)
        and (config.method is None or config.method in record.method)
        and (not config.index or record.index in config.index)
    ]
    found.sort(key=lambda record: (record.method, str(record.ball), record.index))
    if config.json:
        for record in found:
            print(json_format.dumps(line(record)))
        return 0
    methods = dict.fromkeys(record.method for record in found)
    left = config.most
    for method in methods:
        group = [record for record in found if record.method == method]
        print(f"{method}: {len(group)} points")
        if left > 0:
            print_table(points_table(group[:left]))
        left -= len(group)
    if left < 0:
        print(f"{-left} of {len(found)} rows are left out; --most {len(found)} shows them all")
    if not found:
        say(f"no record of {store.path} is like that; it has {len(store)} records")
    print(next_line("report", config.records, "-o", "report.html"))
    return 0
