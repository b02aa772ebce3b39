"""l_2 norms of decision hyperplanes behind one hidden layer, from the Gram matrix of its rows instead of rows of inputs.

A row v = sum_i a_i W_i has ||v||^2 = a' G a with G = W W', so that its length takes products with units, not with inputs. The
gradients need no rows either: with factors c = g / ||v|| of the norms' gradients g,

    d/da = c G a,      d/dW = (sum over rows of c a a') W.

Rounding is that of sums whose terms are as large as |a_i| ||W_i||. Where the terms of a row nearly cancel, ||v||^2 is small
against sum_i a_i^2 ||W_i||^2, and the row is made exactly, as all of them are where this is less work.

Behind several narrow layers rows are rotated into as many coordinates as the first layer has units (`SquareRows`).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.core.norms import norm, norm_slope
from relucert.core.products import product

ROWS = 64  # rows at a time, which stay in the cache
PANELS = 4  # parts of a Gram matrix; what its symmetry repeats is not made
LEAST_SHARE = 0.1  # of sum_i a_i^2 ||W_i||^2 in ||v||^2; below it, terms cancel and the row is made exactly


def gram_pays(rows: int, units: int, inputs: int) -> bool:
    """Whether lengths by the Gram matrix take fewer multiplications than by rows, with the gradients of all of them.

    >>> gram_pays(rows=128 * 42, units=1024, inputs=3072), gram_pays(rows=128 * 9, units=1024, inputs=784)
    (True, False)
    """
    share = (PANELS + 1) / (2 * PANELS)
    by_gram = (1 + share) * units**2 * inputs + 2 * rows * units**2
    return by_gram < 2 * rows * units * inputs


@torch.no_grad()
def gram(rows: Float[Tensor, " n inputs"]) -> Float[Tensor, " n n"]:
    """`rows @ rows.T`, with what lies above the diagonal copied from below it."""
    found = rows.new_empty(len(rows), len(rows))
    size = max(1, -(-len(rows) // PANELS))
    for start in range(0, len(rows), size):
        stop = start + size
        panel = product(rows[start:], rows[start:stop].T)
        found[start:, start:stop] = panel
        found[start:stop, stop:] = panel[size:].T
    return found


def rotation_pays(rows: int, units: int, inputs: int) -> bool:
    """Whether so many rows behind so many units are worth the rotation of the units' rows, which is slow for its size.

    >>> rotation_pays(rows=128 * 104, units=124, inputs=3072), rotation_pays(rows=128 * 9, units=1024, inputs=3072)
    (True, False)
    """
    return 2 * units <= inputs and 8 * units <= rows


class SquareRows(torch.autograd.Function):
    """`apply(rows)`: L (n, n) with `rows = L Q`, where the rows of Q (n, inputs) are orthonormal, n <= inputs.

    So ||a' rows||_2 = ||a' L||_2 for every a, as exactly as products are. The gradient is that of functions of such lengths: a
    slope s of L along L's own coordinates is the slope s Q along the inputs, also where rows depend on one another.
    """

    @staticmethod
    def forward(ctx: Any, rows: Float[Tensor, " n inputs"]) -> Float[Tensor, " n n"]:
        basis, turned = torch.linalg.qr(rows.T)
        ctx.save_for_backward(basis)
        return turned.T.contiguous()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (basis,) = ctx.saved_tensors
        return product(gradients[0], basis.T)


class GramNorms(torch.autograd.Function):
    """`apply(last, first, slopes, rows)`: what `ClassRowNorms` says, for q = 2."""

    @staticmethod
    def forward(
        ctx: Any,
        last: Float[Tensor, " classes units"],
        first: Float[Tensor, " units inputs"],
        slopes: Float[Tensor, " batch units"],
        rows: tuple[Tensor, Tensor, Tensor],
    ) -> Float[Tensor, " n"]:
        batch, y, other = rows
        differences, pairs = (last[:, None] - last).flatten(0, 1), y * len(last) + other
        matrix = gram(first)
        own = matrix.diagonal().contiguous()
        coefficients = slopes.index_select(0, batch)
        terms = coefficients.new_empty(len(batch))
        for some in _pieces(len(batch)):
            part = coefficients[some].mul_(differences.index_select(0, pairs[some]))
            torch.mv(part.square(), own, out=terms[some])
        made = product(coefficients, matrix)
        squares = torch.cat([(coefficients[some] * made[some]).sum(1) for some in _pieces(len(batch))])
        lengths = squares.clamp(min=0).sqrt_()
        near = (~_trusted(squares, terms)).nonzero()[:, 0]
        explicit = product(coefficients.index_select(0, near), first)
        lengths[near] = norm(explicit, 2.0)
        ctx.save_for_backward(last, first, slopes, coefficients, made, lengths, near, explicit)
        ctx.rows = rows
        return lengths

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        last, first, slopes, coefficients, made, lengths, near, explicit = ctx.saved_tensors
        factors = gradients[0] / lengths.masked_fill(lengths == 0, 1.0)
        factors[near] = 0.0
        chosen = factors.nonzero()[:, 0]
        given, factors = coefficients.index_select(0, chosen), factors[chosen, None]
        ahead = made.index_select(0, chosen).mul_(factors)
        found = product(product(given.T, given * factors), first)
        used = near[gradients[0][near] != 0]
        if len(used):
            rows = explicit[gradients[0][near] != 0]
            slope = norm_slope(rows, lengths[used, None], 2.0, None).mul_(gradients[0][used, None])
            found += product(coefficients.index_select(0, used).T, slope)
            chosen, ahead = torch.cat([chosen, used]), torch.cat([ahead, product(slope, first.T)])
        batch, y, other = (part[chosen] for part in ctx.rows)
        ahead *= slopes.index_select(0, batch)
        eye = torch.eye(len(last), dtype=last.dtype, device=last.device)
        return product((eye[y] - eye[other]).T, ahead), found, None, None


def _pieces(count: int) -> list[slice]:
    return [slice(start, min(start + ROWS, count)) for start in range(0, max(count, 1), ROWS)]


def _trusted(squares: Float[Tensor, " n"], terms: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Whether squared lengths are large enough against their terms, and neither overflow nor vanish."""
    info = torch.finfo(squares.dtype)
    safe = (squares > info.tiny / info.eps**2) & (terms < info.max * info.eps)
    return safe & (squares >= LEAST_SHARE * terms)
