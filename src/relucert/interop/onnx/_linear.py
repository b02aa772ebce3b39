"""Operators with weights: Gemm, MatMul, Conv, ConvTranspose, BatchNormalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from relucert.interop.onnx._graph import Array, Description, Operation, Refused, Value, bounded


def gemm(to: Description, node: Operation) -> Value:
    """`alpha A B + beta C`."""
    z, weight, given = node.value(), node.constant(1), node.attributes
    if given.get("transA", 0) or len(z.inner) != 1 or weight.ndim != 2:
        raise Refused("it must multiply values (batch, features) with a constant matrix from the right, without transA")
    weight = weight if given.get("transB", 0) else weight.T
    bias, beta = node.optional(2), float(given.get("beta", 1.0))
    if bias is not None and beta == 0:
        bias = None
    if bias is not None:
        bias = np.broadcast_to(_row(bias, z), (len(weight),))
        bias = bias if beta == 1 else bias * np.asarray(beta, bias.dtype)
    alpha = float(given.get("alpha", 1.0))
    if alpha == 1:
        return to.add("linear", z, tensors={"weight": weight, "bias": bias})
    made = to.add("scale", to.add("linear", z, tensors={"weight": weight}), divide=False, number=alpha)
    return made if bias is None else to.add("shift", made, tensors={"constant": bias}, sign=1)


def _row(bias: Array, z: Value) -> Array:
    """C of a Gemm without its batch axis."""
    if bias.ndim < 2:
        return bias.reshape(-1)
    if bias.ndim > 2 or (len(bias) != 1 and not (len(bias) == z.batch and (bias == bias[:1]).all())):
        raise Refused(f"its bias must be one row, got shape {bias.shape}")
    return bias[0]


def matmul(to: Description, node: Operation) -> Value:
    """A product with a constant matrix from the right, or from the left where values are matrices."""
    if isinstance(node.inputs[0], np.ndarray):
        matrix, z = node.constant(0), node.value(1)
        if matrix.ndim != 2 or len(z.inner) < 2:
            raise Refused("a constant matrix from the left needs values of at least two axes behind the batch")
        order = [*range(len(z.inner) - 2), len(z.inner) - 1, len(z.inner) - 2]
        turned = to.add("permute", z, axes=order)
        return to.add("permute", to.add("linear", turned, tensors={"weight": matrix}), axes=order)
    z, matrix = node.value(), node.constant(1)
    if matrix.ndim == 1:
        made = to.add("linear", z, tensors={"weight": matrix[None]})
        return to.inside(made, made.inner[:-1])
    if matrix.ndim > 2 and math.prod(matrix.shape[:-2]) == 1 and matrix.ndim <= len(z.shape):
        matrix = matrix.reshape(matrix.shape[-2:])
    if matrix.ndim != 2 or not z.inner:
        raise Refused(f"its constant must be one matrix, got shape {matrix.shape}")
    return to.add("linear", z, tensors={"weight": matrix.T})


def conv(to: Description, node: Operation) -> Value:
    """A convolution of sequences or images."""
    z, weight, bias = node.value(), node.constant(1), node.optional(2)
    _same_kernel(node, weight)
    z, weight, flat = _image(to, z, weight)
    given = numbers(node, z, weight.shape[2:], flat)
    z, padding = padded(to, z, given.pop("pads"))
    made = to.add(
        "conv2d",
        z,
        tensors={"weight": weight, "bias": bias},
        padding=padding,
        groups=int(node.attributes.get("group", 1)),
        **given,
    )
    return to.inside(made, (made.inner[0], made.inner[2])) if flat else made


def conv_transpose(to: Description, node: Operation) -> Value:
    """A transposed convolution; padding that differs between two sides is cut off."""
    z, weight, bias = node.value(), node.constant(1), node.optional(2)
    if node.attributes.get("output_shape") or node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Refused("output_shape and auto_pad are not supported: export it with pads")
    _same_kernel(node, weight)
    z, weight, flat = _image(to, z, weight)
    given = numbers(node, z, weight.shape[2:], flat)
    top, left, bottom, right = given.pop("pads")
    extra = spatial(node.attributes.get("output_padding"), 0, flat)
    even = top == bottom and left == right
    # Along each axis: (size - 1) stride + dilation (kernel - 1) + output padding + 1 entries before anything is cut off.
    bounded(
        [
            weight.shape[1] * int(node.attributes.get("group", 1)),
            *(
                (z.inner[1 + i] - 1) * given["stride"][i] + given["dilation"][i] * weight.shape[2 + i] + 1
                for i in (0, 1)
            ),
        ]
    )
    made = to.add(
        "conv_transpose2d",
        z,
        tensors={"weight": weight, "bias": bias},
        padding=[top, left] if even else [0, 0],
        output_padding=extra,
        groups=int(node.attributes.get("group", 1)),
        **given,
    )
    if not even:
        channels, height, width = made.inner
        ranges = [[0, channels, 1], [top, height - bottom, 1], [left, width - right, 1]]
        made = to.sliced(made, ranges)
    return to.inside(made, (made.inner[0], made.inner[2])) if flat else made


def batch_norm(to: Description, node: Operation) -> Value:
    """Batch norm with its running statistics."""
    if node.attributes.get("training_mode", 0) or node.attributes.get("spatial", 1) != 1:
        raise Refused("it must use stored statistics: export the model in eval mode")
    names = ("weight", "bias", "mean", "var")
    tensors = {name: node.constant(place) for place, name in enumerate(names, 1)}
    z = node.value()
    eps = float(node.attributes.get("epsilon", 1e-5))
    if not (tensors["var"] + eps > 0).all():
        raise Refused(f"its variances plus epsilon = {eps:g} must be positive")
    if not 1 <= len(z.inner) <= 3:
        raise Refused(f"it must see at most three axes behind the batch, got shape {z.inner}")
    return to.add("batch_norm", z, tensors=tensors, eps=eps)


def _same_kernel(node: Operation, weight: Array) -> None:
    """Refuse a kernel shape that is not that of the filter."""
    kernel = node.attributes.get("kernel_shape")
    if kernel and list(kernel) != list(weight.shape[2:]):
        raise Refused(f"kernel_shape must be that of the filter, {list(weight.shape[2:])}, got {list(kernel)}")


def _image(to: Description, z: Value, weight: Array) -> tuple[Value, Array, bool]:
    """Sequences as images of height 1, with the filter of height 1; images as they are."""
    if len(z.inner) not in (2, 3) or weight.ndim != len(z.shape):
        raise Refused(f"it must see sequences or images, got values {z.inner} and a filter {weight.shape}")
    if len(z.inner) == 3:
        return z, weight, False
    return to.inside(z, (z.inner[0], 1, z.inner[1])), weight[:, :, None], True


def spatial(given: Any, default: int, flat: bool, neutral: int | None = None) -> list[int]:
    """Numbers for height and width; for sequences the file has the width alone."""
    values = [int(one) for one in given] if given else [default] * (1 if flat else 2)
    if len(values) != (1 if flat else 2):
        raise Refused(f"it needs one number for each axis, got {values}")
    return [default if neutral is None else neutral, *values] if flat else values


def numbers(node: Operation, z: Value, kernel: Sequence[int], flat: bool) -> dict[str, Any]:
    """Stride, dilation and pads (top, left, bottom, right) of windows over images."""
    given = node.attributes
    stride, dilation = spatial(given.get("strides"), 1, flat), spatial(given.get("dilations"), 1, flat)
    if min(*stride, *dilation, *kernel) < 1 or max(*stride, *dilation) > 2**20:
        raise Refused(f"kernel, strides and dilations must be positive, got {list(kernel)}, {stride}, {dilation}")
    mode, pads = given.get("auto_pad", "NOTSET"), given.get("pads")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        sides = [_same(z.inner[1 + i], kernel[i], stride[i], dilation[i], mode == "SAME_UPPER") for i in (0, 1)]
        pads = [sides[0][0], sides[1][0], sides[0][1], sides[1][1]]
    elif mode not in ("NOTSET", "VALID", ""):
        raise Refused(f"auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER, got {mode!r}")
    elif mode == "VALID" or not pads:
        pads = [0, 0, 0, 0]
    elif flat and len(pads) == 2:
        pads = [0, pads[0], 0, pads[1]]
    if len(pads) != 4 or min(pads) < 0:
        raise Refused(f"pads must be two numbers for each axis, none negative, got {list(pads)}")
    bounded([z.inner[0], z.inner[1] + pads[0] + pads[2], z.inner[2] + pads[1] + pads[3]])
    return {"stride": stride, "dilation": dilation, "pads": [int(one) for one in pads]}


def _same(size: int, kernel: int, stride: int, dilation: int, upper: bool) -> tuple[int, int]:
    """Padding of both sides such that there are size / stride windows, rounded up; the odd one goes to the far side."""
    total = max(0, (-(-size // stride) - 1) * stride + dilation * (kernel - 1) + 1 - size)
    return (total // 2, total - total // 2) if upper else (total - total // 2, total // 2)


def padded(to: Description, z: Value, pads: list[int]) -> tuple[Value, list[int]]:
    """Zero padding that a node does itself if both sides are equal; otherwise a node of its own in front."""
    top, left, bottom, right = pads
    if top == bottom and left == right:
        return z, [top, left]
    return to.add("pad", z, padding=[left, right, top, bottom]), [0, 0]
