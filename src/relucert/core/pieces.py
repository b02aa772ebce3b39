"""Differentiable functions of many rows, evaluated some rows at a time, with gradients only for rows that need them.

A pass over thousands of rows is bound by memory traffic if all of them are made at once, and under autograd all
intermediate values stay until the gradient is taken. `in_pieces` makes as many rows at a time as stay in the cache and keeps
nothing; the gradient makes those rows again whose results have a gradient, a few at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

#: From the numbers of some rows and the tensors that they are made of to results (results, rows).
RowFunction = Callable[..., Float[Tensor, " results rows"]]


def in_pieces(
    function: RowFunction, count: int, size: int, *tensors: Tensor, keep: bool = False
) -> Float[Tensor, " results rows"]:
    """The results (results, count) of `function(rows, *tensors)`, for `size` rows at a time.

    `function` takes the numbers (n,) of rows and computes each row on its own: results (results, n). They are differentiable in
    the tensors, and in nothing else. With `keep`, intermediate values are kept for the gradient, which most rows need then.

    >>> weights = torch.arange(6.0).reshape(3, 2).requires_grad_()
    >>> squares = in_pieces(lambda rows, table: table[rows].square().sum(1)[None], 3, 2, weights)
    >>> squares.tolist(), torch.autograd.grad(squares[0, 1], weights)[0].tolist()
    ([[1.0, 13.0, 41.0]], [[0.0, 0.0], [4.0, 6.0], [0.0, 0.0]])
    """
    return _InPieces.apply(function, count, (max(1, size), keep), *tensors)  # type: ignore[return-value]


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: RowFunction, count: int, way: tuple[int, bool], *tensors: Tensor) -> Tensor:
        size, keep = way
        wanted = ctx.needs_input_grad[3:]
        ctx.function, ctx.size, ctx.tensors = function, size, tensors
        pieces = torch.arange(count, device=tensors[0].device).split(size)
        ctx.kept = None
        if not (keep and any(wanted)):
            return torch.cat([function(rows, *tensors) for rows in pieces], 1)
        given = _leaves(tensors, wanted)
        with torch.enable_grad():
            ctx.kept = given, [function(rows, *given) for rows in pieces]
        return torch.cat([results.detach() for results in ctx.kept[1]], 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (gradient,) = gradients
        wanted = ctx.needs_input_grad[3:]
        totals: list[Tensor | None] = [None] * len(wanted)
        if ctx.kept is not None:
            given, pieces = ctx.kept
            for results, part in zip(pieces, gradient.split(ctx.size, 1), strict=True):
                if bool(part.any()):
                    _add(totals, wanted, _gradients(results, given, wanted, part))
            return None, None, None, *totals
        for rows in _with_gradient(gradient).split(ctx.size):
            with torch.enable_grad():
                given = _leaves(ctx.tensors, wanted)
                results = ctx.function(rows, *given)
            _add(totals, wanted, _gradients(results, given, wanted, gradient[:, rows]))
        return None, None, None, *totals


def _leaves(tensors: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor]:
    """The tensors as leaves. Those that are leaves stay what they are: a function may read weights from their module."""
    return [
        tensor if tensor.is_leaf else tensor.detach().requires_grad_(want)
        for tensor, want in zip(tensors, wanted, strict=True)
    ]


def _gradients(
    results: Tensor, given: Sequence[Tensor], wanted: Sequence[bool], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    leaves = [tensor for tensor, want in zip(given, wanted, strict=True) if want]
    return torch.autograd.grad(results, leaves, gradient, allow_unused=True)


def _add(totals: list[Tensor | None], wanted: Sequence[bool], found: Sequence[Tensor | None]) -> None:
    """Add the gradients of the tensors that want one."""
    places = [place for place, want in enumerate(wanted) if want]
    for place, one in zip(places, found, strict=True):
        total = totals[place]
        if one is not None:
            totals[place] = one if total is None else total.add_(one)


def _with_gradient(gradient: Float[Tensor, " results rows"]) -> Int[Tensor, " n"]:
    """The rows with a result whose gradient is not zero."""
    return (gradient != 0).any(0).nonzero()[:, 0]
