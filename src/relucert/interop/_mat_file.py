"""Reading of MATLAB 5 files: the numeric arrays by name, and nothing else.

A file is a header of 128 bytes and elements: type, size, bytes, padded to 8 bytes. An element is a matrix (flags, dimensions,
name, numbers, each an element itself) or a zlib stream that unpacks to one. Matrices of other classes (cells, structures,
texts, objects, sparse ones) are passed over. Sizes are checked against the file, and streams are unpacked up to a limit.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from relucert.core.errors import DamagedData
from relucert.records.untrusted import array_bytes, shape_of

HEADER = 128
#: Bytes of a file, and of everything in it unpacked.
LARGEST_FILE = 2**30
_MATRIX, _COMPRESSED = 14, 15
#: Types of elements with numbers, and classes of matrices with numbers.
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_COMPLEX = 0x0800


class _Element(NamedTuple):
    code: int
    content: memoryview


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The numeric arrays of a file by name, as they are stored; a file that is not of version 5 is `DamagedData`."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size > LARGEST_FILE:
            raise DamagedData(f"a .mat file must have at most {LARGEST_FILE} bytes, got {size}")
        file.seek(0)
        raw = memoryview(file.read())
    if len(raw) < HEADER or bytes(raw[126:128]) not in (b"IM", b"MI"):
        raise DamagedData("not a .mat file of version 5 (save it with -v7 or scipy.io.savemat), or it is damaged")
    order = "<" if bytes(raw[126:128]) == b"IM" else ">"
    found: dict[str, np.ndarray] = {}
    left = LARGEST_FILE
    for element in _elements(raw[HEADER:], order):
        matrix = element
        if element.code == _COMPRESSED:
            unpacked = _unpacked(element.content, left)
            left -= len(unpacked)
            matrix = next(_elements(memoryview(unpacked), order), element)
        if matrix.code != _MATRIX:
            raise DamagedData(f"it must be a sequence of matrices, got an element of type {matrix.code}")
        named = _matrix(matrix.content, order)
        if named is not None:
            found[named[0]] = named[1]
    return found


def _elements(raw: memoryview, order: str) -> Iterator[_Element]:
    """The elements of some bytes, one behind the other."""
    place = 0
    while place < len(raw):
        if len(raw) - place < 8:
            raise DamagedData("it ends within the tag of an element")
        kind, size = struct.unpack_from(f"{order}II", raw, place)
        if kind >> 16:  # a small element: type and size share four bytes, the numbers are the other four
            kind, size, start, end = kind & 0xFFFF, kind >> 16, place + 4, place + 8
            if size > 4:
                raise DamagedData(f"a small element must have at most 4 bytes, got {size}")
        else:
            start = place + 8
            end = start + (size if kind == _COMPRESSED else -(-size // 8) * 8)
        if start + size > len(raw):
            raise DamagedData(f"an element must have at most the {len(raw) - start} bytes that follow, got {size}")
        yield _Element(kind, raw[start : start + size])
        place = end


def _unpacked(packed: memoryview, largest: int) -> bytes:
    stream = zlib.decompressobj()
    content = stream.decompress(packed, largest + 1)  # a limit of 0 would be none
    if len(content) > largest:
        raise DamagedData(f"it must unpack to at most {LARGEST_FILE} bytes, got more")
    if not stream.eof:
        raise DamagedData("a compressed element is incomplete")
    return content


def _matrix(raw: memoryview, order: str) -> tuple[str, np.ndarray] | None:
    """The name and the numbers of a matrix, None if its class is another one."""
    parts = _elements(raw, order)
    flags = next(parts, None)
    if flags is None or flags.code != 6 or len(flags.content) != 8:
        raise DamagedData("a matrix must begin with its flags")
    (word,) = struct.unpack_from(f"{order}I", flags.content)
    if word & 0xFF not in _CLASSES or word & _COMPLEX:
        return None
    sizes, name, numbers = next(parts, None), next(parts, None), next(parts, None)
    if sizes is None or name is None or numbers is None or sizes.code != 5 or name.code != 1 or len(sizes.content) % 4:
        raise DamagedData("a matrix must have dimensions, a name and numbers")
    what = bytes(name.content).decode("ascii", "replace")
    if numbers.code not in _NUMBERS:
        raise DamagedData("it must hold numbers", entry=f"array {what}")
    # Numbers may be stored in a smaller type than that of their class.
    stored, kept = np.dtype(order + _NUMBERS[numbers.code]), np.dtype(_CLASSES[word & 0xFF])
    shape = shape_of([int(side) for side in np.frombuffer(sizes.content, f"{order}i4")], f"array {what}")
    size = array_bytes(stored, shape, f"array {what}")
    if size != len(numbers.content):
        raise DamagedData(
            f"its shape {shape} must take {size} bytes, got {len(numbers.content)}", entry=f"array {what}"
        )
    array_bytes(kept, shape, f"array {what}")
    return what, np.frombuffer(numbers.content, stored).reshape(shape, order="F").astype(kept)
