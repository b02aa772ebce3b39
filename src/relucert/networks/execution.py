"""What proofs assume of the library that runs the network, checked where it can be seen.

A proof for the executed network charges every entry of an affine node with n terms a relative error of
gamma_n = n u / (1 - n u), u the unit roundoff of the dtype (`core.rounding`): products and sums are rounded to nearest in that
dtype, in any order, with or without fused operations. Shorter numbers inside (TF32, bfloat16, autocast) break this, and so do
convolutions by transforms (Winograd, FFT). `reduced_precision` reads the settings of torch, which is cheap; `summation_errors`
measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relucert.core.errors import ReducedPrecision
from relucert.core.rounding import gamma
from relucert.networks.network import Network

#: Settings of torch that say with which numbers float32 products are computed, by device.
SETTINGS = {
    "cpu": ("mkldnn.matmul.fp32_precision", "mkldnn.conv.fp32_precision"),
    "cuda": ("cuda.matmul.fp32_precision", "cudnn.conv.fp32_precision"),
}
SHORT = ("tf32", "bf16")


def reduced_precision(device: str = "cpu") -> list[str]:
    """The settings of torch under which float32 products on a kind of device are computed with shorter numbers, as texts.

    >>> reduced_precision()
    []
    >>> with torch.autocast("cpu"):
    ...     reduced_precision()
    ["torch.autocast('cpu') is on"]
    """
    found = [f"torch.autocast({device!r}) is on"] if torch.is_autocast_enabled(device) else []
    for path in SETTINGS.get(device, ()):
        value = _setting(path)
        if value in SHORT:
            found.append(f"torch.backends.{path} is {value!r}")
    if _setting("mkldnn.matmul.fp32_precision") is None and torch.get_float32_matmul_precision() != "highest":
        # Older versions of torch have this setting alone.
        found.append(f"torch.get_float32_matmul_precision() is {torch.get_float32_matmul_precision()!r}")
    direct = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    if device == "cpu" and not direct and _transforms():
        found.append("torch.backends.mkldnn is off, so that NNPACK computes convolutions by transforms")
    return found


def require_full_precision(net: Network, purpose: str) -> None:
    """Raise unless the network's products are computed in its dtype; float64 has no shorter numbers inside."""
    if net.dtype == torch.float64:
        return
    device = next((weights.device.type for weights in net.parameters()), "cpu")
    found = reduced_precision(device)
    if found:
        raise ReducedPrecision(
            f"{purpose} must be computed in {str(net.dtype).removeprefix('torch.')} throughout, got: {'; '.join(found)}"
        )


def flushes_denormals() -> bool:
    """Whether numbers below the smallest normal one become zero; the rounding bounds cover that."""
    return float(torch.tensor(1e-310, dtype=torch.float64) * 1.0) == 0.0


def rounds_to_nearest(dtype: torch.dtype) -> bool:
    """Whether sums are rounded to the nearest number."""
    one, half = torch.ones(4, dtype=dtype), torch.finfo(dtype).eps / 2
    steps = one.new_tensor([0.75 * half, 1.5 * half, -0.25 * half, -0.75 * half])
    return (one + steps).tolist() == [1.0, 1.0 + 2 * half, 1.0, 1.0 - half]


@dataclass(frozen=True)
class SummationError:
    """The largest error of a layer of `terms` terms, as a `share` of its bound gamma_n (|W| |x| + |b|); above 1 it fails."""

    layer: str
    terms: int
    share: float


Layer = Callable[[Tensor, Tensor, Tensor], Tensor]


def summation_errors(dtype: torch.dtype = torch.float32, seed: int = 0) -> Iterator[SummationError]:
    """Measure linear and convolutional layers in float32 against float64, over sizes, batches and kinds of random data.

    Some inputs hold a few numbers that are a million times larger than the others. A sum that contains none of them must not
    notice: a transform that mixes neighbouring outputs does.
    """
    generator = torch.Generator().manual_seed(seed)
    for size in (16, 256, 784, 4096):
        inputs = ((batch, size) for batch in (1, 2, 100))
        share = max(_share(F.linear, shape, (32, size), dtype, generator) for shape in inputs)
        yield SummationError(f"linear {size} to 32", size + 1, share)
    for channels, kernel, stride in ((1, 3, 1), (16, 3, 1), (16, 4, 2), (32, 5, 1)):
        inputs, weights = ((batch, channels, 14, 14) for batch in (1, 2, 32)), (16, channels, kernel, kernel)
        share = max(_share(_conv(stride), shape, weights, dtype, generator) for shape in inputs)
        layer = f"conv2d {channels} to 16, {kernel} x {kernel}, stride {stride}"
        yield SummationError(layer, channels * kernel**2 + 1, share)


def _conv(stride: int) -> Layer:
    return lambda x, weight, bias: F.conv2d(x, weight, bias, stride, 1)


def _share(
    layer: Layer, inputs: tuple[int, ...], weights: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> float:
    """The largest error of a layer as a share of its bound, over several kinds of data."""
    worst, terms = 0.0, math.prod(weights[1:])
    for kind in ("normal", "positive", "cancelling", "few large"):
        weight, bias = torch.randn(weights, generator=generator), torch.randn(weights[0], generator=generator)
        x = torch.randn(inputs, generator=generator)
        if kind == "positive":
            x, weight = x.abs(), weight.abs()
        elif kind == "cancelling":
            x = x.sign() * (1 + 1e-3 * x)
        elif kind == "few large":
            x = torch.where(torch.rand(inputs, generator=generator) < 0.02, 1e6 * x, x)
        x, weight, bias = (part.to(dtype) for part in (x, weight, bias))
        wide = x.double(), weight.double(), bias.double()
        error = (layer(x, weight, bias).double() - layer(*wide)).abs()
        bound = (gamma(terms + 1, dtype) + gamma(terms + 1)) * layer(*(part.abs() for part in wide))
        worst = max(worst, float((error / bound).max()))
    return worst


def _setting(path: str) -> Any:
    """A setting of `torch.backends`, None where this version of torch has none."""
    found: Any = torch.backends
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _transforms() -> bool:
    """Whether this build of torch has NNPACK, which computes some convolutions by FFT or Winograd transforms."""
    nnpack = getattr(torch.backends, "nnpack", None)
    return nnpack is not None and bool(nnpack.is_available())
