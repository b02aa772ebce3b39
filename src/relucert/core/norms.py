"""The l_p norms for p in [1, inf]: the norm, its derivative, the dual exponent and steepest ascent."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.errors import InvalidInput


def check_p(p: float | int | str) -> float:
    """Return p as a float after checking that it is a number of at least 1, or infinity.

    >>> check_p(2), check_p("inf")
    (2.0, inf)
    """
    rule = f"p must be a number of at least 1 or inf, got {p!r}"
    if isinstance(p, bool):
        raise InvalidInput(rule)
    try:
        value = float(p)
    except (TypeError, ValueError) as error:
        raise InvalidInput(rule) from error
    if not value >= 1.0:  # also refuses NaN
        raise InvalidInput(rule)
    return value


def dual(p: float | int | str) -> float:
    """Return q with 1/p + 1/q = 1, the exponent of the dual norm.

    >>> dual(1), dual(2), dual(3), dual("inf")
    (inf, 2.0, 1.5, 1.0)
    """
    p = check_p(p)
    if p == 1.0:
        return math.inf
    return 1.0 if math.isinf(p) else p / (p - 1.0)


def norm(v: Float[Tensor, ...], p: float | int | str, batch_dims: int = 1) -> Float[Tensor, ...]:
    """Return the l_p norm over all dimensions but the first `batch_dims`.

    ||v||_p = (sum_i |v_i|^p)^(1/p), and max_i |v_i| for p = inf; shape v.shape[:batch_dims].
    No power overflows or underflows, however large p or |v| is; the gradient at the zero vector is zero.

    >>> norm(torch.tensor([[3.0, -4.0], [0.0, 0.0]]), 2)
    tensor([5., 0.])
    >>> norm(torch.tensor([[3e30, -4e30]]), 64)
    tensor([4.0000e+30])
    """
    p = check_p(p)
    if not 0 <= batch_dims < max(v.ndim, 1):
        raise InvalidInput(f"batch_dims must be at least 0 and below the {v.ndim} dimensions of v, got {batch_dims}")
    flat = v.flatten(batch_dims)
    if flat.shape[-1] == 0:
        return flat.sum(-1)
    if p == 1.0:
        return flat.abs().sum(-1)
    if math.isinf(p):
        return flat.abs().amax(-1)
    plain = torch.linalg.vector_norm(flat, p, dim=-1)
    # ||v||^p and its derivative must stay well inside the range of the dtype: half of its exponents is safe.
    # For p != 2 the root uses a rounded 1/p, and its error grows with log ||v||.
    reach = 0.5 * math.log(torch.finfo(v.dtype).max) / p
    reach = reach if p == 2.0 else min(reach, 8.0)
    safe = plain.detach().log().abs() <= reach
    if bool(safe.all()):
        return plain
    # Each formula gets zeros in the rows of the other one, where its gradient would be NaN.
    inside, zeros = safe.unsqueeze(-1), torch.zeros_like(flat)
    plain = torch.linalg.vector_norm(torch.where(inside, flat, zeros), p, dim=-1)
    return torch.where(safe, plain, _scaled_norm(torch.where(inside, zeros, flat), p))


def _scaled_norm(flat: Float[Tensor, "... size"], p: float) -> Float[Tensor, ...]:
    """The norm as max_i |v_i| times the norm of v / max_i |v_i|, which cannot overflow."""
    largest = flat.detach().abs().amax(-1)
    scale = torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
    powers = (flat / scale.unsqueeze(-1)).abs().pow(p).sum(-1)
    # The root has an infinite slope at 0: avoid evaluating it there; the outer `where` passes no gradient back.
    zero = powers == 0
    root = torch.where(zero, torch.ones_like(powers), powers).pow(1.0 / p)
    return torch.where(zero, torch.zeros_like(powers), root * scale)


def norm_slope(
    v: Float[Tensor, ...], length: Float[Tensor, ...], p: float, ties: Float[Tensor, ...] | None = None
) -> Float[Tensor, ...]:
    """Return the derivative of ||v||_p with respect to v, where the norms `length` are known; they broadcast against v.

    The derivative is sign(v_i) (|v_i| / ||v||)^(p - 1). For p = inf the entries of largest size share it equally: `ties` is
    their number, 1 by default. It is zero for the zero vector.

    >>> norm_slope(torch.tensor([[3.0, -4.0]]), torch.tensor([[5.0]]), 2)
    tensor([[ 0.6000, -0.8000]])
    """
    if p == 1.0:
        return v.sign()
    if math.isinf(p):
        at = v.sign() * (v.abs() == length)
        return at if ties is None else at / ties
    safe = length.masked_fill(length == 0, math.inf)
    return v / safe if p == 2.0 else v.sign() * (v.abs() / safe).pow(p - 1.0)


def steepest(g: Float[Tensor, ...], p: float | int | str, batch_dims: int = 1) -> Float[Tensor, ...]:
    """Return the direction of steepest ascent of <g, d> in the l_p unit ball.

    argmax { <g, d> : ||d||_p <= 1 } is d_i = sign(g_i) (|g_i| / ||g||_q)^(q - 1), with the value ||g||_q: the sign for
    p = inf, only the first largest coordinate for p = 1. A zero gradient gives the zero direction.

    >>> steepest(torch.tensor([[3.0, -4.0], [0.0, 0.0]]), 2)
    tensor([[ 0.6000, -0.8000],
            [ 0.0000,  0.0000]])
    """
    p = check_p(p)
    if math.isinf(p):
        return g.sign()
    flat = g.flatten(batch_dims)
    largest, where = flat.abs().max(-1, keepdim=True)
    if p == 1.0:
        direction = torch.zeros_like(flat).scatter(-1, where, flat.gather(-1, where).sign())
    else:
        ratio = flat / torch.where(largest > 0, largest, torch.ones_like(largest))
        powers = ratio.abs().pow(1.0 / (p - 1.0)) * ratio.sign()
        length = norm(powers, p, powers.ndim - 1).unsqueeze(-1)
        direction = powers / torch.where(length > 0, length, torch.ones_like(length))
    return direction.reshape(g.shape)
