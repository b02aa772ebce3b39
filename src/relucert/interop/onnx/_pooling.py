"""Operators over windows and axes: pools and reductions."""

from __future__ import annotations

import math

import numpy as np

from relucert.interop.onnx._graph import Description, Operation, Refused, Value
from relucert.interop.onnx._linear import numbers, spatial


def _windows(to: Description, node: Operation) -> tuple[Value, list[int], dict[str, list[int]], bool]:
    z = node.value()
    if len(z.inner) not in (2, 3):
        raise Refused(f"it must see sequences or images, got values {z.inner}")
    flat = len(z.inner) == 2
    z = to.inside(z, (z.inner[0], 1, z.inner[1])) if flat else z
    kernel = spatial(node.attributes.get("kernel_shape"), 1, flat)
    if not node.attributes.get("kernel_shape"):
        raise Refused("kernel_shape is missing")
    return z, kernel, numbers(node, z, kernel, flat), flat


def _sequence(to: Description, made: Value, flat: bool) -> Value:
    return to.inside(made, (made.inner[0], made.inner[2])) if flat else made


def _count(size: int, kernel: int, stride: int, dilation: int, ceil: bool) -> int:
    """The number of windows along a padded axis; one that hangs over the far edge counts with `ceil`."""
    free = size - dilation * (kernel - 1) - 1
    if free < 0:
        raise Refused(f"a window of {kernel} must fit into {size} entries")
    return (-(-free // stride) if ceil else free // stride) + 1


def max_pool(to: Description, node: Operation) -> Value:
    """Max pooling; padding repeats the entry at the edge, which every window that sees the padding sees as well."""
    if node.attributes.get("storage_order", 0) or len([one for one in node.outputs if one]) > 1:
        raise Refused("the places of the maxima are not supported")
    z, kernel, given, flat = _windows(to, node)
    (top, left, bottom, right), stride, dilation = given["pads"], given["stride"], given["dilation"]
    even = top == bottom and left == right and 2 * top <= kernel[0] and 2 * left <= kernel[1]
    ceil = bool(node.attributes.get("ceil_mode", 0))
    if even and not ceil:
        made = to.add(
            "max_pool2d", z, kernel=kernel, stride=stride, padding=[top, left], dilation=dilation, ceil_mode=False
        )
        return _sequence(to, made, flat)
    if dilation != [1, 1]:
        raise Refused("dilations are not supported beside ceil_mode or pads that differ between two sides")
    if max(top, bottom) >= kernel[0] or max(left, right) >= kernel[1]:
        raise Refused("a window may lie in the padding alone")
    rows, columns = z.inner[1:]
    ends = [
        _reached(size, kernel[i], stride[i], before, behind, ceil)
        for i, (size, before, behind) in enumerate(((rows, top, bottom), (columns, left, right)))
    ]
    down = np.clip(np.arange(-top, ends[0]), 0, rows - 1)
    across = np.clip(np.arange(-left, ends[1]), 0, columns - 1)
    z = to.gathered(z, lambda table: table[:, down][:, :, across])
    made = to.add("max_pool2d", z, kernel=kernel, stride=stride, padding=[0, 0], dilation=[1, 1], ceil_mode=False)
    return _sequence(to, made, flat)


def _reached(size: int, kernel: int, stride: int, before: int, behind: int, ceil: bool) -> int:
    """One behind the last entry that a window sees, counted from the first entry that is no padding."""
    windows = _count(size + before + behind, kernel, stride, 1, ceil)
    while ceil and windows > 1 and (windows - 1) * stride - before >= size:  # it would begin behind the last entry
        windows -= 1
    return (windows - 1) * stride + kernel - before


def average_pool(to: Description, node: Operation) -> Value:
    """Average pooling: sums over windows, divided by the numbers of their entries where these differ."""
    z, kernel, given, flat = _windows(to, node)
    (top, left, bottom, right), stride = given["pads"], given["stride"]
    if given["dilation"] != [1, 1]:
        raise Refused("dilations are not supported")
    include, ceil = bool(node.attributes.get("count_include_pad", 0)), bool(node.attributes.get("ceil_mode", 0))
    even = top == bottom and left == right and 2 * top <= kernel[0] and 2 * left <= kernel[1]
    common = {"kernel": kernel, "stride": stride, "ceil_mode": False}
    if even and not ceil:
        made = to.add("avg_pool2d", z, padding=[top, left], count_include_pad=include, divisor=None, **common)
        return _sequence(to, made, flat)
    counts, over = [], []
    for i, (before, behind) in enumerate(((top, bottom), (left, right))):
        size = z.inner[1 + i]
        windows = _count(size + before + behind, kernel[i], stride[i], 1, ceil)
        while ceil and windows > 1 and (windows - 1) * stride[i] >= size + before:
            windows -= 1
        first = np.arange(windows) * stride[i] - before
        low, high = (-before, size + behind) if include else (0, size)
        counts.append(np.minimum(first + kernel[i], high) - np.maximum(first, low))
        over.append((before, max(behind, int(first[-1]) + kernel[i] - size)))
    if min(int(one.min()) for one in counts) < 1:
        raise Refused("a window may lie in the padding alone")
    z = to.add("pad", z, padding=[*over[1], *over[0]])
    made = to.add("avg_pool2d", z, padding=[0, 0], count_include_pad=True, divisor=1, **common)
    many = (counts[0][:, None] * counts[1]).astype(str(z.sample.dtype).removeprefix("torch."))
    if made.inner[1:] != many.shape:
        made = to.sliced(made, [[0, size, 1] for size in (made.inner[0], *many.shape)])
    return _sequence(to, to.add("scale", made, tensors={"constant": many}, divide=True), flat)


def global_average(to: Description, node: Operation) -> Value:
    """The mean of every channel."""
    z = node.value()
    return to.add("mean", z, axes=list(range(1, len(z.inner))), keepdim=True)


def global_maximum(to: Description, node: Operation) -> Value:
    """The maximum of every channel."""
    z = node.value()
    if len(z.inner) < 2:
        raise Refused(f"it must see channels of entries, got values {z.inner}")
    size = [1, math.prod(z.inner[1:])]
    row = to.inside(z, (z.inner[0], *size))
    made = to.add("max_pool2d", row, kernel=size, stride=size, padding=[0, 0], dilation=[1, 1], ceil_mode=False)
    return to.inside(made, (z.inner[0], *(1,) * (len(z.inner) - 1)))


def _reduced(to: Description, node: Operation, kind: str) -> Value:
    z, axes = node.value(), node.whole("axes", 1)
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return z
    if not axes:
        raise Refused("it works along the batch axis: axes must be given")
    places = sorted({z.axis(axis) for axis in axes})
    return to.add(kind, z, axes=places, keepdim=bool(node.attributes.get("keepdims", 1)))


def reduce_mean(to: Description, node: Operation) -> Value:
    """The mean over axes behind the batch."""
    return _reduced(to, node, "mean")


def reduce_sum(to: Description, node: Operation) -> Value:
    """The sum over axes behind the batch."""
    return _reduced(to, node, "sum")
