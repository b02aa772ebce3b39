"""Transposed convolutions: the adjoints of convolutions, with an offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relucert.core.errors import InvalidInput
from relucert.networks.build.values import Traced
from relucert.networks.layers.family import Family, Restored, arguments, held, pair, with_tensors
from relucert.networks.nodes import Affine, Shape, Source

if TYPE_CHECKING:
    from relucert.networks.build.builder import Builder


class ConvTranspose2d(Affine):
    """A transposed convolution with any stride, padding, output padding, dilation and groups."""

    kind = "conv_transpose2d"
    rows_are_weights = True

    def __init__(self, weight: Source, bias: Source | None, in_shape: Shape, **options: Any):
        self.weight, self.bias, self.in_shapes = weight, bias, (in_shape,)
        self.stride: tuple[int, int] = options["stride"]
        self.padding: tuple[int, int] = options["padding"]
        self.output_padding: tuple[int, int] = options["output_padding"]
        self.dilation: tuple[int, int] = options["dilation"]
        self.groups: int = options["groups"]

    def _spread(self, z: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv_transpose2d(
            z, weight, bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )

    def apply(self, z: Tensor) -> Tensor:
        return self._spread(z, self.weight.value, None if self.bias is None else self.bias.value)

    def linear(self, z: Tensor) -> Tensor:
        return self._spread(z, self.weight.value, None)

    def transpose(self, output: Tensor) -> tuple[Tensor]:
        back = F.conv2d(output, self.weight.value, None, self.stride, self.padding, self.dilation, self.groups)
        _, height, width = self.in_shapes[0]
        return (back[:, :, :height, :width].contiguous(),)  # output padding can make room for one window more

    @property
    def terms(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.weight.value[:, 0].numel() // self.groups + 2

    @property
    def adjoint_terms(self) -> int:
        return self.weight.value[0].numel() + 2

    def absolute(self, z: Tensor) -> Tensor:
        return self._spread(z, self.weight.value.abs(), None)

    def magnitude(self, z: Tensor) -> Tensor:
        return self._spread(z, self.weight.value.abs(), None if self.bias is None else self.bias.value.abs())

    def support(self, z: Tensor) -> Tensor:
        return self._spread(z, z.new_ones(self.weight.value.shape), None)

    def sources(self) -> dict[str, Source]:
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})

    def settings(self) -> dict[str, object]:
        return {
            "stride": self.stride,
            "padding": self.padding,
            "output_padding": self.output_padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }


_OPTIONS = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}


def _conv_transpose2d(t: Builder, z: Traced, weight: Any, bias: Any = None, *args: Any, **given: Any) -> Traced:
    options = arguments(_OPTIONS, args, given)
    source = t.tensor(weight, "weight")
    assert source is not None
    if len(z.shape) != 3:
        raise InvalidInput(
            f"{t.where()} (conv_transpose2d) needs an input (channels, height, width), got shape {z.shape}"
        )
    numbers = {name: value if name == "groups" else pair(value) for name, value in options.items()}
    return t.add(ConvTranspose2d(source, t.tensor(bias, "bias"), z.shape, **numbers), z)


def _module(t: Builder, part: nn.ConvTranspose2d, z: Traced) -> Traced:
    given = {name: getattr(part, name) for name in _OPTIONS}
    return _conv_transpose2d(t, z, held(part, "weight"), held(part, "bias"), **given)


def _restored(given: Restored) -> nn.Module:
    rows, columns, *kernel = given.tensors["weight"].shape
    options = {name: given.settings[name] for name in _OPTIONS}
    pairs: dict[str, Any] = {name: value if name == "groups" else tuple(value) for name, value in options.items()}
    layer = nn.ConvTranspose2d(
        rows,
        columns * options["groups"],
        (kernel[0], kernel[1]),
        bias="bias" in given.tensors,
        device="meta",
        **pairs,
    )
    return with_tensors(layer, given.tensors)


FAMILY = Family(
    modules={nn.ConvTranspose2d: _module},
    functions={F.conv_transpose2d: _conv_transpose2d, torch.conv_transpose2d: _conv_transpose2d},
    restored={ConvTranspose2d.kind: _restored},
)
