"""ReLU and leaky ReLU, and layers that do nothing in eval mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from relucert.networks.build.values import Traced
from relucert.networks.layers.family import Family, Restored
from relucert.networks.nodes import ReLU

if TYPE_CHECKING:
    from relucert.networks.build.builder import Builder


def _relu(t: Builder, z: Traced, inplace: bool = False) -> Traced:
    return t.add(ReLU(z.shape), z)


def _leaky_relu(t: Builder, z: Traced, negative_slope: float = 0.01, inplace: bool = False) -> Traced:
    if not 0 <= negative_slope <= 1:
        raise t.unsupported(f"negative_slope must lie in [0, 1], got {negative_slope}")
    return t.add(ReLU(z.shape, float(negative_slope)), z)


def _clamp(t: Builder, z: Traced, min: Any = None, max: Any = None) -> Traced:
    if not isinstance(min, int | float) or min != 0 or max is not None:
        raise t.unsupported("clamp is a ReLU only with min=0 and without max")
    return t.add(ReLU(z.shape), z)


def _dropout(t: Builder, z: Traced, p: float = 0.5, training: bool = True, inplace: bool = False) -> Traced:
    if training:
        raise t.unsupported("dropout stays switched on in eval mode (pass training=self.training)")
    return z


def _restored(given: Restored) -> nn.Module:
    slope = given.settings["slope"]
    return nn.LeakyReLU(slope) if slope else nn.ReLU()


FAMILY = Family(
    modules={
        nn.ReLU: lambda t, part, z: _relu(t, z),
        nn.LeakyReLU: lambda t, part, z: _leaky_relu(t, z, part.negative_slope),
        nn.Dropout: lambda t, part, z: z,
        nn.Dropout1d: lambda t, part, z: z,
        nn.Dropout2d: lambda t, part, z: z,
        nn.Identity: lambda t, part, z: z,
    },
    functions={
        F.relu: _relu,
        F.relu_: _relu,
        torch.relu: _relu,
        torch.relu_: _relu,
        F.leaky_relu: _leaky_relu,
        F.leaky_relu_: _leaky_relu,
        torch.clamp: _clamp,
        torch.clamp_min: _clamp,
        F.dropout: _dropout,
        F.dropout2d: _dropout,
    },
    methods={"relu": _relu, "relu_": _relu, "clamp": _clamp, "clamp_min": _clamp},
    inplace=frozenset({F.relu_, torch.relu_, F.leaky_relu_, "relu_"}),
    restored={ReLU.kind: _restored},
)
