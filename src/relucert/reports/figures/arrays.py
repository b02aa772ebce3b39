"""Arrays that figures are drawn from: .npz files, grouped by network."""

from __future__ import annotations

import math
import re
import zipfile
from pathlib import Path

import numpy as np

from relucert.core.errors import DamagedData
from relucert.records.untrusted import reading

#: Arrays by name.
Arrays = dict[str, np.ndarray]
#: Bytes of all arrays of a file, and of the header of one.
LARGEST, LONGEST_HEADER = 2**29, 10_000
MOST, MOST_DIMENSIONS = 1000, 8  # arrays of a file, and dimensions of one
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '([<|](?:b1|[iuf][1248]))', 'fortran_order': (True|False), "
    rb"'shape': \((\d{1,18}(?:, \d{1,18})*,?)?\), \}\s*"
)


def read_arrays(file: Path) -> dict[str, Arrays]:
    """The arrays of a file, of which the names are GROUP/NAME, by group; a damaged file is `DamagedData`.

    What the file says of sizes is checked before anything is allocated.
    """
    groups: dict[str, Arrays] = {}
    with reading(file, "delete the file and run the experiment again"), zipfile.ZipFile(file) as stored:
        members = stored.infolist()
        if len(members) > MOST or sum(member.file_size for member in members) > LARGEST:
            raise DamagedData(f"it must hold at most {MOST} arrays of {LARGEST} bytes together")
        for member in members:
            group, _, key = member.filename.removesuffix(".npy").partition("/")
            groups.setdefault(group, {})[key] = _array(stored, member)
    return groups


def _array(stored: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """One array of numbers, whose header says as many bytes as there are; headers are matched, never evaluated."""
    with stored.open(member) as opened:
        start = opened.read(10)
        length = int.from_bytes(start[8:], "little")
        match = _HEADER.fullmatch(opened.read(length)) if start[:8] == _MAGIC and length <= LONGEST_HEADER else None
        if match is None:
            raise DamagedData("it must be an array of numbers with a header of version 1.0", entry=member.filename)
        dtype, columns = np.dtype(match[1].decode()), match[2] == b"True"
        shape = tuple(int(size) for size in re.findall(rb"\d+", match[3] or b""))
        size = math.prod(shape) * dtype.itemsize
        if len(shape) > MOST_DIMENSIONS or size > member.file_size:
            raise DamagedData(f"it must have the size that its header says, got {shape}", entry=member.filename)
        raw = opened.read(size + 1)
    if len(raw) != size:
        raise DamagedData(f"it must have {size} bytes of numbers, got {len(raw)}", entry=member.filename)
    array = np.frombuffer(raw, dtype)
    return array.reshape(shape[::-1]).T if columns else array.reshape(shape)
