"""The network of a checkpoint: nodes in order, each an affine map of earlier nodes or a ReLU, on flat vectors.

A checkpoint is a safetensors file: eight bytes with the length of a JSON header, the header, and the tensors' bytes. Its
metadata describe the nodes. Weights are read as they are stored, and float32 numbers are exact in float64.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from relucert.checker.arithmetic import Array, Outward, Refused, require

KINDS = {"F32": "float32", "F64": "float64"}


@dataclass(eq=False)
class Node:
    """An input, a ReLU max(z, leak z), or an affine map: `apply` and its adjoint `back` on rows of numbers, and `bias`.

    `terms` bounds the length of every sum in the map, the adjoint and the bias. `moves` says that entries are only moved;
    `matrix` is that of a linear layer; `window` has for units of a convolution the entries they read (-1: padding) and weights.
    """

    kind: str
    inputs: list[int]
    shape: tuple[int, ...]
    leak: Any = 0
    apply: Callable[..., Array] = field(default=lambda *values, absolute=False: values[0])
    back: Callable[[Array], list[Array]] = field(default=lambda rows: [rows])
    bias: Array | None = None
    matrix: Array | None = None
    window: Callable[[Array], tuple[Array, Array]] | None = None
    terms: int = 0
    moves: bool = False

    @property
    def size(self) -> int:
        """How many numbers the node has."""
        return math.prod(self.shape)


@dataclass(eq=False)
class Network:
    """The nodes, the dtype of the weights, and the digest of description and weights."""

    nodes: list[Node]
    dtype: str
    digest: str
    tiles: dict[Any, Any] = field(default_factory=dict)

    @property
    def relus(self) -> list[int]:
        """The positions of all ReLUs."""
        return [place for place, node in enumerate(self.nodes) if node.kind == "relu"]


def read(path: str | Path, arithmetic: Outward) -> Network:
    """The network of a checkpoint."""
    metadata, tensors = _safetensors(Path(path))
    require(metadata.get("format") == "relucert-network", f"{path} is not a checkpoint of relucert")
    description = json.loads(metadata["network"])
    dtypes = {str(value.dtype) for value in tensors.values()}
    require(len(dtypes) == 1, f"the weights have several dtypes: {sorted(dtypes)}")
    shape, nodes = tuple(description["input_shape"]), [Node("input", [], tuple(description["input_shape"]))]
    for name in ("mean", "std"):
        if name in tensors:
            value = arithmetic.numbers(np.broadcast_to(tensors[name], shape).ravel())
            node = Node(name, [len(nodes) - 1], shape)
            nodes.append(node)
            _shift(node, value, -1) if name == "mean" else _scale(node, value, divide=True)
    first = len(nodes) - 1
    for entry in description["nodes"][1:]:
        weights = {role: arithmetic.numbers(tensors[name]) for role, name in entry["tensors"].items()}
        inputs = [first + place for place in entry["inputs"]]
        require(all(0 <= place < len(nodes) for place in inputs), "a node reads a later node")
        nodes.append(_node(entry, inputs, [nodes[place].shape for place in inputs], weights))
    return Network(nodes, dtypes.pop(), _digest(description, tensors))


def _safetensors(path: Path) -> tuple[dict[str, str], dict[str, Array]]:
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            require(
                entry["dtype"] in KINDS, f"tensor {name} has dtype {entry['dtype']}, which this checker does not know"
            )
            low, high = (start + place for place in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[low:high], KINDS[entry["dtype"]]).reshape(entry["shape"])
    return header.get("__metadata__", {}), tensors


def _digest(description: dict[str, Any], tensors: dict[str, Array]) -> str:
    nodes = {"input_shape": description["input_shape"], "nodes": description["nodes"]}
    total = hashlib.sha256(json.dumps(nodes, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name]
        total.update(f"{name} torch.{value.dtype} {value.shape}\n".encode())
        total.update(value.tobytes())
    return total.hexdigest()


def _node(entry: dict[str, Any], inputs: list[int], shapes: list[tuple[int, ...]], weights: dict[str, Array]) -> Node:
    kind, settings = entry["kind"], entry["settings"]
    node = Node(kind, inputs, tuple(entry["shape"]))
    if kind == "relu":
        node.leak = settings["slope"]
        require(0 <= node.leak <= 1, "the slope of a leaky ReLU must lie between 0 and 1")
    elif kind == "reshape":
        node.moves = True
    elif kind == "linear":
        require(len(shapes[0]) == 1 and len(node.shape) == 1, "a linear layer must have vectors before and behind it")
        _linear(node, weights["weight"], weights.get("bias"))
    elif kind == "conv2d":
        _conv(node, settings, weights["weight"], weights.get("bias"), shapes[0])
    elif kind == "add":
        _add(node, settings["signs"])
    elif kind == "shift" and "constant" in weights:
        _shift(node, np.broadcast_to(weights["constant"], node.shape).ravel(), settings["sign"])
    elif kind == "scale" and "constant" in weights:
        _scale(node, np.broadcast_to(weights["constant"], node.shape).ravel(), divide=settings["divide"])
    else:
        raise Refused(f"layers of the kind {kind} are not known to this checker")
    return node


def _linear(node: Node, weight: Array, bias: Array | None) -> None:
    size = np.abs(weight)
    node.apply = lambda z, absolute=False: z @ (size if absolute else weight).T
    node.back = lambda rows: [rows @ weight]
    node.bias, node.matrix, node.terms = bias, weight, max(weight.shape)


def _shift(node: Node, constant: Array, sign: int) -> None:
    node.apply, node.bias, node.terms = lambda z, absolute=False: z, sign * constant, node.size


def _scale(node: Node, constant: Array, *, divide: bool) -> None:
    factor = 1 / constant if divide else constant  # a rounded quotient counts as one more rounding of every product
    node.apply = lambda z, absolute=False: z * (np.abs(factor) if absolute else factor)
    node.back, node.terms = lambda rows: [rows * factor], 4


def _add(node: Node, signs: list[int]) -> None:
    def apply(*values: Array, absolute: bool = False) -> Array:
        return sum(value if absolute or sign > 0 else -value for sign, value in zip(signs, values, strict=True))  # type: ignore[return-value]

    node.apply, node.terms = apply, len(signs) + 2
    node.back = lambda rows: [rows if sign > 0 else -rows for sign in signs]


def _conv(node: Node, settings: dict[str, Any], weight: Array, bias: Array | None, shape: tuple[int, ...]) -> None:
    """A convolution: windows of the padded image times the filters; the adjoint adds windows up again."""
    (channels, height, width), (filters, _, tall, wide) = shape, weight.shape
    (step, side), (top, left) = settings["stride"], settings["padding"]
    require(
        settings["groups"] == 1 and settings["dilation"] == [1, 1], "convolutions with groups or dilation are not known"
    )
    _, rows_out, columns_out = node.shape
    require(weight.shape[1] == channels and node.shape[0] == filters, "a convolution does not fit its shapes")
    require(rows_out == (height + 2 * top - tall) // step + 1, "a convolution does not fit its shapes")
    require(columns_out == (width + 2 * left - wide) // side + 1, "a convolution does not fit its shapes")
    flat = weight.reshape(filters, -1)
    size, padded = np.abs(flat), (channels, height + 2 * top, width + 2 * left)

    def apply(z: Array, absolute: bool = False) -> Array:
        image = np.zeros((len(z), *padded), dtype=z.dtype)
        image[:, :, top : top + height, left : left + width] = z.reshape(-1, *shape)
        windows = np.lib.stride_tricks.sliding_window_view(image, (tall, wide), axis=(2, 3))[:, :, ::step, ::side]  # type: ignore[call-overload]
        columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(len(z) * rows_out * columns_out, -1)
        found = (columns @ (size if absolute else flat).T).reshape(len(z), -1, filters)
        return found.transpose(0, 2, 1).reshape(len(z), -1)

    def back(rows: Array) -> list[Array]:
        columns = flat.T @ rows.reshape(len(rows), filters, -1)
        columns = columns.reshape(len(rows), channels, tall, wide, rows_out, columns_out)
        image = np.zeros((len(rows), *padded), dtype=rows.dtype)
        for i in range(tall):
            for j in range(wide):
                at = np.s_[:, :, i : i + step * (rows_out - 1) + 1 : step, j : j + side * (columns_out - 1) + 1 : side]
                image[at] += columns[:, :, i, j]
        return [image[:, :, top : top + height, left : left + width].reshape(len(rows), -1)]

    def window(units: Array) -> tuple[Array, Array]:
        which, at = np.divmod(units[:, None], rows_out * columns_out)
        channel, i, j = np.unravel_index(np.arange(flat.shape[1]), (channels, tall, wide))
        i, j = i + at // columns_out * step - top, j + at % columns_out * side - left
        inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
        return np.where(inside, (channel * height + i) * width + j, -1), flat[which[:, 0]]

    node.apply, node.back, node.window = apply, back, window
    node.terms = max(flat.shape[1], filters * tall * wide, node.size)
    node.bias = None if bias is None else np.repeat(bias, rows_out * columns_out)
