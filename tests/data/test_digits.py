"""The embedded digits and their fixed split."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

from relucert.data import SPECS, dataset


def test_split_is_every_fifth_of_a_class() -> None:
    images, labels = load_digits(return_X_y=True)
    seen = dict.fromkeys(range(10), 0)
    train, test = [], []
    for index, label in enumerate(labels):
        seen[int(label)] += 1
        (test if seen[int(label)] % 5 == 0 else train).append(index)
    data = dataset("digits")
    for split, rows in (("train", train), ("test", test)):
        assert len(rows) == SPECS["digits"].count(split)
        x, y = getattr(data, f"x_{split}"), getattr(data, f"y_{split}")
        assert x.shape == (len(rows), 1, 8, 8)
        assert torch.equal(x.flatten(1).double() * 16, torch.from_numpy(images[rows]))
        assert torch.equal(y, torch.from_numpy(labels[rows]))


def test_the_split_is_the_one_that_was_published() -> None:
    """Records name examples by their index, so the split must never change: here is what it starts and ends with."""
    data = dataset("digits")
    assert data.y_test[:12].tolist() == [5, 0, 9, 8, 7, 1, 2, 6, 3, 4, 0, 2]
    assert data.y_train[-5:].tolist() == [4, 9, 0, 8, 8]
    assert int(data.raw("x_test").sum(dtype=np.int64)) == 111152
    assert int(data.raw("x_train").sum(dtype=np.int64)) == 450566


def test_values_are_sixteenths() -> None:
    data = dataset("digits")
    assert data.raw("x_train").dtype == np.uint8
    for x in (data.x_train, data.x_test):
        assert x.dtype == torch.float32
        assert (x.min(), x.max()) == (0.0, 1.0)


def test_every_class_keeps_its_share() -> None:
    data = dataset("digits")
    train, test = torch.bincount(data.y_train), torch.bincount(data.y_test)
    assert torch.equal(test, (train + test) // 5)
