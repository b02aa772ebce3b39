"""`NAME.npz`, the format of converted data sets: arrays x_train, y_train, x_test, y_test.

Images are uint8 of shape (N, H, W), or (N, H, W, C) with three channels; labels are int64 of shape (N,).
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from relucert.core.errors import DamagedData
from relucert.data._npy import Header, read_header, read_numbers
from relucert.data._zipped import REMEDY, member_info, open_zip
from relucert.data.folder import prepare
from relucert.data.specs import Spec
from relucert.records.atomic import atomic_write, file_access
from relucert.records.untrusted import reading

SPLITS = ("train", "test")


#: Bytes of one array.
LARGEST_ARRAY = 2**32


@contextmanager
def _opened(archive: zipfile.ZipFile, path: Path, key: str) -> Iterator[tuple[IO[bytes], Header]]:
    """One array of the archive, behind its header; checks the size, so that truncated files are found."""
    if f"{key}.npy" not in archive.namelist():
        found = ", ".join(name.removesuffix(".npy") for name in archive.namelist()[:20])
        raise DamagedData(f"{path} must hold the array {key}, got {found or 'nothing'}", entry=key)
    info = member_info(archive, path, f"{key}.npy")
    with archive.open(info) as file:
        header = read_header(file, key)
        if info.file_size != header.start + header.size:
            expected = header.start + header.size
            raise DamagedData(f"{path}: {key} must take {expected} bytes, got {info.file_size}", entry=key)
        yield file, header


def _check_array(spec: Spec, source: object, key: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise DamagedData unless shape and dtype are those of the data set."""
    channels, height, width = spec.input_shape
    image = (height, width) if channels == 1 else (height, width, channels)
    tail, kind = (image, "uint8") if key.startswith("x") else ((), "int64")
    wanted = (spec.count(key[2:]), *tail)
    if tuple(shape) != wanted:
        raise DamagedData(f"{source}: {key} of {spec.name} must have shape {wanted}, got {tuple(shape)}", entry=key)
    if dtype != np.dtype(kind):
        raise DamagedData(f"{source}: {key} of {spec.name} must be {kind}, got {dtype}", entry=key)


def _check_labels(spec: Spec, source: object, key: str, labels: np.ndarray) -> None:
    """Raise DamagedData unless all labels are classes of the data set."""
    low, high = int(labels.min(initial=0)), int(labels.max(initial=0))
    if low < 0 or high >= spec.classes:
        raise DamagedData(
            f"{source}: {key} of {spec.name} must lie in 0..{spec.classes - 1}, got {low}..{high}", entry=key
        )


def check(path: Path, spec: Spec) -> None:
    """Raise DamagedData, with file and reason, unless `path` holds the data set.

    This checks the names, shapes, dtypes, counts and sizes of the arrays and the range of the labels; the checksum of the
    pixels is checked when they are read.
    """
    with open_zip(path) as archive:
        for key in (f"{kind}_{split}" for split in SPLITS for kind in "xy"):
            with _opened(archive, path, key) as (_, header):
                _check_array(spec, path, key, header.shape, header.dtype)
    with reading(path, REMEDY):
        for key in (f"y_{split}" for split in SPLITS):
            _check_labels(spec, path, key, read(path, key, spec))


def read(path: Path, key: str, spec: Spec | None = None) -> np.ndarray:
    """One array of the file; the others are not read. With `spec` it must be that of the data set."""
    with open_zip(path) as archive, _opened(archive, path, key) as (file, header):
        if spec is not None:
            _check_array(spec, path, key, header.shape, header.dtype)
        return read_numbers(file, header, key, LARGEST_ARRAY)


def write(path: Path, spec: Spec, arrays: Mapping[str, np.ndarray], source: object) -> None:
    """Check the arrays and write them to `path`, completely or not at all; errors name `source`."""
    for key, array in arrays.items():
        _check_array(spec, source, key, array.shape, array.dtype)
        if key.startswith("y"):
            _check_labels(spec, source, key, array)
    prepare(path.parent)
    with atomic_write(path) as file, file_access(path):
        # Not compressed, because reading is frequent and should be fast.
        np.savez(file, **dict(arrays))  # pyright: ignore[reportArgumentType]


def sha256(path: Path) -> str:
    """The SHA-256 of a file as hex digits."""
    with file_access(path, "read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
