"""CIFAR-10: a .tar.gz of six pickles, each a dictionary with `data` (N, 3072) and `labels`."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relucert.core.errors import DamagedData
from relucert.data._progress import progress
from relucert.data._zipped import REMEDY
from relucert.data.specs import Spec
from relucert.records.untrusted import DTYPES, reading, shape_of

ARCHIVE = "cifar-10-python.tar.gz"
BATCHES = {
    "train": [f"cifar-10-batches-py/data_batch_{number}" for number in range(1, 6)],
    "test": ["cifar-10-batches-py/test_batch"],
}
LARGEST_BATCH = 64 * 2**20  # bytes; the official batches have 31 million


LARGEST_ARCHIVE = 2**28  # bytes unpacked; the official archive has 186 million


class _Array:
    """What a pickle says of a numpy array, without numpy: `state` is (version, shape, dtype, order, bytes)."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def bytes_of(self) -> np.ndarray:
        """The array, which must be of unsigned bytes in rows."""
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise pickle.UnpicklingError("an array has no numbers")
        _, shape, dtype, fortran, raw = self.state
        shape = shape_of(shape, "data")
        if not isinstance(dtype, _DType) or dtype.name() != "uint8" or fortran:
            found = dtype.name() if isinstance(dtype, _DType) else "no dtype"
            raise pickle.UnpicklingError(f"data must be uint8, row after row, got {found}")
        if not isinstance(raw, bytes) or len(raw) != math.prod(shape):
            raise pickle.UnpicklingError(f"data must have the bytes of shape {shape}")
        return np.frombuffer(raw, np.uint8).reshape(shape)


class _DType:
    """What a pickle says of a numpy dtype."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else str(code)

    def name(self) -> str:
        """The name of a dtype of numbers, else its code."""
        codes = (self.code, f"<{self.code}", f"|{self.code}")
        return next((np.dtype(code).name for code in codes if code in DTYPES), self.code)

    def __setstate__(self, state: Any) -> None:
        """Byte order and fields do not matter for bytes."""


def _new_array(*_: Any) -> _Array:
    return _Array()


class _ArraysOnly(pickle._Unpickler):  # pyright: ignore[reportPrivateUsage]
    """An unpickler that accepts only arrays of bytes and built-in containers, and makes nothing else.

    It is Python's own, not the one in C, whose table of names takes as much memory as a pickle asks for.
    """

    ALLOWED: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): _new_array,
        ("numpy._core.multiarray", "_reconstruct"): _new_array,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _DType,
    }

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return self.ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}") from None


def _batch(content: bytes, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 32, 32, 3) and labels (N,) of one pickle."""
    try:
        # Python 2 wrote these files: its strings become bytes.
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        data, labels = batch[b"data"], batch[b"labels"]
        if isinstance(data, _Array):
            data = data.bytes_of()
    except Exception as error:  # a hostile or truncated pickle can raise anything
        raise DamagedData(f"{what} is not a batch of CIFAR-10: {error!r}") from error
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3072:
        found = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise DamagedData(f"{what}: data must be uint8 of shape (N, 3072), got {found}")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(type(label) is int for label in labels):
        raise DamagedData(f"{what}: labels must be a list of {len(data)} integers")
    if not all(0 <= label < 10 for label in labels):
        raise DamagedData(f"{what}: labels must lie in 0..9")
    # A row holds the red, the green and the blue plane.
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels, np.int64)


class _Limited(io.RawIOBase):
    """A stream that may be read up to a number of bytes: whatever is in an archive, no more is unpacked."""

    def __init__(self, file: gzip.GzipFile, largest: int) -> None:
        self.file, self.largest, self.left = file, largest, largest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        block = self.file.read(len(buffer))
        self.left -= len(block)
        if self.left < 0:
            raise DamagedData(f"it must unpack to at most {self.largest} bytes, got more")
        buffer[: len(block)] = block
        return len(block)


def read(spec: Spec, files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """The four arrays of the data set."""
    path = files[ARCHIVE]
    wanted = [member for members in BATCHES.values() for member in members]
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    with reading(path, REMEDY), gzip.open(path) as packed, progress(f"reading {spec.name}", len(wanted)) as at:
        stream = io.BufferedReader(_Limited(packed, LARGEST_ARCHIVE), 2**16)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                # Other members are skipped; nothing is unpacked to disk.
                content = archive.extractfile(member) if member.isfile() and member.name in wanted else None
                if content is not None and member.size <= LARGEST_BATCH and member.name not in found:
                    found[member.name] = _batch(content.read(), f"{path}: {member.name}")
                    at(len(found))
    missing = [member for member in wanted if member not in found]
    if missing:
        raise DamagedData(f"{path} must hold {', '.join(missing)}", path=path, entry=missing[0], remedy=REMEDY)
    arrays = {}
    for split, members in BATCHES.items():
        arrays[f"x_{split}"] = np.concatenate([found[member][0] for member in members])
        arrays[f"y_{split}"] = np.concatenate([found[member][1] for member in members])
    return arrays
