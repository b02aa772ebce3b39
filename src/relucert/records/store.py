"""`RecordStore`: an append-only file of records that stays valid if the process is killed at any byte.

A store has two files: `name.jsonl`, one line for each record, and `name.arrays` (`sidecar`), their arrays. The arrays of a
record are written before its line, so every complete line has its arrays. A kill can only leave an incomplete entry at the end
of either file: readers skip it, and the next writer removes it. Everything else is damage, and an error. What a writer removes
is not lost if it may be more than that: an array that a line refers to is put into a file beside the arrays first.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from relucert.core.errors import DamagedData, FileAccessError, InvalidInput, RecordConflict
from relucert.records import _sidecar as sidecar
from relucert.records.atomic import AppendFile, file_access
from relucert.records.record import LINE_START, LONGEST_LINE, Record

if TYPE_CHECKING:
    import numpy as np


#: The checksum at the end of a line.
ENDED = re.compile(rb',"check":"[0-9a-f]{16}"\}')
_REMEDY = (
    "Restore the file from a copy, or delete that line and run the evaluation again, which computes what is missing"
)


class _Line(NamedTuple):
    offset: int
    number: int


class RecordStore:
    """The records of `path` (ends in ".jsonl"), for reading, or with `writable=True` for appending as the only writer.

    Only an index is kept in memory. A reader sees the state at the time of opening, needs no lock and changes nothing. A
    record counts as done (`in`, `keys`, `len`) if its line and its arrays exist. Arrays of an existing line are lost only if
    the machine crashed or the file of arrays was deleted; appending the record again restores them. Appended bytes are synced
    to the disk at most every `sync_seconds` (0: each time) and when the store is closed.

    >>> import tempfile
    >>> from relucert.records.record import ball_fields
    >>> folder = tempfile.TemporaryDirectory()
    >>> record = Record(model="5f1e", data="digits", split="test", index=0, ball=ball_fields(2, 0.1), method="ibp")
    >>> with RecordStore(Path(folder.name) / "results.jsonl", writable=True) as store:
    ...     store.append(record, {"image": [[0.0, 0.5]]}), store.append(record, {"image": [[0.0, 0.5]]})
    (True, False)
    >>> store = RecordStore(Path(folder.name) / "results.jsonl")
    >>> record.key in store, [r.index for r in store.records()], store.array(record.key, "image")
    (True, [0], array([[0. , 0.5]]))
    >>> folder.cleanup()
    """

    def __init__(self, path: str | os.PathLike[str], *, writable: bool = False, sync_seconds: float = 1.0) -> None:
        self.path = Path(path)
        if self.path.suffix != ".jsonl":
            raise InvalidInput(f"path of a record store must end in .jsonl, got {os.fspath(path)!r}")
        if not sync_seconds >= 0:
            raise InvalidInput(f"sync_seconds must be at least 0, got {sync_seconds}")
        self.arrays_path = self.path.with_suffix(".arrays")
        self._sync_seconds = sync_seconds
        self._synced = time.monotonic()
        self._file: AppendFile | None = None
        self._sidecar: AppendFile | None = None
        if not writable:
            try:
                self._load()
            except (DamagedData, RecordConflict):
                # A writer may have truncated and rewritten the end between two reads. Real damage fails again.
                self._load()
            return
        self._file = AppendFile(self.path)
        try:
            self._file.lock()
            line_end, arrays_end = self._load()
            if arrays_end < _size(self.arrays_path):
                self._open_sidecar().cut(arrays_end, keep=sidecar.torn(self.arrays_path, arrays_end) in self._referred)
            if line_end < self._file.size:
                self._file.cut(line_end)
            if self._unended:
                self._file.append(b"\n")
        except BaseException:
            self._release()
            raise

    def __contains__(self, key: object) -> bool:
        return key in self._lines and key not in self._lost

    def __len__(self) -> int:
        return len(self._lines) - len(self._lost)

    def keys(self) -> list[str]:
        """The keys of the records that are done, in the order of the file."""
        return [key for key in self._lines if key not in self._lost]

    def records(self) -> Iterator[Record]:
        """All records that have a line, in the order of the file."""
        places = list(self._lines.values())
        with file_access(self.path, "read"), open(self.path, "rb") as file:
            for place in places:
                file.seek(place.offset)
                yield self._parse(file.readline(LONGEST_LINE + 1), place.number)

    def record(self, key: str) -> Record:
        """The record of a key."""
        if key not in self._lines:
            raise InvalidInput(f"key must be that of a record in {self.path}, got {key!r}")
        with file_access(self.path, "read"), open(self.path, "rb") as file:
            file.seek(self._lines[key].offset)
            return self._parse(file.readline(LONGEST_LINE + 1), self._lines[key].number)

    def others(self, record: Record) -> list[Record]:
        """The records of the same question about other contents: input or label were others, or have no digest."""
        keys = [key for key in self._questions.get(record.question, ()) if key != record.key]
        return [self.record(key) for key in keys]

    def array(self, key: str, name: str) -> np.ndarray:
        """The array `name` of the record of `key`."""
        digests = self.record(key).arrays
        if name not in digests:
            known = ", ".join(sorted(digests)) or "none"
            raise InvalidInput(f"name must be one of the record's arrays ({known}), got {name!r}")
        if sidecar.missing(self._index, key, [(name, digests[name])]):
            remedy = "run the evaluation again, the record counts as not done"
            raise DamagedData(
                f"{self.arrays_path} has lost array {name!r} of record {key} ({self._where(key)}): {remedy}",
                path=self.arrays_path, entry=f"array {name!r} of record {key}", remedy=remedy,
            )  # fmt: skip
        return sidecar.read(self.arrays_path, self._index[key, name])

    def append(self, record: Record, arrays: Mapping[str, Any] | None = None) -> bool:
        """Write a record and its arrays; False if an equal record exists, `RecordConflict` if a different one does.

        The field `arrays` of the record is empty (it is then filled in) or has the sha256 of the given arrays.
        """
        return self._append(record, arrays or {}, "the record to append")

    def merge(self, paths: Iterable[str | os.PathLike[str]]) -> int:
        """Append all records of the stores `paths` and return the number of new ones; records with equal keys must be equal.

        After a `RecordConflict` earlier records stay merged; merging the same stores again has no effect.
        """
        new = 0
        for path in paths:
            other = RecordStore(path)
            for record in other.records():
                key = record.key
                # An existing record needs only a comparison of digests, no arrays.
                names = () if key in self else record.arrays
                arrays = {name: other.array(key, name) for name in names}
                new += self._append(record, arrays, other._where(key))
        return new

    def sync(self) -> None:
        """Wait until all appended bytes are on the disk: the arrays first, because the lines refer to them."""
        for file in (self._sidecar, self._file):
            if file is not None:
                file.sync()
        self._synced = time.monotonic()

    def close(self) -> None:
        """Sync and release the lock; reading stays possible."""
        try:
            self.sync()
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "readable" if self._file is None else "writable"
        return f"RecordStore({os.fspath(self.path)!r}, {len(self)} records, {state})"

    def _append(self, record: Record, given: Mapping[str, Any], source: str) -> bool:
        if self._file is None:
            raise FileAccessError(f"{self.path} is not open for writing: open it with writable=True")
        arrays = {name: sidecar.as_array(name, value) for name, value in given.items()}
        digests = {name: sidecar.array_digest(array) for name, array in arrays.items()}
        if not record.arrays:
            record = replace(record, arrays=digests)
        for name, sha256 in digests.items():
            if record.arrays.get(name) != sha256:
                raise InvalidInput(
                    f"arrays[{name!r}] must have the sha256 that the record says, {record.arrays.get(name)}, got {sha256}"
                )
        key = record.key
        is_new = key not in self._lines
        if not is_new and (different := record.differences(known := self.record(key))):
            facts = "; ".join(f"{name} {getattr(known, name)!r} and {getattr(record, name)!r}" for name in different)
            raise RecordConflict(f"{self._where(key)} and {source} have the same key {key} but differ: {facts}")
        lost = sidecar.missing(self._index, key, record.arrays.items())
        if is_new and (absent := [name for name in lost if name not in arrays]):
            raise InvalidInput(f"arrays must hold what the record refers to, missing: {', '.join(absent)}")
        for name in lost:
            if name in arrays:
                self._append_array(key, name, arrays[name])
        if is_new:
            line = record.to_line().encode() + b"\n"
            if len(line) > LONGEST_LINE:
                raise InvalidInput(f"the line of a record must have at most {LONGEST_LINE} bytes, got {len(line)}")
            offset = self._file.append(line)
            self._count += 1
            self._lines[key] = _Line(offset, self._count)
            self._questions.setdefault(record.question, []).append(key)
        if not sidecar.missing(self._index, key, record.arrays.items()):
            self._lost.discard(key)
        if time.monotonic() - self._synced >= self._sync_seconds:
            self.sync()
        return is_new

    def _append_array(self, key: str, name: str, array: np.ndarray) -> None:
        data, entry = sidecar.chunk(key, name, array)
        start = self._open_sidecar().append(data)
        self._index[key, name] = entry._replace(offset=start + entry.offset)

    def _open_sidecar(self) -> AppendFile:
        if self._sidecar is None:
            self._sidecar = AppendFile(self.arrays_path)
        return self._sidecar

    def _release(self) -> None:
        for file in (self._sidecar, self._file):
            if file is not None:
                file.close()
        self._sidecar = self._file = None

    def _load(self) -> tuple[int, int]:
        """Build the index; return the lengths of the complete entries of both files."""
        self._lines: dict[str, _Line] = {}
        self._lost: set[str] = set()
        self._questions: dict[str, list[str]] = {}
        #: The arrays that lines refer to.
        self._referred: set[tuple[str, str] | None] = set()
        self._count = 0
        #: Whether the last line is complete but for its end.
        self._unended = False
        refers: dict[str, dict[str, str]] = {}
        end = 0
        with file_access(self.path, "read"), open(self.path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), 1):
                if not line.endswith(b"\n") and len(line) <= LONGEST_LINE:
                    self._unended = self._complete(line, number)
                    if not self._unended:
                        break
                record = self._parse(line, number)
                key = record.key
                self._add(key, record, _Line(end, number))
                if record.arrays:
                    refers[key] = record.arrays
                    self._referred.update((key, name) for name in record.arrays)
                self._count, end = number, end + len(line)
        # Read the arrays after the lines: then the arrays of all lines exist, even if another process writes.
        self._index, arrays_end = sidecar.scan(self.arrays_path)
        self._lost.update(key for key, arrays in refers.items() if sidecar.missing(self._index, key, arrays.items()))
        return end, arrays_end

    def _add(self, key: str, record: Record, place: _Line) -> None:
        # Two lines with one key come from files joined by hand: equal records are accepted, as in a merge.
        first = self._lines.setdefault(key, place)
        if first is place:
            self._questions.setdefault(record.question, []).append(key)
        if first is not place and (different := record.differences(self.record(key))):
            raise RecordConflict(
                f"{self.path} lines {first.number} and {place.number} have the same key {key} but differ in "
                f"{', '.join(different)}: delete the wrong one"
            )

    def _parse(self, line: bytes, number: int) -> Record:
        try:
            if len(line) > LONGEST_LINE:
                raise DamagedData(f"it must have at most {LONGEST_LINE} bytes, got more")
            return Record.from_line(line.decode().removesuffix("\n"))
        except (DamagedData, UnicodeDecodeError) as error:
            reason = "it is not text" if isinstance(error, UnicodeDecodeError) else str(error)
            raise self._damaged(number, reason) from error
        except InvalidInput as error:
            raise InvalidInput(f"{self.path} line {number}: {error}") from error

    def _complete(self, line: bytes, number: int) -> bool:
        """Whether a line without its end is a whole record; False: it is the beginning of one, and may be removed."""
        # Only an incomplete record may be removed later, never the end of a file of another kind, nor a changed record.
        # A crash of the machine can leave zeros where the file grew before its bytes were written.
        start = line[: len(LINE_START)]
        if not LINE_START.startswith(start) and line.strip(b"\0"):
            raise self._damaged(number, "it has no end and is not the beginning of a record")
        return ENDED.search(line) is not None

    def _damaged(self, number: int, reason: str) -> DamagedData:
        text = f"{self.path} line {number} is damaged: {reason}. {_REMEDY}"
        return DamagedData(text, path=self.path, entry=f"line {number}", remedy=_REMEDY)

    def _where(self, key: str) -> str:
        return f"{self.path} line {self._lines[key].number}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
