"""ReLU, leaky ReLU and PReLU, and layers that do nothing in eval mode."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from relucert.core.errors import InvalidInput
from relucert.networks.build.values import Traced
from relucert.networks.layers.family import Family, Restored, held, hold
from relucert.networks.nodes import SMALLEST, Affine, Literal, ReLU, Shape, Source

if TYPE_CHECKING:
    from relucert.networks.build.builder import Builder


def _relu(t: Builder, z: Traced, inplace: bool = False) -> Traced:
    return t.add(ReLU(z.shape), z)


class Leak(Affine):
    """`a z + (1 - a) r` of a value z and its ReLU r: a ReLU with any slope a on its negative side.

    The slope is a number or a tensor that broadcasts to z; it may be negative or above 1.
    """

    kind = "leak"
    terms = 5  # two products, a sum, and the difference 1 - a

    def __init__(self, slope: Source | Literal, in_shape: Shape):
        self.slope, self.in_shapes = slope, (in_shape, in_shape)

    def _factors(self) -> tuple[Tensor | float, Tensor | float]:
        slope = self.slope.value
        if (
            isinstance(slope, Tensor) and slope.dim() == 1 and len(slope) > 1
        ):  # one for each channel, as torch counts them
            slope = slope.reshape(-1, *(1,) * (len(self.in_shapes[0]) - 1))
        return slope, 1 - slope

    def linear(self, z: Tensor, positive: Tensor) -> Tensor:
        slope, rest = self._factors()
        return slope * z + rest * positive

    def transpose(self, output: Tensor) -> tuple[Tensor, Tensor]:
        slope, rest = self._factors()
        return slope * output, rest * output

    def absolute(self, z: Tensor, positive: Tensor) -> Tensor:
        slope, rest = self._factors()
        return abs(slope) * z + abs(rest) * positive

    def magnitude(self, z: Tensor, positive: Tensor) -> Tensor:
        return self.absolute(z, positive) + SMALLEST * (z + positive)

    def support(self, z: Tensor, positive: Tensor) -> Tensor:
        return z + positive

    def sources(self) -> dict[str, Source]:
        return {"slope": self.slope} if isinstance(self.slope, Source) else {}

    def settings(self) -> dict[str, object]:
        return {"number": self.slope.value} if isinstance(self.slope, Literal) else {}


def leak(t: Builder, z: Traced, slope: Source | Literal) -> Traced:
    """A ReLU with any slope on its negative side, as a ReLU and a sum."""
    return t.add(Leak(slope, z.shape), z, t.add(ReLU(z.shape), z))


def _leaky_relu(t: Builder, z: Traced, negative_slope: float = 0.01, inplace: bool = False) -> Traced:
    slope = float(negative_slope)
    if not math.isfinite(slope):
        raise t.unsupported(f"negative_slope must be finite, got {slope}")
    return t.add(ReLU(z.shape, slope), z) if 0 <= slope <= 1 else leak(t, z, Literal(slope))


def _prelu(t: Builder, z: Traced, weight: Any) -> Traced:
    source = t.tensor(weight, "weight")
    assert source is not None
    count = source.value.numel()
    if count != 1 and (not z.shape or count != z.shape[0]):
        raise InvalidInput(
            f"{t.where()} (prelu) must have one slope or {z.shape[0]}, one for each channel, got {count}"
        )
    return leak(t, z, source)


def _dropout(t: Builder, z: Traced, p: float = 0.5, training: bool = True, inplace: bool = False) -> Traced:
    if training:
        raise t.unsupported("dropout stays switched on in eval mode (pass training=self.training)")
    return z


class LeakLayer(nn.Module):
    """A value and its ReLU, with a slope on the negative side."""

    slope: Tensor | float

    def __init__(self, slope: Tensor | float):
        super().__init__()
        hold(self, "slope", slope)

    def forward(self, z: Tensor, positive: Tensor) -> Tensor:
        return leaked(z, positive, self.slope)


@fx.wrap
def leaked(z: Tensor, positive: Tensor, slope: Tensor | float) -> Tensor:
    """`a z + (1 - a) r`, as one step of a trace: z where it is positive, else a z, with the rounding of torch's PReLU."""
    if isinstance(slope, Tensor) and slope.dim() == 1 and len(slope) > 1:
        slope = slope.reshape(-1, *(1,) * (z.dim() - 2))
    return torch.where(z > 0, positive, slope * z)


def _leaked(t: Builder, z: Traced, positive: Traced, slope: Any) -> Traced:
    return t.add(Leak(t.constant(slope), z.shape), z, positive)


def _restored(given: Restored) -> nn.Module:
    slope = given.settings["slope"]
    return nn.LeakyReLU(slope) if slope else nn.ReLU()


FAMILY = Family(
    modules={
        nn.ReLU: lambda t, part, z: _relu(t, z),
        nn.LeakyReLU: lambda t, part, z: _leaky_relu(t, z, part.negative_slope),
        nn.PReLU: lambda t, part, z: _prelu(t, z, held(part, "weight")),
        nn.RReLU: lambda t, part, z: _leaky_relu(t, z, (part.lower + part.upper) / 2),
        nn.Dropout: lambda t, part, z: z,
        nn.Dropout1d: lambda t, part, z: z,
        nn.Dropout2d: lambda t, part, z: z,
        nn.AlphaDropout: lambda t, part, z: z,
        nn.Identity: lambda t, part, z: z,
    },
    functions={
        F.relu: _relu,
        F.relu_: _relu,
        torch.relu: _relu,
        torch.relu_: _relu,
        F.leaky_relu: _leaky_relu,
        F.leaky_relu_: _leaky_relu,
        F.prelu: _prelu,
        torch.prelu: _prelu,
        leaked: _leaked,
        F.dropout: _dropout,
        F.dropout2d: _dropout,
    },
    methods={"relu": _relu, "relu_": _relu, "prelu": _prelu},
    inplace=frozenset({F.relu_, torch.relu_, F.leaky_relu_, "relu_"}),
    restored={
        ReLU.kind: _restored,
        Leak.kind: lambda given: LeakLayer(
            given.tensors["slope"] if "slope" in given.tensors else float(given.settings["number"])
        ),
    },
)
