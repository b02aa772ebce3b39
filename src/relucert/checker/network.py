"""The network of a checkpoint: nodes in order, each a ReLU or an affine map of earlier nodes, on flat vectors.

A checkpoint is a safetensors file: eight bytes with the length of a JSON header, the header, and the tensors' bytes. Its
metadata describe the nodes. Weights are read as they are stored, and float32 numbers are exact in float64.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from relucert.checker.arithmetic import Array, Outward, Rational, Refused, require

DTYPES = {"F32": "float32", "F64": "float64"}


@dataclass(eq=False)
class Node:
    """The input, a ReLU max(z, leak z), or factor * filters (sum of sign * z) + bias, where None is left out.

    Row i of `windows` lists the entries (-1: none) that the filters see for position i of an image; a matrix has one position.
    `bias_size` bounds the terms that the bias is computed from, `width` is the size of each input.
    """

    kind: str
    inputs: list[int]
    shape: tuple[int, ...]
    width: int = 0
    leak: Any = 0
    signs: Any = (1,)
    filters: Any = None
    windows: Any = None
    factor: Any = None
    bias: Any = 0
    bias_size: Any = 0

    def __post_init__(self) -> None:
        self.size: int = math.prod(self.shape)
        self.absolute: Any = None if self.filters is None else np.abs(self.filters)
        self.relu, self.matrix = (self.kind == kind for kind in ("relu", "linear"))
        #: Whether values are numbers of the inputs, without rounding; the length of their sums, and room for factor and bias.
        self.exact = self.kind in ("input", "reshape") or (self.relu and self.leak in (0, 1))
        self.terms = len(self.inputs) + 8 + (0 if self.filters is None else self.filters.shape[1])

    def value(self, *inputs: Array, sizes: bool = False) -> Array:
        """Rows of values, an argument for each input; with `sizes` sums of absolute products, without the bias."""
        if self.relu:
            return self.leak * inputs[0] if sizes else np.maximum(inputs[0], self.leak * inputs[0])
        parts = [z if sizes or sign == 1 else sign * z for sign, z in zip(self.signs, inputs, strict=True)]
        z = sum(parts[1:], parts[0])
        if self.filters is not None:
            seen = np.concatenate([z, z[:, :1] * 0], axis=1)[:, self.windows]
            values = seen.reshape(-1, seen.shape[2]) @ (self.absolute if sizes else self.filters).T
            z = values.reshape(*seen.shape[:2], -1).transpose(0, 2, 1).reshape(len(z), -1)
        z = z if self.factor is None else z * (np.abs(self.factor) if sizes else self.factor)
        return z if sizes else z + self.bias

    def adjoint(self, rows: Array) -> list[Array]:
        """Functionals of the values as functionals of each input."""
        rows = rows if self.factor is None else rows * self.factor
        if self.matrix:
            used = (rows != 0).any(axis=0)
            rows = rows[:, used] @ self.filters[used]
        elif self.filters is not None:
            across = rows.reshape(len(rows), len(self.filters), -1).transpose(1, 2, 0).reshape(len(self.filters), -1)
            taps = (self.filters.T @ across).reshape(-1, len(self.windows), len(rows))
            image = np.zeros((self.width + 1, len(rows)), dtype=rows.dtype)
            for tap, entries in zip(taps, self.windows.T, strict=True):
                image[entries] += tap  # no two windows share an entry at a tap, but for the last, which is outside
            rows = np.ascontiguousarray(image[:-1].T)
        return [rows if sign == 1 else sign * rows for sign in self.signs]

    def rows(self, units: Array) -> Array | None:
        """Rows of the matrix of a layer with weights, which takes no product."""
        if self.kind not in ("linear", "conv2d"):
            return None
        if self.matrix:
            return self.filters[units]
        which, at = np.divmod(units, len(self.windows))
        found = np.zeros((len(units), self.width + 1), dtype=self.filters.dtype)
        found[np.arange(len(units))[:, None], self.windows[at]] = self.filters[which]
        return found[:, :-1]


@dataclass(eq=False)
class Network:
    """The nodes, the dtype of the weights, the digest of description and weights, and how much layers can stretch."""

    nodes: list[Node]
    dtype: str
    digest: str
    norms: dict[int, Any] = field(default_factory=dict)

    @property
    def relus(self) -> dict[int, int]:
        """The positions of all ReLUs, and their sizes."""
        return {place: node.size for place, node in enumerate(self.nodes) if node.relu}


def read(path: str | Path, num: Outward) -> Network:
    """The network of a checkpoint."""
    data, tensors = Path(path).read_bytes(), {}
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    require(metadata.get("format") == "relucert-network", f"{path} is not a checkpoint of relucert")
    for name, entry in header.items():
        dtype, (low, high) = entry["dtype"], (start + place for place in entry["data_offsets"])
        require(dtype in DTYPES, f"tensor {name} has dtype {dtype}, which is not known to this checker")
        tensors[name] = np.frombuffer(data[low:high], DTYPES[dtype]).reshape(entry["shape"])
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
            nodes.append(_node(about, [len(nodes) - 1], nodes, {"constant": num.numbers(tensors[name])}, num))
    first = len(nodes) - 1
    for place, entry in enumerate(network["nodes"][1:], 1):
        weights = {role: num.numbers(tensors[name]) for role, name in entry["tensors"].items()}
        require(all(0 <= source < place for source in entry["inputs"]), "a node reads a later node")
        nodes.append(_node(entry, [first + source for source in entry["inputs"]], nodes, weights, num))
    return Network(nodes, dtypes.pop(), digest.hexdigest())


def _node(about: Any, inputs: list[int], known: list[Node], weights: dict[str, Array], num: Outward) -> Node:
    """The node of an entry of the description."""
    kind, option, shape, before = about["kind"], about["settings"], tuple(about["shape"]), known[inputs[0]].shape
    constant, bias = (weights.get(name, num.numbers(option.get("number", 0.0))) for name in ("constant", "bias"))
    entries = lambda value: np.broadcast_to(value, shape).ravel()  # noqa: E731
    channels = lambda value: entries(value.reshape(-1, *[1] * (len(shape) - 1)))  # noqa: E731
    require(len(inputs) == 1 or kind == "add", f"a {kind} has one input")
    same, found = all(known[place].size == math.prod(shape) for place in inputs), {}
    require(
        same or kind in ("linear", "conv2d", "avg_pool2d", "adaptive_avg_pool2d"), f"a {kind} does not fit its shapes"
    )
    if kind == "relu":
        found = {"leak": num.numbers(option["slope"])[()]}
        require(0 <= found["leak"] <= 1, "the slope of a leaky ReLU must lie between 0 and 1")
    elif kind == "linear":
        require(weights["weight"].shape == (*shape, *before), "a matrix does not fit its shapes")
        found = {"filters": weights["weight"], "windows": np.arange(before[0])[None], "bias": entries(bias)}
    elif kind == "conv2d":
        filters = weights["weight"]
        require(option["groups"] == 1, "convolutions with groups are not known to this checker")
        require(filters.shape[:2] == (shape[0], before[0]), "a convolution does not fit its shapes")
        windows = _windows(option | {"kernel": filters.shape[2:]}, shape, before)
        found = {"filters": filters.reshape(len(filters), -1), "windows": windows, "bias": channels(bias)}
    elif kind in ("avg_pool2d", "adaptive_avg_pool2d"):  # ones for filters, and a factor for every window
        if kind != "avg_pool2d":
            kernel = [n // count for n, count in zip(before[1:], option["size"], strict=True)]
            even = [k * count for k, count in zip(kernel, option["size"], strict=True)] == list(before[1:])
            require(even, "average pools with uneven windows are not known to this checker")
            option = {"kernel": kernel, "stride": kernel, "padding": (0, 0), "count_include_pad": True}
        usual = not option.get("divisor") and not option.get("ceil_mode") and shape[0] == before[0]
        require(usual, "average pools with a rim or a divisor of their own are not known to this checker")
        windows, whole = _windows(option, shape, before), math.prod(option["kernel"])
        counts = (
            np.sum(windows >= 0, 1) // before[0] if not option["count_include_pad"] else np.full(len(windows), whole)
        )
        filters = num.numbers(np.repeat(np.eye(before[0]), whole, 1))
        found = {"filters": filters, "windows": windows, "factor": 1 / num.numbers(np.tile(counts, before[0]))}
    elif kind == "batch_norm":
        require(not isinstance(num, Rational), "batch norm has square roots, which are no rational numbers")
        factor = channels(weights.get("weight", np.ones(1)) / np.sqrt(weights["var"] + option["eps"]))
        require(((np.abs(factor) > 1e-30) | (factor == 0)).all(), "a factor of a batch norm is too small, or no number")
        shift, mean = channels(bias), channels(weights["mean"]) * factor
        found = {"factor": factor, "bias": shift - mean, "bias_size": np.abs(shift) + np.abs(mean)}
    elif kind == "scale":
        found = {"factor": entries(1 / constant if option["divide"] else constant)}
    elif kind == "shift":
        found = {"bias": option["sign"] * entries(constant)}
    elif kind == "add":
        found = {"signs": option["signs"]}
        require({1, -1} >= set(found["signs"]) and len(found["signs"]) == len(inputs), "a sum does not fit its inputs")
    elif kind != "reshape":
        raise Refused(f"layers of the kind {kind} are not known to this checker")
    found = {"bias": num.numbers(np.zeros(math.prod(shape)))} | found
    return Node(kind, inputs, shape, math.prod(before), **{"bias_size": np.abs(found["bias"])} | found)


def _windows(option: Any, shape: tuple[int, ...], before: tuple[int, ...]) -> Array:
    """The entries that every position of an image of a shape sees, channel by channel: (positions, k), -1 outside the image."""
    pad, spread, step = [(0, 0), *((n, n) for n in option["padding"])], option.get("dilation", (1, 1)), option["stride"]
    image = np.pad(np.arange(math.prod(before)).reshape(before), pad, constant_values=-1)
    spans = [d * (k - 1) + 1 for d, k in zip(spread, option["kernel"], strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(image, spans, axis=(1, 2))  # type: ignore[call-overload]
    seen = seen[:, :: step[0], :: step[1], :: spread[0], :: spread[1]]
    require(seen.shape[1:3] == shape[1:] and min(step) > 0, "windows do not fit the image")
    return seen.transpose(1, 2, 0, 3, 4).reshape(-1, len(image) * math.prod(option["kernel"]))
