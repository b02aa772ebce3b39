"""Dataset: tensors in [0, 1] that are exactly the stored bytes, created at first use."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from data.official import random_arrays
from relucert.data import SPECS, Dataset, dataset


class Reader:
    """Return arrays and record which were requested."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.prop: list[str] = []

    def __call__(self, key: str) -> np.ndarray:
        self.prop.append(key)
        return self.arrays[key]


@pytest.mark.parametrize("name", ["mnist", "cifar10", "gts"])
def test_tensors_are_the_bytes(name: str) -> None:
    arrays = random_arrays(name, train=7, test=3)
    data = Dataset(replace(SPECS[name], train=7, test=3), arrays.__getitem__)
    for split in ("train", "test"):
        x, y = getattr(data, f"x_{split}"), getattr(data, f"y_{split}")
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert x.shape == (len(y), *data.input_shape)
        assert x.is_contiguous()
        stored = arrays[f"x_{split}"].reshape(len(y), *data.input_shape[1:], data.input_shape[0])
        for n, c, h, w in np.ndindex(*x.shape):
            assert x[n, c, h, w] == np.float32(stored[n, h, w, c] / np.float64(255))
            if h > 2:
                break
        np.testing.assert_array_equal((x.double() * 255).round().numpy().transpose(0, 2, 3, 1), stored)
        np.testing.assert_array_equal(y.numpy(), arrays[f"y_{split}"])


def test_every_level_is_correctly_rounded() -> None:
    image = np.arange(256, dtype=np.uint8).repeat(784)[: 256 * 784].reshape(256, 28, 28)
    data = Dataset(SPECS["mnist"], lambda key: image)
    exact = (np.arange(256) / 255).astype(np.float32)
    np.testing.assert_array_equal(data.x_test[:, 0, 5, 5].numpy(), exact)
    assert data.x_test.min() == 0.0
    assert data.x_test.max() == 1.0


def test_arrays_are_read_and_converted_once_at_first_use() -> None:
    reader = Reader(random_arrays("mnist", train=4, test=2))
    data = Dataset(SPECS["mnist"], reader)
    assert repr(data) == "Dataset(mnist: 60000 + 10000 of 1x28x28, 10 classes)"
    assert reader.prop == []
    assert data.x_test is data.x_test
    assert data.y_test is data.y_test
    assert data.raw("x_test") is reader.arrays["x_test"]
    assert reader.prop == ["x_test", "y_test"]
    assert data.x_train is data.x_train
    assert reader.prop == ["x_test", "y_test", "x_train"]


def test_facts_come_from_the_spec() -> None:
    data = dataset("digits")
    assert (data.name, data.classes, data.input_shape) == ("digits", 10, (1, 8, 8))
    assert data.class_names == tuple("0123456789")


def test_can_be_sent_to_another_process() -> None:
    data = dataset("digits")
    assert torch.equal(pickle.loads(pickle.dumps(data)).x_test, data.x_test)
