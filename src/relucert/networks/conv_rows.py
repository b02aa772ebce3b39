"""Norms of functionals of the values of convolutions, pulled back to the image through the activation pattern.

    V f = A_1' diag(g_1) ... A_d' diag(g_d) f,      with gates g_l that are constants,

for any number of convolutions A_1, ..., A_d. Channels lie next to each other in memory, rows go some at a time, and what the
gradient needs is kept: it is the same chain of convolutions, forward, from the slope of the norm, and only for rows that have
a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.norms import norm, norm_slope
from relucert.networks.affine_map import Step
from relucert.networks.layers.linear import phased_adjoint

PIECE = 2**23  # bytes of the largest temporary


@dataclass(frozen=True, eq=False)
class ConvChain:
    """The geometry of convolutions: for each its stride, padding and dilation, and the shapes of all layers, image first."""

    strides: tuple[tuple[int, int], ...]
    paddings: tuple[tuple[int, int], ...]
    dilations: tuple[tuple[int, int], ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, steps: Sequence[Step], input_shape: tuple[int, ...]) -> ConvChain:
        """Those of steps that are convolutions."""
        convs = [step.conv for step in steps if step.conv is not None]
        return cls(
            tuple(conv.stride for conv in convs),
            tuple(conv.padding for conv in convs),
            tuple(conv.dilation for conv in convs),
            (input_shape, *(step.shape for step in steps)),
        )

    def forward(self, layer: int, value: Tensor, weight: Tensor) -> Tensor:
        """A_l z, without an offset."""
        return F.conv2d(value, weight, None, self.strides[layer], self.paddings[layer], self.dilations[layer])

    def adjoint(self, layer: int, value: Tensor, weight: Tensor) -> Tensor:
        """A_l' t."""
        stride, padding, dilation = self.strides[layer], self.paddings[layer], self.dilations[layer]
        size = self.shapes[layer]
        spans = [dilation[i] * (weight.shape[2 + i] - 1) + 1 for i in (0, 1)]
        over = [(size[1 + i] + 2 * padding[i] - spans[i]) % stride[i] for i in (0, 1)]
        if dilation == (1, 1) and min(stride) > 1:
            return phased_adjoint(value, weight, stride, padding, size)
        return F.conv_transpose2d(value, weight, None, stride, padding, over, 1, dilation)

    def weight_slope(self, layer: int, value: Tensor, ahead: Tensor, weight: Tensor) -> Tensor:
        """The derivative of <ahead, A_l value> with respect to the weight."""
        geometry = (self.strides[layer], self.paddings[layer], self.dilations[layer])
        _, found, _ = torch.ops.aten.convolution_backward(
            ahead, value, weight, None, *geometry, False, (0, 0), 1, (False, True, False)
        )
        return found


class ConvRowNorms(torch.autograd.Function):
    """`apply(functionals, batch, gates, q, chain, known, *weights)`: the norms (n,) of functionals (n, size) on the image.

    `batch` (n,) are the examples of the functionals, `gates` the slopes (examples, *shape) behind every convolution, `weights`
    the filters; functionals and weights have gradients. `known` are the norms (n,) where they are known: then only rows with a
    gradient are made, when it is taken.
    """

    @staticmethod
    def forward(
        ctx: Any,
        functionals: Float[Tensor, " n size"],
        batch: Int[Tensor, " n"],
        gates: Sequence[Tensor],
        q: float,
        chain: ConvChain,
        known: Float[Tensor, " n"] | None,
        *weights: Tensor,
    ) -> Float[Tensor, " n"]:
        near = [gate.contiguous(memory_format=torch.channels_last) for gate in gates]
        ctx.work = chain, batch, near, q
        if known is not None:
            ctx.kept = None
            ctx.save_for_backward(functionals, *weights)
            return known.clone()
        kept = [
            pulled(functionals[rows], batch[rows], near, q, chain, weights) for rows in row_pieces(functionals, chain)
        ]
        ctx.kept = kept if any(ctx.needs_input_grad) else []
        ctx.save_for_backward(functionals, *weights)
        return torch.cat([lengths for _, _, lengths in kept])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        chain, batch, near, q = ctx.work
        functionals, *weights = ctx.saved_tensors
        totals = [torch.zeros_like(weight) for weight in weights]
        found = gradients[0].new_zeros(len(batch), math.prod(chain.shapes[-1]))
        if ctx.kept is None:
            some = gradients[0].nonzero()[:, 0]
            for piece in row_pieces(some, chain):
                rows = some[piece]
                made = pulled(functionals[rows], batch[rows], near, q, chain, weights)
                found[rows] = _pushed(made, gradients[0][rows], batch[rows], near, q, chain, weights, totals)
            return found, None, None, None, None, None, *totals
        start = 0
        for inner, image, lengths in ctx.kept:
            gradient = gradients[0][start : start + len(image)]
            some = gradient.nonzero()[:, 0]
            if 4 * len(some) < 3 * len(image):
                inner, image, lengths = [part[some] for part in inner], image[some], lengths[some]
            else:  # a few rows without a gradient are not worth a copy of the others
                some = torch.arange(len(image) if len(some) else 0, device=some.device)
            if len(some):
                made = inner, image, lengths
                found[start + some] = _pushed(
                    made, gradient[some], batch[start + some], near, q, chain, weights, totals
                )
            start += len(gradient)
        return found, None, None, None, None, None, *totals


def pulled(
    functionals: Float[Tensor, " n size"], batch: Int[Tensor, " n"], near: Sequence[Tensor], q: float, chain: ConvChain,
    weights: Sequence[Tensor],
) -> tuple[list[Tensor], Tensor, Tensor]:  # fmt: skip
    """Functionals pulled back: what they are in front of every convolution's adjoint, on the image, and their norms there."""
    value = functionals.unflatten(1, chain.shapes[-1])
    inner: list[Tensor] = []
    for layer in range(len(weights) - 1, -1, -1):
        value = picked(near[layer], batch).mul_(value)
        inner.append(value)
        value = chain.adjoint(layer, value, weights[layer])
    image = value.flatten(1)
    return inner[::-1], image, norm(image, q)


def _pushed(
    made: tuple[list[Tensor], Tensor, Tensor], gradient: Float[Tensor, " n"], batch: Tensor, near: Sequence[Tensor],
    q: float, chain: ConvChain, weights: Sequence[Tensor], totals: list[Tensor],
) -> Float[Tensor, " n size"]:  # fmt: skip
    """The gradient of norms with respect to the functionals; that with respect to the weights is added to `totals`."""
    inner, image, lengths = made
    ties = (image.abs() == lengths[:, None]).sum(1, keepdim=True).clamp(min=1) if math.isinf(q) else None
    slope = norm_slope(image, lengths[:, None], q, ties) * gradient[:, None]
    value = slope.unflatten(1, chain.shapes[0])
    for layer, weight in enumerate(weights):
        totals[layer] += chain.weight_slope(layer, value, inner[layer], weight)
        value = chain.forward(layer, value, weight)
        value = value * picked(near[layer], batch)
    return value.flatten(1)


def picked(values: Float[Tensor, " examples channels *area"], which: Int[Tensor, " n"]) -> Tensor:
    """The values of some examples (n, channels, *area), with channels next to each other."""
    flat = values.permute(0, 2, 3, 1).flatten(1).index_select(0, which)
    return flat.unflatten(1, (*values.shape[2:], values.shape[1])).permute(0, 3, 1, 2)


def row_pieces(rows: Tensor, chain: ConvChain) -> Sequence[slice]:
    """The rows in pieces that stay in the cache."""
    widest = max(math.prod(shape) for shape in chain.shapes) * rows.element_size()
    size = max(1, PIECE // widest)
    return [slice(start, start + size) for start in range(0, len(rows), size)]
