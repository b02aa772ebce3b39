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
from relucert.networks.layers.convolution import phased_adjoint

PIECE = 2**22  # bytes of the largest temporary


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
        ctx.save_for_backward(functionals, *weights)
        ctx.kept = None
        if known is not None:
            return known.clone()
        passes = _Passes(near, q, chain, weights)
        made = [
            passes.back(functionals[rows], batch[rows])
            for rows in row_pieces(functionals, chain, functionals.element_size())
        ]
        if any(ctx.needs_input_grad):
            ctx.kept = made
        return torch.cat([each.lengths for each in made])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        chain, batch, near, q = ctx.work
        functionals, *weights = ctx.saved_tensors
        passes = _Passes(near, q, chain, weights)
        totals = [torch.zeros_like(weight) for weight in weights]
        if ctx.kept is None:
            some = gradients[0].nonzero()[:, 0]
            every = len(some) == len(functionals)
            found = torch.empty_like(functionals) if every else torch.zeros_like(functionals)
            for piece in row_pieces(some, chain, functionals.element_size()):
                rows = piece if every else some[piece]
                made = passes.back(functionals[rows], batch[rows])
                found[rows] = passes.ahead(made, gradients[0][rows], batch[rows], totals)
            return found, None, None, None, None, None, *totals
        found = torch.zeros_like(functionals)
        start = 0
        for made in ctx.kept:
            gradient = gradients[0][start : start + len(made.image)]
            some = gradient.nonzero()[:, 0]
            if 4 * len(some) < 3 * len(gradient):
                made = made.restrict(some)
            else:  # a few rows without a gradient are not worth a copy of the others
                some = torch.arange(len(gradient) if len(some) else 0, device=some.device)
            if len(some):
                found[start + some] = passes.ahead(made, gradient[some], batch[start + some], totals)
            start += len(gradient)
        return found, None, None, None, None, None, *totals


@dataclass(frozen=True, eq=False)
class _Made:
    """Functionals in front of every convolution's adjoint, first convolution first, on the image, and their norms there."""

    inner: list[Tensor]
    image: Tensor
    lengths: Tensor

    def restrict(self, rows: Int[Tensor, " m"]) -> _Made:
        """Some of the rows."""
        return _Made([part[rows] for part in self.inner], self.image[rows], self.lengths[rows])


@dataclass(frozen=True, eq=False)
class _Passes:
    """The pass of functionals back to the image, and that of gradients ahead; `near` are the gates, channels innermost."""

    near: Sequence[Tensor]
    q: float
    chain: ConvChain
    weights: Sequence[Tensor]

    def back(self, functionals: Float[Tensor, " n size"], batch: Int[Tensor, " n"]) -> _Made:
        """Functionals pulled back."""
        value = functionals.unflatten(1, self.chain.shapes[-1])
        inner: list[Tensor] = []
        for layer in range(len(self.weights) - 1, -1, -1):
            value = picked(self.near[layer], batch).mul_(value)
            inner.append(value)
            value = self.chain.adjoint(layer, value, self.weights[layer])
        image = value.flatten(1)
        return _Made(inner[::-1], image, norm(image, self.q))

    def ahead(
        self, made: _Made, gradient: Float[Tensor, " n"], batch: Int[Tensor, " n"], totals: list[Tensor]
    ) -> Float[Tensor, " n size"]:
        """The gradient with respect to functionals of their norms'; that with respect to the weights is added to `totals`."""
        lengths, ties = made.lengths[:, None], None
        if math.isinf(self.q):
            ties = (made.image.abs() == lengths).sum(1, keepdim=True).clamp(min=1)
        slope = norm_slope(made.image, lengths, self.q, ties) * gradient[:, None]
        value = slope.unflatten(1, self.chain.shapes[0])
        for layer, weight in enumerate(self.weights):
            totals[layer] += self.chain.weight_slope(layer, value, made.inner[layer], weight)
            value = self.chain.forward(layer, value, weight)
            value = picked(self.near[layer], batch).mul_(value)
        return value.flatten(1)


def picked(values: Float[Tensor, " examples channels *area"], which: Int[Tensor, " n"]) -> Tensor:
    """The values of some examples (n, channels, *area), with channels next to each other."""
    flat = values.permute(0, 2, 3, 1).flatten(1).index_select(0, which)
    return flat.unflatten(1, (*values.shape[2:], values.shape[1])).permute(0, 3, 1, 2)


def row_pieces(rows: Tensor, chain: ConvChain, size: int) -> Sequence[slice]:
    """The rows in pieces that stay in the cache, for numbers of so many bytes."""
    at_once = max(1, PIECE // (max(math.prod(shape) for shape in chain.shapes) * size))
    return [slice(start, start + at_once) for start in range(0, len(rows), at_once)]
