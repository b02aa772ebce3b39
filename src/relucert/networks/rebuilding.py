"""A network as JSON and tensors, and back: no pickles, and none of the code that defined it.

`describe` lists the nodes of the graph with their numbers and the names of their tensors; `rebuild` makes a module of
ordinary torch layers from such a list. The description is of the network as it is evaluated: dropout is not in it, batch
norm keeps its running statistics and can be trained on.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relucert.core.errors import CheckpointError
from relucert.networks.affine import Affine
from relucert.networks.network import Network


def describe(net: Network) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The nodes of a network as JSON, and its tensors by name."""
    names: dict[tuple[int, str], str] = {}
    tensors: dict[str, Tensor] = {}
    trainable: list[str] = []
    nodes: list[dict[str, Any]] = []
    place: dict[int, int] = {}  # the input normalisation is said by mean and std, not by nodes
    for node in net.graph:  # lists the nodes; no value is propagated
        sources = node.op.sources() if isinstance(node.op, Affine) else {}
        if any(source.owner is net for source in sources.values()):
            place[node.index] = place[node.inputs[0]]
            continue
        place[node.index] = len(nodes)
        used = {}
        for role, source in sources.items():
            identity = (id(source.owner), source.name)
            if identity not in names:  # tied weights are one tensor with one name
                names[identity] = f"{len(nodes)}.{role}"
                tensors[names[identity]] = source.value.detach().cpu().contiguous()
                if isinstance(source.value, nn.Parameter) or source.value.requires_grad:
                    trainable.append(names[identity])
            used[role] = names[identity]
        entry: dict[str, Any] = {
            "kind": node.kind,
            "inputs": [place[i] for i in node.inputs],
            "shape": list(node.shape),
        }
        if node.op is not None:
            entry |= {"settings": _plain(node.op.settings()), "tensors": used}
        nodes.append(entry)
    for name, value in (("mean", net.mean), ("std", net.std)):
        if value is not None:
            tensors[name] = value.detach().cpu().contiguous()
    return {"input_shape": list(net.input_shape), "nodes": nodes, "trainable": trainable}, tensors


def rebuild(description: dict[str, Any], tensors: dict[str, Tensor]) -> Network:
    """The network of a description."""
    try:
        module = Rebuilt(description, tensors)
        net = Network(module, description["input_shape"], tensors.get("mean"), tensors.get("std"))
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"the description of the network does not fit its tensors: {error}") from error
    return net.eval()


def _plain(settings: dict[str, object]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


class Rebuilt(nn.Module):
    """The layers of a description, run in its order."""

    def __init__(self, description: dict[str, Any], tensors: dict[str, Tensor]):
        super().__init__()
        trainable = set(description["trainable"])
        owned = {
            name: nn.Parameter(value.clone()) if name in trainable else value.clone() for name, value in tensors.items()
        }
        self.layers = nn.ModuleList()
        self.inputs: list[list[int]] = []
        for entry in description["nodes"][1:]:
            weights = {role: owned[name] for role, name in entry["tensors"].items()}
            shapes = [description["nodes"][i]["shape"] for i in entry["inputs"]]
            if entry["kind"] not in LAYERS:
                raise CheckpointError(f"unknown kind of layer {entry['kind']!r}; known are {', '.join(LAYERS)}")
            self.layers.append(LAYERS[entry["kind"]](entry, weights, shapes))
            self.inputs.append(entry["inputs"])

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for layer, inputs in zip(self.layers, self.inputs, strict=True):
            values.append(layer(*(values[i] for i in inputs)))
        return values[-1]


def _place(layer: nn.Module, weights: dict[str, Tensor], names: dict[str, str] | None = None) -> nn.Module:
    """Put tensors into a layer: parameters as parameters, others as buffers."""
    for role, value in weights.items():
        name = (names or {}).get(role, role)
        delattr(layer, name)
        if isinstance(value, nn.Parameter):
            layer.register_parameter(name, value)
        else:
            layer.register_buffer(name, value)
    return layer


def _linear(entry: dict[str, Any], weights: dict[str, Tensor], shapes: list[list[int]]) -> nn.Module:
    rows, columns = weights["weight"].shape
    return _place(nn.Linear(columns, rows, bias="bias" in weights, device="meta"), weights)


def _conv2d(entry: dict[str, Any], weights: dict[str, Tensor], shapes: list[list[int]]) -> nn.Module:
    rows, columns, *kernel = weights["weight"].shape
    groups = entry["settings"]["groups"]
    conv = nn.Conv2d(
        columns * groups,
        rows,
        (kernel[0], kernel[1]),
        stride=tuple(entry["settings"]["stride"]),
        padding=tuple(entry["settings"]["padding"]),
        dilation=tuple(entry["settings"]["dilation"]),
        groups=groups,
        bias="bias" in weights,
        device="meta",
    )
    return _place(conv, weights)


def _batch_norm(entry: dict[str, Any], weights: dict[str, Tensor], shapes: list[list[int]]) -> nn.Module:
    kind = nn.BatchNorm2d if len(shapes[0]) == 3 else nn.BatchNorm1d
    eps = entry["settings"]["eps"]
    layer = kind(shapes[0][0], eps=eps, affine="weight" in weights or "bias" in weights)
    for role in {"weight", "bias"} - set(weights):
        layer.register_parameter(role, None)
    return _place(layer, weights, {"mean": "running_mean", "var": "running_var"})


class Shift(nn.Module):
    """`z + c` or `z - c`."""

    constant: Tensor | float

    def __init__(self, constant: Tensor | float, sign: int):
        super().__init__()
        _hold(self, constant)
        self.sign = sign

    def forward(self, z: Tensor) -> Tensor:
        return z + self.constant if self.sign > 0 else z - self.constant


class Scale(nn.Module):
    """`z c` or `z / c`."""

    constant: Tensor | float

    def __init__(self, constant: Tensor | float, divide: bool):
        super().__init__()
        _hold(self, constant)
        self.divide = divide

    def forward(self, z: Tensor) -> Tensor:
        return z / self.constant if self.divide else z * self.constant


def _hold(layer: nn.Module, constant: Tensor | float) -> None:
    if isinstance(constant, Tensor) and not isinstance(constant, nn.Parameter):
        layer.register_buffer("constant", constant)
    else:
        layer.constant = constant  # type: ignore[assignment]


class Mean(nn.Module):
    """The mean over some axes."""

    def __init__(self, axes: list[int], keepdim: bool):
        super().__init__()
        self.axes, self.keepdim = [axis + 1 for axis in axes], keepdim

    def forward(self, z: Tensor) -> Tensor:
        return z.mean(self.axes, keepdim=self.keepdim)


class Pad(nn.Module):
    """Zero padding."""

    def __init__(self, padding: list[int]):
        super().__init__()
        self.padding = padding

    def forward(self, z: Tensor) -> Tensor:
        return F.pad(z, self.padding)


class Reshape(nn.Module):
    """The same numbers in another shape."""

    def __init__(self, shape: list[int]):
        super().__init__()
        self.shape = shape

    def forward(self, z: Tensor) -> Tensor:
        return z.reshape(z.size(0), *self.shape)


class Permute(nn.Module):
    """The axes in another order."""

    def __init__(self, axes: list[int]):
        super().__init__()
        self.axes = [axis + 1 for axis in axes]

    def forward(self, z: Tensor) -> Tensor:
        return z.permute(0, *self.axes)


class Add(nn.Module):
    """A sum with signs."""

    def __init__(self, signs: list[int]):
        super().__init__()
        self.signs = signs

    def forward(self, *values: Tensor) -> Tensor:
        first, second = values
        return first + second if self.signs[1] > 0 else first - second


class Concat(nn.Module):
    """Values side by side."""

    def __init__(self, axis: int):
        super().__init__()
        self.axis = axis + 1

    def forward(self, *values: Tensor) -> Tensor:
        return torch.cat(values, self.axis)


class Gather(nn.Module):
    """Some entries of the value."""

    index: Tensor

    def __init__(self, index: Tensor):
        super().__init__()
        self.register_buffer("index", index)

    def forward(self, z: Tensor) -> Tensor:
        return z.flatten(1)[:, self.index]


def _avg_pool(entry: dict[str, Any], weights: dict[str, Tensor], shapes: list[list[int]]) -> nn.Module:
    given = entry["settings"]
    return nn.AvgPool2d(
        tuple(given["kernel"]),
        tuple(given["stride"]),
        tuple(given["padding"]),
        given["ceil_mode"],
        given["count_include_pad"],
        given["divisor"],
    )


def _max_pool(entry: dict[str, Any], weights: dict[str, Tensor], shapes: list[list[int]]) -> nn.Module:
    given = entry["settings"]
    return nn.MaxPool2d(
        tuple(given["kernel"]),
        tuple(given["stride"]),
        tuple(given["padding"]),
        tuple(given["dilation"]),
        ceil_mode=given["ceil_mode"],
    )


def _relu(entry: dict[str, Any], weights: dict[str, Tensor], shapes: list[list[int]]) -> nn.Module:
    slope = entry["settings"]["slope"]
    return nn.LeakyReLU(slope) if slope else nn.ReLU()


def _constant(entry: dict[str, Any], weights: dict[str, Tensor]) -> Tensor | float:
    return weights["constant"] if "constant" in weights else float(entry["settings"]["number"])


LAYERS = {
    "linear": _linear,
    "conv2d": _conv2d,
    "batch_norm": _batch_norm,
    "avg_pool2d": _avg_pool,
    "adaptive_avg_pool2d": lambda entry, weights, shapes: nn.AdaptiveAvgPool2d(tuple(entry["settings"]["size"])),
    "max_pool2d": _max_pool,
    "relu": _relu,
    "shift": lambda entry, weights, shapes: Shift(_constant(entry, weights), entry["settings"]["sign"]),
    "scale": lambda entry, weights, shapes: Scale(_constant(entry, weights), entry["settings"]["divide"]),
    "mean": lambda entry, weights, shapes: Mean(entry["settings"]["axes"], entry["settings"]["keepdim"]),
    "pad": lambda entry, weights, shapes: Pad(entry["settings"]["padding"]),
    "reshape": lambda entry, weights, shapes: Reshape(entry["settings"]["out_shape"]),
    "permute": lambda entry, weights, shapes: Permute(entry["settings"]["axes"]),
    "add": lambda entry, weights, shapes: Add(entry["settings"]["signs"]),
    "concat": lambda entry, weights, shapes: Concat(entry["settings"]["axis"]),
    "gather": lambda entry, weights, shapes: Gather(weights["index"]),
}
