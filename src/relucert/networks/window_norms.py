"""Known norms of all units of a convolution behind a convolution, with gradients through the units that have one.

A unit's row on its window is s diag(w_o) A: the slopes s that the unit sees of the layer before, which are constants, its
filter w_o, and the adjoint A of the first convolution on windows. Units of one map share w_o diag and A, so their rows are one
product, and the gradient with respect to diag(w_o) A is one more; nothing else of the size of the rows is needed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.norms import norm, norm_slope
from relucert.core.products import product
from relucert.networks.windows import Units, WindowRows

PIECE = 2**11  # rows at a time: some megabytes that stay in the cache


class WindowNorms(torch.autograd.Function):
    """`apply(known, slopes, q, work, adjoint, filters)`: the norms (batch, units) as they are known, with their gradient.

    `slopes` (batch, *shape) are those of the first convolution's ReLUs, `adjoint` and `filters` the `factors` of `work`, which
    has two convolutions; adjoint and filters have gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        known: Float[Tensor, " batch units"],
        slopes: Float[Tensor, " batch *shape"],
        q: float,
        work: WindowRows,
        adjoint: Float[Tensor, " taps pixels"],
        filters: Float[Tensor, " maps taps"],
    ) -> Float[Tensor, " batch units"]:
        ctx.work = slopes, q, work
        ctx.save_for_backward(adjoint, filters)
        return known.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        slopes, q, work = ctx.work
        adjoint, filters = ctx.saved_tensors
        shape = work.steps[-1].shape
        by_map = gradients[0].unflatten(1, (len(filters), -1)).transpose(0, 1)
        maps, batch, places = by_map.nonzero(as_tuple=True)
        weights = by_map[maps, batch, places][:, None]
        units = Units(batch, places, shape)
        (table,), inside = work.tables([slopes]), work.inside(slopes)
        border = None if bool(inside.all()) else inside
        factors, change = torch.zeros_like(adjoint), torch.zeros_like(filters)
        start = 0
        for number, count in enumerate(torch.bincount(maps, minlength=len(filters)).tolist()):
            if count == 0:
                continue
            factor, slope = filters[number][:, None] * adjoint, torch.zeros_like(adjoint)
            for some in torch.arange(start, start + count, device=maps.device).split(PIECE):
                part = units.restrict(some)
                seen = part.pick(table, work.grids[1])
                rows = product(seen, factor)
                if border is not None:
                    rows *= part.pick(border, work.grids[0])
                slope += product(seen.T, _slope(rows, q).mul_(weights[some]))
            change[number] = (slope * adjoint).sum(1)
            factors.addcmul_(filters[number][:, None], slope)
            start += count
        return None, None, None, None, factors, change


def _slope(rows: Tensor, q: float) -> Tensor:
    """The derivative of the norms of rows; equal largest entries share it."""
    if q == 1:
        return rows.sign()
    lengths = norm(rows, q)[:, None]
    ties = (rows.abs() == lengths).sum(1, keepdim=True).clamp(min=1) if math.isinf(q) else None
    return norm_slope(rows, lengths, q, ties)
