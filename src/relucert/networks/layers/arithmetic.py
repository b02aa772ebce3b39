"""Sums of values, and sums and products with numbers, parameters and buffers."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from relucert.networks.build.values import Traced
from relucert.networks.layers.family import Family, Restored, hold
from relucert.networks.nodes import SMALLEST, Affine, Literal, Shape, Source

if TYPE_CHECKING:
    from relucert.networks.build.builder import Builder


class Shift(Affine):
    """`z + sign c` for a constant that broadcasts to the shape of z."""

    kind = "shift"
    elementwise = isometric = diagonal = True

    def __init__(self, constant: Source | Literal, sign: int, in_shape: Shape):
        self.constant, self.sign, self.in_shapes = constant, sign, (in_shape,)

    def apply(self, z: Tensor) -> Tensor:
        return z + self.constant.value if self.sign > 0 else z - self.constant.value

    def linear(self, z: Tensor) -> Tensor:
        return z

    def transpose(self, output: Tensor) -> tuple[Tensor]:
        return (output,)

    def magnitude(self, z: Tensor) -> Tensor:
        return z + abs(self.constant.value)

    def sources(self) -> dict[str, Source]:
        return _named(self.constant)

    def settings(self) -> dict[str, object]:
        return {"sign": self.sign} | _number(self.constant)


class Scale(Affine):
    """`z c`, or `z / c`, for a constant that broadcasts to the shape of z."""

    kind = "scale"
    elementwise = diagonal = True

    def __init__(self, constant: Source | Literal, divide: bool, in_shape: Shape):
        self.constant, self.divide, self.in_shapes = constant, divide, (in_shape,)

    def linear(self, z: Tensor) -> Tensor:
        return z / self.constant.value if self.divide else z * self.constant.value

    def transpose(self, output: Tensor) -> tuple[Tensor]:
        return (self.linear(output),)

    def absolute(self, z: Tensor) -> Tensor:
        size = abs(self.constant.value)
        return z / size if self.divide else z * size

    terms = 3

    def magnitude(self, z: Tensor) -> Tensor:
        return self.absolute(z) + z * SMALLEST

    def sources(self) -> dict[str, Source]:
        return _named(self.constant)

    def settings(self) -> dict[str, object]:
        return {"divide": self.divide} | _number(self.constant)


class Add(Affine):
    """`sum_i sign_i z_i` of nodes with one shape: what makes a network residual."""

    kind = "add"
    sums = True

    def __init__(self, in_shape: Shape, signs: Sequence[int]):
        self.signs = tuple(signs)
        self.in_shapes = (in_shape,) * len(self.signs)

    def fixed_norm(self) -> float:
        return math.sqrt(len(self.signs))

    def linear(self, *inputs: Tensor) -> Tensor:
        total = inputs[0] if self.signs[0] > 0 else -inputs[0]
        for sign, z in zip(self.signs[1:], inputs[1:], strict=True):
            total = total + z if sign > 0 else total - z
        return total

    def transpose(self, output: Tensor) -> tuple[Tensor, ...]:
        return tuple(output if sign > 0 else -output for sign in self.signs)

    def absolute(self, *inputs: Tensor) -> Tensor:
        return sum(inputs[1:], inputs[0])

    def settings(self) -> dict[str, object]:
        return {"signs": self.signs}


def _named(constant: Source | Literal) -> dict[str, Source]:
    return {"constant": constant} if isinstance(constant, Source) else {}


def _number(constant: Source | Literal) -> dict[str, object]:
    return {"number": constant.value} if isinstance(constant, Literal) else {}


def _add(t: Builder, a: Any, b: Any, *, alpha: Any = 1, sign: int = 1) -> Traced:
    if alpha != 1:
        raise t.unsupported(f"alpha must be 1, got {alpha}")
    if isinstance(a, Traced) and isinstance(b, Traced):
        if a.shape != b.shape:
            raise t.unsupported(f"it adds values of different shapes, {a.shape} and {b.shape}")
        return t.add(Add(a.shape, (1, sign)), a, b)
    if isinstance(a, Traced):
        return _same_shape(t, a, Shift(t.constant(b), sign, a.shape))
    if sign < 0:  # c - z
        b = t.add(Scale(Literal(-1.0), False, b.shape), b)
    return _same_shape(t, b, Shift(t.constant(a), 1, b.shape))


def _sub(t: Builder, a: Any, b: Any, *, alpha: Any = 1) -> Traced:
    return _add(t, a, b, alpha=alpha, sign=-1)


def _mul(t: Builder, a: Any, b: Any) -> Traced:
    if isinstance(a, Traced) and isinstance(b, Traced):
        raise t.unsupported("it multiplies two values that both depend on the input")
    z, c = (a, b) if isinstance(a, Traced) else (b, a)
    return _same_shape(t, z, Scale(t.constant(c), False, z.shape))


def _div(t: Builder, a: Any, b: Any) -> Traced:
    if not isinstance(a, Traced) or isinstance(b, Traced):
        raise t.unsupported("it divides by a value that depends on the input")
    return _same_shape(t, a, Scale(t.constant(b), True, a.shape))


def _neg(t: Builder, z: Traced) -> Traced:
    return t.add(Scale(Literal(-1.0), False, z.shape), z)


def _same_shape(t: Builder, z: Traced, op: Shift | Scale) -> Traced:
    made = t.add(op, z)
    if made.shape != z.shape:
        raise t.unsupported(f"the constant changes the shape from {z.shape} to {made.shape}")
    return made


class ShiftLayer(nn.Module):
    """`z + c` or `z - c`."""

    constant: Tensor | float

    def __init__(self, constant: Tensor | float, sign: int):
        super().__init__()
        hold(self, "constant", constant)
        self.sign = sign

    def forward(self, z: Tensor) -> Tensor:
        return z + self.constant if self.sign > 0 else z - self.constant


class ScaleLayer(nn.Module):
    """`z c` or `z / c`."""

    constant: Tensor | float

    def __init__(self, constant: Tensor | float, divide: bool):
        super().__init__()
        hold(self, "constant", constant)
        self.divide = divide

    def forward(self, z: Tensor) -> Tensor:
        return z / self.constant if self.divide else z * self.constant


class AddLayer(nn.Module):
    """A sum with signs."""

    def __init__(self, signs: list[int]):
        super().__init__()
        self.signs = signs

    def forward(self, *values: Tensor) -> Tensor:
        first, second = values
        return first + second if self.signs[1] > 0 else first - second


def _constant(given: Restored) -> Tensor | float:
    return given.tensors["constant"] if "constant" in given.tensors else float(given.settings["number"])


FAMILY = Family(
    functions={
        torch.add: _add,
        torch.sub: _sub,
        torch.mul: _mul,
        torch.div: _div,
        torch.neg: _neg,
        operator.add: _add,
        operator.iadd: _add,
        operator.sub: _sub,
        operator.isub: _sub,
        operator.mul: _mul,
        operator.imul: _mul,
        operator.truediv: _div,
        operator.itruediv: _div,
        operator.neg: _neg,
    },
    methods={
        "add": _add,
        "add_": _add,
        "sub": _sub,
        "sub_": _sub,
        "mul": _mul,
        "mul_": _mul,
        "div": _div,
        "div_": _div,
        "neg": _neg,
    },
    inplace=frozenset({
        operator.iadd, operator.isub, operator.imul, operator.itruediv, "add_", "sub_", "mul_", "div_",
    }),
    restored={
        Shift.kind: lambda given: ShiftLayer(_constant(given), given.settings["sign"]),
        Scale.kind: lambda given: ScaleLayer(_constant(given), given.settings["divide"]),
        Add.kind: lambda given: AddLayer(given.settings["signs"]),
    },
    forms=("sums of values", "sums and products with numbers, parameters and buffers"),
)  # fmt: skip
