"""The real data sets, where a developer has them."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from data.official import small_spec, write_idx
from relucert.data import SPECS, dataset
from relucert.data._idx import read

# MD5 of the four official IDX files, unpacked, in the order x_train, y_train, x_test, y_test.
UNPACKED = {
    "mnist": (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    "fmnist": (
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
}


@pytest.mark.parametrize("name", UNPACKED)
def test_idx_data_are_the_official_ones(name: str, real_data) -> None:
    data = real_data(name)
    for key, digest in zip(("x_train", "y_train", "x_test", "y_test"), UNPACKED[name], strict=True):
        array = data.raw(key).astype(np.uint8)
        header = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
        assert hashlib.md5(header + array.tobytes()).hexdigest() == digest


def test_mnist_survives_the_official_layout(real_data, tmp_path: Path) -> None:
    arrays = {key: real_data("mnist").raw(key) for key in ("x_train", "y_train", "x_test", "y_test")}
    files = write_idx(tmp_path, arrays)
    found = read(small_spec("mnist", files, arrays), files)
    for key, array in arrays.items():
        np.testing.assert_array_equal(found[key], array)


def test_mnist_as_tensors(real_data) -> None:
    data = real_data("mnist")
    assert data.x_test.shape == (10000, 1, 28, 28)
    assert (data.x_test.min(), data.x_test.max()) == (0.0, 1.0)
    assert data.y_test[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert torch.equal((data.x_test[:, 0] * 255).round().to(torch.uint8), torch.from_numpy(data.raw("x_test")))
    assert dataset("mnist", real_data.folder("mnist")).y_train.bincount().tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first", "mean"),
    [
        # Labels as their makers order them, and the means of the channels that are quoted for CIFAR-10 everywhere.
        ("cifar10", [3, 8, 8, 0, 6, 6, 1, 6, 3, 1], [0.4914, 0.4822, 0.4465]),
        ("gts", [16, 1, 38, 33, 11, 38, 18, 12, 25, 35], None),
    ],
)
def test_colour_data(name: str, first: list[int], mean: list[float] | None, real_data) -> None:
    data = real_data(name)
    assert data.x_train.shape == (SPECS[name].train, 3, 32, 32)
    assert data.y_test[: len(first)].tolist() == first
    assert set(data.y_train.tolist()) == set(data.y_test.tolist()) == set(range(data.classes))
    if mean is not None:
        torch.testing.assert_close(data.x_train.mean((0, 2, 3)), torch.tensor(mean), atol=1e-4, rtol=0)
    if name == "gts":
        assert (data.y_train.diff() >= 0).all()
