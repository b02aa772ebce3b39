"""Arrays in numpy's .npy format from files that may be damaged or hostile: sizes are checked before anything is allocated.

A file is the magic, a version, the length of the header, the header (a Python dictionary of dtype, order and shape, which is
matched and not evaluated) and the numbers.
"""

from __future__ import annotations

import re
import struct
from typing import IO, NamedTuple

import numpy as np

from relucert.core.errors import DamagedData
from relucert.records.untrusted import array_bytes, dtype_of, shape_of

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 10_000
_BLOCK = 2**20
_ITEM = r"'(?:descr|fortran_order|shape)'\s*:\s*(?:'[^']*'|True|False|\([0-9,\s]*\))\s*,?\s*"
_TEXTS = re.compile(r"[<>]U[1-9][0-9]{0,3}")
_HEADER = re.compile(rf"\{{\s*(?:{_ITEM}){{3}}\}}\s*")


class Header(NamedTuple):
    """What a .npy file says of its array, and the number of bytes before the numbers."""

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    start: int

    @property
    def size(self) -> int:
        """The number of bytes of the numbers."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


def read_array(file: IO[bytes], what: str, largest: int) -> np.ndarray:
    """The array of a file, numbers or texts, of at most `largest` bytes."""
    return read_numbers(file, read_header(file, what, texts=True), what, largest)


def read_header(file: IO[bytes], what: str, *, texts: bool = False) -> Header:
    """The header at the beginning of a file; `what` names the array in errors. With `texts` it may be an array of texts."""
    lead = file.read(8)
    if lead[:6] != MAGIC or len(lead) < 8:
        raise DamagedData(f"{what} must be an array in numpy's format")
    version = lead[6], lead[7]
    if version not in ((1, 0), (2, 0)):
        raise DamagedData(f"{what} must be an array in numpy's format 1.0 or 2.0, got {version}")
    width = 2 if version == (1, 0) else 4
    (length,) = struct.unpack("<H" if width == 2 else "<I", file.read(width).ljust(width, b"\0"))
    if length > LONGEST_HEADER:
        raise DamagedData(f"{what} must have a header of at most {LONGEST_HEADER} bytes, got {length}")
    text = file.read(length).decode("latin1")
    if len(text) < length or _HEADER.fullmatch(text) is None:
        raise DamagedData(f"the header of {what} is damaged: it must have descr, fortran_order and shape")
    fields = {}
    for name, pattern in (("descr", r"'([^']*)'"), ("fortran_order", r"(True|False)"), ("shape", r"\(([0-9,\s]*)\)")):
        found = re.findall(rf"'{name}'\s*:\s*{pattern}", text)
        if len(found) != 1:
            raise DamagedData(f"the header of {what} is damaged: it must have descr, fortran_order and shape")
        fields[name] = found[0]
    sizes = [part.strip() for part in fields["shape"].split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) < 20 for part in sizes):
        raise DamagedData(f"the header of {what} is damaged: its shape must be whole numbers")
    shape = shape_of([int(part) for part in sizes], what)
    plain = texts and _TEXTS.fullmatch(fields["descr"]) is not None
    dtype = np.dtype(fields["descr"]) if plain else dtype_of(fields["descr"], what)
    return Header(shape, dtype, fields["fortran_order"] == "True", 8 + width + length)


def read_numbers(file: IO[bytes], header: Header, what: str, largest: int) -> np.ndarray:
    """The numbers behind a header, an array of at most `largest` bytes that can be written to."""
    array = np.empty(array_bytes(header.dtype, header.shape, what, largest), np.uint8)
    place = 0
    while place < len(array):
        block = file.read(min(_BLOCK, len(array) - place))
        if not block:
            raise DamagedData(f"{what} must take {len(array)} bytes, got {place}")
        array[place : place + len(block)] = np.frombuffer(block, np.uint8)
        place += len(block)
    return array.view(header.dtype).reshape(header.shape, order="F" if header.fortran else "C")
