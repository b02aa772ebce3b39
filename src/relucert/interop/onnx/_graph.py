"""A graph of ONNX while it is read: values, constants, and the description of the network that grows node by node.

Every value has a batch axis in front, of the size that the file declares. Operators see shapes as ONNX counts them, with the
batch; the description has shapes without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relucert.core.errors import CheckpointError
from relucert.networks.layers.family import Restored
from relucert.networks.layers.table import restoring

Array = np.ndarray[Any, Any]
LARGEST = 2**26  #: entries of a value of one example, or of a constant


class Refused(Exception):
    """An operation that no supported kind of node expresses; the text is the reason."""


class MixedBatch(Refused):
    """An operation on the batch axis."""


@dataclass(frozen=True)
class Value:
    """A value that depends on the input: its node in the description, and its value on examples, batch first."""

    index: int
    sample: Tensor
    batch: int

    @property
    def inner(self) -> tuple[int, ...]:
        """The shape without the batch."""
        return tuple(self.sample.shape[1:])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape as the file counts it."""
        return (self.batch, *self.inner)

    def axis(self, axis: int) -> int:
        """An axis of the file, counted without the batch."""
        rank = len(self.shape)
        if not -rank <= axis < rank:
            raise Refused(f"axis must lie in {-rank}..{rank - 1}, got {axis}")
        if axis % rank == 0:
            raise MixedBatch("it works along the batch axis")
        return axis % rank - 1


def distinct(axes: Sequence[int], rank: int) -> list[int]:
    """Axes of a shape of so many axes, counted from its beginning."""
    if any(not -rank <= axis < rank for axis in axes):
        raise Refused(f"axes must lie in {-rank}..{rank - 1}, got {list(axes)}")
    found = [axis % rank for axis in axes]
    if len(set(found)) < len(found):
        raise Refused(f"axes must differ, got {list(axes)}")
    return found


@dataclass(frozen=True)
class Unknown:
    """The value of an operation that was refused."""


Entry = Value | Array | Unknown | None


@dataclass
class Operation:
    """One node of the file: its inputs as far as they are known, and its attributes."""

    kind: str
    name: str
    inputs: list[Entry]
    outputs: list[str]
    attributes: dict[str, Any]
    opset: int

    def value(self, place: int = 0) -> Value:
        """An input that must depend on the network's input."""
        entry = self.inputs[place] if place < len(self.inputs) else None
        if not isinstance(entry, Value):
            raise Refused(f"input {place} must depend on the input of the network")
        return entry

    def constant(self, place: int) -> Array:
        """An input that must be constant."""
        entry = self.inputs[place] if place < len(self.inputs) else None
        if entry is None:
            raise CheckpointError(f"input {place} is missing")
        if not isinstance(entry, np.ndarray):
            raise Refused(f"input {place} must be constant")
        return entry

    def optional(self, place: int) -> Array | None:
        """An input that must be constant if it is there."""
        entry = self.inputs[place] if place < len(self.inputs) else None
        return None if entry is None else self.constant(place)

    def whole(self, name: str, place: int | None = None) -> list[int] | None:
        """Whole numbers that are an attribute in old versions and an input in new ones; None if neither is there."""
        if name in self.attributes:
            given = self.attributes[name]
            return [int(one) for one in (given if isinstance(given, list | tuple) else [given])]
        given = None if place is None else self.optional(place)
        if given is not None and (given.ndim > 1 or not np.issubdtype(given.dtype, np.integer)):
            raise CheckpointError(f"input {place} must be a row of whole numbers, got {given.dtype} {given.shape}")
        return None if given is None else [int(one) for one in given.reshape(-1)]


@dataclass
class Description:
    """Nodes and tensors so far."""

    batch: int
    nodes: list[dict[str, Any]] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    trainable: list[str] = field(default_factory=list)

    def start(self, shape: Sequence[int], dtype: torch.dtype) -> Value:
        """The input."""
        bounded(shape)
        self.nodes.append({"kind": "input", "inputs": [], "shape": list(shape)})
        generator = torch.Generator().manual_seed(0)
        sample = torch.rand(2, *shape, generator=generator, dtype=torch.float64).to(dtype)
        return Value(0, sample, self.batch)

    def add(
        self, kind: str, *inputs: Value, tensors: Mapping[str, Array | None] | None = None, **settings: Any
    ) -> Value:
        """Append a node, and run it on the examples."""
        numbers = [name for name, one in settings.items() if isinstance(one, float) and not math.isfinite(one)]
        if numbers:
            raise Refused(f"its numbers must be finite, got {numbers[0]} = {settings[numbers[0]]}")
        used = {}
        for role, array in (tensors or {}).items():
            if array is None:
                continue
            used[role] = f"{len(self.nodes)}.{role}"
            self.tensors[used[role]] = _tensor(array, torch.int64 if role == "index" else inputs[0].sample.dtype)
            if role in ("weight", "bias", "slope") and self.tensors[used[role]].is_floating_point():
                self.trainable.append(used[role])
        shapes = [list(value.inner) for value in inputs]
        given = Restored(settings, {role: self.tensors[name] for role, name in used.items()}, shapes)
        with torch.no_grad():
            try:
                sample = restoring()[kind](given).eval()(*(value.sample for value in inputs))
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                found = ", ".join(str(value.inner) for value in inputs)
                raise CheckpointError(f"its tensors do not fit inputs of shape {found}: {first_line(error)}") from error
        entry = {"kind": kind, "inputs": [value.index for value in inputs], "shape": list(sample.shape[1:])}
        self.nodes.append(entry | {"settings": settings, "tensors": used})
        return Value(len(self.nodes) - 1, sample, self.batch)

    def reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        """The value in another shape, as the file counts it."""
        if not shape or shape[0] != self.batch or math.prod(shape) != math.prod(value.shape):
            raise MixedBatch(f"it mixes the examples of a batch: shape {value.shape} becomes {tuple(shape)}")
        return value if tuple(shape) == value.shape else self.inside(value, shape[1:])

    def inside(self, value: Value, shape: Sequence[int]) -> Value:
        """The value in another shape, without the batch."""
        return self.add("reshape", value, out_shape=[int(size) for size in shape])

    def sliced(self, value: Value, ranges: Sequence[Sequence[int]]) -> Value:
        """The entries within one range (start, stop, step) for every axis behind the batch."""
        starts, stops, steps = ([int(one[i]) for one in ranges] for i in range(3))
        return self.add("slice", value, starts=starts, stops=stops, steps=steps)

    def gathered(self, value: Value, places: Callable[[Array], Array]) -> Value:
        """The entries that `places` picks from an array of the value's shape without the batch."""
        table = np.ascontiguousarray(places(np.arange(math.prod(value.inner)).reshape(value.inner)))
        bounded(table.shape)
        flat = value if len(value.inner) == 1 else self.inside(value, [math.prod(value.inner)])
        return self.add("gather", flat, tensors={"index": table.astype(np.int64)})

    def broadcast(self, value: Value, shape: Sequence[int]) -> Value:
        """The value repeated along axes of size one, to a shape without the batch."""
        bounded(shape)
        same = tuple(shape) == value.inner
        return value if same else self.gathered(value, lambda table: np.broadcast_to(table, tuple(shape)))

    def without_batch(self, constant: Array, value: Value) -> Array:
        """A constant that broadcasts against a value, without the batch axis."""
        if constant.ndim > len(value.shape):
            raise Refused(f"the constant has more axes than the value: shapes {constant.shape} and {value.shape}")
        if constant.ndim < len(value.shape):
            return constant
        if len(constant) != 1 and not (constant == constant[:1]).all():
            raise MixedBatch("the constant differs between the examples of a batch")
        return constant[0]


def bounded(shape: Sequence[int]) -> None:
    """Refuse a shape of very many entries."""
    if math.prod(int(size) for size in shape) > LARGEST:
        raise Refused(f"values must have at most {LARGEST} entries, got shape {tuple(shape)}")


def _tensor(array: Array, dtype: torch.dtype) -> Tensor:
    try:
        tensor = torch.from_numpy(np.array(array))  # a copy: arrays of a file cannot be written to
    except TypeError as error:
        raise Refused(f"its tensors must have the input's dtype {dtype}, got {array.dtype}") from error
    if tensor.dtype != dtype:
        raise Refused(f"its tensors must have the input's dtype {dtype}, got {tensor.dtype}")
    if not bool(tensor.isfinite().all()):
        raise Refused("its tensors must be finite, got NaN or infinity")
    return tensor


def first_line(error: Exception) -> str:
    """The first line of an error's text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
