"""Where the records of a report come from: run folders and .jsonl files, by names that tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from relucert.core.errors import InvalidInput
from relucert.records.store import RecordStore

RECORDS = "records.jsonl"
"""The records of a run, in its folder."""


def open_records(source: Path) -> RecordStore:
    """The records of a run's folder or of a file, to be read."""
    file = source / RECORDS if source.is_dir() else source
    if not file.is_file():
        raise InvalidInput(f"sources must be run folders with {RECORDS} or files of records, got {str(source)!r}")
    return RecordStore(file)


def named_stores(sources: Sequence[Path]) -> list[tuple[str, RecordStore]]:
    """The records of several sources, each with a name: that of the folder or file, or the whole path where names repeat."""
    stores = [open_records(source) for source in sources]
    names = [
        store.path.resolve().parent.name
        if store.path.name == RECORDS
        else store.path.name.removesuffix(".jsonl").removesuffix(".records")
        for store in stores
    ]
    shown = [str(path) if names.count(name) > 1 else name for path, name in zip(sources, names, strict=True)]
    return list(zip(shown, stores, strict=True))
