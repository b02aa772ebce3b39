"""`load_onnx`: a network from an ONNX file, with the file's weights bit for bit."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np
import torch

from relucert.core.errors import CheckpointError, FileAccessError, RelucertError, UnsupportedLayer
from relucert.interop.onnx._constants import FOLDED, fold
from relucert.interop.onnx._graph import (
    LARGEST,
    Array,
    Description,
    Entry,
    MixedBatch,
    Operation,
    Refused,
    Unknown,
    Value,
    first_line,
)
from relucert.interop.onnx._operators import FINAL, OPERATORS
from relucert.interop.onnx._package import onnx_package
from relucert.interop.onnx._rules import check_meaning, check_node, check_opset
from relucert.networks.build.rebuilding import rebuild
from relucert.networks.network import Network

DTYPES = {1: torch.float32, 11: torch.float64}
BYTES = 2**31  #: of a file after it is unpacked
AGAIN = "export the model again; onnx.checker.check_model says whether a file keeps the rules of the format"


def load_onnx(path: str | Path) -> Network:
    """Read the network of an ONNX file (`.onnx`, `.onnx.gz`), in eval mode.

    Inputs are those of the file, without its batch axis and in its units: a file has no box, so balls have none unless they
    are given one. A softmax at the end is dropped, with a warning: it changes no class.
    """
    path = Path(path)
    try:
        model = _model(path)
        try:
            return _network(path, model, None)
        except _Retry:  # the batch is free, but the file says 1 somewhere
            return _network(path, model, 1)
    except CheckpointError as error:
        raise CheckpointError(f"{error}: {AGAIN}") from error


class _Retry(Exception):
    pass


def _model(path: Path) -> Any:
    onnx = onnx_package(f"reading {path.name}")
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
            data = unpacker.decompress(data, BYTES)
            if not unpacker.eof:
                raise EOFError("it ends early or is larger than 2 GiB")
    except FileNotFoundError as error:
        raise FileAccessError(f"{path} does not exist") from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise CheckpointError(f"{path} is not a gzip file, or it is damaged: {error}") from error
    except OSError as error:
        raise FileAccessError(f"{path} cannot be read: {error.strerror}") from error
    try:
        model = onnx.load_model_from_string(data)
        if path.suffix != ".gz":
            onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # protobuf and onnx raise many kinds of errors for a damaged file
        raise CheckpointError(f"{path} is not an ONNX file, or it is damaged: {first_line(error)}") from error
    if not model.graph.node or not model.graph.output:
        raise CheckpointError(f"{path} must hold a graph with nodes and an output, got none")
    return model


def _network(path: Path, model: Any, batch: int | None) -> Network:
    reader = _Reader(path, model, batch)
    value = reader.read()
    if len(value.inner) != 1:  # logits in several axes
        value = reader.to.add("reshape", value, out_shape=[value.sample[0].numel()])
    nodes, trainable = reader.to.nodes, reader.to.trainable
    if value.index != len(nodes) - 1:  # what stands behind the logits is not used
        nodes = nodes[: value.index + 1]
    if len(nodes) == 1:
        raise CheckpointError(f"{path} must compute something, got a graph that returns its input")
    tensors = {name: reader.to.tensors[name] for node in nodes[1:] for name in node["tensors"].values()}
    description = {
        "input_shape": nodes[0]["shape"],
        "nodes": nodes,
        "trainable": [name for name in trainable if name in tensors],
        "box": None,
    }
    try:
        return rebuild(description, tensors)
    except RelucertError as error:
        raise type(error)(f"{path}: {error}") from error


class _Reader:
    """The nodes of one file in order, each translated or computed."""

    def __init__(self, path: Path, model: Any, batch: int | None):
        self.path, self.graph, self.onnx = path, model.graph, onnx_package("reading an ONNX file")
        try:
            self.opset = check_opset(self.onnx, model.opset_import)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error
        self.env: dict[str, Entry] = {}
        self.refused: list[str] = []
        self.mixed = False
        for tensor in model.graph.initializer:
            if tensor.name in self.env:
                raise CheckpointError(f"{path}: tensor {tensor.name!r} is there twice")
            self.env[tensor.name] = self._array(tensor, f"tensor {tensor.name!r}")
        if model.graph.sparse_initializer:
            raise UnsupportedLayer(f"{path}: sparse tensors are not supported: export the model with dense ones")
        inputs = [one for one in model.graph.input if one.name not in self.env]
        if len(inputs) != 1:
            names = ", ".join(repr(one.name) for one in inputs) or "none"
            raise UnsupportedLayer(
                f"{path} must have one input, got {names}: export the model with one tensor as input"
            )
        if len(model.graph.output) != 1:
            names = ", ".join(repr(one.name) for one in model.graph.output)
            raise UnsupportedLayer(f"{path} must have one output, got {names}: export the model with its logits alone")
        self.output = model.graph.output[0].name
        self.free = False
        self._start(inputs[0], batch)

    def _array(self, tensor: Any, what: str) -> Array:
        if any(size < 0 for size in tensor.dims):
            raise CheckpointError(f"{self.path}: {what} must have sizes of at least 0, got {list(tensor.dims)}")
        try:
            array = np.asarray(self.onnx.numpy_helper.to_array(tensor))
        except Exception as error:  # onnx raises many kinds of errors for damaged tensors
            raise CheckpointError(f"{self.path}: {what} is damaged: {first_line(error)}") from error
        if array.size > LARGEST:
            raise CheckpointError(f"{self.path}: {what} must have at most {LARGEST} entries, got {array.size}")
        return array

    def _start(self, given: Any, batch: int | None) -> None:
        kind = given.type.tensor_type
        dtype = DTYPES.get(kind.elem_type)
        if dtype is None:
            name = self.onnx.TensorProto.DataType.Name(kind.elem_type) if 0 <= kind.elem_type < 20 else kind.elem_type
            raise UnsupportedLayer(
                f"{self.path}: input {given.name!r} must be float32 or float64, got {name}: export the model with it"
            )
        sizes = [int(one.dim_value) if one.HasField("dim_value") else None for one in kind.shape.dim]
        if len(sizes) < 2:
            raise UnsupportedLayer(
                f"{self.path}: input {given.name!r} must have a batch axis and others, got shape {sizes}: "
                "export the model with inputs (batch, ...)"
            )
        first = sizes[0] if sizes[0] is not None and sizes[0] > 0 else None
        self.free = first is None and batch is None
        inner = [size or 0 for size in sizes[1:]]
        if any(size < 1 for size in inner):
            raise UnsupportedLayer(
                f"{self.path}: input {given.name!r} must have fixed positive sizes behind the batch, got {sizes}: "
                "export the model with a fixed input shape"
            )
        self.to = Description(first or batch or 3)
        try:
            self.env[given.name] = self.to.start(inner, dtype)
        except Refused as error:
            raise UnsupportedLayer(f"{self.path}: {error}: export the model for smaller inputs") from error

    def read(self) -> Value:
        """The value of the output."""
        for place, proto in enumerate(self.graph.node):
            label = f"node {proto.name or place!r} ({proto.op_type})"
            outputs = list(proto.output)
            missing = [name for name in proto.input if name and name not in self.env]
            if missing:
                raise CheckpointError(f"{self.path}: {label} reads {missing[0]!r}, which no node before it makes")
            named = [name for name in outputs if name]
            twice = [name for place, name in enumerate(named) if name in self.env or name in named[:place]]
            if twice:
                raise CheckpointError(f"{self.path}: {label} makes {twice[0]!r}, which is there already")
            try:
                made = self._translated(proto)
            except Refused as error:
                self.mixed |= isinstance(error, MixedBatch)
                self.refused.append(f"{label}: {error}")
                made = [Unknown()] * len(outputs)
            except UnsupportedLayer:
                raise
            except RelucertError as error:
                raise CheckpointError(f"{self.path}: {label}: {error}") from error
            except Exception as error:  # attributes of the wrong kind, shapes that do not fit
                raise CheckpointError(f"{self.path}: {label} is malformed: {first_line(error)}") from error
            for name, value in zip(outputs, made, strict=False):
                if name:
                    self.env[name] = value
        return self._end()

    def _end(self) -> Value:
        if self.refused and self.mixed and self.free:
            raise _Retry
        if self.refused:
            many = len(self.refused)
            raise UnsupportedLayer(
                f"{self.path} has {many} operation{'s' * (many > 1)} that {'are' if many > 1 else 'is'} not supported: "
                f"{'; '.join(self.refused)}. Export the model up to its logits, with ReLUs, pools and linear layers instead. "
                f"Supported are {', '.join(OPERATORS)}."
            )
        value = self.env.get(self.output)
        if not isinstance(value, Value):
            raise CheckpointError(f"{self.path}: output {self.output!r} must depend on the input")
        return value

    def _translated(self, proto: Any) -> list[Any]:
        known = proto.op_type in OPERATORS or proto.op_type in FOLDED
        inputs = [self.env[name] if name else None for name in proto.input]
        if proto.domain not in ("", "ai.onnx"):
            raise Refused(f"operators of the domain {proto.domain!r} are not known")
        if any(isinstance(one, Unknown) for one in inputs):
            if known or self._final(proto):
                return [Unknown()] * len(proto.output)
            raise Refused("it is not a supported operator")
        if known or proto.op_type == "Shape" or self._final(proto):
            check_node(self.onnx, proto, self.opset)
            check_meaning(proto, self.opset)
        attributes = {one.name: self._attribute(one) for one in proto.attribute}
        operation = Operation(proto.op_type, proto.name, inputs, list(proto.output), attributes, self.opset)
        if any(isinstance(one, Value) for one in inputs):
            if proto.op_type == "Shape":
                start, end = attributes.get("start", 0), attributes.get("end")
                return [np.array(operation.value().shape[start:end], dtype=np.int64)]
            if self._final(proto):
                return [self._dropped(operation)]
            read = OPERATORS.get(proto.op_type)
            if read is None:
                raise Refused("it is not a supported operator")
            made = read(self.to, operation)
            return made if isinstance(made, list) else [made]
        if proto.op_type not in FOLDED:
            raise Refused("it is not a supported operator")
        return list(fold(operation, proto))

    def _attribute(self, proto: Any) -> Any:
        value = self.onnx.helper.get_attribute_value(proto)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def _final(self, proto: Any) -> bool:
        """Whether a node is a softmax at the end of the graph."""
        users = sum(name == proto.output[0] for node in self.graph.node for name in node.input) if proto.output else 1
        return proto.op_type in FINAL and proto.output[0] == self.output and users == 0

    def _dropped(self, operation: Operation) -> Value:
        z = operation.value()
        axis = int(operation.attributes.get("axis", -1 if operation.opset >= 13 else 1))
        if len(z.inner) != 1 or z.axis(axis) != 0:
            raise Refused(f"a softmax at the end must be over the classes of values (batch, classes), got {z.shape}")
        warn(
            f"{self.path}: {operation.kind} at the end is dropped: the network returns logits, and the class is the same",
            stacklevel=2,
        )
        return z
