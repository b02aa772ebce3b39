"""Networks read from ONNX files compute what onnxruntime computes, and whatever else is in a file is a clear error."""

from __future__ import annotations

import gzip
import math
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import relucert as rc
from relucert.core.errors import CheckpointError, FileAccessError, MissingExtra, RelucertError, UnsupportedLayer
from relucert.interop.onnx.reading import load_onnx
from relucert.networks.build.rebuilding import describe

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def whole(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def node(kind: str, inputs: list[str], output: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], name=f"the {kind}", **attributes)


def model(
    nodes: list, shape: tuple, tensors: dict[str, np.ndarray] | None = None, opset: int = 17, out: str = "y"
) -> Any:
    batch = "batch" if shape[0] is None else shape[0]
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, *shape[1:]])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in (tensors or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


def written(path: Path, made: Any) -> Path:
    path.write_bytes(made.SerializeToString())
    return path


def run(data: bytes, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(data, options)
    return session.run(None, {session.get_inputs()[0].name: x})[0]


W, IMAGE, ROW = (3, 4), (None, 2, 5, 6), (None, 2, 7)
#: name -> (nodes, shape of the input, tensors, opset)
OPERATORS: dict[str, tuple] = {
    "gemm": ([node("Gemm", ["x", "w", "b"])], (None, 4), {"w": floats(4, 3), "b": floats(3)}),
    "gemm turned": ([node("Gemm", ["x", "w"], transB=1)], (None, 4), {"w": floats(3, 4)}),
    "gemm factors": (
        [node("Gemm", ["x", "w", "b"], alpha=0.3, beta=1.7)], (1, 4), {"w": floats(4, 3), "b": floats(1, 3)},
    ),
    "gemm number": ([node("Gemm", ["x", "w", "b"])], (None, 4), {"w": floats(4, 3), "b": floats(1)}),
    "matmul": ([node("MatMul", ["x", "w"])], (None, 4), {"w": floats(4, 3)}),
    "matmul of matrices": ([node("MatMul", ["x", "w"])], (None, 2, 4), {"w": floats(4, 3)}),
    "matmul from the left": ([node("MatMul", ["w", "x"])], (None, 4, 2), {"w": floats(3, 4)}),
    "matmul of a vector": ([node("MatMul", ["x", "w"])], (None, 3, 4), {"w": floats(4)}),
    "matmul of one matrix": ([node("MatMul", ["x", "w"])], (None, 3, 4), {"w": floats(1, 4, 2)}),
    "conv": (
        [node("Conv", ["x", "w", "b"], pads=[1, 2, 1, 2], strides=[2, 1], dilations=[1, 2])], IMAGE,
        {"w": floats(4, 2, 3, 2), "b": floats(4)},
    ),
    "conv uneven": ([node("Conv", ["x", "w"], pads=[0, 1, 2, 0])], IMAGE, {"w": floats(4, 2, 3, 2)}),
    "conv same": (
        [node("Conv", ["x", "w"], auto_pad="SAME_UPPER", strides=[2, 2])], IMAGE, {"w": floats(4, 2, 2, 3)},
    ),
    "conv same lower": (
        [node("Conv", ["x", "w"], auto_pad="SAME_LOWER", strides=[1, 2])], IMAGE, {"w": floats(4, 2, 2, 2)},
    ),
    "conv groups": ([node("Conv", ["x", "w"], group=2)], IMAGE, {"w": floats(4, 1, 2, 2)}),
    "conv of sequences": (
        [node("Conv", ["x", "w", "b"], pads=[1, 0], strides=[2])], ROW, {"w": floats(3, 2, 3), "b": floats(3)},
    ),
    "conv transpose": (
        [node("ConvTranspose", ["x", "w", "b"], strides=[2, 1], pads=[1, 0, 1, 0], output_padding=[1, 0])], IMAGE,
        {"w": floats(2, 3, 3, 2), "b": floats(3)},
    ),
    "conv transpose uneven": (
        [node("ConvTranspose", ["x", "w"], strides=[2, 2], pads=[1, 0, 0, 1])], IMAGE, {"w": floats(2, 3, 3, 2)},
    ),
    "conv transpose of sequences": ([node("ConvTranspose", ["x", "w"], strides=[2])], ROW, {"w": floats(2, 3, 3)}),
    "batch norm": (
        [node("BatchNormalization", ["x", "a", "b", "m", "v"], epsilon=1e-3)], IMAGE,
        {"a": floats(2), "b": floats(2), "m": floats(2), "v": floats(2) ** 2},
    ),
    "batch norm of sequences": (
        [node("BatchNormalization", ["x", "a", "b", "m", "v"])], ROW,
        {"a": floats(2), "b": floats(2), "m": floats(2), "v": floats(2) ** 2},
    ),
    "add": ([node("Add", ["x", "c"])], IMAGE, {"c": floats(1, 2, 1, 6)}),
    "add first": ([node("Add", ["c", "x"])], (1, 4), {"c": floats(1, 4)}),
    "add wider": ([node("Add", ["x", "c"])], (None, 1), {"c": floats(4)}),
    "sub": ([node("Sub", ["x", "c"])], IMAGE, {"c": floats(6)}),
    "sub first": ([node("Sub", ["c", "x"])], IMAGE, {"c": floats(2, 1, 1)}),
    "add values": ([node("Relu", ["x"], "r"), node("Add", ["x", "r"])], (None, 4)),
    "add values of other shapes": (
        [node("ReduceMean", ["x"], "m", axes=[2, 3]), node("Sub", ["x", "m"])], IMAGE,
    ),
    "sum": ([node("Relu", ["x"], "r"), node("Sum", ["x", "r", "c"])], (None, 4), {"c": floats(4)}),
    "mul": ([node("Mul", ["x", "c"])], IMAGE, {"c": floats(2, 1, 1)}),
    "mul by a number": ([node("Mul", ["c", "x"])], (None, 3), {"c": np.array(2.5, np.float32)}),
    "div": ([node("Div", ["x", "c"])], IMAGE, {"c": floats(2, 5, 6)}),
    "neg": ([node("Neg", ["x"])], (None, 4)),
    "abs": ([node("Abs", ["x"])], (None, 4)),
    "max": ([node("Neg", ["x"], "n"), node("Max", ["x", "c", "n"])], (None, 4), {"c": floats(4)}),
    "min": ([node("Neg", ["x"], "n"), node("Min", ["n", "x", "c"])], (None, 4), {"c": floats(4)}),
    "relu": ([node("Relu", ["x"])], (None, 4)),
    "leaky relu": ([node("LeakyRelu", ["x"], alpha=0.3)], (None, 4)),
    "leaky relu by default": ([node("LeakyRelu", ["x"])], (None, 4)),
    "leaky relu above one": ([node("LeakyRelu", ["x"], alpha=1.5)], (None, 4)),
    "leaky relu below zero": ([node("LeakyRelu", ["x"], alpha=-0.5)], (None, 4)),
    "prelu": ([node("PRelu", ["x", "s"])], IMAGE, {"s": floats(2, 1, 1)}),
    "prelu of the last axis": ([node("PRelu", ["x", "s"])], IMAGE, {"s": floats(6)}),
    "prelu of features": ([node("PRelu", ["x", "s"])], (None, 4), {"s": floats(4)}),
    "prelu of one slope": ([node("PRelu", ["x", "s"])], IMAGE, {"s": np.full(1, 0.25, np.float32)}),
    "clip": ([node("Clip", ["x", "a", "b"])], (None, 4), {"a": np.float32(-0.5), "b": np.float32(0.75)}),
    "clip at zero": ([node("Clip", ["x", "a"])], (None, 4), {"a": np.array(0, np.float32)}),
    "clip above": ([node("Clip", ["x", "", "b"])], (None, 4), {"b": np.array(0.5, np.float32)}),
    "clip of old files": ([node("Clip", ["x"], min=0.0, max=0.5)], (None, 4), {}, 8),
    "clip of old files above": ([node("Clip", ["x"], max=0.5)], (None, 4), {}, 8),
    "hard sigmoid": ([node("HardSigmoid", ["x"], alpha=0.7, beta=0.4)], (None, 4)),
    "max pool": ([node("MaxPool", ["x"], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 1, 1, 1])], IMAGE),
    "max pool uneven": ([node("MaxPool", ["x"], kernel_shape=[3, 2], strides=[2, 2], pads=[0, 0, 2, 1])], IMAGE),
    "max pool same": ([node("MaxPool", ["x"], kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")], IMAGE),
    "max pool up": ([node("MaxPool", ["x"], kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1)], IMAGE),
    "max pool dilated": ([node("MaxPool", ["x"], kernel_shape=[2, 2], dilations=[2, 3])], IMAGE),
    "max pool of sequences": ([node("MaxPool", ["x"], kernel_shape=[3], strides=[2], pads=[1, 1])], ROW),
    "average pool": ([node("AveragePool", ["x"], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 1, 1, 1])], IMAGE),
    "average pool padded": (
        [node("AveragePool", ["x"], kernel_shape=[3, 2], pads=[1, 0, 1, 0], count_include_pad=1)], IMAGE,
    ),
    "average pool uneven": ([node("AveragePool", ["x"], kernel_shape=[3, 2], pads=[0, 1, 2, 0])], IMAGE),
    "average pool up": ([node("AveragePool", ["x"], kernel_shape=[2, 4], strides=[2, 3], ceil_mode=1)], IMAGE),
    "average pool of sequences": ([node("AveragePool", ["x"], kernel_shape=[3], strides=[2])], ROW),
    "global average": ([node("GlobalAveragePool", ["x"])], IMAGE),
    "global maximum": ([node("GlobalMaxPool", ["x"])], IMAGE),
    "mean": ([node("ReduceMean", ["x"], axes=[-1, 2], keepdims=0)], IMAGE),
    "mean of new files": ([node("ReduceMean", ["x", "a"])], IMAGE, {"a": whole(1, 3)}, 18),
    "sum over axes": ([node("ReduceSum", ["x", "a"], keepdims=0)], IMAGE, {"a": whole(2)}),
    "sum over axes of old files": ([node("ReduceSum", ["x"], axes=[2, 3])], IMAGE, {}, 11),
    "flatten": ([node("Flatten", ["x"])], IMAGE),
    "reshape": ([node("Reshape", ["x", "s"])], IMAGE, {"s": whole(0, -1, 5)}),
    "reshape of all": ([node("Reshape", ["x", "s"])], (1, 2, 6), {"s": whole(1, 12)}),
    "reshape by shape": (
        [
            node("Shape", ["x"], "s"), node("Gather", ["s", "zero"], "n", axis=0),
            node("Concat", ["n", "rest"], "t", axis=0), node("Reshape", ["x", "t"]),
        ], IMAGE, {"zero": whole(0), "rest": whole(-1)},
    ),
    "reshape to one row": ([node("Reshape", ["x", "s"])], (None, 2, 6), {"s": whole(1, 12)}),
    "squeeze": ([node("Squeeze", ["x", "a"])], (None, 1, 4, 1), {"a": whole(1, -1)}),
    "squeeze all": ([node("Squeeze", ["x"], axes=[1])], (None, 1, 4), {}, 11),
    "unsqueeze": ([node("Unsqueeze", ["x", "a"])], (None, 4), {"a": whole(1, 3)}),
    "transpose": ([node("Transpose", ["x"], perm=[0, 2, 3, 1])], IMAGE),
    "transpose of one": ([node("Transpose", ["x"], perm=[1, 2, 0, 3])], (1, 1, 3, 2)),
    "slice": (
        [node("Slice", ["x", "s", "e", "a", "t"])], IMAGE,
        {"s": whole(1, 5), "e": whole(99, -7), "a": whole(2, -1), "t": whole(2, -1)},
    ),
    "slice without steps": ([node("Slice", ["x", "s", "e"])], IMAGE, {"s": whole(0, 0, 1), "e": whole(9, 1, -1)}),
    "slice of old files": ([node("Slice", ["x"], starts=[1], ends=[3], axes=[2])], IMAGE, {}, 9),
    "gather": ([node("Gather", ["x", "i"], axis=2)], IMAGE, {"i": np.array([[0, -1], [2, 2]])}),
    "gather one": ([node("Gather", ["x", "i"], axis=1)], IMAGE, {"i": np.array(1)}),
    "concat": ([node("Relu", ["x"], "r"), node("Concat", ["x", "r", "x"], axis=-2)], IMAGE),
    "concat with a constant": ([node("Concat", ["c", "x"], axis=1)], (1, 4), {"c": floats(1, 3)}),
    "pad": ([node("Pad", ["x", "p"])], IMAGE, {"p": whole(0, 0, 1, 2, 0, 1, 0, 3)}),
    "pad with a number": (
        [node("Pad", ["x", "p", "v"])], IMAGE, {"p": whole(0, 0, 1, 2, 0, 1, 0, 3), "v": np.float32(1.5)},
    ),
    "pad and cut": ([node("Pad", ["x", "p"])], IMAGE, {"p": whole(0, 0, -1, 2, 0, 0, 0, -3)}),
    "pad by reflection": ([node("Pad", ["x", "p"], mode="reflect")], IMAGE, {"p": whole(0, 0, 1, 2, 0, 0, 2, 1)}),
    "pad by the edge": ([node("Pad", ["x", "p"], mode="edge")], IMAGE, {"p": whole(0, 0, 1, 2, 0, 0, 2, 1)}),
    "pad of old files": ([node("Pad", ["x"], pads=[0, 0, 1, 0, 0, 0, 0, 1])], IMAGE, {}, 9),
    "expand": ([node("Expand", ["x", "s"])], (None, 2, 1), {"s": whole(1, 1, 3)}),
    "identity": ([node("Identity", ["x"], "i"), node("Dropout", ["i"], "d"), node("Neg", ["d"])], (None, 4)),
    "constant": (
        [node("Constant", [], "c", value=numpy_helper.from_array(floats(4))), node("Mul", ["x", "c"])], (None, 4),
    ),
    "computed constant": (
        [node("Transpose", ["w"], "t"), node("Sqrt", ["v"], "r"), node("Div", ["t", "r"], "u"), node("MatMul", ["x", "u"])],
        (None, 4), {"w": floats(3, 4), "v": np.array([2.0, 3.0, 4.0], np.float32)},
    ),
    "cast": ([node("Cast", ["x"], to=1)], (None, 4)),
    "clip for all numbers": (
        [node("Clip", ["x", "a", "b"])], (None, 4),
        {"a": np.array(np.finfo(np.float32).min), "b": np.array(0.1, np.float32)},
    ),
}  # fmt: skip


def scaled(case: tuple) -> Any:
    """The model of a case behind a factor, so that none of them returns its input."""
    nodes, shape, *rest = case
    tensors = {name: np.asarray(array) for name, array in (rest[0] if rest else {}).items()}
    first = helper.make_node("Mul", ["raw", "factor"], ["x"], name="first")
    made = model(
        [first, *nodes], shape, tensors | {"factor": np.array(3, np.float32)}, rest[1] if len(rest) > 1 else 17
    )
    made.graph.input[0].name = "raw"
    return made


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_compute_what_onnxruntime_computes(name: str, tmp_path: Path) -> None:
    made, shape = scaled(OPERATORS[name]), OPERATORS[name][1]
    net = load_onnx(written(tmp_path / "net.onnx", made))
    assert net.input_shape == tuple(shape[1:])
    x = np.random.default_rng(1).standard_normal((5, *shape[1:])).astype(np.float32)
    alone = shape[0] == 1 or name == "reshape to one row"
    expected = (
        np.stack([run(made.SerializeToString(), one[None])[0] for one in x])
        if alone
        else run(made.SerializeToString(), x)
    )
    found = net(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(net.logits(torch.from_numpy(x)).detach().numpy(), found, rtol=1e-5, atol=1e-5)


def test_split_has_several_values(tmp_path: Path) -> None:
    parts = helper.make_node("Split", ["x", "s"], ["a", "b"], axis=1)
    made = model([parts, node("Mul", ["a", "c"])], (None, 5), {"s": whole(2, 3), "c": floats(2)})
    net, x = load_onnx(written(tmp_path / "net.onnx", made)), floats(3, 5)
    np.testing.assert_allclose(net(torch.from_numpy(x)).detach().numpy(), run(made.SerializeToString(), x), rtol=1e-6)
    even = helper.make_node("Split", ["x"], ["a", "b"], axis=1)
    made = model([even, node("Sub", ["a", "b"])], (None, 6), {})
    net, x = load_onnx(written(tmp_path / "net.onnx", made)), floats(3, 6)
    np.testing.assert_allclose(net(torch.from_numpy(x)).detach().numpy(), run(made.SerializeToString(), x), rtol=1e-6)


def acas_like() -> Any:
    tensors = {"mean": floats(1, 1, 1, 5), "w": floats(5, 8), "b": floats(8), "v": floats(8, 5)}
    nodes = [
        node("Sub", ["x", "mean"], "s"), node("Flatten", ["s"], "f"), node("MatMul", ["f", "w"], "m"),
        node("Add", ["m", "b"], "a"), node("Relu", ["a"], "r"), node("MatMul", ["r", "v"]),
    ]  # fmt: skip
    return model(nodes, (1, 1, 1, 5), tensors, 8)


def test_weights_keep_their_bits_and_packed_files_are_read(tmp_path: Path) -> None:
    made = acas_like()
    (tmp_path / "net.onnx.gz").write_bytes(gzip.compress(made.SerializeToString()))
    net = rc.load(tmp_path / "net.onnx.gz")
    assert net.input_shape == (1, 1, 5)
    assert net.dtype == torch.float32
    assert not net.training
    stored = {np.sort(numpy_helper.to_array(one).ravel()).tobytes() for one in made.graph.initializer}
    kept = {np.sort(one.numpy().ravel()).tobytes() for one in describe(net)[1].values()}
    assert kept == stored
    x = 4 * torch.randn(3, 1, 1, 5)
    found = rc.certify(net, x, net.predict(x), rc.Ball(math.inf, 1e-4, box=None), "crown")
    assert found.verdict == [rc.Verdict.ROBUST] * 3


def test_one_output_is_a_network_too(tmp_path: Path) -> None:
    net = load_onnx(written(tmp_path / "net.onnx", model([node("MatMul", ["x", "w"])], (None, 4), {"w": floats(4, 1)})))
    assert net.classes == 1


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
def test_a_softmax_at_the_end_is_dropped_with_a_notice(kind: str, tmp_path: Path) -> None:
    tensors = {"w": floats(4, 3)}
    made = model([node("MatMul", ["x", "w"], "z"), node(kind, ["z"], axis=-1)], (None, 4), tensors)
    with pytest.warns(UserWarning, match=rf"{kind} at the end is dropped"):
        net = load_onnx(written(tmp_path / "net.onnx", made))
    x = floats(5, 4)
    np.testing.assert_allclose(net(torch.from_numpy(x)).detach().numpy(), x @ tensors["w"], rtol=1e-5, atol=1e-6)
    made = model([node(kind, ["x"], "z"), node("MatMul", ["z", "w"])], (None, 4), tensors)
    with pytest.raises(UnsupportedLayer, match=rf"'the {kind}' \({kind}\): it is not a supported operator"):
        load_onnx(written(tmp_path / "net.onnx", made))


def test_all_unsupported_operations_are_named_at_once(tmp_path: Path) -> None:
    nodes = [
        node("Sigmoid", ["x"], "a"), node("Relu", ["a"], "b"), node("Tanh", ["b"], "c"), node("Mul", ["x", "x"], "d"),
        node("Add", ["c", "d"]),
    ]  # fmt: skip
    with pytest.raises(UnsupportedLayer) as caught:
        load_onnx(written(tmp_path / "net.onnx", model(nodes, (None, 4))))
    text = str(caught.value)
    assert "net.onnx has 3 operations that are not supported" in text
    for part in (
        "'the Sigmoid'",
        "'the Tanh'",
        "'the Mul' (Mul): it multiplies two values",
        "Export the model",
        "Gemm",
    ):
        assert part in text
    assert "'the Relu'" not in text


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "net.onnx", acas_like())
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"pip install 'relucert\[onnx\]'"):
        load_onnx(path)


def _chain(*nodes: onnx.NodeProto, shape: tuple = (None, 4), **tensors: Any) -> Any:
    return model(list(nodes), shape, {name: np.asarray(array) for name, array in tensors.items()})


@cache
def unsupported() -> dict[str, Any]:
    """Files that are well formed, but not piecewise affine, or not known to be."""
    single = [
        "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Softplus", "Softsign", "Elu", "Selu", "Celu", "Erf", "Sin", "Cos", "Floor",
        "Round", "Sign", "Reciprocal", "HardSwish", "Mish", "ThresholdedRelu", "ReduceL2", "ReduceMax", "ArgMax",
        "LpNormalization", "Hardmax", "Not", "IsNaN", "NonZero", "Gelu", "GlobalLpPool",
        "Shrink", "Acos", "Atan", "Ceil", "QuickOp", "Softmax",
    ]  # fmt: skip
    found = {kind: _chain(node(kind, ["x"], "z"), node("Neg", ["z"])) for kind in single}
    pairs = [
        "Mul",
        "Div",
        "Pow",
        "MatMul",
        "Equal",
        "Greater",
        "And",
        "Mod",
        "Where",
        "Einsum",
        "CumSum",
        "TopK",
        "Resize",
    ]
    found |= {f"{kind} of values": _chain(node("Neg", ["x"], "n"), node(kind, ["x", "n"])) for kind in pairs}
    found |= {
        "constant by value": _chain(node("Div", ["c", "x"]), c=floats(4)),
        "by zero": _chain(node("Div", ["x", "c"]), c=np.zeros(4, np.float32)),
        "gather by values": _chain(node("Gather", ["c", "x"]), c=floats(4)),
        "mean of the batch": _chain(node("ReduceMean", ["x"], axes=[0])),
        "mean of all": _chain(node("ReduceMean", ["x"])),
        "batch moved": _chain(node("Transpose", ["x"], perm=[1, 0])),
        "batch mixed": _chain(node("Reshape", ["x", "s"]), s=whole(-1, 2)),
        "batch sliced": _chain(node("Slice", ["x", "s", "e"]), s=whole(1), e=whole(2)),
        "batch padded": _chain(node("Pad", ["x", "p"]), p=whole(1, 0, 0, 0)),
        "batch repeated": _chain(node("Expand", ["x", "s"]), s=whole(7, 3, 4)),
        "batch of constants": _chain(node("Add", ["x", "c"]), shape=(3, 4), c=floats(3, 4)),
        "transposed": _chain(node("Gemm", ["x", "w"], transA=1), shape=(4, 4), w=floats(4, 3)),
        "many matrices": _chain(node("MatMul", ["x", "w"]), shape=(None, 2, 4), w=floats(2, 4, 3)),
        "conv of volumes": _chain(node("Conv", ["x", "w"]), shape=(None, 1, 3, 3, 3), w=floats(1, 1, 2, 2, 2)),
        "computed weight": _chain(node("Neg", ["x"], "n"), node("Conv", ["x", "n"]), shape=(None, 2, 3, 3)),
        "training": _chain(
            node("BatchNormalization", ["x", "a", "a", "a", "a"], training_mode=1), shape=(None, 4), a=np.ones(4, np.float32)
        ),
        "half": _chain(node("Add", ["x", "c"]), c=np.ones(4, np.float16)),
        "double": _chain(node("Add", ["x", "c"]), c=np.ones(4)),
        "whole numbers": _chain(node("Add", ["x", "c"]), c=whole(1, 2, 3, 4)),
        "nan": _chain(node("Add", ["x", "c"]), c=np.full(4, np.nan, np.float32)),
        "infinite": _chain(node("Mul", ["x", "c"]), c=np.full(4, np.inf, np.float32)),
        "to whole numbers": _chain(node("Cast", ["x"], to=7)),
        "other domain": _chain(node("FusedConv", ["x"], domain="com.microsoft")),
        "empty slice": _chain(node("Slice", ["x", "s", "e", "a"]), s=whole(3), e=whole(2), a=whole(1)),
        "places outside": _chain(node("Gather", ["x", "i"], axis=1), i=whole(4)),
        "giant": _chain(node("Expand", ["x", "s"]), shape=(None, 1, 4), s=whole(1, 2**40, 4)),
        "giant constant": _chain(node("ConstantOfShape", ["s"], "c"), node("Add", ["x", "c"]), s=whole(2**40)),
        "giant padding": _chain(node("Pad", ["x", "p"]), p=whole(0, 2**40, 0, 0)),
        "giant windows": _chain(node("MaxPool", ["x"], kernel_shape=[2**30]), shape=(None, 2, 7)),
        "giant conv": _chain(node("Conv", ["x", "w"], pads=[2**30, 2**30]), shape=(None, 2, 7), w=floats(1, 2, 3)),
        "strange mode": _chain(node("Pad", ["x", "p"], mode="mirror"), p=whole(0, 1, 0, 1)),
        "strange padding": _chain(node("Conv", ["x", "w"], auto_pad="SOME"), shape=(None, 2, 7), w=floats(1, 2, 3)),
        "no batch": model([node("Neg", ["x"])], (4,)),
        "free size": model([node("Neg", ["x"])], (None, "n")),
        "no size": model([node("Neg", ["x"])], (None, 0)),
        "giant input": model([node("Neg", ["x"])], (None, 2**20, 2**20)),
    }  # fmt: skip
    return found


@cache
def malformed() -> dict[str, Any]:
    """Files that break the rules of the format."""
    found = {
        "reads nothing": _chain(node("Add", ["x", "missing"])),
        "reads later": _chain(node("Neg", ["z"]), node("Relu", ["x"], "z")),
        "reads itself": _chain(node("Add", ["x", "y"])),
        "no inputs": _chain(node("Relu", [], "z"), node("Neg", ["x"])),
        "other output": model([node("Neg", ["x"])], (None, 4), out="z"),
        "output of constants": _chain(node("Neg", ["c"]), c=floats(4)),
        "returns its input": _chain(node("Identity", ["x"])),
        "sizes": _chain(node("Gemm", ["x", "w"]), w=floats(5, 3)),
        "sizes of a bias": _chain(node("Gemm", ["x", "w", "b"]), w=floats(4, 3), b=floats(2)),
        "sizes of a product": _chain(node("MatMul", ["x", "w"]), w=floats(3, 4)),
        "sizes of a sum": _chain(node("Add", ["x", "c"]), c=floats(3)),
        "channels": _chain(node("Conv", ["x", "w"]), shape=(None, 2, 5, 5), w=floats(3, 4, 2, 2)),
        "large filter": _chain(node("Conv", ["x", "w"]), shape=(None, 2, 3, 3), w=floats(3, 2, 5, 5)),
        "zero stride": _chain(node("Conv", ["x", "w"], strides=[0, 1]), shape=(None, 2, 3, 3), w=floats(3, 2, 2, 2)),
        "negative padding": _chain(node("Conv", ["x", "w"], pads=[-1, 0, 0, 0]), shape=(None, 2, 3, 3), w=floats(3, 2, 2, 2)),
        "few numbers": _chain(node("Conv", ["x", "w"], strides=[1]), shape=(None, 2, 3, 3), w=floats(3, 2, 2, 2)),
        "groups": _chain(node("Conv", ["x", "w"], group=3), shape=(None, 2, 3, 3), w=floats(3, 2, 2, 2)),
        "no kernel": _chain(node("MaxPool", ["x"]), shape=(None, 2, 3, 3)),
        "text for numbers": _chain(node("Flatten", ["x"], axis="one")),
        "numbers for a number": _chain(node("Softmax", ["x"], "z", axis=[1, 2]), node("Concat", ["x", "x"], axis=[1])),
        "axis outside": _chain(node("Concat", ["x", "x"], axis=7)),
        "no axis": _chain(node("Concat", ["x", "x"])),
        "order": _chain(node("Transpose", ["x"], perm=[0, 0])),
        "shape": _chain(node("Reshape", ["x", "s"]), s=whole(0, 7)),
        "two unknown sizes": _chain(node("Reshape", ["x", "s"]), s=whole(-1, -1)),
        "negative size": _chain(node("Reshape", ["x", "s"]), s=whole(0, -5)),
        "no shape": _chain(node("Reshape", ["x"])),
        "squeezed": _chain(node("Squeeze", ["x", "a"]), a=whole(1)),
        "no ends": _chain(node("Slice", ["x", "s"]), s=whole(0)),
        "zero step": _chain(node("Slice", ["x", "s", "e", "a", "t"]), s=whole(0), e=whole(2), a=whole(1), t=whole(0)),
        "pads": _chain(node("Pad", ["x", "p"]), p=whole(0, 1, 1)),
        "clip upside down": _chain(node("Clip", ["x", "a", "b"]), a=np.float32(1), b=np.float32(0)),
        "clip at nan": _chain(node("Clip", ["x", "a"]), a=np.array(np.nan, np.float32)),
        "clip at many": _chain(node("Clip", ["x", "a"]), a=floats(3)),
        "slopes": _chain(node("PRelu", ["x", "s"]), s=floats(3)),
        "statistics": _chain(node("BatchNormalization", ["x", "a", "a", "a", "a"]), a=floats(3) ** 2),
        "few statistics": _chain(node("BatchNormalization", ["x", "a"]), a=floats(4)),
        "split": _chain(helper.make_node("Split", ["x", "s"], ["y", "z"], axis=1), s=whole(1, 1)),
        "joined": _chain(node("Concat", ["x", "c"], axis=1), shape=(1, 2, 3), c=floats(1, 2)),
        "zero range": _chain(
            node("Range", ["a", "b", "c"], "r"), node("Add", ["x", "r"]), a=np.array(0), b=np.array(4), c=np.array(0)
        ),
    }  # fmt: skip
    whole_file = acas_like()
    two = acas_like()
    two.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [1, 2]))
    outputs = acas_like()
    outputs.graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, [1, 8]))
    kind = acas_like()
    kind.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    strange = acas_like()
    strange.graph.input[0].type.tensor_type.elem_type = 99
    short = acas_like()
    short.graph.initializer[1].raw_data = short.graph.initializer[1].raw_data[:-4]
    giant = acas_like()
    giant.graph.initializer[1].dims[0] = 2**60
    negative = acas_like()
    negative.graph.initializer[1].dims[0] = -5
    typeless = acas_like()
    typeless.graph.initializer[1].data_type = 77
    outside = acas_like()
    outside.graph.initializer[1].ClearField("raw_data")
    outside.graph.initializer[1].data_location = TensorProto.EXTERNAL
    outside.graph.initializer[1].external_data.add(key="location", value="missing.bin")
    empty = acas_like()
    del empty.graph.node[:]
    no_output = acas_like()
    del no_output.graph.output[:]
    return found | {
        "two inputs": two, "two outputs": outputs, "input of whole numbers": kind, "strange dtype": strange,
        "short tensor": short, "giant tensor": giant, "negative tensor": negative, "typeless tensor": typeless,
        "tensor elsewhere": outside,
        "no nodes": empty, "no output": no_output, "empty model": onnx.ModelProto(), "whole": whole_file,
    }  # fmt: skip


def refused(path: Path) -> str:
    with pytest.raises(RelucertError) as caught:
        load_onnx(path)
    text = str(caught.value)
    assert path.name in text
    assert "\n" not in text
    assert len(text) > len(str(path)) + 20
    return text


@pytest.mark.parametrize("name", unsupported())
def test_what_is_not_supported_is_named(name: str, tmp_path: Path) -> None:
    text = refused(written(tmp_path / "net.onnx", unsupported()[name]))
    assert "Traceback" not in text


@pytest.mark.parametrize("name", [name for name in malformed() if name != "whole"])
def test_what_is_malformed_is_named(name: str, tmp_path: Path) -> None:
    refused(written(tmp_path / "net.onnx", malformed()[name]))


@pytest.mark.parametrize("share", [k / 40 for k in range(40)])
def test_files_that_end_early_are_damaged(share: float, tmp_path: Path) -> None:
    data = acas_like().SerializeToString()
    (tmp_path / "net.onnx").write_bytes(data[: int(share * len(data))])
    refused(tmp_path / "net.onnx")
    packed = gzip.compress(data)
    (tmp_path / "net.onnx.gz").write_bytes(packed[: int(share * len(packed))])
    refused(tmp_path / "net.onnx.gz")


@pytest.mark.parametrize("seed", range(60))
def test_damaged_bytes_give_an_error_or_a_network(seed: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(seed)
    data = bytearray(acas_like().SerializeToString())
    for place in generator.integers(0, len(data), 1 + seed % 8):
        data[place] = generator.integers(0, 256)
    (tmp_path / "net.onnx").write_bytes(bytes(data))
    found = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            net = load_onnx(tmp_path / "net.onnx")
        except RelucertError as error:
            found = str(error)
        else:
            found = f"net.onnx with {net.classes} logits"
    assert "net.onnx" in found


def test_other_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileAccessError, match="does not exist"):
        rc.load(tmp_path / "net.onnx")
    (tmp_path / "net.onnx").write_text("hello, this is a text")
    with pytest.raises(CheckpointError, match="is not an ONNX file, or it is damaged"):
        rc.load(tmp_path / "net.onnx")
    (tmp_path / "net.onnx.gz").write_text("hello")
    with pytest.raises(CheckpointError, match="is not a gzip file, or it is damaged"):
        rc.load(tmp_path / "net.onnx.gz")
