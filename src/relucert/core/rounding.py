"""Rounding: gamma_n, the slack of a decision, numbers rounded towards the safe side, and settings of torch that break gamma_n.

Bounds are rounded outwards and points inwards, so that a proof or a counterexample holds in real arithmetic. All rounding
error bounds of the package are made of the numbers below; nobody else writes multiples of the machine epsilon.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.errors import ReducedPrecision
from relucert.core.norms import check_p, norm

#: By how many machine epsilons of the largest logit a class must win. Another batch size sums the same terms in another
#: order, which moves a logit by a few units in its last place: 32 leave room for any order, and are still far below any margin.
DECISION_EPSILONS = 32

#: A factor that raises a positive float64 number by ten unit roundoffs: it pays for up to nine operations on the number.
RAISED = 1 + 1e-15


def unit_roundoff(dtype: torch.dtype = torch.float64) -> float:
    """Return u, half the machine epsilon of `dtype`: the relative error of one rounded operation.

    >>> unit_roundoff() == 2.0**-53
    True
    """
    return torch.finfo(dtype).eps / 2


def gamma(count: int, dtype: torch.dtype = torch.float64) -> float:
    """Return gamma_n = n u / (1 - n u), n = `count`: the relative error of n rounded operations in a row.

    A sum of n products, in any order of summation, is off by at most gamma_n times the sum of their absolute values
    (Higham 2002, section 3.1). So many operations that nothing is known of their result have an infinite error.

    >>> gamma(2**25, torch.float32)
    inf
    """
    total = count * unit_roundoff(dtype)
    return total / (1 - total) if total < 0.01 else math.inf


def gamma_above(count: int, dtype: torch.dtype = torch.float64) -> float:
    """Return 2 n u, n = `count`: at least gamma_n while n u <= 1/2, exact in floating point and additive in n.

    >>> gamma_above(1000) > gamma(1000)
    True
    """
    return count * torch.finfo(dtype).eps


def relative_rounding(count: int, dtype: torch.dtype) -> float:
    """Bound the relative error of a sum of `count` products or powers of one sign, in any order of summation.

    (count + 16) u, where u is the unit roundoff of `dtype`: the 16 pays for the few operations on each term.

    >>> relative_rounding(784, torch.float64) < 1e-13
    True
    """
    return (count + 16) * unit_roundoff(dtype)


def cast_up(values: Float[Tensor, " *shape"], dtype: torch.dtype) -> Float[Tensor, " *shape"]:
    """Return float64 values in another dtype, rounded up.

    >>> cast_up(torch.tensor([0.1, 0.5], dtype=torch.float64), torch.float32).double()
    tensor([0.1000, 0.5000], dtype=torch.float64)
    """
    cast = values.to(dtype)
    return torch.where(cast.double() < values, torch.nextafter(cast, torch.full_like(cast, math.inf)), cast)


def rounded_down(values: Float[Tensor, " *shape"], dtype: torch.dtype) -> Float[Tensor, " *shape"]:
    """Return float64 values in another dtype, rounded down."""
    return -cast_up(-values.double(), dtype)


def sum_up(a: Float[Tensor, " ..."], b: Float[Tensor, " ..."]) -> Float[Tensor, " ..."]:
    """Return a + b in float64, rounded up: the error of the nearest number is a float64 number itself, and its sign decides."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    return torch.where(error > 0, torch.nextafter(total, torch.full_like(total, math.inf)), total)


def apart_up(a: Float[Tensor, " ..."], b: Float[Tensor, " ..."]) -> Float[Tensor, " ..."]:
    """Return |a - b| in float64, rounded up: it exceeds a float only if the distance of real arithmetic does."""
    return torch.maximum(sum_up(a, -b), sum_up(b, -a))


def length_up(
    x: Float[Tensor, " batch *input"], z: Float[Tensor, " batch *input"], p: float | int
) -> Float[Tensor, " batch"]:
    """Return ||z - x||_p in float64, rounded up: never below the distance of real arithmetic.

    >>> float(length_up(torch.tensor([[0.5]]), torch.tensor([[0.25]]), float("inf")))
    0.25
    """
    offset = apart_up(z.double(), x.double()).flatten(1)
    length = norm(offset, p)
    if math.isinf(check_p(p)):
        return length
    # A sum of one term is that term.
    single = (offset != 0).sum(1) <= 1
    raised = length * (1.0 + 4.0 * relative_rounding(offset.shape[1], torch.float64))
    return torch.where(single, offset.amax(1), raised + lost(offset.shape[1]))


def lost(count: int) -> float:
    """Bound the absolute error of a norm of `count` float64 numbers near the smallest ones, where errors are not relative."""
    return (count + 16) * math.ulp(0.0)


def within(x: Float[Tensor, " *input"], z: Float[Tensor, " *input"], p: float, eps: float) -> bool:
    """Return whether ||z - x||_p <= eps for one point in rational arithmetic; False where p, no integer, hides it."""
    steps = [abs(Fraction(a) - Fraction(b)) for a, b in zip(z.flatten().tolist(), x.flatten().tolist(), strict=True)]
    steps = [step for step in steps if step]
    if math.isinf(p) or len(steps) <= 1:
        return max(steps, default=Fraction(0)) <= Fraction(eps)
    if not float(p).is_integer() or p > 64:
        return False
    return sum((step ** int(p) for step in steps), Fraction(0)) <= Fraction(eps) ** int(p)


def rounded_inwards(
    x: Float[Tensor, " batch *input"],
    z: Float[Tensor, " batch *input"],
    p: float | int,
    eps: Float[Tensor, " batch"],
    lower: Float[Tensor, " batch *input"] | None,
    upper: Float[Tensor, " batch *input"] | None,
) -> Float[Tensor, " batch *input"]:
    """Return the points z, which may miss ball and box by rounding, in the dtype of x and within both.

    Coordinates are clamped to the box; what is too long is scaled and every coordinate of it rounded towards x, so that
    ||z - x||_p <= eps holds in float64 in any order of summation. Points inside by more than rounding are not moved.
    """
    p = check_p(p)
    z = z.to(x.dtype)
    if lower is not None and upper is not None:
        z = torch.minimum(torch.maximum(z, lower), upper)
    centre, eps = x.double().flatten(1), eps.double()[:, None]
    offset = z.double().flatten(1) - centre
    if math.isinf(p):
        long = apart_up(z.double().flatten(1), centre) > eps
        shorter = torch.minimum(torch.maximum(offset, -eps), eps)
    else:
        # The largest length that stays below eps however the powers are added up.
        limit = eps * (1.0 - 4.0 * relative_rounding(offset.shape[-1], torch.float64)) - 4 * lost(offset.shape[-1])
        limit = limit.clamp(min=0.0)
        length = norm(offset, p).unsqueeze(-1)
        long = length > limit
        shorter = offset * torch.where(long & (length > 0), limit / length, 1.0)
    near = (centre + shorter).to(x.dtype)
    near = torch.where(apart_up(near.double(), centre) > shorter.abs(), torch.nextafter(near, x.flatten(1)), near)
    return torch.where(long, near, z.flatten(1)).reshape(z.shape)


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
    cast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    found = [f"torch.autocast({device!r}) is on"] if cast else []
    for path in SETTINGS.get(device, ()):
        value = _setting(path)
        if value in SHORT:
            found.append(f"torch.backends.{path} is {value!r}")
    if _setting("mkldnn.matmul.fp32_precision") is None and torch.get_float32_matmul_precision() != "highest":
        # Older versions of torch have this setting alone, and one for convolutions on GPUs.
        found.append(f"torch.get_float32_matmul_precision() is {torch.get_float32_matmul_precision()!r}")
    if device == "cuda" and _setting("cudnn.conv.fp32_precision") is None and torch.backends.cudnn.allow_tf32:
        found.append("torch.backends.cudnn.allow_tf32 is True")
    direct = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    if device == "cpu" and not direct and _transforms():
        found.append("torch.backends.mkldnn is off, so that NNPACK computes convolutions by transforms")
    return found


def set_full_precision(device: str) -> None:
    """Set torch to compute float32 products on a kind of device in float32; on GPUs its default is TF32 for convolutions."""
    for path in SETTINGS.get(device, ()):
        place, _, name = path.rpartition(".")
        if _setting(path) is not None:
            setattr(_setting(place), name, "ieee")
        elif path.startswith("cudnn"):  # older versions of torch
            torch.backends.cudnn.allow_tf32 = False


def require_full_precision(x: Tensor, purpose: str) -> None:
    """Raise unless products of numbers like those of x are computed in their dtype; float64 has no shorter numbers inside."""
    found = [] if x.dtype == torch.float64 else reduced_precision(x.device.type)
    if found:
        raise ReducedPrecision(
            f"{purpose} must be computed in {str(x.dtype).removeprefix('torch.')} throughout, got: {'; '.join(found)}"
        )


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
