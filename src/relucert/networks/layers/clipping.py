"""Values cut off at constants, made of ReLUs: clamp, ReLU6, Hardtanh, absolute values, maxima and minima.

    max(z, c) = relu(z - c) + c,    min(z, c) = c - relu(c - z)

The two ends of a clamp are cut off one after the other: intervals of the result are exact, and what is cut off costs nothing.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from relucert.networks.build.values import Held, Traced
from relucert.networks.layers.arithmetic import Add, Scale, Shift
from relucert.networks.layers.family import Family
from relucert.networks.nodes import Literal, ReLU, Source

if TYPE_CHECKING:
    from relucert.networks.build.builder import Builder


def _shifted(t: Builder, z: Traced, constant: Source | Literal, sign: int = 1) -> Traced:
    return z if isinstance(constant, Literal) and constant.value == 0 else t.add(Shift(constant, sign, z.shape), z)


def _negated(t: Builder, z: Traced) -> Traced:
    return t.add(Scale(Literal(-1.0), False, z.shape), z)


def _relu(t: Builder, z: Traced) -> Traced:
    return t.add(ReLU(z.shape), z)


def at_least(t: Builder, z: Traced, low: Source | Literal) -> Traced:
    """`max(z, c)`."""
    return _shifted(t, _relu(t, _shifted(t, z, low, -1)), low)


def at_most(t: Builder, z: Traced, high: Source | Literal) -> Traced:
    """`min(z, c)`."""
    over = _relu(t, _shifted(t, _negated(t, z), high))
    return _shifted(t, _negated(t, over), high)


def _clamp(t: Builder, z: Traced, min: Any = None, max: Any = None) -> Traced:
    low, high = (_end(t, value) for value in (min, max))
    if isinstance(low, Literal) and isinstance(high, Literal) and low.value > high.value:
        raise t.unsupported(f"min must be at most max, got {low.value} and {high.value}")
    if low is not None:
        z = at_least(t, z, low)
    return z if high is None else at_most(t, z, high)


def _end(t: Builder, value: Any) -> Literal | None:
    """An end of a clamp: a finite number, or None where nothing is cut off."""
    if value is None or (isinstance(value, int | float) and abs(value) == float("inf")):
        return None
    end = t.constant(value)
    if not isinstance(end, Literal):
        raise t.unsupported("min and max must be numbers")
    return end


def _clamp_max(t: Builder, z: Traced, max: Any) -> Traced:
    return _clamp(t, z, None, max)


def _hardtanh(t: Builder, z: Traced, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Traced:
    return _clamp(t, z, min_val, max_val)


def _relu6(t: Builder, z: Traced, inplace: bool = False) -> Traced:
    return _clamp(t, z, 0, 6)


def _hardsigmoid(t: Builder, z: Traced, inplace: bool = False) -> Traced:
    return t.add(Scale(Literal(6.0), True, z.shape), _relu6(t, t.add(Shift(Literal(3.0), 1, z.shape), z)))


def _softshrink(t: Builder, z: Traced, lambd: float = 0.5) -> Traced:
    return t.add(Add(z.shape, (1, -1)), z, _clamp(t, z, -lambd, lambd))


def _abs(t: Builder, z: Traced) -> Traced:
    return t.add(Add(z.shape, (1, 1)), _relu(t, z), _relu(t, _negated(t, z)))


def _maximum(t: Builder, a: Any, b: Any) -> Traced:
    if isinstance(a, Traced) and isinstance(b, Traced):
        if a.shape != b.shape:
            raise t.unsupported(f"it compares values of different shapes, {a.shape} and {b.shape}")
        return t.add(Add(a.shape, (1, 1)), a, _relu(t, t.add(Add(a.shape, (1, -1)), b, a)))
    z, c = (a, b) if isinstance(a, Traced) else (b, a)
    _fits(t, z, c)
    return at_least(t, z, t.constant(c))


def _minimum(t: Builder, a: Any, b: Any) -> Traced:
    if isinstance(a, Traced) and isinstance(b, Traced):
        if a.shape != b.shape:
            raise t.unsupported(f"it compares values of different shapes, {a.shape} and {b.shape}")
        return t.add(Add(a.shape, (1, -1)), a, _relu(t, t.add(Add(a.shape, (1, -1)), a, b)))
    z, c = (a, b) if isinstance(a, Traced) else (b, a)
    _fits(t, z, c)
    return at_most(t, z, t.constant(c))


def _fits(t: Builder, z: Traced, constant: Any) -> None:
    if isinstance(constant, Held) and torch.broadcast_shapes(constant.source.value.shape, z.shape) != z.shape:
        raise t.unsupported(f"the constant changes the shape from {z.shape}")


FAMILY = Family(
    modules={
        nn.ReLU6: lambda t, part, z: _relu6(t, z),
        nn.Hardtanh: lambda t, part, z: _hardtanh(t, z, part.min_val, part.max_val),
        nn.Hardsigmoid: lambda t, part, z: _hardsigmoid(t, z),
        nn.Softshrink: lambda t, part, z: _softshrink(t, z, part.lambd),
    },
    functions={
        torch.clamp: _clamp,
        torch.clip: _clamp,
        torch.clamp_min: _clamp,
        torch.clamp_max: _clamp_max,
        F.relu6: _relu6,
        F.hardtanh: _hardtanh,
        F.hardsigmoid: _hardsigmoid,
        F.softshrink: _softshrink,
        torch.abs: _abs,
        operator.abs: _abs,
        torch.maximum: _maximum,
        torch.minimum: _minimum,
    },
    methods={
        "clamp": _clamp,
        "clip": _clamp,
        "clamp_min": _clamp,
        "clamp_max": _clamp_max,
        "abs": _abs,
        "maximum": _maximum,
        "minimum": _minimum,
    },
    forms=("clamp, abs, maximum and minimum",),
)
