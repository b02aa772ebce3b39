"""CIFAR-10: a .tar.gz of six pickles, each a dictionary with `data` (N, 3072) and `labels`."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relucert.core.errors import DamagedData, RelucertError
from relucert.data._progress import progress
from relucert.data.specs import Spec
from relucert.records.atomic import file_access

ARCHIVE = "cifar-10-python.tar.gz"
BATCHES = {
    "train": [f"cifar-10-batches-py/data_batch_{number}" for number in range(1, 6)],
    "test": ["cifar-10-batches-py/test_batch"],
}
LARGEST_BATCH = 64 * 2**20  # bytes; the official batches have 31 million


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that accepts only numpy arrays and built-in containers."""

    # The module of numpy's reconstruction function depends on the version; an array knows it.
    _reconstruct: Any = np.empty(0).__reduce__()[0]
    ALLOWED: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
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
    except Exception as error:  # a hostile or truncated pickle can raise anything
        raise DamagedData(f"{what} is not a batch of CIFAR-10: {error!r}") from error
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        found = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise DamagedData(f"{what}: data must be uint8 of shape (N, 3072), got {found}")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(type(label) is int for label in labels):
        raise DamagedData(f"{what}: labels must be a list of {len(data)} integers")
    # A row holds the red, the green and the blue plane.
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels, np.int64)


def read(spec: Spec, files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """The four arrays of the data set."""
    path = files[ARCHIVE]
    wanted = [member for members in BATCHES.values() for member in members]
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    with file_access(path, "read"):
        file = path.open("rb")
    with file, progress(f"reading {spec.name}", len(wanted)) as at:
        try:
            with tarfile.open(fileobj=file, mode="r:gz") as archive:
                for member in archive:
                    # Other members are skipped; nothing is unpacked to disk.
                    content = archive.extractfile(member) if member.isfile() and member.name in wanted else None
                    if content is not None and member.size <= LARGEST_BATCH:
                        found[member.name] = _batch(content.read(), f"{path}: {member.name}")
                        at(len(found))
        except (RelucertError, MemoryError):
            raise
        except Exception as error:  # TarError, EOFError, zlib.error, BadGzipFile, ...
            raise DamagedData(f"{path} is damaged: {error}") from error
    missing = [member for member in wanted if member not in found]
    if missing:
        raise DamagedData(f"{path} must hold {', '.join(missing)}")
    arrays = {}
    for split, members in BATCHES.items():
        arrays[f"x_{split}"] = np.concatenate([found[member][0] for member in members])
        arrays[f"y_{split}"] = np.concatenate([found[member][1] for member in members])
    return arrays
