"""Differentiable functions of many rows, evaluated some rows at a time, with gradients only for rows that need them.

A pass over thousands of rows is bound by memory traffic if all of them are made at once, and under autograd all
intermediate values stay until the gradient is taken. `in_pieces` makes as many rows at a time as stay in the cache and keeps
nothing; the gradient makes those rows again whose results have a gradient, a few at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

#: From the numbers of some rows and the tensors that they are made of to results (results, rows).
RowFunction = Callable[..., Float[Tensor, " results rows"]]


def in_pieces(function: RowFunction, count: int, size: int, *tensors: Tensor) -> Float[Tensor, " results rows"]:
    """The results (results, count) of `function(rows, *tensors)`, for `size` rows at a time.

    `function` takes the numbers (n,) of rows and computes each row on its own: results (results, n). They are differentiable in
    the tensors, and in nothing else.

    >>> weights = torch.arange(6.0).reshape(3, 2).requires_grad_()
    >>> squares = in_pieces(lambda rows, table: table[rows].square().sum(1)[None], 3, 2, weights)
    >>> squares.tolist(), torch.autograd.grad(squares[0, 1], weights)[0].tolist()
    ([[1.0, 13.0, 41.0]], [[0.0, 0.0], [4.0, 6.0], [0.0, 0.0]])
    """
    return _InPieces.apply(function, count, max(1, size), *tensors)  # type: ignore[return-value]


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: RowFunction, count: int, size: int, *tensors: Tensor) -> Tensor:
        ctx.function, ctx.size, ctx.tensors = function, size, tensors
        every = torch.arange(count, device=tensors[0].device)
        return torch.cat([function(rows, *tensors) for rows in every.split(size)], 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (gradient,) = gradients
        wanted = ctx.needs_input_grad[3:]
        totals: list[Tensor | None] = [None] * len(wanted)
        for rows in _with_gradient(gradient).split(ctx.size):
            with torch.enable_grad():
                # Leaves stay what they are: a function may read weights from their module.
                tensors = [
                    tensor if tensor.is_leaf else tensor.detach().requires_grad_(want)
                    for tensor, want in zip(ctx.tensors, wanted, strict=True)
                ]
                results = ctx.function(rows, *tensors)
                leaves = [tensor for tensor, want in zip(tensors, wanted, strict=True) if want]
                found = iter(torch.autograd.grad(results, leaves, gradient[:, rows], allow_unused=True))
            for place, want in enumerate(wanted):
                one = next(found) if want else None
                if one is not None:
                    total = totals[place]
                    totals[place] = one if total is None else total.add_(one)
        return None, None, None, *totals


def _with_gradient(gradient: Float[Tensor, " results rows"]) -> Int[Tensor, " n"]:
    """The rows with a result whose gradient is not zero."""
    return (gradient != 0).any(0).nonzero()[:, 0]
