"""Functionals behind convolutions, pulled back to the image through parallel linear relaxations, with gradients.

With slopes s and offsets o >= 0 of the relaxations s z <= ReLU(z) <= s z + o, a functional v of the values of a layer of ReLUs
becomes v' = s v before the ReLUs, adds sum min(v, 0) o to the lower bound and sum max(v, 0) o to the upper bound, and becomes
A' v' before the convolution. Channels lie next to each other in memory and rows go some at a time, as in
`networks.conv_rows`; the gradient is the same chain of convolutions, forward, for the rows alone that have one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.networks.conv_rows import ConvChain, row_pieces


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution with its offset (1, *shape), and the slopes and offsets (examples, *shape) of the ReLUs behind it."""

    weight: Tensor
    bias: Tensor
    slope: Tensor
    offset: Tensor


def relaxed_rows(
    functionals: Float[Tensor, " n size"], batch: Int[Tensor, " n"], chain: ConvChain, layers: Sequence[Layer]
) -> tuple[Float[Tensor, " n pixels"], Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Rows, and what the lower and the upper bound add, of functionals of the values of the last layer of ReLUs.

    `batch` are the examples that the functionals belong to. Differentiable in functionals, weights, slopes and offsets.
    """
    tensors = [part for layer in layers for part in (layer.weight, layer.bias, layer.slope, layer.offset)]
    return _RelaxedRows.apply(functionals, batch, chain, *tensors)  # type: ignore[return-value]


class _RelaxedRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, functionals: Tensor, batch: Tensor, chain: ConvChain, *tensors: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        layers = _layers(tensors)
        kept, results = [], []
        for rows in row_pieces(functionals, chain, functionals.element_size()):
            which, value = batch[rows], _flat(functionals[rows].unflatten(1, chain.shapes[-1]))
            low = high = value.new_zeros(len(value))
            inner: list[Tensor] = []
            for place in range(len(layers) - 1, -1, -1):
                layer = layers[place]
                inner.append(value)
                steps = value * layer.offset.index_select(0, which)
                every, below = steps.sum(1), steps.clamp_(max=0).sum(1)
                value = value * layer.slope.index_select(0, which)
                constant = value @ layer.bias
                low, high = low + below + constant, high + (every - below) + constant
                value = _flat(chain.adjoint(place, _image(value, chain.shapes[place + 1]), layer.weight))
            kept.append(inner[::-1])
            results.append((_image(value, chain.shapes[0]).flatten(1), low, high))
        ctx.work = chain, batch, kept if any(ctx.needs_input_grad) else []
        ctx.save_for_backward(*tensors)
        rows_of, lows, highs = (torch.cat(parts) for parts in zip(*results, strict=True))
        return rows_of, lows, highs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        chain, batch, kept = ctx.work
        layers = _layers(ctx.saved_tensors)
        totals = [[torch.zeros_like(part) for part in (one.weight, one.bias, one.slope, one.offset)] for one in layers]
        found = gradients[0].new_zeros(len(batch), math.prod(chain.shapes[-1]))
        start = 0
        for inner in kept:
            count = len(inner[0])
            given = [gradient[start : start + count] for gradient in gradients]
            some = ((given[1] != 0) | (given[2] != 0) | (given[0] != 0).any(1)).nonzero()[:, 0]
            if len(some):
                rows, low, high = (gradient[some] for gradient in given)
                which = batch[start + some]
                value = rows.unflatten(1, chain.shapes[0])
                for place, layer in enumerate(layers):
                    before = inner[place][some] if len(some) < count else inner[place]
                    value = _layer_back(chain, place, layer, (value, before, low, high), which, totals[place])
                found[start + some] = value.flatten(1)
            start += count
        shaped = []
        for (weight, bias, slope, offset), shape in zip(totals, chain.shapes[1:], strict=True):
            shaped += [weight, *(_image(part, shape) for part in (bias[None], slope, offset))]
        return found, None, None, *shaped


def _layer_back(
    chain: ConvChain, place: int, layer: Layer, values: tuple[Tensor, ...], which: Tensor, totals: list[Tensor]
) -> Tensor:
    """Add the gradients of one layer, and return that of the functionals behind it, (n, channels, height, width)."""
    ahead, before, low, high = values
    shape = chain.shapes[place + 1]
    slope, offset = layer.slope.index_select(0, which), layer.offset.index_select(0, which)
    gated = before * slope
    totals[0] += chain.weight_slope(place, ahead, _image(gated, shape), layer.weight)
    totals[1] += (low + high) @ gated
    value = _flat(chain.forward(place, ahead, layer.weight))
    value = torch.addcmul(value, (low + high)[:, None], layer.bias)
    ends = torch.where(before < 0, low[:, None], high[:, None])
    totals[2].index_add_(0, which, value * before)
    totals[3].index_add_(0, which, before.mul(ends))
    return _image(value.mul_(slope).addcmul_(ends, offset), shape)


def _image(flat: Float[Tensor, " n entries"], shape: tuple[int, ...]) -> Float[Tensor, " n channels height width"]:
    """Rows with channels next to each other as images."""
    return flat.unflatten(1, (*shape[1:], shape[0])).permute(0, 3, 1, 2)


def _flat(images: Float[Tensor, " n channels height width"]) -> Float[Tensor, " n entries"]:
    """Images as rows with channels next to each other."""
    return images.permute(0, 2, 3, 1).flatten(1)


def _layers(tensors: Sequence[Tensor]) -> list[Layer]:
    """The layers, with everything but filters as rows with channels next to each other."""
    return [
        Layer(tensors[start], _flat(tensors[start + 1])[0], *(_flat(part) for part in tensors[start + 2 : start + 4]))
        for start in range(0, len(tensors), 4)
    ]
