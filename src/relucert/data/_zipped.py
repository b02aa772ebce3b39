"""Reading of .zip and .npz files that may be damaged or hostile: members are read into memory, never unpacked to disk."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relucert.core.errors import DamagedData, RelucertError
from relucert.records.atomic import file_access


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive; errors of its contents inside the block become DamagedData with the path."""
    with file_access(path, "read"):
        file = path.open("rb")
    with file:
        try:
            with zipfile.ZipFile(file) as archive:
                yield archive
        except (RelucertError, MemoryError):
            raise
        # zipfile and numpy's header parser raise many kinds of errors for wrong bytes: BadZipFile, zlib.error,
        # OSError, ValueError, SyntaxError, TokenError, NotImplementedError, RuntimeError, ...
        except Exception as error:
            raise DamagedData(f"{path} is damaged: {error}") from error


def member(archive: zipfile.ZipFile, path: Path, name: str, *, largest: int) -> bytes:
    """The bytes of one member, at most `largest`."""
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise DamagedData(f"{path} must hold {name}") from None
    if info.file_size > largest:
        raise DamagedData(f"{path}: {name} must have at most {largest} bytes, got {info.file_size}")
    return archive.read(info)
