"""The arrays of records: an append-only file of self-describing chunks.

A chunk is, in this order (integers little-endian):

    magic               8 bytes, "RCARRAY1"
    header length       4 bytes
    crc32 of the header 4 bytes
    crc32 of the above  4 bytes
    header              JSON: key, name, dtype, shape, sha256
    the array           raw bytes, row after row

Two checksums distinguish an incomplete chunk (a valid length, but the file ends earlier: the writer was killed) from a damaged
one (the length itself is wrong).
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from relucert.core.errors import DamagedData, InvalidInput
from relucert.records.atomic import file_access

MAGIC = b"RCARRAY1"
_PREFIX = struct.Struct("<8sIII")


class Entry(NamedTuple):
    """The position, dtype, shape and sha256 of an array in the file."""

    offset: int
    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def size(self) -> int:
        """The number of bytes of the array."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


Index = dict[tuple[str, str], Entry]


def as_array(name: str, value: Any) -> np.ndarray:
    """`value` as an array of numbers or booleans that can be stored; `name` is for the error."""
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise InvalidInput(f"array {name!r} must hold numbers or booleans, got dtype {array.dtype}")
    return array


def array_digest(array: np.ndarray) -> str:
    """The sha256 of an array's dtype, shape and bytes, in hexadecimal: equal only for arrays that are equal in all three.

    >>> array_digest(np.zeros(2)) == array_digest(np.zeros((1, 2)))
    False
    """
    described = hashlib.sha256(json.dumps([array.dtype.str, array.shape]).encode())
    described.update(array.tobytes())
    return described.hexdigest()


def chunk(key: str, name: str, array: np.ndarray) -> tuple[bytes, Entry]:
    """The bytes of a chunk, and its entry with the offset relative to the start of the chunk."""
    digest = array_digest(array)
    described = {"key": key, "name": name, "dtype": array.dtype.str, "shape": array.shape, "sha256": digest}
    header = json.dumps(described).encode()
    lead = _PREFIX.pack(MAGIC, len(header), zlib.crc32(header), 0)[:-4]
    start = lead + struct.pack("<I", zlib.crc32(lead)) + header
    return start + array.tobytes(), Entry(len(start), array.dtype.str, array.shape, digest)


def scan(path: Path) -> tuple[Index, int]:
    """The index (key, name) -> entry of a sidecar file, and the length of its complete chunks.

    Bytes after that length are an incomplete chunk of a writer that was killed; anything else that is not a chunk is
    `DamagedData`. Of two arrays with the same key and name the later one counts: the writer of the first died before it wrote
    the record. A missing file has no arrays. The contents of arrays are checked when they are read.
    """
    index: Index = {}
    end = 0
    if not path.exists():
        return index, end
    with file_access(path, "read"), open(path, "rb") as file:
        size = file.seek(0, 2)
        while (found := _next(file, path, end, size)) is not None:
            name, entry = found
            index[name] = entry
            end = entry.offset + entry.size
    return index, end


def _next(file: BinaryIO, path: Path, start: int, size: int) -> tuple[tuple[str, str], Entry] | None:
    """The chunk at `start`, or None if the file ends before the chunk does."""
    file.seek(start)
    prefix = file.read(_PREFIX.size)
    if not (prefix.startswith(MAGIC) or MAGIC.startswith(prefix)):
        # A crash of the machine can leave zeros where the file grew before its bytes were written.
        if not prefix.strip(b"\0") and not file.read().strip(b"\0"):
            return None
        raise _damaged(path, start, "no array begins there")
    if len(prefix) < _PREFIX.size:
        return None
    _, length, header_crc, prefix_crc = _PREFIX.unpack(prefix)
    if zlib.crc32(prefix[:-4]) != prefix_crc:
        raise _damaged(path, start, "the checksum does not fit")
    header = file.read(length)
    if len(header) < length:
        return None
    if zlib.crc32(header) != header_crc:
        raise _damaged(path, start, "the checksum does not fit")
    described = json.loads(header)
    entry = Entry(start + _PREFIX.size + length, described["dtype"], tuple(described["shape"]), described["sha256"])
    if entry.offset + entry.size > size:
        return None
    return (described["key"], described["name"]), entry


def read(path: Path, entry: Entry) -> np.ndarray:
    """The array of an entry, checked against its sha256."""
    with file_access(path, "read"), open(path, "rb") as file:
        file.seek(entry.offset)
        raw = file.read(entry.size)
    if len(raw) == entry.size:
        array = np.ndarray(entry.shape, entry.dtype, buffer=raw).copy()
        if array_digest(array) == entry.sha256:
            return array
    raise _damaged(path, entry.offset, "the sha256 does not fit")


def missing(index: Index, key: str, digests: Iterable[tuple[str, str]]) -> list[str]:
    """The names in `digests` (name, sha256) whose arrays are not in the index."""
    return [name for name, sha256 in digests if (key, name) not in index or index[key, name].sha256 != sha256]


def _damaged(path: Path, offset: int, reason: str) -> DamagedData:
    return DamagedData(
        f"{path} is damaged at byte {offset}: {reason}. Restore it from a copy, or delete it and run the evaluation again: "
        "records whose arrays are lost count as not done"
    )
