"""`relucert merge A B ... -o C`: one file of records from several."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from relucert.core.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Merge:
    """Put the records of several files into one. The same record counts once; records that differ are refused."""

    sources: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders or .jsonl files of records."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("merged.jsonl")
    """The file to add to. It is made if it does not exist."""
    json: bool = False
    """Print JSON instead of a sentence."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise InvalidInput("sources must name at least one file of records, got none")


CONFIG = Merge
COMMON = ("out",)
EXAMPLES = ("relucert merge part1.jsonl part2.jsonl -o all.jsonl",)


def run(config: Merge) -> int:
    """Merge, and say how many records are new."""
    from relucert.cli._next import next_line
    from relucert.records.store import RecordStore
    from relucert.reports.sources import open_records

    paths = [
        open_records(source).path for source in config.sources
    ]  # all of them can be read before anything is written
    with RecordStore(config.out, writable=True) as store:
        new = store.merge(path for path in paths if path.resolve() != config.out.resolve())
        total = len(store)
    if config.json:
        print(json_format.dumps({"out": str(config.out), "new": new, "records": total}))
        return 0
    print(f"{config.out} has {total} records, {new} of them new")
    print(next_line("report", config.out, "-o", "report.html"))
    return 0
