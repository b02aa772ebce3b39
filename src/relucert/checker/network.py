"""The network of a checkpoint: nodes in order, each an affine map of earlier nodes, or a ReLU, on flat vectors.

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

DTYPES = {"F32": "float32", "F64": "float64"}
#: A linear map of rows of numbers, one argument for each earlier node, and its adjoint, one answer for each.
Map = tuple[Callable[..., Any], Callable[..., list[Any]]]


@dataclass(eq=False)
class Node:
    """The input, a ReLU max(z, leak z), or an affine map.

    An affine map is `map` plus `bias`; `sizes` is the map with absolute values of its coefficients, `bias_size` bounds the
    terms of the bias, `terms` the length of the map's sums. `rows` are rows of the map's matrix, where they can be read off.
    """

    kind: str
    inputs: list[int]
    shape: tuple[int, ...]
    map: Map = (lambda z: z, lambda rows: [rows])
    sizes: Map = (lambda z: z, lambda rows: [rows])
    bias: Any = 0
    bias_size: Any = 0
    terms: int = 0
    leak: float = 0
    rows: Callable[[Array], Array] | None = None

    @property
    def size(self) -> int:
        """How many numbers the node has."""
        return math.prod(self.shape)


@dataclass(eq=False)
class Network:
    """The nodes, the dtype of the weights, the digest of description and weights, and spectral norms that are proved."""

    nodes: list[Node]
    dtype: str
    digest: str
    norms: dict[tuple[int, float], Any] = field(default_factory=dict)

    @property
    def relus(self) -> list[int]:
        """The positions of all ReLUs."""
        return [place for place, node in enumerate(self.nodes) if node.kind == "relu"]


def read(path: str | Path, num: Outward) -> Network:
    """The network of a checkpoint."""
    data, tensors = Path(path).read_bytes(), {}
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    require(metadata.get("format") == "relucert-network", f"{path} is not a checkpoint of relucert")
    for name, entry in header.items():
        require(
            entry["dtype"] in DTYPES, f"tensor {name} has dtype {entry['dtype']}, which is not known to this checker"
        )
        low, high = (start + place for place in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[low:high], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    dtypes = {str(value.dtype) for value in tensors.values()}
    require(len(dtypes) == 1, f"the weights have several dtypes: {sorted(dtypes)}")
    network = json.loads(metadata["network"])
    named = {"input_shape": network["input_shape"], "nodes": network["nodes"]}
    digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} torch.{tensors[name].dtype} {tensors[name].shape}\n".encode() + tensors[name].tobytes())
    nodes = [Node("input", [], tuple(network["input_shape"]))]
    for name, kind in (("mean", "shift"), ("std", "scale")):
        if name in tensors:
            about = {"kind": kind, "settings": {"sign": -1, "divide": True}, "shape": nodes[0].shape}
            nodes += _nodes(about, [len(nodes) - 1], nodes, {"constant": num.numbers(tensors[name])}, num)
    where = [len(nodes) - 1]
    for entry in network["nodes"][1:]:
        weights = {role: num.numbers(tensors[name]) for role, name in entry["tensors"].items()}
        require(all(0 <= place < len(where) for place in entry["inputs"]), "a node reads a later node")
        nodes += _nodes(entry, [where[place] for place in entry["inputs"]], nodes, weights, num)
        where.append(len(nodes) - 1)
    return Network(nodes, dtypes.pop(), digest.hexdigest())


def _nodes(about: Any, inputs: list[int], known: list[Node], weights: dict[str, Array], num: Outward) -> list[Node]:
    """The nodes of an entry of the description: one, but two for an average pool."""
    kind, settings, shape = about["kind"], about["settings"], tuple(about["shape"])
    before, option, node = known[inputs[0]].shape, settings.get, Node(kind, inputs, shape)
    constant, bias = (weights.get(name, num.numbers(option("number", 0.0))) for name in ("constant", "bias"))
    entries = lambda value: np.broadcast_to(value, shape).ravel()  # noqa: E731
    channels = lambda value: entries(value.reshape(-1, *[1] * (len(shape) - 1)))  # noqa: E731
    if kind in ("relu", "reshape", "batch_norm", "scale", "shift", "add"):
        require(all(known[place].size == node.size for place in inputs), f"a {kind} does not fit its shapes")
    if kind == "relu":
        node.leak = option("slope")
        require(0 <= node.leak <= 1, "the slope of a leaky ReLU must lie between 0 and 1")
    elif kind == "linear":
        require(weights["weight"].shape == (*shape, *before), "a matrix does not fit its shapes")
        _linear(node, _matrix, weights["weight"], entries(bias), np.abs(entries(bias)), before[0])
        node.rows = lambda units: weights["weight"][units]
    elif kind == "conv2d":
        require(option("groups") == 1, "convolutions with groups are not known to this checker")
        _convolution(node, settings, weights["weight"], channels(bias), before)
    elif kind in ("avg_pool2d", "adaptive_avg_pool2d"):  # a convolution with ones, and a factor for every window
        kernel = option("kernel") or [n // count for n, count in zip(before[1:], option("size"), strict=True)]
        windows = {"stride": kernel, "padding": (0, 0), "count_include_pad": True} | settings | {"kernel": kernel}
        even = option("kernel") or [k * n for k, n in zip(kernel, option("size"), strict=True)] == list(before[1:])
        usual = even and not windows.get("divisor") and not windows.get("ceil_mode")
        require(usual, "average pools with uneven windows or a divisor of their own are not known to this checker")
        ones = num.numbers(np.eye(before[0])[:, :, None, None] * np.ones(kernel))
        _convolution(node, windows, ones, entries(bias), before)
        counts = (_windows(windows, shape, (1, *before[1:])) >= 0).sum(1)
        counts = np.full(len(counts), math.prod(kernel)) if windows["count_include_pad"] else counts
        mean = Node("scale", [len(known)], shape)
        _linear(mean, _factors, 1 / num.numbers(np.tile(counts, before[0])))
        return [node, mean]
    elif kind == "batch_norm":
        require(not num.exact, "batch norm has square roots, which are no rational numbers")
        factor = channels(weights.get("weight", np.ones(1)) / np.sqrt(weights["var"] + option("eps")))
        require(((np.abs(factor) > 1e-30) | (factor == 0)).all(), "a factor of a batch norm is too small, or no number")
        shift, mean = channels(bias), channels(weights["mean"]) * factor
        _linear(node, _factors, factor, shift - mean, np.abs(shift) + np.abs(mean))
    elif kind == "scale":
        _linear(node, _factors, entries(1 / constant if option("divide") else constant))
    elif kind == "shift":
        node.bias, node.bias_size, node.terms = option("sign") * entries(constant), np.abs(entries(constant)), 8
    elif kind == "add":
        require(
            set(option("signs")) <= {1, -1} and len(option("signs")) == len(inputs), "a sum does not fit its inputs"
        )
        _linear(node, _signed, np.array(option("signs")))
    elif kind != "reshape":
        raise Refused(f"layers of the kind {kind} are not known to this checker")
    return [node]


def _linear(
    node: Node, make: Callable[[Any], Map], weight: Any, bias: Any = 0, bias_size: Any = 0, terms: int = 8
) -> None:
    """Make a node an affine map; computed weights count as some more rounded products, 8 suffice."""
    node.map, node.sizes, node.terms = make(weight), make(np.abs(weight)), terms
    node.bias, node.bias_size = bias, bias_size


def _matrix(weight: Array) -> Map:
    return lambda z: z @ weight.T, lambda rows: [rows @ weight]


def _factors(factor: Array) -> Map:
    return lambda z: z * factor, lambda rows: [rows * factor]


def _signed(signs: Array) -> Map:
    return lambda *z: sum(s * a for s, a in zip(signs, z, strict=True)), lambda rows: [s * rows for s in signs]


def _convolution(node: Node, settings: Any, weight: Array, bias: Any, before: tuple[int, ...]) -> None:
    """Windows of the image times the filters; the adjoint adds windows up again, tap by tap."""
    require(weight.shape[:2] == (node.shape[0], before[0]), "a convolution does not fit its shapes")
    windows = _windows(settings | {"kernel": weight.shape[2:]}, node.shape, before)
    filters, count = weight.reshape(len(weight), -1), math.prod(before)

    def sliding(flat: Array) -> Map:
        def apply(z: Array) -> Array:
            padded = np.concatenate([z, z[:, :1] * 0], axis=1)
            return (flat @ padded[:, windows].transpose(0, 2, 1)).reshape(len(z), -1)

        def back(rows: Array) -> list[Array]:
            across = rows.reshape(len(rows), len(flat), -1).transpose(1, 2, 0).reshape(len(flat), -1)
            image = np.zeros((count + 1, len(rows)), dtype=rows.dtype)
            for tap, units in zip((flat.T @ across).reshape(-1, len(windows), len(rows)), windows.T, strict=True):
                image[units] += (
                    tap  # no two windows share an entry at the same tap; the last entry is outside the image
                )
            return [np.ascontiguousarray(image[:-1].T)]

        return apply, back

    def rows(units: Array) -> Array:
        found, (which, at) = np.zeros((len(units), count + 1), dtype=filters.dtype), np.divmod(units, len(windows))
        found[np.arange(len(units))[:, None], windows[at]] = filters[which]
        return found[:, :-1]

    _linear(node, sliding, filters, bias, np.abs(bias), filters.shape[1])
    node.rows = rows


def _windows(settings: Any, shape: tuple[int, ...], before: tuple[int, ...]) -> Array:
    """The entries that every position of an image of a shape sees, channel by channel: (positions, k), -1 outside the image."""
    places = []
    for axis in (0, 1):
        step, pad, spread = (
            o[axis] for o in (settings["stride"], settings["padding"], settings.get("dilation", (1, 1)))
        )
        kernel, size = settings["kernel"][axis], before[1 + axis]
        last = (size + 2 * pad - spread * (kernel - 1) - 1) / step
        count = math.ceil(last) if settings.get("ceil_mode") else math.floor(last)
        count -= count * step >= size + pad  # with ceil_mode: no window begins behind the image
        require(len(shape) == 3 and count + 1 == shape[1 + axis] > 0, "windows do not fit the image")
        places.append(np.arange(shape[1 + axis])[:, None] * step - pad + np.arange(kernel) * spread)
    i, j = places[0][:, None, None, :, None], places[1][None, :, None, None, :]
    inside = (i >= 0) & (i < before[1]) & (j >= 0) & (j < before[2])
    found = np.where(inside, (np.arange(before[0])[:, None, None] * before[1] + i) * before[2] + j, -1)
    return found.reshape(shape[1] * shape[2], -1)
