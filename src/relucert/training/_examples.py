"""What a run trains on: arrays in memory, or the batches of a torch loader, in an order that follows from the seed.

Nothing random is carried from epoch to epoch, and the batches of an epoch can be drawn again from any of them on. So a run that
was stopped sees the same batches when it goes on.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from relucert.core.ball import PIXELS
from relucert.core.errors import InvalidInput, RunError
from relucert.data import Dataset
from relucert.training._randomness import generator

Box = tuple[float, float] | None
Batch = tuple[Tensor, Tensor]
FORMS = "arrays (x, y), a torch Dataset or DataLoader of pairs (x, y), or a relucert data set"


class Examples(Protocol):
    """Labelled examples in batches, `steps` of them in an epoch; `box` is the range of all inputs, None if they have none."""

    @property
    def steps(self) -> int: ...

    @property
    def box(self) -> Box: ...

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """The batches of an epoch, from number `first` on."""
        ...

    def pieces(self) -> Iterator[Batch]:
        """All examples once, in their own order."""
        ...

    def sample(self) -> Batch:
        """Some examples, always the same."""
        ...

    def digest(self) -> str:
        """A hash of the examples, or of what can be seen of them."""
        ...


def examples_of(data: object, batch: int, seed: int, name: str = "data") -> Examples:
    """The examples that a value stands for; `batch` is the size of batches, unless a loader has its own."""
    if isinstance(data, Dataset):
        return Arrays(data.x_train, data.y_train, batch, seed, data.box)
    if (
        isinstance(data, tuple | list)
        and len(data) == 2
        and all(isinstance(part, Tensor | np.ndarray) for part in data)
    ):
        return Arrays.checked(data[0], data[1], batch, seed, name)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return Arrays.checked(data.tensors[0], data.tensors[1], batch, seed, name)
    if isinstance(data, DataLoader):
        return Loader(data, seed, name)
    if isinstance(data, TorchDataset) and not isinstance(data, IterableDataset):
        shuffled = DataLoader(data, batch, shuffle=True, generator=torch.Generator())
        return Loader(shuffled, seed, name)
    raise InvalidInput(f"{name} must be {FORMS}, got {_said(data)}")


@dataclass(frozen=True, eq=False)
class Arrays:
    """Examples x (count, *input) and y (count,) in memory, shuffled anew in every epoch."""

    x: Tensor
    y: Tensor
    batch: int
    seed: int
    box: Box

    @staticmethod
    def checked(x: Tensor | np.ndarray, y: Tensor | np.ndarray, batch: int, seed: int, name: str = "data") -> Arrays:
        """Examples of the user, after checks; they have a box if they are images with values in [0, 1]."""
        x, y = _pair((torch.as_tensor(x), torch.as_tensor(y)), name)
        if len(x) == 0:
            raise InvalidInput(f"{name} must hold at least one example, got none")
        finite = torch.isfinite(x).flatten(1).all(1)
        if not bool(finite.all()):
            raise InvalidInput(
                f"x of {name} must be finite, got NaN or infinity in example {int((~finite).nonzero()[0])}"
            )
        return Arrays(x, y, batch, seed, _box(x))

    def split(self, share: float, seed: int) -> tuple[Arrays, Arrays]:
        """Examples without a share of them that the seed chooses, and these, in an order that the seed chooses as well."""
        held = round(share * len(self.y))
        if not 0 < held < len(self.y):
            raise InvalidInput(f"validation must leave an example on both sides of {len(self.y)}, got {share}")
        order = torch.randperm(len(self.y), generator=generator(seed, "validation")).to(self.y.device)
        kept, out = order[held:].sort().values, order[:held]
        return replace(self, x=self.x[kept], y=self.y[kept]), replace(self, x=self.x[out], y=self.y[out])

    @property
    def steps(self) -> int:
        return math.ceil(len(self.y) / self.batch)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        order = torch.randperm(len(self.y), generator=generator(self.seed, "shuffle", epoch)).to(self.y.device)
        for pick in order.split(self.batch)[first:]:
            yield self.x[pick], self.y[pick]

    def pieces(self) -> Iterator[Batch]:
        yield self.x, self.y

    def sample(self) -> Batch:
        return self.x[: self.batch], self.y[: self.batch]

    def digest(self) -> str:
        return _digest(self.x, self.y)


class Loader:
    """The batches of a torch loader, with every global generator seeded by the epoch while the loader works.

    A generator of the loader or of its sampler is seeded by the epoch as well.
    """

    def __init__(self, loader: DataLoader[Any], seed: int, name: str = "data"):
        self.loader, self.seed, self.name = loader, seed, name
        try:
            self.steps = len(loader)
        except TypeError as error:
            raise InvalidInput(
                f"{name} must be a loader with a length, got one of an iterable without: {error}"
            ) from error
        if self.steps == 0:
            raise InvalidInput(f"{name} must hold at least one batch, got an empty loader")
        self._first = next(self.batches(0, 0))
        self.box = _box(self._first[0])

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        stream = _Stream(generator(self.seed, "loader", epoch).initial_seed())
        with stream.active():
            for holder in (self.loader, self.loader.sampler, self.loader.batch_sampler):
                own = getattr(holder, "generator", None)
                if isinstance(own, torch.Generator):
                    own.manual_seed(generator(self.seed, "sampler", epoch).initial_seed())
            batches = iter(self.loader)
        for place in range(self.steps):
            with stream.active():
                batch = next(batches, None)
            if batch is None:
                raise RunError(f"{self.name} must yield {self.steps} batches, as its length says, got {place}")
            if place >= first:
                yield _pair(batch, self.name)

    def pieces(self) -> Iterator[Batch]:
        return self.batches(0, 0)

    def sample(self) -> Batch:
        return self._first

    def digest(self) -> str:
        return f"{self.steps} batches, {_digest(*self._first)}"


class _Stream:
    """The states of the global generators of torch, numpy and Python, of one's own while `active`."""

    def __init__(self, seed: int):
        with _kept():
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            random.seed(seed)
            self.states = _states()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Exchange the global states for the stream's, and back."""
        with _kept():
            _restore(self.states)
            try:
                yield
            finally:
                self.states = _states()


def _states() -> tuple[Tensor, Any, Any]:
    # Transforms of users draw from the global generators.
    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def _restore(states: tuple[Tensor, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])


@contextmanager
def _kept() -> Iterator[None]:
    """Leave the global generators as they were."""
    before = _states()
    try:
        yield
    finally:
        _restore(before)


def _pair(batch: object, name: str) -> Batch:
    """Inputs and labels of a batch: floating-point numbers and whole numbers, as many of one as of the other."""
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
        raise InvalidInput(f"{name} must yield pairs (x, y) of tensors, got {_said(batch)}")
    x, y = batch
    if not x.is_floating_point():
        raise InvalidInput(f"x of {name} must hold floating-point numbers, got {x.dtype}: pixels are x.float() / 255")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InvalidInput(
            f"y of {name} must hold whole numbers, got {y.dtype}: classes count from 0, as y.long() has them"
        )
    if x.dim() < 2 or y.dim() != 1 or len(x) != len(y):
        shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
        raise InvalidInput(f"{name} must have the shapes (examples, *input) and (examples,), got {shapes}")
    return x, y.long()


def _box(x: Tensor) -> Box:
    """The box of pixels for images with values in [0, 1], None for other numbers."""
    return PIXELS if x.dim() == 4 and bool(((x >= 0) & (x <= 1)).all()) else None


def _digest(*tensors: Tensor) -> str:
    total = hashlib.sha256()
    for value in tensors:
        total.update(f"{value.dtype} {tuple(value.shape)}".encode())
        total.update(value.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def _said(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {', '.join(type(part).__name__ for part in value) or 'nothing'}"
    return type(value).__name__
