"""Batch norm in eval mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relucert.networks.build.values import Traced
from relucert.networks.layers.family import Family, Restored, arguments, held, with_tensors
from relucert.networks.nodes import SMALLEST, Affine, Shape, Source

if TYPE_CHECKING:
    from relucert.networks.build.builder import Builder


class BatchNorm(Affine):
    """Batch norm with its running statistics: `(z - mean) / sqrt(var + eps) * weight + bias`, channel by channel."""

    kind = "batch_norm"
    elementwise = diagonal = True

    def __init__(
        self, mean: Source, var: Source, weight: Source | None, bias: Source | None, eps: float, in_shape: Shape
    ):
        self.mean, self.var, self.weight, self.bias, self.eps = mean, var, weight, bias, eps
        self.in_shapes = (in_shape,)

    def _channels(self, values: Tensor) -> Tensor:
        return values.reshape(-1, *(1,) * (len(self.in_shapes[0]) - 1))

    def scale(self) -> Tensor:
        """The factor of every channel, shaped to broadcast."""
        scale = torch.rsqrt(self.var.value + self.eps)
        return self._channels(scale if self.weight is None else scale * self.weight.value)

    def apply(self, z: Tensor) -> Tensor:
        shifted = (z - self._channels(self.mean.value)) * self.scale()
        return shifted if self.bias is None else shifted + self._channels(self.bias.value)

    def linear(self, z: Tensor) -> Tensor:
        return z * self.scale()

    def transpose(self, output: Tensor) -> tuple[Tensor]:
        return (output * self.scale(),)

    terms = 8

    def absolute(self, z: Tensor) -> Tensor:
        return z * self.scale().abs()

    def magnitude(self, z: Tensor) -> Tensor:
        total = (z + self._channels(self.mean.value).abs()) * (self.scale().abs() + SMALLEST)
        return total if self.bias is None else total + self._channels(self.bias.value).abs()

    def sources(self) -> dict[str, Source]:
        named = {"mean": self.mean, "var": self.var, "weight": self.weight, "bias": self.bias}
        return {name: source for name, source in named.items() if source is not None}

    def settings(self) -> dict[str, object]:
        return {"eps": self.eps}


_OPTIONS = {"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5}


def _batch_norm(t: Builder, z: Traced, mean: Any, var: Any, *args: Any, **given: Any) -> Traced:
    options = arguments(_OPTIONS, args, given)
    mean, var = t.tensor(mean, "running mean"), t.tensor(var, "running variance")
    if options["training"] or mean is None or var is None:
        raise t.unsupported("batch norm needs running statistics")
    weight, bias = (t.tensor(options[name], name) for name in ("weight", "bias"))
    return t.add(BatchNorm(mean, var, weight, bias, options["eps"], z.shape), z)


def _batch_norm_module(t: Builder, part: Any, z: Traced) -> Traced:
    mean, var, weight, bias = (held(part, name) for name in ("running_mean", "running_var", "weight", "bias"))
    return _batch_norm(t, z, mean, var, weight, bias, eps=part.eps)


def _restored(given: Restored) -> nn.Module:
    kind = nn.BatchNorm2d if len(given.in_shapes[0]) == 3 else nn.BatchNorm1d
    eps = given.settings["eps"]
    layer = kind(given.tensors["mean"].numel(), eps=eps, affine="weight" in given.tensors or "bias" in given.tensors)
    for role in {"weight", "bias"} - set(given.tensors):
        layer.register_parameter(role, None)
    return with_tensors(layer, given.tensors, {"mean": "running_mean", "var": "running_var"})


FAMILY = Family(
    modules={nn.BatchNorm1d: _batch_norm_module, nn.BatchNorm2d: _batch_norm_module},
    functions={F.batch_norm: _batch_norm},
    restored={BatchNorm.kind: _restored},
)
