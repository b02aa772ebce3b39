"""MNIST and Fashion-MNIST: four gzipped files in the IDX format.

IDX is big-endian: two zero bytes, the type (8 = unsigned byte), the number of dimensions, each dimension as four
bytes, then the values in row-major order.
"""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from relucert.core.errors import DamagedData
from relucert.data._zipped import REMEDY
from relucert.data.specs import Spec
from relucert.records.untrusted import reading

UNSIGNED_BYTE = 8


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The uint8 array of one .gz file, which must have the given shape."""
    header = struct.pack(f">BBBB{len(shape)}I", 0, 0, UNSIGNED_BYTE, len(shape), *shape)
    size = len(header) + math.prod(shape)
    with reading(path, REMEDY):
        with gzip.open(path) as file:
            # Read at most one byte too many, so that a file that unpacks to gigabytes does no harm.
            content = file.read(size + 1)
        if content[: len(header)] != header:
            raise DamagedData(f"{path} must be an IDX file of bytes with shape {shape}; it has another header")
        if len(content) != size:
            found = f"only {len(content)}" if len(content) < size else "more"
            raise DamagedData(f"{path} must unpack to {size} bytes, got {found}")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)


def read(spec: Spec, files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """The four arrays of the data set from its four files."""
    _, height, width = spec.input_shape
    arrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        count = spec.count(split)
        arrays[f"x_{split}"] = read_idx(files[f"{prefix}-images-idx3-ubyte.gz"], (count, height, width))
        arrays[f"y_{split}"] = read_idx(files[f"{prefix}-labels-idx1-ubyte.gz"], (count,)).astype(np.int64)
    return arrays
