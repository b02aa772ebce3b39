"""`save_onnx`: a network as an ONNX file, with its weights bit for bit."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np

from relucert.core.errors import UnsupportedLayer
from relucert.core.versions import VERSION
from relucert.interop.onnx._emission import WRITERS, Written
from relucert.interop.onnx._package import onnx_package
from relucert.networks.build.rebuilding import describe
from relucert.networks.network import Network
from relucert.records.atomic import write_atomically

OPSET, IR = 17, 8


def save_onnx(net: Network, path: str | Path) -> None:
    """Write a network to an `.onnx` or `.onnx.gz` file, all at once; the batch axis is free, inputs are in pixels.

    The network is written as it is evaluated: dropout is not in the file, batch norm has its running statistics.
    """
    path = Path(path)
    data = _model(net, path).SerializeToString()
    write_atomically(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _model(net: Network, path: Path) -> Any:
    onnx = onnx_package(f"writing {path.name}")
    description, tensors = describe(net)
    missing = sorted({entry["kind"] for entry in description["nodes"][1:]} - set(WRITERS))
    if missing:
        raise UnsupportedLayer(f"{path}: no ONNX operator is known for {', '.join(missing)}")
    file = Written(onnx, str(net.dtype).removeprefix("torch."))
    arrays = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
    start = "input"
    for role, operator in (("mean", "Sub"), ("std", "Div")):
        if role in arrays:
            start = file.node(operator, [start, file.tensor(arrays[role], role)])
    names = [start]
    for place, entry in enumerate(description["nodes"][1:], 1):
        given = {role: arrays[name] for role, name in entry["tensors"].items()}
        shapes = [description["nodes"][i]["shape"] for i in entry["inputs"]]
        file.place, file.names = place, entry["tensors"]
        inputs = [names[i] for i in entry["inputs"]]
        names.append(WRITERS[entry["kind"]](file, inputs, given, entry["settings"], shapes))
    last = file.node("Identity", [names[-1]], "logits")
    return _packed(onnx, net, file, last)


def _packed(onnx: Any, net: Network, file: Written, last: str) -> Any:
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT if file.dtype == "float32" else onnx.TensorProto.DOUBLE
    needed, kept = {last}, []
    for node in reversed(file.nodes):  # the ReLU of a sloped ReLU is not used by itself
        if set(node.output) & needed:
            kept.append(node)
            needed |= set(node.input)
    graph = helper.make_graph(
        kept[::-1],
        "relucert",
        [helper.make_tensor_value_info("input", kind, ["batch", *net.input_shape])],
        [helper.make_tensor_value_info(last, kind, ["batch", net.classes])],
        [
            onnx.numpy_helper.from_array(np.asarray(array), name)
            for name, array in file.tensors.items()
            if name in needed
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="relucert")
    model.ir_version, model.producer_version = IR, VERSION
    onnx.checker.check_model(model)
    return model
