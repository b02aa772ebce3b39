"""The operators of ONNX that are piecewise affine in the input, and how each one becomes nodes."""

from __future__ import annotations

from collections.abc import Callable

from relucert.interop.onnx import _linear, _pointwise, _pooling, _shaping
from relucert.interop.onnx._graph import Description, Operation, Value

OPERATORS: dict[str, Callable[[Description, Operation], Value | list[Value]]] = {
    "Gemm": _linear.gemm,
    "MatMul": _linear.matmul,
    "Conv": _linear.conv,
    "ConvTranspose": _linear.conv_transpose,
    "BatchNormalization": _linear.batch_norm,
    "Add": _pointwise.add,
    "Sum": _pointwise.add,
    "Sub": _pointwise.subtract,
    "Mul": _pointwise.multiply,
    "Div": _pointwise.divide,
    "Neg": _pointwise.negate,
    "Relu": _pointwise.relu,
    "LeakyRelu": _pointwise.leaky_relu,
    "PRelu": _pointwise.prelu,
    "Clip": _pointwise.clip,
    "HardSigmoid": _pointwise.hard_sigmoid,
    "Abs": _pointwise.absolute,
    "Max": _pointwise.maximum,
    "Min": _pointwise.minimum,
    "MaxPool": _pooling.max_pool,
    "AveragePool": _pooling.average_pool,
    "GlobalAveragePool": _pooling.global_average,
    "GlobalMaxPool": _pooling.global_maximum,
    "ReduceMean": _pooling.reduce_mean,
    "ReduceSum": _pooling.reduce_sum,
    "Flatten": _shaping.flatten,
    "Reshape": _shaping.reshape,
    "Squeeze": _shaping.squeeze,
    "Unsqueeze": _shaping.unsqueeze,
    "Transpose": _shaping.transpose,
    "Slice": _shaping.slice_,
    "Split": _shaping.split,
    "Gather": _shaping.gather,
    "Concat": _shaping.concat,
    "Pad": _shaping.pad,
    "Expand": _shaping.expand,
    "Identity": _shaping.identity,
    "Dropout": _shaping.dropout,
    "Cast": _shaping.cast,
}
#: Operators at the end of a classifier that keep the order of the logits.
FINAL = ("Softmax", "LogSoftmax")
