"""How each kind of node is written as operators of ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relucert.interop.onnx._graph import Array

Tensors = dict[str, Array]
Settings = dict[str, Any]
Shapes = list[list[int]]


@dataclass
class Written:
    """Nodes and tensors of a file so far; `names` are the names of the tensors of the current node, by role."""

    onnx: Any
    dtype: str
    nodes: list[Any] = field(default_factory=list)
    tensors: Tensors = field(default_factory=dict)
    place: int = 0
    names: dict[str, str] = field(default_factory=dict)

    def node(self, operator: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Append a node, and return the name of its value."""
        output = output or f"{self.place}.{operator.lower()}.{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def tensor(self, array: Array, role: str) -> str:
        """The name of a tensor: that of the checkpoint, so that tied weights are one."""
        name = self.names.get(role, role if role in ("mean", "std") else f"{self.place}.{role}.{len(self.tensors)}")
        self.tensors[name] = np.ascontiguousarray(array)
        return name

    def extra(self, values: Any, dtype: str | None = None) -> str:
        """The name of a constant that no checkpoint has."""
        name = f"{self.place}.constant.{len(self.tensors)}"
        self.tensors[name] = np.array(values, dtype=dtype or self.dtype)
        return name

    def whole(self, values: Any) -> str:
        """The name of a constant of whole numbers."""
        return self.extra(values, "int64")

    def reshape(self, value: str, shape: Any) -> str:
        """A value in another shape behind the batch."""
        return self.node("Reshape", [value, self.whole([0, *shape])])


def _bias(to: Written, given: Tensors) -> list[str]:
    return [to.tensor(given["bias"], "bias")] if "bias" in given else []


def _linear(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    weight = to.tensor(given["weight"], "weight")
    if len(shapes[0]) == 1:
        return to.node("Gemm", [*inputs, weight, *_bias(to, given)], transB=1)
    made = to.node("MatMul", [*inputs, to.node("Transpose", [weight], perm=[1, 0])])
    return to.node("Add", [made, *_bias(to, given)]) if "bias" in given else made


def _conv(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    weight = to.tensor(given["weight"], "weight")
    return to.node("Conv", [*inputs, weight, *_bias(to, given)], **_window(given["weight"].shape[2:], settings))


def _window(kernel: Any, settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kernel_shape": list(kernel),
        "strides": list(settings["stride"]),
        "pads": [*settings["padding"], *settings["padding"]],
    }
    if "dilation" in settings:
        found["dilations"] = list(settings["dilation"])
    return found | ({"group": settings["groups"]} if "groups" in settings else {})


def _conv_transpose(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    weight = to.tensor(given["weight"], "weight")
    options: dict[str, Any] = _window(given["weight"].shape[2:], settings) | {
        "output_padding": list(settings["output_padding"])
    }
    return to.node("ConvTranspose", [*inputs, weight, *_bias(to, given)], **options)


def _batch_norm(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    like = given["mean"]
    full = {"weight": np.ones_like(like), "bias": np.zeros_like(like)} | given
    names = [to.tensor(full[role], role) for role in ("weight", "bias", "mean", "var")]
    return to.node("BatchNormalization", [*inputs, *names], epsilon=settings["eps"])


def _constant(to: Written, given: Tensors, settings: Settings) -> str:
    return to.tensor(given["constant"], "constant") if given else to.extra(settings["number"])


def _shift(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    return to.node("Add" if settings["sign"] > 0 else "Sub", [*inputs, _constant(to, given, settings)])


def _scale(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    return to.node("Div" if settings["divide"] else "Mul", [*inputs, _constant(to, given, settings)])


def _add(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    total = inputs[0] if settings["signs"][0] > 0 else to.node("Neg", [inputs[0]])
    for sign, other in zip(settings["signs"][1:], inputs[1:], strict=True):
        total = to.node("Add" if sign > 0 else "Sub", [total, other])
    return total


def _relu(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    slope = settings["slope"]
    if slope == 0:
        return to.node("Relu", inputs)
    if float(np.float32(slope)) == slope or to.dtype == "float32":
        return to.node("LeakyRelu", inputs, alpha=slope)
    return to.node("PRelu", [*inputs, to.extra(np.full((1,) * len(shapes[0]), slope))])  # a slope in float64


def _leak(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    if not given:
        return to.node("PRelu", [inputs[0], to.extra(np.full((1,) * len(shapes[0]), settings["number"]))])
    slope = given["slope"]
    if slope.ndim == 1:  # one for each channel
        slope = slope.reshape(-1, *(1,) * (len(shapes[0]) - 1))
    return to.node("PRelu", [inputs[0], to.tensor(slope, "slope")])


def _max_pool(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    return to.node("MaxPool", inputs, ceil_mode=int(settings["ceil_mode"]), **_window(settings["kernel"], settings))


def _avg_pool(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    kernel, divisor = list(settings["kernel"]), settings["divisor"]
    if divisor is None and not settings["ceil_mode"]:
        include = int(settings["count_include_pad"])
        return to.node("AveragePool", inputs, count_include_pad=include, **_window(kernel, settings))
    # Sums over the windows, as a convolution with ones, divided by the numbers of entries.
    stride, padding, counts, pads = settings["stride"], settings["padding"], [], []
    for i in (0, 1):
        size = shapes[0][1 + i]
        free = size + 2 * padding[i] - kernel[i]
        windows = (-(-free // stride[i]) if settings["ceil_mode"] else free // stride[i]) + 1
        if settings["ceil_mode"] and (windows - 1) * stride[i] >= size + padding[i]:
            windows -= 1
        first = np.arange(windows) * stride[i] - padding[i]
        low, high = (-padding[i], size + padding[i]) if settings["count_include_pad"] else (0, size)
        counts.append(np.minimum(first + kernel[i], high) - np.maximum(first, low))
        pads.append((padding[i], max(0, int(first[-1]) + kernel[i] - size)))
    many = np.full((len(counts[0]), len(counts[1])), divisor) if divisor else counts[0][:, None] * counts[1]
    ones = to.extra(np.ones((shapes[0][0], 1, *kernel)))
    sides = [0, 0, pads[0][0], pads[1][0], 0, 0, pads[0][1], pads[1][1]]
    padded = to.node("Pad", [*inputs, to.whole(sides)])
    summed = to.node("Conv", [padded, ones], group=shapes[0][0], kernel_shape=kernel, strides=list(stride))
    return to.node("Div", [summed, to.extra(many)])


def _adaptive(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    if list(settings["size"]) == [1, 1]:
        return to.node("GlobalAveragePool", inputs)
    # Averages along the width, then along the height, as matrices.
    value = inputs[0]
    for axis in (2, 1):
        size, many = shapes[0][axis], settings["size"][axis - 1]
        matrix = np.zeros((size, many))
        for j in range(many):
            low, high = j * size // many, -(-(j + 1) * size // many)
            matrix[low:high, j] = 1 / (high - low)
        turned = value if axis == 2 else to.node("Transpose", [value], perm=[0, 1, 3, 2])
        value = to.node("MatMul", [turned, to.extra(matrix)])
    return to.node("Transpose", [value], perm=[0, 1, 3, 2])


def _mean(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    axes = [axis + 1 for axis in settings["axes"]]
    return to.node("ReduceMean", inputs, axes=axes, keepdims=int(settings["keepdim"]))


def _sum(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    axes = to.whole([axis + 1 for axis in settings["axes"]])
    return to.node("ReduceSum", [*inputs, axes], keepdims=int(settings["keepdim"]))


def _pad(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    rank, sides = len(shapes[0]), settings["padding"]
    before, behind = [0] * (rank + 1), [0] * (rank + 1)
    for i in range(len(sides) // 2):  # the last axis comes first
        before[rank - i], behind[rank - i] = sides[2 * i], sides[2 * i + 1]
    return to.node("Pad", [*inputs, to.whole([*before, *behind])])


def _reshape(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    return to.reshape(inputs[0], settings["out_shape"])


def _permute(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    return to.node("Transpose", inputs, perm=[0, *(axis + 1 for axis in settings["axes"])])


def _concat(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    return to.node("Concat", inputs, axis=settings["axis"] + 1)


def _slice(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    starts, stops, steps = (to.whole(settings[name]) for name in ("starts", "stops", "steps"))
    axes = to.whole(range(1, len(shapes[0]) + 1))
    return to.node("Slice", [*inputs, starts, stops, axes, steps])


def _gather(to: Written, inputs: list[str], given: Tensors, settings: Settings, shapes: Shapes) -> str:
    index, size = given["index"], math.prod(shapes[0])
    flat = inputs[0] if len(shapes[0]) == 1 else to.reshape(inputs[0], [size])
    places = to.whole(index.reshape(-1) % size)
    made = to.node("Gather", [flat, places], axis=1)
    return made if index.ndim == 1 else to.reshape(made, index.shape)


WRITERS: dict[str, Callable[[Written, list[str], Tensors, Settings, Shapes], str]] = {
    "linear": _linear,
    "conv2d": _conv,
    "conv_transpose2d": _conv_transpose,
    "batch_norm": _batch_norm,
    "shift": _shift,
    "scale": _scale,
    "add": _add,
    "relu": _relu,
    "leak": _leak,
    "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool,
    "adaptive_avg_pool2d": _adaptive,
    "mean": _mean,
    "sum": _sum,
    "pad": _pad,
    "reshape": _reshape,
    "permute": _permute,
    "concat": _concat,
    "slice": _slice,
    "gather": _gather,
}
