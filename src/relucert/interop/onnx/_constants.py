"""Nodes of a file that depend on no input, computed by ONNX's reference implementation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from relucert.interop.onnx._graph import Array, Operation, Refused, bounded
from relucert.interop.onnx._package import onnx_package

#: Operators that are computed where all inputs are constant.
FOLDED = frozenset({
    "Abs", "Add", "Cast", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "Div", "Equal", "Expand", "Flatten", "Floor",
    "Gather", "Gemm", "Greater", "Identity", "Less", "MatMul", "Max", "Min", "Mod", "Mul", "Neg", "Pow", "Range", "Reciprocal",
    "ReduceProd", "ReduceSum", "Relu", "Reshape", "Shape", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze",
    "Where",
})  # fmt: skip


def fold(operation: Operation, proto: Any) -> list[Array]:
    """The outputs of a node whose inputs are constants."""
    arrays = [np.zeros(0) if one is None else one for one in operation.inputs]
    assert all(isinstance(one, np.ndarray) for one in arrays)
    _bound(operation.kind, arrays)  # type: ignore[arg-type]
    onnx = onnx_package("reading an ONNX file")
    given = {name: one for name, one in zip(proto.input, operation.inputs, strict=True) if name}
    with np.errstate(all="ignore"):
        made = onnx.reference.ReferenceEvaluator(proto, opsets={"": operation.opset}).run(None, given)
    return [np.asarray(one) for one in made]


def _bound(kind: str, arrays: list[Array]) -> None:
    """Refuse what would be very large before it is computed."""
    if kind in ("ConstantOfShape", "Expand"):
        sizes = [int(size) for size in arrays[-1].reshape(-1)]
        if any(size < 0 for size in sizes):
            raise Refused(f"sizes must not be negative, got {sizes}")
        bounded([max(1, size) for size in sizes] + ([max(1, arrays[0].size)] if kind == "Expand" else []))
    elif kind == "Range":
        start, limit, step = (float(one.reshape(-1)[0]) for one in arrays)
        if step == 0 or not math.isfinite((limit - start) / step):
            raise Refused(f"its step must be finite and not zero, got {step}")
        bounded([max(1, math.ceil((limit - start) / step))])
    elif kind in ("MatMul", "Gemm"):
        bounded(
            [max(1, arrays[0].size), max(1, arrays[1].size)] if min(arrays[0].size, arrays[1].size) > 2**12 else [1]
        )
    elif kind == "Gather":
        bounded([max(1, arrays[0].size), max(1, arrays[1].size)] if arrays[0].ndim > 1 else [max(1, arrays[1].size)])
    elif kind in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Equal", "Where", "Mod", "Greater", "Less"):
        bounded(np.broadcast_shapes(*(one.shape for one in arrays)))
