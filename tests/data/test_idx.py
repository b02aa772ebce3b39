"""The IDX files of MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from data.official import random_arrays, small_spec, write_idx
from relucert.core.errors import DamagedData, FileAccessError
from relucert.data._idx import read, read_idx


def packed(data: bytes) -> bytes:
    """Compressed without the time of day, which would make the names of tests differ from process to process."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize("name", ["mnist", "fmnist"])
def test_archives_give_the_arrays(name: str, tmp_path: Path) -> None:
    arrays = random_arrays(name, train=30, test=11)
    files = write_idx(tmp_path, arrays)
    found = read(small_spec(name, files, arrays), files)
    assert found.keys() == arrays.keys()
    for key in arrays:
        assert found[key].dtype == arrays[key].dtype
        np.testing.assert_array_equal(found[key], arrays[key])


def test_a_file_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255])))
    assert read_idx(path, (2, 1, 3)).tolist() == [[[1, 2, 3]], [[4, 5, 255]]]


GOOD = struct.pack(">4B2I", 0, 0, 8, 2, 3, 4) + bytes(range(12))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (packed(GOOD[:-1]), "must unpack to 24 bytes, got only 23"),
        (packed(GOOD + b"x"), "must unpack to 24 bytes, got more"),
        (packed(GOOD[:5]), "header"),
        (packed(b""), "header"),
        (packed(struct.pack(">4B2I", 0, 0, 13, 2, 3, 4) + bytes(48)), "header"),
        (packed(struct.pack(">4B2I", 0, 0, 8, 2, 4, 3) + bytes(12)), r"shape \(3, 4\)"),
        (packed(GOOD)[:-9], "is damaged"),
        (packed(GOOD)[:-1], "is damaged"),
        (packed(GOOD)[:-8] + bytes(8), "is damaged"),
        (GOOD, "is damaged"),
        (b"", "header"),
    ],
)
def test_damage_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(GOOD))
    assert read_idx(path, (3, 4)).shape == (3, 4)
    path.write_bytes(content)
    with pytest.raises(DamagedData, match=message) as caught:
        read_idx(path, (3, 4))
    assert str(path) in str(caught.value)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileAccessError, match=f"{tmp_path} cannot be read"):
        read_idx(tmp_path, (3, 4))
