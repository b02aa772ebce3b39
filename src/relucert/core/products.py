"""Matrix products in full float32 precision by the faster of two libraries.

torch multiplies float32 matrices with MKL, which uses half of the width of AVX-512 on processors of other makers than its own;
oneDNN, which torch carries for convolutions, uses all of it there. Both add up in float32, so results differ by rounding.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

LEAST = 2**21  # products of numbers; a smaller matrix product is not worth the longer call


def product(left: Float[Tensor, " m k"], right: Float[Tensor, " k n"]) -> Float[Tensor, " m n"]:
    """`left @ right`, differentiable.

    >>> product(torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[1., 2.],
            [3., 4.]])
    """
    large = left.shape[0] * left.shape[1] * right.shape[1] >= LEAST
    if not large or not (_plain(left) and _plain(right)) or not _wide_onednn():
        return left @ right
    if torch.is_grad_enabled() and (left.requires_grad or right.requires_grad):
        return _Product.apply(left, right)  # type: ignore[return-value]
    return torch.ops.mkldnn._linear_pointwise(left, right.T, None, "none", [], "")


class _Product(torch.autograd.Function):
    """The product where a gradient is recorded; its gradients are products too."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return product(left, right)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        ahead = product(gradients[0], right.T) if ctx.needs_input_grad[0] else None
        return ahead, product(left.T, gradients[0]) if ctx.needs_input_grad[1] else None


def _plain(matrix: Tensor) -> bool:
    """Whether a matrix is in float32 on the CPU, without gaps between neighbours in memory."""
    return matrix.dtype == torch.float32 and matrix.device.type == "cpu" and 1 in matrix.stride()


def _wide_onednn() -> bool:
    """Whether oneDNN is on, and the processor has the wide registers for which it is faster."""
    return torch.backends.mkldnn.enabled and _available()


@lru_cache(maxsize=1)
def _available() -> bool:
    has = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()
    return has and torch.backends.cpu.get_cpu_capability() == "AVX512" and not _made_for_mkl()


def _made_for_mkl() -> bool:
    """Whether the processor is of the maker of MKL, which uses all of its width."""
    system = Path("/proc/cpuinfo")
    try:
        said = system.read_text(errors="replace") if system.exists() else platform.processor()
    except OSError:
        said = platform.processor()
    return "GenuineIntel" in said
