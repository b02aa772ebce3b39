"""A data set in memory: stored as uint8, converted to tensors in [0, 1] on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from relucert.data.specs import Spec


class Dataset:
    """Images and labels of a data set, converted on first use and cached; do not modify them.

    x_train (train, *input), x_test (test, *input): float32 in [0, 1], pixel = raw value / 255 (digits: / 16).
    y_train (train,), y_test (test,): int64 classes. The examples stand in their makers' order.

    >>> from relucert.data import dataset
    >>> digits = dataset("digits")
    >>> digits.x_test.shape, digits.classes
    (torch.Size([355, 1, 8, 8]), 10)
    """

    def __init__(self, spec: Spec, read: Callable[[str], np.ndarray]) -> None:
        self.spec = spec
        self._read = read
        self._raw: dict[str, np.ndarray] = {}

    @property
    def name(self) -> str:
        """The name of the data set, as in `dataset(name)`."""
        return self.spec.name

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.spec.classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.spec.class_names

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input: (channels, height, width) of images."""
        return self.spec.input_shape

    @property
    def box(self) -> tuple[float, float] | None:
        """The range of all inputs, None if they have none."""
        return self.spec.box

    def raw(self, key: str) -> np.ndarray:
        """The stored array `x_train`, `y_train`, `x_test` or `y_test`: uint8 (N, H, W[, C]) or int64 (N,).

        Own data that are not stored as bytes are float32 (N, *input).
        """
        if key not in self._raw:
            self._raw[key] = self._read(key)
        return self._raw[key]

    @cached_property
    def x_train(self) -> Float32[Tensor, "train *input"]:
        """Training images."""
        return self._images("x_train")

    @cached_property
    def y_train(self) -> Int64[Tensor, " train"]:
        """Training labels."""
        return torch.from_numpy(self.raw("y_train"))

    @cached_property
    def x_test(self) -> Float32[Tensor, "test *input"]:
        """Test images."""
        return self._images("x_test")

    @cached_property
    def y_test(self) -> Int64[Tensor, " test"]:
        """Test labels."""
        return torch.from_numpy(self.raw("y_test"))

    def _images(self, key: str) -> Tensor:
        raw = torch.from_numpy(self.raw(key))
        if raw.is_floating_point():
            return raw
        planes = raw.unsqueeze(1) if raw.ndim == 3 else raw.permute(0, 3, 1, 2)
        # A division is correctly rounded, a product with 1/255 is not: pixels are equal on every machine.
        return planes.to(torch.float32, memory_format=torch.contiguous_format).div_(self.spec.levels)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.input_shape))
        return f"Dataset({self.name}: {self.spec.train} + {self.spec.test} of {shape}, {self.classes} classes)"
