"""A network as JSON and tensors, and back: no pickles, and none of the code that defined it.

`describe` lists the nodes of the graph with their numbers and the names of their tensors; `rebuild` makes a module of
ordinary torch layers from such a list. The description is of the network as it is evaluated: dropout is not in it, batch
norm keeps its running statistics and can be trained on.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from relucert.core.errors import CheckpointError
from relucert.networks.layers.family import Restored
from relucert.networks.layers.table import restoring
from relucert.networks.network import Network


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
        module = Rebuilt(description, tensors)
        net = Network(module, description["input_shape"], tensors.get("mean"), tensors.get("std"))
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"the description of the network does not fit its tensors: {error}") from error
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

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for layer, inputs in zip(self.layers, self.inputs, strict=True):
            values.append(layer(*(values[i] for i in inputs)))
        return values[-1]
