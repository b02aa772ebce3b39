"""Networks in ONNX files with one thing wrong: an error that names the file, the place and a way out, or the same network.

Mutants of small networks of several kinds, one fault each. Where a mutant is still a network, onnxruntime computes the same.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from relucert.core.errors import RelucertError
from relucert.interop.onnx.reading import load_onnx

LEAST = 1000  # malformed or unsupported files, each of them an error
Model = Any
node = helper.make_node


def built(nodes: list[Any], shape: tuple[int, ...], seed: int, **sizes: tuple[int, ...] | np.ndarray) -> Model:
    """A network with random tensors of some shapes, and with given ones."""
    generator = np.random.default_rng(seed)
    tensors = [
        numpy_helper.from_array(
            one if isinstance(one, np.ndarray) else np.abs(generator.standard_normal(one)).astype(np.float32), name
        )
        for name, one in sizes.items()
    ]
    graph = helper.make_graph(
        nodes, "test", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], tensors,
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    return made


def whole(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@cache
def bases() -> dict[str, Model]:
    """Networks of several kinds, none with two dimensions of one size."""
    return {
        "matrices": built(
            [
                node("Gemm", ["x", "w", "b"], ["h"], transB=1, alpha=0.5), node("Relu", ["h"], ["r"]),
                node("MatMul", ["r", "v"], ["y"]),
            ],
            (4,), 0, w=(3, 4), b=(3,), v=(3, 2),
        ),
        "images": built(
            [
                node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 2], pads=[1, 0, 1, 0], strides=[2, 1]),
                node("BatchNormalization", ["c", "s", "b", "s", "s"], ["n"], epsilon=1e-3),
                node("LeakyRelu", ["n"], ["r"], alpha=0.1), node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[1, 1]),
                node("Flatten", ["p"], ["f"], axis=1), node("Gemm", ["f", "v"], ["y"]),
            ],
            (2, 6, 5), 1, w=(3, 2, 3, 2), b=(3,), s=(3,), v=(18, 4),
        ),
        "sums": built(
            [
                node("Sub", ["x", "m"], ["s"]), node("ConvTranspose", ["s", "w"], ["c"], strides=[2, 2]),
                node("PRelu", ["c", "a"], ["r"]),
                node("AveragePool", ["r"], ["p"], kernel_shape=[2, 3]),
                node("Concat", ["p", "p"], ["k"], axis=1), node("ReduceMean", ["k"], ["e"], axes=[2, 3], keepdims=0),
                node("Clip", ["e", "low", "high"], ["y"]),
            ],
            (2, 3, 4), 2, m=(2, 1, 1), w=(2, 3, 3, 2), a=(3, 1, 1), low=np.array(0.1, np.float32), high=np.array(6, np.float32),
        ),
        "shapes": built(
            [
                node("Transpose", ["x"], ["t"], perm=[0, 2, 1]), node("Slice", ["t", "from", "to", "axes"], ["s"]),
                node("Pad", ["s", "pads"], ["p"], mode="constant"), node("Unsqueeze", ["p", "one"], ["u"]),
                node("Squeeze", ["u", "one"], ["q"]), node("Split", ["q", "parts"], ["k", "l"], axis=1),
                node("Gather", ["k", "places"], ["g"], axis=2), node("Reshape", ["g", "form"], ["f"]),
                node("ReduceSum", ["l", "last"], ["r"], keepdims=0), node("Concat", ["f", "r"], ["y"], axis=1),
            ],
            (3, 5), 3, **{
                "from": whole(1), "to": whole(4), "axes": whole(1), "pads": whole(0, 1, 0, 0, 0, 2), "one": whole(1),
                "parts": whole(1, 3), "places": whole(2, 0), "form": whole(0, -1), "last": whole(2),
            },
        ),
    }  # fmt: skip


def changed(base: Model, change: Callable[[Any], object]) -> Model:
    made = copy.deepcopy(base)
    change(made)
    return made


def of_graphs(base: Model) -> Iterator[tuple[str, Model]]:
    """Mutants of inputs, outputs and versions."""

    def shape(*sizes: int) -> Callable[[Any], None]:
        def change(made: Any) -> None:
            made.graph.input[0].type.tensor_type.shape.ClearField("dim")
            for size in sizes:
                made.graph.input[0].type.tensor_type.shape.dim.add(dim_value=size)

        return change

    count = len(base.graph.input[0].type.tensor_type.shape.dim)
    yield "input of no axes", changed(base, shape())
    yield "input of one axis", changed(base, shape(4))
    yield "input of negative size", changed(base, shape(1, *(-3,) * (count - 1)))
    yield "input of no size", changed(base, shape(1, *(0,) * (count - 1)))
    yield "giant input", changed(base, shape(1, *(2**40,) * (count - 1)))
    yield "input of one more axis", changed(base, shape(1, 1, *(3,) * (count - 1)))
    for kind in (0, TensorProto.INT64, TensorProto.STRING, TensorProto.FLOAT16, 99):
        made = copy.deepcopy(base)
        made.graph.input[0].type.tensor_type.elem_type = kind
        yield f"input of kind {kind}", made
    yield "input without a type", changed(base, lambda m: m.graph.input[0].ClearField("type"))
    yield "no input", changed(base, lambda m: m.graph.ClearField("input"))
    yield "input twice", changed(base, lambda m: m.graph.input.append(m.graph.input[0]))
    yield "no output", changed(base, lambda m: m.graph.ClearField("output"))
    yield "output nowhere", changed(base, lambda m: setattr(m.graph.output[0], "name", "nowhere"))
    yield "output is a tensor", changed(base, lambda m: setattr(m.graph.output[0], "name", m.graph.initializer[0].name))
    yield "output is the input", changed(base, lambda m: setattr(m.graph.output[0], "name", "x"))
    yield "nodes turned around", changed(base, lambda m: m.graph.node.reverse())
    for version in (-1, 29, 2**40):
        yield f"opset {version}", changed(base, lambda m, v=version: setattr(m.opset_import[0], "version", v))
    yield "two opsets", changed(base, lambda m: m.opset_import.add(domain="", version=12))


def of_nodes(base: Model) -> Iterator[tuple[str, Model]]:
    """Mutants of nodes and their attributes."""
    for i, proto in enumerate(base.graph.node):
        name = f"{i} {proto.op_type}"

        def at(change: Callable[[Any], object], i: int = i) -> Model:
            return changed(base, lambda model: change(model.graph.node[i]))

        yield f"{name} is gone", changed(base, lambda m, i=i: m.graph.node.__delitem__(i))
        yield f"{name} is unknown", at(lambda n: setattr(n, "op_type", "Bogus"))
        yield f"{name} is smooth", at(lambda n: setattr(n, "op_type", "Sigmoid"))
        yield f"{name} is of another domain", at(lambda n: setattr(n, "domain", "com.example"))
        yield f"{name} has too many inputs", at(lambda n: n.input.extend([n.input[0]] * 9))
        yield f"{name} has no inputs", at(lambda n: n.ClearField("input"))
        yield f"{name} reads itself", at(lambda n: n.input.__setitem__(0, n.output[0]))
        yield f"{name} reads what is missing", at(lambda n: n.input.__setitem__(len(n.input) - 1, "missing"))
        yield f"{name} has no first input", at(lambda n: n.input.__setitem__(0, ""))
        yield f"{name} makes the input again", at(lambda n: n.output.__setitem__(0, "x"))
        yield f"{name} makes what nobody reads", at(lambda n: n.output.__setitem__(0, "nowhere"))
        yield f"{name} has no outputs", at(lambda n: n.ClearField("output"))
        yield f"{name} has a strange attribute", at(lambda n: n.attribute.append(helper.make_attribute("colour", 3)))
        for j, one in enumerate(proto.attribute):
            where = f"{name} {one.name}"
            yield (
                f"{where} is a text",
                at(lambda n, j=j, o=one: n.attribute[j].CopyFrom(helper.make_attribute(o.name, "no"))),
            )
            yield (
                f"{where} is a float",
                at(lambda n, j=j, o=one: n.attribute[j].CopyFrom(helper.make_attribute(o.name, 1.5))),
            )
            yield f"{where} has no kind", at(lambda n, j=j: setattr(n.attribute[j], "type", AttributeProto.UNDEFINED))
            yield f"{where} is there twice", at(lambda n, j=j: n.attribute.append(n.attribute[j]))
            yield f"{where} is gone", at(lambda n, j=j: n.attribute.__delitem__(j))
            values = helper.get_attribute_value(one)
            worse: list[Any] = []
            if isinstance(values, int):
                worse = [-7, 2**40]
            elif isinstance(values, float):
                worse = [float("nan"), float("inf"), -1e30]
            elif isinstance(values, list):
                worse = [[-7] * len(values), [2**40] * len(values), [*values, 1], values[:-1], [0] * len(values)]
            for value in worse:
                made = helper.make_attribute(one.name, value, attr_type=one.type)
                yield f"{where} is {value}", at(lambda n, j=j, m=made: n.attribute[j].CopyFrom(m))


def of_tensors(base: Model) -> Iterator[tuple[str, Model]]:
    """Mutants of tensors."""
    for i, tensor in enumerate(base.graph.initializer):
        array, name = numpy_helper.to_array(tensor), f"tensor {tensor.name!r}"

        def at(change: Callable[[Any], object], i: int = i) -> Model:
            return changed(base, lambda made: change(made.graph.initializer[i]))

        def with_array(other: np.ndarray, i: int = i, n: str = tensor.name) -> Model:
            return changed(base, lambda m: m.graph.initializer[i].CopyFrom(numpy_helper.from_array(other, n)))

        def elsewhere(location: str, at: Callable[..., Model] = at) -> Model:
            def change(one: Any) -> None:
                one.ClearField("raw_data")
                one.data_location = TensorProto.EXTERNAL
                one.external_data.add(key="location", value=location)

            return at(change)

        yield f"{name} is gone", changed(base, lambda m, i=i: m.graph.initializer.__delitem__(i))
        yield f"{name} is there twice", changed(base, lambda m, i=i: m.graph.initializer.append(m.graph.initializer[i]))
        yield f"{name} has another name", at(lambda t: setattr(t, "name", "else"))
        yield f"{name} is a node's output too", at(lambda t: setattr(t, "name", base.graph.node[0].output[0]))
        yield f"{name} ends early", at(lambda t: setattr(t, "raw_data", t.raw_data[:-1]))
        yield f"{name} is too long", at(lambda t: setattr(t, "raw_data", t.raw_data + b"0000"))
        yield f"{name} is of a strange kind", at(lambda t: setattr(t, "data_type", 77))
        yield f"{name} is negative", at(lambda t: t.dims.__setitem__(slice(None), [-1] * len(t.dims) or [-1]))
        yield f"{name} is giant", at(lambda t: t.dims.__setitem__(slice(None), [2**62, 2**62]))
        yield f"{name} is empty", with_array(array.reshape(-1)[:0])
        yield f"{name} has more axes", with_array(array.reshape(1, 1, 1, 1, 1, -1))
        yield f"{name} is longer", with_array(np.concatenate([array.reshape(-1), array.reshape(-1)]))
        yield f"{name} is turned around", with_array(np.ascontiguousarray(array.T))
        yield f"{name} is of halves", with_array(array.astype(np.float16))
        yield f"{name} is of texts", with_array(np.full(array.shape, "no", object))
        for location in ("missing.bin", "../outside.bin", "/etc/hostname", "", "net.onnx/../../x"):
            yield f"{name} lies in {location!r}", elsewhere(location)
        if array.dtype == np.float32:
            yield f"{name} is not a number", with_array(np.full_like(array, np.nan))
            yield f"{name} is infinite", with_array(np.full_like(array, np.inf))
            yield f"{name} is of doubles", with_array(array.astype(np.float64))
            yield f"{name} is whole", with_array(array.astype(np.int64))
        else:
            yield f"{name} is far outside", with_array(np.full_like(array, 2**40))
            yield f"{name} is far below", with_array(np.full_like(array, -(2**40)))
            yield f"{name} is of floats", with_array(array.astype(np.float32) + np.float32(0.5))


@cache
def mutants() -> dict[str, bytes]:
    """All mutants, without those that have the bytes of another."""
    found: dict[bytes, str] = {}
    for name, base in bases().items():
        for made in (of_graphs, of_nodes, of_tensors):
            for what, mutant in made(base):
                found.setdefault(mutant.SerializeToString(), f"{name}: {what}")
        data = base.SerializeToString()
        for share in (0.02, 0.3, 0.6, 0.9, 0.99):
            found.setdefault(data[: int(share * len(data))], f"{name}: {share} of the file")
    return {name: data for data, name in found.items()}


def computed(data: bytes, x: np.ndarray) -> np.ndarray | None:
    """What onnxruntime computes; None where it refuses the file or the input."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        session = onnxruntime.InferenceSession(data, options)
        return session.run(None, {"x": x})[0]
    except Exception:  # onnxruntime raises many kinds of errors
        return None


def outcome(data: bytes, folder: Path) -> str:
    """Whether a file is an error, or the same network as that of onnxruntime; or what is wrong."""
    path = folder / "net.onnx"
    path.write_bytes(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net = load_onnx(path)
    except RelucertError as error:
        text = str(error)
        clear = str(path) in text and "\n" not in text and "export" in text.lower() and len(text) < 4000
        return "error" if clear else f"an unclear error: {text}"
    x = np.random.default_rng(0).standard_normal((3, *net.input_shape)).astype(np.float32)
    ours = net(torch.from_numpy(x)).detach().numpy()
    theirs = computed(data, x)
    if theirs is None:
        return "onnxruntime refuses what is read as a network"
    return "same" if np.allclose(ours, theirs.reshape(ours.shape), rtol=1e-4, atol=1e-4) else "another network"


@pytest.mark.parametrize("name", bases())
def test_networks_without_a_fault_are_read(name: str, tmp_path: Path) -> None:
    assert outcome(bases()[name].SerializeToString(), tmp_path) == "same"


def test_mutants_are_errors_or_the_same_network(tmp_path: Path) -> None:
    found = {name: outcome(data, tmp_path) for name, data in mutants().items()}
    wrong = {name: what for name, what in found.items() if what not in ("error", "same")}
    assert wrong == {}
    assert sum(what == "error" for what in found.values()) >= LEAST
