"""Functionals of ReLUs bounded by functionals of their inputs, with gradients, a few megabytes at a time.

For rows c behind a layer of ReLUs with below z <= phi(z) <= above z + offset, in each unit

    c phi(z) >= back z + low,   back = below c+ + above c-,   low = offset c-,   c+ = max(c, 0), c- = min(c, 0),

summed over units in `low`; for parallel bounds also c phi(z) <= back z + high with high = offset c+. These passes are bound by
memory, so each block of examples goes through all of them while it is in the cache, and nothing but the rows is kept for the
gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.linear_minimum import blocks

_BUDGET = 2**29  # bytes of temporaries on other devices than a CPU, whose blocks fit its cache


def pull_through_relu(
    rows: Float[Tensor, " batch rows units"],
    below: Float[Tensor, " batch #rows units"],
    above: Float[Tensor, " batch 1 units"],
    offset: Float[Tensor, " batch 1 units"],
    charge: Float[Tensor, " batch 2 units"] | None = None,
) -> tuple[Float[Tensor, " batch rows units"], Float[Tensor, " batch rows"], Float[Tensor, " batch rows 2"] | None]:
    """`back` and `low` of rows; lower slopes are given for all rows (batch, 1, units), or for each row.

    The last answer is |c| times the charges, without gradient; None without charges.

    >>> one = torch.ones(1, 1, 1)
    >>> back, low, cost = pull_through_relu(torch.tensor([[[2.0], [-2.0]]]), 0.0 * one, 0.5 * one, one)
    >>> back.flatten().tolist(), low.tolist(), cost
    ([0.0, -1.0], [[0.0, -2.0]], None)
    """
    back, low, cost = _Pull.apply(rows, below, above, offset, charge)  # pyright: ignore[reportGeneralTypeIssues]
    return back, low, None if charge is None else cost


class _Pull(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, below: Tensor, above: Tensor, offset: Tensor, charge: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(rows, below, above, offset)
        back, low = torch.empty_like(rows, memory_format=torch.contiguous_format), rows.new_empty(rows.shape[:2])
        cost = rows.new_empty(*rows.shape[:2], 0 if charge is None else charge.shape[1])
        for place in blocks(rows, _BUDGET, rows.dtype):
            c = rows[place]
            falling = c.clamp(max=0)
            rising = c - falling
            torch.mul(rising, _of(below, place), out=back[place])
            back[place].addcmul_(falling, _of(above, place))
            low[place] = (falling @ _of(offset, place).mT).squeeze(2)
            if charge is not None:
                cost[place] = rising.sub_(falling) @ charge[place[0]].mT
        ctx.mark_non_differentiable(cost)
        return back, low, cost

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, below, above, offset = ctx.saved_tensors
        to_back, to_low, _ = grads
        by_row = below.shape[1] == rows.shape[1] > 1
        wanted = ctx.needs_input_grad[:4]
        makers = (
            torch.empty_like,
            torch.empty_like if by_row else torch.zeros_like,
            torch.zeros_like,
            torch.zeros_like,
        )
        found = [
            make(like) if want else None for make, like, want in zip(makers, ctx.saved_tensors, wanted, strict=True)
        ]
        for place in blocks(rows, _BUDGET, rows.dtype):
            c, back, low = rows[place], to_back[place], to_low[place].unsqueeze(2)
            if found[0] is not None:
                # Where c < 0 its share is above * back + offset * low, elsewhere below * back.
                share = torch.addcmul(_of(offset, place) * low, _of(above, place), back)
                found[0][place] = torch.where(c > 0, _of(below, place) * back, share)
            falling = c.clamp(max=0)
            if found[1] is not None:
                part = (c - falling).mul_(back)
                if by_row:
                    found[1][place] = part
                else:
                    found[1][place[0]] += part.sum(1, keepdim=True)
            if found[3] is not None:
                found[3][place[0]] += low.mT @ falling
            if found[2] is not None:
                found[2][place[0]] += falling.mul_(back).sum(1, keepdim=True)
        return *found, None


def _of(slopes: Tensor, place: tuple[slice, slice]) -> Tensor:
    """The slopes of a block of rows; slopes are the same for all rows of an example or not."""
    return slopes[place[0]] if slopes.shape[1] == 1 else slopes[place]
