"""A network as JSON and tensors, and back: no pickles, and none of the code that defined it.

`describe` lists the nodes of the graph with their numbers and the names of their tensors; `rebuild` makes a module of
ordinary torch layers from such a list. The description is of the network as it is evaluated: dropout is not in it, batch
norm keeps its running statistics and can be trained on.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from relucert.core.errors import CheckpointError, InvalidInput
from relucert.networks.build._description import check_description
from relucert.networks.layers.family import Restored
from relucert.networks.layers.table import restoring
from relucert.networks.network import Network

#: Layers whose shapes are checked by running them, in networks whose values and constants have at most so many entries: what
#: torch needs for shapes without numbers takes a second to import.
PLAIN, LIGHT = frozenset({"input", "linear", "relu", "reshape", "shift"}), 2**12


def describe(net: Network) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The nodes of a network as JSON, and its tensors by name."""
    names: dict[tuple[int, str, str], str] = {}
    tensors: dict[str, Tensor] = {}
    trainable: list[str] = []
    nodes: list[dict[str, Any]] = []
    place: dict[int, int] = {}  # the input normalisation is said by mean and std, not by nodes
    for node in net.graph:  # lists the nodes; no value is propagated
        sources = {} if node.op is None else node.op.sources()
        if any(source.owner is net for source in sources.values()):
            place[node.index] = place[node.inputs[0]]
            continue
        place[node.index] = len(nodes)
        used = {}
        for role, source in sources.items():
            identity = source.identity
            if identity not in names:  # tied weights are one tensor with one name
                names[identity] = f"{len(nodes)}.{role}"
                tensors[names[identity]] = source.value.detach().cpu().contiguous()
                if source.trainable:
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
    description = {"input_shape": list(net.input_shape), "nodes": nodes, "trainable": trainable}
    return description | ({"box": None} if net.box is None else {}), tensors


def rebuild(description: dict[str, Any], tensors: dict[str, Tensor]) -> Network:
    """The network of a description."""
    try:
        check_description(description, tensors)
        module = Rebuilt(description, tensors)
        module.check_shapes(description)
        net = Network(module, description["input_shape"], tensors.get("mean"), tensors.get("std"))
    except MemoryError:
        raise
    except Exception as error:  # torch's layers raise many kinds of errors for wrong numbers
        raise CheckpointError(
            f"the description of the network does not fit its tensors: {error}", entry="description"
        ) from error
    if "box" in description:
        net.box = None
    return net.eval()


def _plain(settings: dict[str, object]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


class Rebuilt(nn.Module):
    """The layers of a description, run in its order."""

    def __init__(self, description: dict[str, Any], tensors: dict[str, Tensor]):
        super().__init__()
        known = restoring()
        trainable = set(description["trainable"])
        owned = {
            name: nn.Parameter(value.clone()) if name in trainable else value.clone() for name, value in tensors.items()
        }
        self.layers = nn.ModuleList()
        self.inputs: list[list[int]] = []
        for entry in description["nodes"][1:]:
            weights = {role: owned[name] for role, name in entry["tensors"].items()}
            shapes = [description["nodes"][i]["shape"] for i in entry["inputs"]]
            if entry["kind"] not in known:
                raise CheckpointError(f"unknown kind of layer {entry['kind']!r}; known are {', '.join(known)}")
            self.layers.append(known[entry["kind"]](Restored(entry["settings"], weights, shapes)))
            self.inputs.append(entry["inputs"])

    @torch.no_grad()
    def check_shapes(self, description: dict[str, Any]) -> None:
        """Raise unless every layer makes the shape that the description says; large networks are not computed."""
        shapes = [tuple(entry["shape"]) for entry in description["nodes"]]
        training = self.training
        self.eval()
        device = self._device(description)
        values = [torch.zeros(2, *shapes[0], device=device)]
        for place, (layer, inputs) in enumerate(zip(self.layers, self.inputs, strict=True), 1):
            held = {name: value.to(device) for name, value in (*layer.named_parameters(), *layer.named_buffers())}
            value = functional_call(layer, held, tuple(values[i].to(_dtype(held)) for i in inputs))
            if tuple(value.shape) != (2, *shapes[place]):
                raise InvalidInput(f"node {place} must have shape {shapes[place]}, got {tuple(value.shape[1:])}")
            values.append(value)
        self.train(training)

    def _device(self, description: dict[str, Any]) -> str:
        """Where shapes are checked: on the CPU where that takes next to nothing, else without numbers."""
        entries = description["nodes"]
        plain = all(entry["kind"] in PLAIN and math.prod(entry["shape"]) <= LIGHT for entry in entries)
        shifts = [layer for entry, layer in zip(entries[1:], self.layers, strict=True) if entry["kind"] == "shift"]
        sizes = [value.numel() for layer in shifts for value in layer.buffers()]
        sizes += [value.numel() for layer in shifts for value in layer.parameters()]
        return "cpu" if plain and all(size <= LIGHT for size in sizes) else "meta"

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for layer, inputs in zip(self.layers, self.inputs, strict=True):
            values.append(layer(*(values[i] for i in inputs)))
        return values[-1]


def _dtype(held: dict[str, Tensor]) -> torch.dtype:
    """The dtype of a layer's numbers."""
    return next((value.dtype for value in held.values() if value.is_floating_point()), torch.float32)
