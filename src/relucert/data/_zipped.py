"""Reading of .zip and .npz files that may be damaged or hostile: members are read into memory, never unpacked to disk.

Names of members are looked up and never used as paths, so a name that leads out of a folder leads nowhere.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from relucert.core.errors import DamagedData
from relucert.records.untrusted import reading

REMEDY = "delete the file to have it made again"
#: Bytes of the list of members: each takes some twenty times as many in memory.
LARGEST_DIRECTORY = 2**24
#: No deflated stream unpacks to more than this many times its size.
DEFLATED = 1040
_END, _LOCATOR = b"PK\5\6", b"PK\6\7"


@contextmanager
def open_zip(path: Path, remedy: str = REMEDY) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive; errors of its contents inside the block become DamagedData with path and remedy."""
    with reading(path, remedy), path.open("rb") as file:
        _check_directory(file)
        with zipfile.ZipFile(file) as archive:
            yield archive


def _check_directory(file: IO[bytes]) -> None:
    """Raise if the list of members is longer than `LARGEST_DIRECTORY`."""
    size = file.seek(0, 2)
    file.seek(max(0, size - 2**16 - 98))
    tail = file.read()
    place = tail.rfind(_END)
    file.seek(0)
    if place < 0 or len(tail) < place + 22:
        return  # not a zip file, as zipfile will say
    (length,) = struct.unpack_from("<I", tail, place + 12)
    if place >= 76 and tail[place - 20 : place - 16] == _LOCATOR:  # a larger archive: numbers of 8 bytes stand before
        (length,) = struct.unpack_from("<Q", tail, place - 76 + 40)
    if length > LARGEST_DIRECTORY:
        raise DamagedData(f"its list of members must have at most {LARGEST_DIRECTORY} bytes, got {length}")


def member_info(archive: zipfile.ZipFile, path: Path, name: str) -> zipfile.ZipInfo:
    """What the archive says of a member, which must be stored or deflated and cannot be larger than it unpacks to."""
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise DamagedData(f"{path} must hold {name}", entry=name) from None
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DamagedData(f"{path}: {name} must be stored or deflated, got method {info.compress_type}", entry=name)
    if info.file_size > DEFLATED * info.compress_size + DEFLATED:
        raise DamagedData(
            f"{path}: {name} must unpack from {info.compress_size} bytes, which cannot give {info.file_size}",
            entry=name,
        )
    return info


def member(archive: zipfile.ZipFile, path: Path, name: str, *, largest: int) -> bytes:
    """The bytes of one member, at most `largest`."""
    info = member_info(archive, path, name)
    if info.file_size > largest:
        raise DamagedData(f"{path}: {name} must have at most {largest} bytes, got {info.file_size}", entry=name)
    with archive.open(info) as file:
        # By its size: reading to the end unpacks as much as the stream has.
        content = file.read(info.file_size)
    if len(content) != info.file_size:
        raise DamagedData(f"{path}: {name} must have {info.file_size} bytes, got {len(content)}", entry=name)
    return content
