"""The arrays of records: an append-only file of self-describing chunks.

A chunk is, in this order (integers little-endian):

    magic               8 bytes, "RCARRAY1"
    header length       4 bytes
    crc32 of the header 4 bytes
    crc32 of the above  4 bytes
    header              JSON: key, name, dtype, shape, sha256
    the array           raw bytes, row after row

Two checksums distinguish an incomplete chunk (a valid length, but the file ends earlier: the writer was killed) from a damaged
one (the length itself is wrong). Checksums can be forged: dtype, shape and size are checked before anything is read.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from relucert.core.errors import DamagedData, InvalidInput
from relucert.records.atomic import file_access
from relucert.records.untrusted import DTYPES, LARGEST_ARRAY, array_bytes, bounded_json, dtype_of, reading, shape_of

MAGIC = b"RCARRAY1"
_PREFIX = struct.Struct("<8sIII")
_FIELDS = {"key", "name", "dtype", "shape", "sha256"}
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: Bytes of a header, and of the pieces in which a file is searched.
LONGEST_HEADER = 2**16
_BLOCK = 2**20
_REMEDY = (
    "Restore it from a copy, or delete it and run the evaluation again: records whose arrays are lost count as not done"
)


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
    if array.dtype.str not in DTYPES:
        raise InvalidInput(f"array {name!r} must hold numbers or booleans, got dtype {array.dtype}")
    if array.nbytes > LARGEST_ARRAY:
        raise InvalidInput(f"array {name!r} must have at most {LARGEST_ARRAY} bytes, got {array.nbytes}")
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
    if len(header) > LONGEST_HEADER:
        raise InvalidInput(f"name of an array must fit a header of {LONGEST_HEADER} bytes, got {len(header)}")
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
        while (found := _next(file, path, end, size)) is not None and not found.torn:
            index[found.name] = found.entry
            end = found.entry.offset + found.entry.size
    return index, end


def torn(path: Path, end: int) -> tuple[str, str] | None:
    """The key and name of the incomplete chunk at `end`, None if there is none or its header is incomplete, too."""
    with file_access(path, "read"), open(path, "rb") as file:
        found = _next(file, path, end, file.seek(0, 2))
    return None if found is None else found.name


class _Chunk(NamedTuple):
    name: tuple[str, str]
    entry: Entry
    torn: bool


def _next(file: BinaryIO, path: Path, start: int, size: int) -> _Chunk | None:
    """The chunk at `start`, or None if the file ends before its array begins."""
    file.seek(start)
    prefix = file.read(_PREFIX.size)
    if not (prefix.startswith(MAGIC) or MAGIC.startswith(prefix)):
        # A crash of the machine can leave zeros where the file grew before its bytes were written.
        if not prefix.strip(b"\0") and all(not block.strip(b"\0") for block in _blocks(file, size)):
            return None
        raise _damaged(path, start, "no array begins there")
    if len(prefix) < _PREFIX.size:
        return None
    _, length, header_crc, prefix_crc = _PREFIX.unpack(prefix)
    if zlib.crc32(prefix[:-4]) != prefix_crc:
        raise _damaged(path, start, "the checksum does not fit")
    if length > LONGEST_HEADER:
        raise _damaged(path, start, f"its header must have at most {LONGEST_HEADER} bytes, got {length}")
    header = file.read(length)
    if len(header) < length:
        _refuse_more(file, path, start, size)
        return None
    if zlib.crc32(header) != header_crc:
        raise _damaged(path, start, "the checksum does not fit")
    try:
        name, entry = _described(header, start + _PREFIX.size + length)
    except DamagedData as error:
        raise _damaged(path, start, str(error)) from error
    if entry.offset + entry.size <= size:
        return _Chunk(name, entry, torn=False)
    _refuse_more(file, path, start, size)
    return _Chunk(name, entry, torn=True)


def _described(header: bytes, offset: int) -> tuple[tuple[str, str], Entry]:
    """The name and the entry of a header; a header that says what no array can be is `DamagedData`."""
    described = bounded_json(header, "its header", longest=LONGEST_HEADER, deepest=3)
    if not isinstance(described, dict) or described.keys() != _FIELDS:
        raise DamagedData(f"its header must have the fields {', '.join(sorted(_FIELDS))}")
    key, name, sha256 = described["key"], described["name"], described["sha256"]
    if not all(isinstance(text, str) for text in (key, name, sha256)) or not _SHA256.fullmatch(sha256):
        raise DamagedData("its header must have texts for key and name, and a sha256 in hexadecimal")
    dtype, shape = dtype_of(described["dtype"], "it"), shape_of(described["shape"], "it")
    array_bytes(dtype, shape, "it")
    return (key, name), Entry(offset, dtype.str, shape, sha256)


def _refuse_more(file: BinaryIO, path: Path, start: int, size: int) -> None:
    """Raise if a chunk begins behind the incomplete one at `start`.

    A writer that was killed writes nothing more, and the next one removes what it left: so the chunk is not incomplete, but its
    size is wrong, and what stands behind it must not be removed.
    """
    file.seek(start + len(MAGIC))
    place, kept = start + len(MAGIC), b""
    for block in _blocks(file, size):
        text = kept + block
        for found in re.finditer(MAGIC, text):
            prefix = text[found.start() : found.start() + _PREFIX.size]
            if len(prefix) == _PREFIX.size and zlib.crc32(prefix[:-4]) == _PREFIX.unpack(prefix)[3]:
                behind = place - len(kept) + found.start()
                raise _damaged(path, start, f"its size must end before the next array at byte {behind}")
        place, kept = place + len(block), text[-_PREFIX.size + 1 :]


def _blocks(file: BinaryIO, end: int) -> Iterator[bytes]:
    """The bytes of a file up to `end` in pieces; a writer may add more at the same time."""
    while block := file.read(min(_BLOCK, max(0, end - file.tell()))):
        yield block


def read(path: Path, entry: Entry) -> np.ndarray:
    """The array of an entry, checked against its sha256."""
    with reading(path, _REMEDY, entry=f"byte {entry.offset}"), open(path, "rb") as file:
        dtype, shape = dtype_of(entry.dtype, "it"), shape_of(entry.shape, "it")
        size = array_bytes(dtype, shape, "it")
        file.seek(entry.offset)
        raw = file.read(size)
    if len(raw) == size:
        array = np.frombuffer(raw, dtype).reshape(shape).copy()
        if array_digest(array) == entry.sha256:
            return array
    raise _damaged(path, entry.offset, "the sha256 does not fit")


def missing(index: Index, key: str, digests: Iterable[tuple[str, str]]) -> list[str]:
    """The names in `digests` (name, sha256) whose arrays are not in the index."""
    return [name for name, sha256 in digests if (key, name) not in index or index[key, name].sha256 != sha256]


def _damaged(path: Path, offset: int, reason: str) -> DamagedData:
    text = f"{path} is damaged at byte {offset}: {reason}. {_REMEDY}"
    return DamagedData(text, path=path, entry=f"byte {offset}", remedy=_REMEDY)
